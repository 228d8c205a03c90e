"""The folder of one run: its frozen plan, its events, its records and its logs; and how a name leads to runs.

    runs/<run-id>/plan.json  events.jsonl  records/<job-id>.json  logs/<job-id>.log
                  results.csv  report.html

Standard library and `results.schema` only. Every file is written whole or not at all; what cannot be read is
named, never dropped.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from results.errors import NotARun, UserError
from results.runs.reading import from_json
from results.schema import Record
from results.schema.record_json import MAX_RECORD_BYTES, RecordError, to_json
from results.text import path_text

MAX_NAME_LENGTH = 200
"""Longest run or job id: file systems allow 255 bytes, and suffixes are added."""

_CHUNK_BYTES = 1 << 16
"""What is read of a file at once: most records are smaller."""

_LINE = json.JSONEncoder(allow_nan=False, ensure_ascii=False)

_NAME = re.compile(r"[A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class StoredRecord:
    """A record file as it was found.

    Attributes:
        path: The file.
        record: Its content; None when the file is not a record.
        error: Why it is not a record; None when it is.
    """

    path: Path
    record: Record | None
    error: RecordError | None = None

    @property
    def where(self) -> str:
        """The path as printable text: a file's name may hold any bytes."""
        return path_text(self.path)


class Journal:
    """Appends events to a run, from several threads, each in one system call.

    Args:
        descriptor: Of the file, open to read and to append.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()
        size = os.fstat(descriptor).st_size
        # A controller that died while writing left half a line: it must be ended, or the next event is lost too.
        self._torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"

    def append(self, document: dict[str, Any]) -> None:
        """Append one event; after `close`, do nothing.

        Raises:
            ValueError: A number in it is not finite.
        """
        line = f"{_LINE.encode(document)}\n".encode()
        with self._lock:
            if self._descriptor is None:
                return
            whole = b"\n" + line if self._torn else line
            self._torn = True
            self._torn = os.write(self._descriptor, whole) < len(whole)

    def close(self) -> None:
        """Close the file: a thread that a run left behind may report later, when its number is another file's."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class RunFolder:
    """One run on disk; make it with `create` or `open`.

    Attributes:
        path: The folder; its name is the run's id.
    """

    path: Path

    @classmethod
    def create(cls, runs_dir: Path, run_id: str) -> RunFolder:
        """Make the folder of a new run.

        Args:
            runs_dir: Folder of the runs; created when missing.
            run_id: Letters, digits, `.`, `_`, `+` and `-`.

        Raises:
            UserError: A folder of that name is there, or the id cannot be a file name.
        """
        path = runs_dir / _checked_name(run_id, "run id")
        runs_dir.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)  # logs and plans may hold what only the user should read
        except FileExistsError as error:
            raise UserError(f"{path}: a run of this name exists. Choose another name or resume it.") from error
        (path / "records").mkdir()
        (path / "logs").mkdir()
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run that exists.

        Raises:
            NotARun: There is no such folder, or it holds no `records/`.
        """
        if not is_folder(path):
            raise NotARun(f"{path_text(path)}: no such run folder. Give the path of a run, e.g. runs/<run-id>.")
        if not is_folder(path / "records"):
            raise NotARun(f"{path_text(path)}: not a run folder, it holds no records/. Give the folder above records/.")
        return cls(path)

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.path.resolve().name

    @property
    def plan_path(self) -> Path:
        """The frozen plan."""
        return self.path / "plan.json"

    @property
    def events_path(self) -> Path:
        """The events, one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def table_path(self) -> Path:
        """The merged table."""
        return self.path / "results.csv"

    @property
    def report_path(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def record_path(self, job_id: str) -> Path:
        """Return the path of a job's record; UserError when the id cannot be a file name."""
        return self.path / "records" / f"{_checked_name(job_id, 'job id')}.json"

    def log_path(self, job_id: str) -> Path:
        """Return the path of a job's log; UserError when the id cannot be a file name."""
        return self.path / "logs" / f"{_checked_name(job_id, 'job id')}.log"

    def write_plan(self, text: str) -> None:
        """Write the plan, once.

        Raises:
            UserError: It was written before.
        """
        if self.plan_path.exists():
            raise UserError(f"{self.plan_path}: a plan does not change once written. Start a new run.")
        _write_whole(self.plan_path, text)

    def read_plan(self) -> bytes:
        """Return the plan as it was written.

        Raises:
            NotARun: There is none, or it cannot be read.
        """
        try:
            return self.plan_path.read_bytes()
        except FileNotFoundError as error:
            raise NotARun(f"{self.plan_path}: missing. The run ended before its plan was written.") from error
        except OSError as error:
            raise NotARun(f"{self.plan_path}: cannot be read: {error.strerror}. Check its permissions.") from error

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Open the events for writing, after those that are there."""
        journal = Journal(os.open(self.events_path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644))
        try:
            yield journal
        finally:
            journal.close()

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order they were written; a line torn by a crash is passed over."""
        if not self.events_path.exists():
            return
        with self.events_path.open("rb") as lines:
            for line in lines:
                try:
                    document = json.loads(line)
                except ValueError:
                    continue
                if isinstance(document, dict):
                    yield document

    def write_record(self, job_id: str, record: Record) -> None:
        """Write a job's record, whole or not at all; one that is there is replaced.

        Raises:
            ValueError: A number in it is not finite.
        """
        _write_whole(self.record_path(job_id), to_json(record))

    def read_record(self, job_id: str) -> Record | None:
        """Read a job's record; None when there is none.

        Raises:
            RecordError: The file is not a record.
        """
        path = self.record_path(job_id)
        if not path.exists():
            return None
        stored = read_stored(path)
        if stored.error is not None:
            raise stored.error
        return stored.record

    def records(self) -> Iterator[StoredRecord]:
        """Yield every record file, by name; a corrupt one, or what is no file, comes with its error.

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
    """Read and validate a record file, at most what a record may be long; keep the error when it is not one."""
    try:
        return StoredRecord(path, from_json(read_file(path, MAX_RECORD_BYTES + 1)))
    except RecordError as error:
        return StoredRecord(path, None, error)
    except OSError as error:
        return StoredRecord(path, None, RecordError([f"cannot be read: {error.strerror or error}"]))


def latest_run(runs_dir: Path) -> Path:
    """Return the run that was planned last.

    Raises:
        NotARun: There is none.
    """
    runs = run_folders(runs_dir)
    if not runs:
        raise NotARun(f"{runs_dir}: no run found here. Start one, give its folder, or set TFBENCH_RUNS_DIR.")
    return max(runs, key=lambda path: (_planned_at(path), path.name))


def run_folders(runs_dir: Path) -> list[Path]:
    """Return the folders of runs, in no order; none where the folder cannot be listed."""
    try:
        return [path for path in runs_dir.iterdir() if is_folder(path / "records")]
    except OSError:
        return []


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder that may be read."""
    try:
        return path.is_dir()
    except OSError:
        return False


def runs_dir() -> Path:
    """Return the folder of the runs: TFBENCH_RUNS_DIR, or `runs` in the current folder."""
    return Path(os.environ.get("TFBENCH_RUNS_DIR") or "runs")


def stored_records(names: Sequence[str]) -> Iterator[StoredRecord]:
    """Yield the records of runs.

    Args:
        names: Run folders, run ids, or single record files; none: the latest run. One that is named twice is
            read once.

    Raises:
        NotARun: A name leads nowhere; raised before the first record is read.
    """
    found = dict.fromkeys([_find(name) for name in names] or [latest_run(runs_dir())])
    runs = [map(read_stored, [path]) if _is_file(path) else RunFolder.open(path).records() for path in found]
    return chain.from_iterable(runs)


def report_place(names: Sequence[str]) -> tuple[str, Path]:
    """Return the title of a report on these runs, and where it is written unless another file is named.

    Raises:
        NotARun: A name leads nowhere.
    """
    found = [_find(name) for name in names] or [latest_run(runs_dir())]
    title = "Results of " + ", ".join(path_text(Path(path.resolve().name)) for path in found)
    only = found[0] if len(found) == 1 and is_folder(found[0]) else None
    return title, RunFolder.open(only).report_path if only else Path("report.html")


def has_runs() -> bool:
    """Return whether there is any run in `runs_dir`."""
    try:
        latest_run(runs_dir())
    except NotARun:
        return False
    return True


def is_run(name: str) -> bool:
    """Return whether a name leads to a run or a record file; a folder of a fleet's name is neither."""
    return any(_is_file(path) or is_folder(path / "records") for path in (Path(name), runs_dir() / name))


def _find(name: str) -> Path:
    """Return what a name means: a path that exists, else a run id."""
    for path in (Path(name), runs_dir() / name):
        if _is_file(path) or is_folder(path):
            return path
    shown = path_text(Path(name[:MAX_NAME_LENGTH]))
    raise NotARun(f"{shown}: neither a path nor a run in {runs_dir()}/. Name a run folder, e.g. runs/<run-id>.")


def _is_file(path: Path) -> bool:
    """Return whether a path leads to a regular file; a name that is too long for one does not."""
    try:
        return path.is_file()
    except OSError:
        return False


def _planned_at(run: Path) -> float:
    """Return when the plan was written, in seconds since the epoch; the folder's own time without a plan."""
    for path in (run / "plan.json", run):
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _checked_name(name: str, what: str) -> str:
    """Return a name that is safe as a file name: nothing in it that a shell or a host could misuse."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name) or name in (".", ".."):
        raise UserError(
            f"{what} must be 1 to {MAX_NAME_LENGTH} letters, digits, '.', '_', '+' or '-'. Received: {name[:80]!r}"
        )
    return name


def read_file(path: Path, most: int) -> bytes:
    """Read at most `most` bytes of a regular file.

    Anybody may put anything into a folder that is copied between machines: a pipe would keep its reader waiting for
    ever, a device has no end.

    Raises:
        OSError: There is none, it is no regular file, or it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        chunks = []
        while most > 0 and (chunk := os.read(descriptor, min(most, _CHUNK_BYTES))):
            chunks.append(chunk)
            most -= len(chunk)
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, also after a power cut, finds the old content or the new, never half."""
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
