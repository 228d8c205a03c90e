"""The rooms of the code: folders of modules, and the table in ARCHITECTURE.md that says which may import which.

`make rooms` (`python -m tests.rooms`) writes the table's counts again; `tests/unit/test_architecture.py` enforces the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "ARCHITECTURE.md"

PACKAGES = ("tfbench", "orchestrate", "results")

TOOLS = {
    "results": {"__init__", "digits", "errors", "grid", "program", "stats", "text"},
    "orchestrate": {"__init__", "errors", "events", "extras", "text", "yaml_files"},
    "tfbench": {"__init__"},
}
"""Modules at the top of a package that every room of it may use; the others there are its door."""

NOT_OURS_TO_RUN = "orchestrate/containers"
"""What an image is built of: no module of ours imports it."""

ROW = re.compile(
    r"^\| `(?P<name>[^`]+)` \| (?P<files>\d+) \| (?P<lines>[\d,]+) \| (?P<holds>[^|]*) \| (?P<may>[^|]*) \|$", re.M
)


@dataclass(frozen=True)
class Room:
    """A row of the table.

    Attributes:
        name: A folder, or `PACKAGE (tools)` and `PACKAGE (door)` for what lies at the top of a package.
        files: Python files directly in it.
        lines: Lines of these files.
        holds: What is in it, for a reader.
        may_import: Names of other rooms.
    """

    name: str
    files: int
    lines: int
    holds: str
    may_import: frozenset[str]

    def row(self) -> str:
        may = ", ".join(f"`{name}`" for name in sorted(self.may_import)) or "nothing"
        return f"| `{self.name}` | {self.files} | {self.lines:,} | {self.holds} | {may} |"


def sources(root: Path) -> Iterator[Path]:
    """Yield the files that the rules are about."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if not path.relative_to(root).as_posix().startswith(f"{NOT_OURS_TO_RUN}/"):
                yield path


def room_of(root: Path, path: Path) -> str:
    """Name the room that a file lies in."""
    folder = path.relative_to(root).parent.as_posix()
    if folder not in PACKAGES:
        return folder
    return f"{folder} (tools)" if path.stem in TOOLS[folder] else f"{folder} (door)"


def read_table(text: str) -> list[Room]:
    """Read the table's rows, the lowest room first."""
    return [
        Room(
            name=row["name"],
            files=int(row["files"]),
            lines=int(row["lines"].replace(",", "")),
            holds=row["holds"].strip(),
            may_import=frozenset(re.findall(r"`([^`]+)`", row["may"])),
        )
        for row in ROW.finditer(text)
    ]


def counted(root: Path) -> dict[str, tuple[int, int]]:
    """Count files and lines of each room."""
    found: dict[str, tuple[int, int]] = {}
    for path in sources(root):
        files, lines = found.get(room_of(root, path), (0, 0))
        found[room_of(root, path)] = files + 1, lines + len(path.read_text(encoding="utf-8").splitlines())
    return found


def with_counts(text: str, root: Path) -> str:
    """Write the table's counts as they are now."""
    now = counted(root)
    rooms = {room.name: room for room in read_table(text)}

    def row(match: re.Match[str]) -> str:
        files, lines = now.get(match["name"], (0, 0))
        return replace(rooms[match["name"]], files=files, lines=lines).row()

    return ROW.sub(row, text)


if __name__ == "__main__":
    TABLE.write_text(with_counts(TABLE.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
