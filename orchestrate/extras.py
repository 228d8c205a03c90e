"""What training needs and an installation for controlling alone lacks."""

from __future__ import annotations

import importlib.util

NEEDED = ("tensorflow", "keras")
"""Modules of the extras `cpu` and `cuda`."""


def missing_extra() -> str | None:
    """Return what to install before this machine can measure; None: nothing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return (
        f"this Python has no {', '.join(missing)}, so it cannot measure. "
        "Install tfbench[cuda] on a machine with an NVIDIA GPU, else tfbench[cpu]"
    )
