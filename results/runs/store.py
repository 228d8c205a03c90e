"""Reads and writes run folders and finds runs by name.

    runs/<run-id>/plan.json  events.jsonl  records/<job-id>.json  logs/<job-id>.log
                  results.csv  report.html

Standard library and `results.schema` only. Files are written atomically; unreadable ones are reported, never dropped.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from results.errors import NotARun, UserError, is_disk_full
from results.runs.reading import from_json
from results.schema import Record
from results.schema.record_json import MAX_RECORD_BYTES, RecordError, to_json
from results.text import counted, path_text

MAX_NAME_LENGTH = 200
"""Longest run or job id: file systems allow 255 bytes, including suffixes."""

_LINE = json.JSONEncoder(allow_nan=False, ensure_ascii=False)

_NAME = re.compile(r"[A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class StoredRecord:
    """A record file.

    Attributes:
        path: The file.
        record: Its content; None: the file is not a record.
        error: Why it is not a record.
    """

    path: Path
    record: Record | None
    error: RecordError | None = None

    @property
    def problem(self) -> tuple[Path, str] | None:
        """The file and why it is not a record, shortened; None: it is one."""
        return (self.path, f"not a record, excluded: {'; '.join(self.error.problems[:3])}") if self.error else None


def problem_lines(problems: Iterable[tuple[Path, str]]) -> list[str]:
    """Return one line per problem of files and folder, which names its first file."""
    files, lines = defaultdict[tuple[Path, str], list[Path]](list), []
    for path, problem in problems:
        files[path.parent, problem].append(path)
    for (_, problem), (first, *others) in files.items():
        more = f" and {counted(len(others), 'other')} of this run" if others else ""
        lines.append(f"{path_text(first)}{more}: {problem}")
    return lines


class RunFolder:
    """One run on disk; use `create` or `open`.

    Attributes:
        path: The folder; its name is the run's id.
        plan_path: The frozen plan.
        events_path: The events, one JSON object per line.
        table_path: The merged table.
        report_path: The report.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.plan_path, self.events_path = path, path / "plan.json", path / "events.jsonl"
        self.table_path, self.report_path = path / "results.csv", path / "report.html"

    @staticmethod
    def new_path(runs_dir: Path, run_id: str) -> Path:
        """Return the path of a new run's folder; see `create`."""
        path = runs_dir / _checked_name(run_id, "run id")
        if path.exists():
            raise UserError(f"{path}: a run of this name exists. Choose another name or resume it.")
        return path

    @classmethod
    def create(cls, runs_dir: Path, run_id: str) -> RunFolder:
        """Create the folder of a new run.

        Args:
            runs_dir: Folder of the runs; created if missing.
            run_id: Letters, digits, `.`, `_`, `+` and `-`.

        Raises:
            UserError: The folder exists, or the id cannot be a file name.
        """
        folder = cls(cls.new_path(runs_dir, run_id))
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700)  # logs and plans may be confidential
            folder.complete()
        except OSError as error:
            raise UserError(f"{folder.path}: cannot be created: {error.strerror}. Set TFBENCH_RUNS_DIR") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run.

        Raises:
            NotARun: There is no such folder, or it has neither a plan nor `records/`.
        """
        if not is_folder(path):
            raise NotARun(f"{path_text(path)}: no such run folder. Give the path of a run, e.g. runs/<run-id>.")
        if not is_folder(path / "records") and not _is_file(path / "plan.json"):
            raise NotARun(f"{path_text(path)}: not a run folder, it holds no records/. Give the folder above records/.")
        return cls(path)

    def complete(self) -> None:
        """Create missing subfolders: a copy made by git has no empty ones."""
        for name in ("records", "logs"):
            (self.path / name).mkdir(exist_ok=True)

    def record_path(self, job_id: str) -> Path:
        """Return the path of a job's record; UserError if the id cannot be a file name."""
        return self.path / "records" / f"{_checked_name(job_id, 'job id')}.json"

    def log_path(self, job_id: str) -> Path:
        """Return the path of a job's log; UserError if the id cannot be a file name."""
        return self.path / "logs" / f"{_checked_name(job_id, 'job id')}.log"

    def write_plan(self, text: str) -> None:
        """Write the plan of a new run."""
        _write_whole(self.plan_path, text)

    def read_plan(self) -> bytes:
        """Return the content of the plan.

        Raises:
            NotARun: It is missing or cannot be read.
        """
        try:
            return self.plan_path.read_bytes()
        except OSError as error:
            why = "A run that ended before its plan was written, or was copied without it, has none."
            raise NotARun(f"{self.plan_path}: cannot be read: {error.strerror}. {why}") from error

    @contextmanager
    def journal(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Open the events; yields what appends one, in one system call; callers take turns.

        It does nothing after the block, because an abandoned thread may be late. It raises `ValueError` if a number is
        not finite.
        """
        with self.events_path.open("a+b", buffering=0) as file:
            size = file.tell()
            # A controller that died while writing left an incomplete line. Without a newline the next is lost too.
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write(b"\n")

            def append(document: dict[str, Any]) -> None:
                line = f"{_LINE.encode(document)}\n".encode("utf-8", "backslashreplace")  # a path may hold any bytes
                if not file.closed:
                    os.write(file.fileno(), line)

            yield append

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in order; lines left incomplete by a crash are skipped."""
        with suppress(FileNotFoundError), self.events_path.open("rb") as lines:
            for line in lines:
                with suppress(ValueError):
                    if isinstance(document := json.loads(line), dict):
                        yield document

    def write_record(self, job_id: str, record: Record) -> None:
        """Write or replace a job's record atomically.

        Raises:
            ValueError: A number is not finite.
        """
        _write_whole(self.record_path(job_id), to_json(record))

    def read_record(self, job_id: str) -> Record | None:
        """Read a job's record; None: there is none.

        Raises:
            RecordError: The file is not a record.
        """
        path = self.record_path(job_id)
        stored = read_stored(path) if path.exists() else StoredRecord(path, None)
        if stored.error is not None:
            raise stored.error
        return stored.record

    def records(self) -> Iterator[StoredRecord]:
        """Yield all record files by name; corrupt ones, and anything but files, with an error.

        Raises:
            NotARun: The folder cannot be listed.
        """
        folder = self.path / "records"
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 (half the time)
        except OSError as error:
            raise NotARun(f"{path_text(folder)}: cannot be listed: {error.strerror}. Check its permissions.") from error
        for name in names:
            yield read_stored(folder / name)


def read_stored(path: Path) -> StoredRecord:
    """Read and check a record file, at most `MAX_RECORD_BYTES`.

    Run folders are copied between machines and may contain anything; reading a pipe would block forever, and a device
    never ends.
    """
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with path.open("rb") as file:  # its `read` goes on after a short one
            content = file.read(min(MAX_RECORD_BYTES + 1, state.st_size))
        return StoredRecord(path, from_json(content))
    except RecordError as error:
        return StoredRecord(path, None, error)
    except OSError as error:
        unreadable = RecordError([f"cannot be read: {error.strerror or error}"])
        unreadable.__cause__ = error
        return StoredRecord(path, None, unreadable)


def latest_run() -> Path:
    """Return the run with the latest plan.

    Raises:
        NotARun: There is no run.
    """
    runs = run_folders()
    if not runs:
        raise NotARun(f"{runs_dir()}: no run found here. Start one, give its folder, or set TFBENCH_RUNS_DIR.")
    return max(runs, key=lambda path: (_planned_at(path), path.name))


def run_folders() -> list[Path]:
    """Return the folders in `runs_dir`, unordered; none if it cannot be listed."""
    try:
        return [path for path in runs_dir().iterdir() if is_folder(path / "records")]
    except OSError:
        return []


is_folder, _is_file = os.path.isdir, os.path.isfile
"""Whether a path is an accessible folder or file; pathlib's raise for names that are too long."""


def runs_dir() -> Path:
    """Return the folder of runs: TFBENCH_RUNS_DIR, or `runs` in the current folder."""
    return Path(os.environ.get("TFBENCH_RUNS_DIR") or "runs")


def stored_records(names: Sequence[str]) -> Iterator[StoredRecord]:
    """Yield the records of runs.

    Args:
        names: Run folders, run ids or record files; duplicates are read once; none: the latest run.

    Raises:
        NotARun: A name was not found; raised before the first record is read.
    """
    found = dict.fromkeys(_found(names))
    runs = [map(read_stored, [path]) if _is_file(path) else RunFolder.open(path).records() for path in found]
    return chain.from_iterable(runs)


def report_place(names: Sequence[str]) -> tuple[str, Path]:
    """Return the title and the default path of a report on these runs; see `stored_records`.

    Raises:
        NotARun: A name was not found.
    """
    found = _found(names)
    title = "Results of " + ", ".join(path_text(Path(path.resolve().name)) for path in found)
    only = found[0] if len(found) == 1 and is_folder(found[0]) else None
    return title, RunFolder.open(only).report_path if only else Path("report.html")


def is_run(name: str) -> bool:
    """Return whether a name is that of a run or a record file, unlike a fleet's name that happens to be a folder's."""
    return any(_is_file(path) or is_folder(path / "records") for path in (Path(name), runs_dir() / name))


def _found(names: Sequence[str]) -> list[Path]:
    """Return the paths of runs and record files: a name is that of a file or folder, else of a run in `runs_dir`."""
    folder, found = runs_dir(), []
    for name in names:
        there = [path for path in (Path(name), folder / name) if _is_file(path) or is_folder(path)]
        if not there:
            shown = path_text(Path(name[:MAX_NAME_LENGTH]))
            raise NotARun(f"{shown}: neither a path nor a run in {folder}/. Name a run folder, e.g. runs/<run-id>.")
        found.append(there[0])
    return found or [latest_run()]


def _planned_at(run: Path) -> float:
    """Return the modification time of the plan, else of the folder, in seconds since the epoch."""
    plan = run / "plan.json"
    return (plan if _is_file(plan) else run).stat().st_mtime


def _checked_name(name: str, what: str) -> str:
    """Return a name if it is safe as a file name and in a shell, else raise UserError."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name) or name in (".", ".."):
        raise UserError(
            f"{what} must be 1 to {MAX_NAME_LENGTH} letters, digits, '.', '_', '+' or '-'. Received: {name[:80]!r}"
        )
    return name


def write_file(path: Path, text: str) -> None:
    """Write or replace a file of the user atomically; a device or pipe, such as /dev/stdout, is written to.

    Raises:
        UserError: The file cannot be written.
        OSError: The disk is full.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            _write_whole(Path(os.path.realpath(path)), text)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise UserError(f"{path}: cannot be written: {error.strerror}. Choose another file.") from error


def _write_whole(path: Path, text: str) -> None:
    """Write a file atomically: even after a power cut it has either the old content or the new."""
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name[:200]}.{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:  # noqa: PTH123 (a fleet writes a hundred a second)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
