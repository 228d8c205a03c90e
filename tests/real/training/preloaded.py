"""What forks (`forks.py`) and tests that train find imported: the process that they are forks of imports this module once."""

import os
import sys
from types import ModuleType
from typing import cast

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiling takes longer than training here
sys.modules.setdefault("pandas", cast(ModuleType, None))  # as tfbench does

import tfbench.repeat  # noqa: E402, F401
