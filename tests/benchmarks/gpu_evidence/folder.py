"""The output folder, which is also the state: a step is done when its result is there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_evidence.steps import FINAL, Outcome, Step, definition

FORMAT = 1
"""Of result files and of the summary."""

README = Path(__file__).with_name("OUTPUT.md")

BUNDLED = ("README.md", "summary.md", "summary.json", "results", "environment", "records", "logs", "profiles")
"""In the order in which a bundle takes them, as long as there is room."""


@dataclass(frozen=True)
class Folder:
    """What the steps leave, below `path`."""

    path: Path

    @property
    def environment(self) -> Path:
        """What the machine says of itself."""
        return self.path / "environment"

    def result(self, step: str) -> Path:
        """Return where a step's result is: written last, so that a step without one is to be run."""
        return self.path / "results" / f"{step}.json"

    def record(self, step: str, run: str) -> Path:
        """Return where a run's record is."""
        return self.path / "records" / f"{step}.{run}.json"

    def log(self, step: str, run: str) -> Path:
        """Return where a run's output is."""
        return self.path / "logs" / f"{step}.{run}.log"

    def profile(self, name: str) -> Path:
        """Return where a profiler writes; it adds its own ending."""
        return self.path / "profiles" / name

    def create(self) -> None:
        """Make the folders, and put the description of the format there."""
        for name in ("results", "records", "logs", "profiles", "environment"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(README, self.path / "README.md")

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the folder; gives False where another call does."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def read_result(self, step: str) -> dict[str, Any] | None:
        """Return a step's result; None: it has none that can be read."""
        try:
            result = json.loads(self.result(step).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) and result.get("format") == FORMAT else None

    def finished(self, step: Step) -> dict[str, Any] | None:
        """Return the result of a resolved step that need not be run again; None: it is to be run.

        A step is run again when what it runs or reads has changed, and a `timeout` also when its limit has grown.
        """
        result = self.read_result(step.name)
        if result is None or result["definition"] != definition(step) or result["outcome"] not in FINAL:
            return None
        if result["outcome"] == Outcome.TIMEOUT and result["limit"] < step.limit:
            return None
        return result


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_json(path: Path, document: object) -> None:
    """Write a document as JSON that people can read."""
    write_atomically(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def bundle(folder: Folder, file: Path, max_bytes: int) -> list[str]:
    """Pack the folder into one file, what is most telling first.

    Args:
        file: `….tar.gz`; appears complete or not at all.
        max_bytes: Of the bundle. What finds no room is left out: profiles first, then logs.

    Returns:
        Paths that were left out.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.part")
    left_out = []
    with beside.open("wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6) as archive:
        for path in _in_order(folder.path):
            # Nobody knows beforehand what a file compresses to: it is taken where it would fit uncompressed, too.
            if raw.tell() + path.stat().st_size + (1 << 16) > max_bytes:
                left_out.append(str(path.relative_to(folder.path)))
            else:
                archive.add(path, arcname=str(path.relative_to(folder.path)), recursive=False)
    beside.replace(file)
    return left_out


def _in_order(path: Path) -> Iterator[Path]:
    for name in BUNDLED:
        place = path / name
        if place.is_file():
            yield place
        elif place.is_dir():
            files = [file for file in place.rglob("*") if file.is_file() and not file.name.startswith(".")]
            yield from sorted(files, key=lambda file: (file.stat().st_size, file.name))


def restore(folder: Folder, file: Path) -> bool:
    """Unpack an earlier bundle into a folder that has no results yet; say whether that was done."""
    if not file.is_file() or any((folder.path / "results").glob("*.json")):
        return False
    folder.path.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11 has it from 3.11.4 on, Debian 12 has 3.11.2
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder.path)
    return True
