"""The wheel of this checkout, and an environment without the checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support import PROJECT

PACKAGES = ("orchestrate", "results", "tfbench", "containers")


def copy_source(copy: Path) -> Path:
    """Copy the sources of the wheel into an empty folder, and return it."""
    for package in PACKAGES:
        shutil.copytree(
            PROJECT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.crt")
        )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(PROJECT / name, copy / name)
    return copy


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel from a source tree or archive with the locked setuptools, without downloads."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, f"--wheel-dir={folder}", str(source)], cwd=folder, check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


def run_elsewhere(command: Sequence[object], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a folder outside the checkout."""
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**without_checkout(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def without_checkout() -> dict[str, str]:
    """Return an environment in which this checkout and its packages are not importable."""
    ours = ("PYTHON", "VIRTUAL_ENV", "TFBENCH_", "DOCKER_HOST")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"COLUMNS": "200"}
