"""The installation: where sources and `containers/` are (checkout, editable install, wheel), and what it lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PROJECT = Path(__file__).parents[1]
"""The checkout, or `site-packages`: the packages `tfbench` and `results` are in it."""


def containers_folder() -> Path:
    """Return the folder with Dockerfiles, `images.toml`, locks and files for renting.

    A wheel has it inside of this package, because `site-packages/containers` could be anybody's.
    """
    installed = Path(__file__).parent / "containers"
    return installed if (installed / "images.toml").is_file() else PROJECT / "containers"


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
