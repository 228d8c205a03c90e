"""What ranks (`ranks.py`) and tests that train find imported: the process that they are forks of imports this module once."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import cast

# As tfbench does.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
sys.modules.setdefault("pandas", cast(ModuleType, None))

import tfbench.repeat  # noqa: E402, F401
