"""What ranks find imported: the process that they are forks of imports this module once (`ranks.py`)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

sys.modules.setdefault("pandas", cast(ModuleType, None))  # as tfbench does

import tfbench.repeat  # noqa: E402, F401
