"""Code shared by tests: engines, controllers, fakes."""

import fcntl
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).parents[2]
"""This checkout."""


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write texts by their paths below a folder."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def write_program(path: Path, text: str) -> Path:
    """Write a script that can be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def locked(file: IO[str]) -> bool:
    """Try to lock a file; False: another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
