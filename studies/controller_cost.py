"""Runs a controller and measures the CPU time and memory of its process."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.runs.reading import from_json
from results.schema import Status
from tests.support import PROJECT
from tests.support.controller import watch

MODELS = ("resnet50", "resnet152", "inception_v3", "googlenet")
HEADER = "repeats   CPU s  ms/repeat  calls  calls/repeat  peak MB  wall s\n"


@dataclass(frozen=True)
class Ran:
    """Resources used by a controller.

    Attributes:
        exit_code: Its exit code.
        cpu_seconds: User and system time of its process, without child processes.
        peak_bytes: Its largest resident set.
        wall_seconds: From its start to its end.
    """

    exit_code: int
    cpu_seconds: float
    peak_bytes: int
    wall_seconds: float


@dataclass(frozen=True)
class Cost:
    """Cost of one run.

    Attributes:
        repeats: Repeats of the plan.
        ran: The controller.
        calls: Its calls to the queue or engines, by kind.
        faults: Faults of the run.
    """

    repeats: int
    ran: Ran
    calls: Counter[str]
    faults: tuple[str, ...]

    def row(self) -> str:
        """Format a line of the table; see `HEADER`."""
        calls, cpu_seconds = self.calls.total(), self.ran.cpu_seconds
        return (
            f"{self.repeats:7d} {cpu_seconds:7.2f} {cpu_seconds / self.repeats * 1000:10.2f} {calls:6d} "
            f"{calls / self.repeats:13.3f} {self.ran.peak_bytes / 1e6:8.0f} {self.ran.wall_seconds:7.1f}\n"
        )


def write_plan(folder: Path, repeats: int, fleet: dict[str, Any]) -> None:
    """Write a hosts file with one fleet, and a suite with `repeats` repeats, a multiple of eight."""
    (folder / "runs").mkdir()
    block = {"model": list(MODELS), "precision": ["fp32", "fp16"], "batch_per_gpu": 32, "device": "cpu"}
    (folder / "suite.yml").write_text(json.dumps({"repeats": repeats // 8, "cases": [block]}))
    document = {"version": 1, "defaults": {"suite": "suite.yml"}, "fleets": {"cluster": fleet}}
    (folder / "hosts.yml").write_text(json.dumps(document))


def run_controller(
    folder: Path, environment: Mapping[str, str] | None = None, *flags: str, launcher: Sequence[str] = ()
) -> Ran:
    """Run the plan of a folder to its end.

    Args:
        folder: Contains `hosts.yml`; `runs/` and `output.txt` (the controller's output) are written to it.
        environment: Variables added to those of this process.
        flags: Flags of `orchestrate run`.
        launcher: Prefix of the command.
    """
    command = [*launcher, sys.executable, "-m", "orchestrate", "run", f"--hosts={folder / 'hosts.yml'}"]
    variables = {**os.environ, "TFBENCH_RUNS_DIR": str(folder / "runs"), "COLUMNS": "200", **(environment or {})}
    began = time.perf_counter()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--display=plain", "--no-report", *flags],
            cwd=PROJECT,
            env=variables,
            stdout=output,
            stderr=output,
        )
        usage = watch(process)
    return Ran(process.returncode, usage.cpu_seconds, usage.peak_bytes, time.perf_counter() - began)


def find_faults(folder: Path, repeats: int, ran: Ran) -> list[str]:
    """Return what is missing or wrong in a run."""
    faults = [] if ran.exit_code == 0 else [f"exit code {ran.exit_code}: {(folder / 'output.txt').read_text()[-2000:]}"]
    records = [from_json(path.read_bytes()) for path in folder.glob("runs/*/records/*.json")]
    if len(records) != repeats:
        faults.append(f"{repeats} repeats were planned, but there are {len(records)} records")
    if any(record.status is not Status.OK for record in records):
        faults.append("not all records are ok")
    if any(record.origin is None or not record.origin.host.startswith("node-") for record in records):
        faults.append("a record does not name its node")
    return faults


def show(cost: Cost) -> int:
    """Print a row and its faults; return 1 if there are any."""
    sys.stdout.write(cost.row() + "".join(f"fault: {fault}\n" for fault in cost.faults))
    sys.stdout.flush()
    return int(bool(cost.faults))
