"""Writes files of a fake machine."""

from __future__ import annotations

from pathlib import Path


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write texts by their paths below a folder."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
