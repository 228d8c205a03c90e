"""Paths of the sources and of `containers/` in a checkout, an editable install and a wheel, and our command lines."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

from results.program import PROGRAM, started_as_tfbench

PROJECT = Path(__file__).parents[1]
"""The checkout or `site-packages`, which contains the packages `tfbench` and `results`."""


def containers_folder() -> Path:
    """Return the folder with Dockerfiles, `images.toml`, locks and files for renting.

    In a wheel it is inside this package, because `site-packages/containers` could belong to another one.
    """
    installed = Path(__file__).parent / "containers"
    return installed if (installed / "images.toml").is_file() else PROJECT / "containers"


NEEDED = ("tensorflow", "keras")
"""Modules of the extras `cpu` and `cuda`."""


def missing_extra() -> str | None:
    """Return which packages to install so that this machine can run benchmarks, or None."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return (
        f"this Python has no {', '.join(missing)}, so it cannot measure. "
        "Install tfbench[cuda] on a machine with an NVIDIA GPU, else tfbench[cpu]"
    )


def own_module(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment that run a module of ours, also where a folder has its name."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-P", "-m", module, *arguments], {**os.environ, "PYTHONPATH": path}


def command_line(package: str, *words: object) -> str:
    """Return a command line that can be pasted: with the program as the user started it.

    Args:
        package: Package of the command: `orchestrate` or `results`.
        words: Its name and arguments, e.g. `show` and a path.
    """
    typed = Path(sys.argv[0])
    on_path = shutil.which(PROGRAM)
    if not started_as_tfbench():
        program = ["python", "-m", package]
    elif typed.name != PROGRAM or (on_path and os.path.realpath(on_path) == os.path.realpath(typed)):
        program = [PROGRAM]
    else:
        program = [str(typed)]
    return shlex.join([*program, *map(str, words)])
