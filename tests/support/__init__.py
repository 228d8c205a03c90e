"""Code shared by tests: engines, controllers, fakes."""

from pathlib import Path

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
