"""`environment:` of `hosts.yml`: variables that every benchmark of a host gets, whatever starts it.

Only those that a record keeps as part of what was measured (`_VARIABLES` in tfbench/environment.py) can be given, and
none that says more than its value does: two records with the same variables were measured alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrate.text import shown

ALLOWED = "NCCL_… and XLA_FLAGS"

MAX_VALUE_LENGTH = 500
"""Of what a record keeps of a value."""

_NAME = re.compile(r"NCCL_[A-Z0-9_]{1,100}|XLA_FLAGS")
_VALUE = re.compile(rf"[ -~]{{0,{MAX_VALUE_LENGTH}}}")

_INSTEAD = {
    "CUDA_VISIBLE_DEVICES": "use gpus:",
    "NVIDIA_VISIBLE_DEVICES": "use gpus:",
    "TF_CONFIG": "put the hosts into one fleet and set num_hosts in a suite",
    "TF_XLA_FLAGS": "use xla: in a suite",
    "NVIDIA_TF32_OVERRIDE": "use precision: tf32 or fp32 in a suite",
    "NCCL_CONF_FILE": "list its variables here",
}


def environment_problems(given: Mapping[Any, object]) -> list[tuple[str, str]]:
    """Check the variables of one level; what types alone can refuse is not judged again.

    Args:
        given: As it stands in the document.

    Returns:
        Name and mistake, with a remedy.
    """
    problems = []
    for name, value in given.items():
        if not isinstance(name, str):
            continue
        if why := _refusal(name):
            problems.append((name, why))
        elif isinstance(value, str) and not _VALUE.fullmatch(value):
            what = f"must be at most {MAX_VALUE_LENGTH} printable ASCII characters"
            problems.append((name, f"{what}. Received: {shown(value)}. Example: NCCL_DEBUG: INFO"))
    return problems


def _refusal(name: str) -> str | None:
    """Say why a variable cannot be given; None: it can."""
    if name in _INSTEAD:
        return f"cannot be set here: {_INSTEAD[name]} instead. Remove it"
    if not _NAME.fullmatch(name):
        return f"cannot be set here: only {ALLOWED} can, because a record keeps them. Remove it"
    if name.endswith("_FILE"):
        return "names a file, whose contents a record would not keep. Remove it"
    return None


def merge_environments(*levels: Mapping[str, str | int] | None) -> dict[str, str]:
    """Join the variables of all levels, sorted by name; the innermost value of each wins."""
    merged = {name: str(value) for level in levels for name, value in (level or {}).items()}
    return dict(sorted(merged.items()))


def shown_environment(environment: Mapping[str, str]) -> str:
    """Write variables as `NAME=value NAME=value`."""
    return " ".join(f"{name}={value}" for name, value in environment.items())
