# ruff: noqa: T201 (a script prints its result)
"""Fuzz every command of `python -m results` with folders of records that nobody should trust.

    python -m tests.benchmarks.fuzz_records --folders 20000 --output fuzz.jsonl

Each folder goes through all commands, each with options drawn for it, in this process and through the real main; what
counts as a fault: see `tests.unit.results.fuzzing.commands`. Folders come in chunks, each a process of its own and a seed of
its own, so that an abort costs a chunk and is reported with its folder. A line per finished chunk is added to the
output; with an output that is there, only what is missing is run. Exit code 1 where there is a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from results.runs.store import read_stored
from tests.unit.results.fuzzing.commands import Outcome, run_all, tries
from tests.unit.results.fuzzing.folders import Folder

CHUNK = 200
"""Folders of one process: starting it costs a second, and the first prediction ten."""

CHUNK_SECONDS = 3600.0
"""A chunk that takes longer hangs where no signal reaches Python."""

MOST_FAULTS = 20
"""Faults of a chunk that are kept; the rest is counted."""


@dataclass
class Chunk:
    """What became of the folders of one seed.

    Attributes:
        first: Its seed, which is the number of its first folder.
        ends: How often each command ended with each exit code, as `command code`.
        faults: Command line and what it did wrong.
        died: How the process ended before its end, with the folder that it was at; empty: it did not.
    """

    first: int
    folders: int = 0
    records_good: int = 0
    records_bad: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)
    fault_count: int = 0
    died: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every command with folders of records.")
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first folder; another one draws others")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time; default: one a core"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("fuzz.jsonl"), help="a line per chunk; default: %(default)s"
    )
    parsed = parser.parse_args()
    wanted = range(parsed.seed, parsed.seed + parsed.folders, CHUNK)
    done = {chunk.first for chunk in _read(parsed.output)}
    began = time.monotonic()
    with ThreadPoolExecutor(parsed.jobs) as pool, parsed.output.open("a", encoding="utf-8") as output:
        for chunk in pool.map(_in_process, [first for first in wanted if first not in done]):
            output.write(json.dumps(vars(chunk)) + "\n")
            output.flush()
            print(
                f"{chunk.first}: {chunk.folders} folders, {chunk.seconds:.0f} s, {chunk.fault_count} faults {chunk.died}"
            )
    chunks = [chunk for chunk in _read(parsed.output) if chunk.first in wanted]
    _print_table(chunks, time.monotonic() - began)
    return 1 if any(chunk.fault_count or chunk.died for chunk in chunks) else 0


def _read(path: Path) -> list[Chunk]:
    if not path.exists():
        return []
    chunks = [Chunk(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    for chunk in chunks:
        chunk.ends = Counter(chunk.ends)
    return chunks


def _in_process(first: int) -> Chunk:
    """Run a chunk in a process of its own: what aborts or hangs takes nothing with it."""
    place = Path(tempfile.mkdtemp(prefix=f"fuzz-{first}-"))
    code = f"from tests.benchmarks.fuzz_records import _work; _work({first}, {str(place)!r})"
    # The processes are as many as wanted already; threads of BLAS would only wait for each other's cores.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    child = os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code], environment)
    status = _wait(child)
    chunk = place / "chunk.json"
    if status == 0 and chunk.exists():
        found = Chunk(**json.loads(chunk.read_text(encoding="utf-8")))
        shutil.rmtree(place)
        return found
    return Chunk(first, died=f"wait status {status}; the last folder is kept: {place}")


def _wait(child: int) -> int:
    end = time.monotonic() + CHUNK_SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _work(first: int, place: str) -> None:
    """Run the folders of a chunk, in a process of its own."""
    warnings.simplefilter("error")  # an overflow in numpy is a fault too
    began = time.process_time()
    chunk = Chunk(first)

    @seed(first)
    @settings(
        max_examples=CHUNK,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(tries())
    def run_folders(drawn: tuple[Folder, list[tuple[str, ...]]]) -> None:
        folder, lines = drawn
        parent = Path(place) / "folder"
        shutil.rmtree(parent, ignore_errors=True)
        parent.mkdir()
        folder.write(parent)
        faults = list(_counted(chunk, parent, lines))
        chunk.folders += 1
        chunk.fault_count += len(faults)
        chunk.faults += [(" ".join(fault.arguments), fault.fault) for fault in faults][
            : MOST_FAULTS - len(chunk.faults)
        ]

    run_folders()
    chunk.seconds = time.process_time() - began
    Path(place, "chunk.json").write_text(json.dumps(vars(chunk)), encoding="utf-8")


def _counted(chunk: Chunk, parent: Path, lines: list[tuple[str, ...]]) -> Iterator[Outcome]:
    for path in parent.glob("*/records/*"):
        good = read_stored(path).error is None
        chunk.records_good += good
        chunk.records_bad += not good
    for outcome in run_all(parent, lines):
        chunk.ends[f"{outcome.arguments[0]} {outcome.code}"] += 1
        if outcome.fault:
            yield outcome


def _print_table(chunks: list[Chunk], seconds: float) -> None:
    """Print how the commands ended, and each kind of fault once."""
    ends: Counter[str] = sum((chunk.ends for chunk in chunks), Counter())
    codes = sorted({end.split()[1] for end in ends})
    print(f"| command | {' | '.join(f'exit {code}' for code in codes)} |\n|---|{'---:|' * len(codes)}")
    for command in dict.fromkeys(end.split()[0] for end in ends):
        print(f"| {command} | {' | '.join(str(ends[f'{command} {code}']) for code in codes)} |")
    good, bad = sum(chunk.records_good for chunk in chunks), sum(chunk.records_bad for chunk in chunks)
    processor = sum(chunk.seconds for chunk in chunks)
    print(
        f"\n{sum(chunk.folders for chunk in chunks)} folders, {good} good and {bad} bad records, "
        f"{sum(chunk.fault_count for chunk in chunks)} faults, {sum(bool(chunk.died) for chunk in chunks)} processes died; "
        f"{processor / 3600:.2f} processor hours, {seconds / 60:.0f} minutes in this run"
    )
    kinds: dict[str, tuple[str, str]] = {}
    for line, what in (fault for chunk in chunks for fault in chunk.faults):
        kinds.setdefault("\n".join(what.strip().splitlines()[-3:]), (line, what))
    for line, what in kinds.values():
        print(f"\n{line}\n{what}")
    for chunk in chunks:
        if chunk.died:
            print(f"\n{chunk.first}: {chunk.died}")


if __name__ == "__main__":
    sys.exit(main())
