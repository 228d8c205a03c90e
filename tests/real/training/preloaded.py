"""What ranks (`ranks.py`) and tests that train find imported: the process that they are forks of imports this module once."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

sys.modules.setdefault("pandas", cast(ModuleType, None))  # as tfbench does

import tfbench.repeat  # noqa: E402, F401
