"""What a controller costs on a queue: CPU and calls per repeat, over a simulated Slurm.

    python -m tests.benchmarks.slurm.bench_slurm --repeats 200 2000

Runs `python -m orchestrate run` as its users do, with stand-ins for Slurm's commands in PATH, and prints what the
controller's own process took and how often it asked.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from results.schema import Status, from_json

PROJECT = Path(__file__).parents[3]
MODELS = ("resnet50", "resnet152", "inception_v3", "googlenet")
HEADER = "repeats   CPU s  ms/repeat  calls  calls/repeat  peak MB  wall s\n"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        cpu_seconds: User and system time of the controller's own process, without what it starts.
        calls: Of Slurm's commands, by name.
        peak_bytes: The controller's largest resident set.
        faults: What is wrong with the run; empty: nothing.
    """

    repeats: int
    cpu_seconds: float
    calls: Counter[str]
    peak_bytes: int
    wall_seconds: float
    faults: tuple[str, ...]


def measure(repeats: int, *, lanes: int, seconds: float, poll_seconds: float) -> Cost:
    """Run a plan of `repeats` repeats, a multiple of eight.

    Args:
        repeats: In all.
        lanes: Jobs at a time.
        seconds: That each takes.
        poll_seconds: Between looks.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfb-queue-"))
    try:
        environment = _prepare(folder, repeats, lanes, seconds, poll_seconds)
        command = [sys.executable, "-m", "orchestrate", "run", f"--hosts={folder / 'hosts.yml'}", "--display=plain"]
        began = time.perf_counter()
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--no-report"], cwd=PROJECT, env=environment, stdout=output, stderr=output
            )
            cpu_seconds, peak_bytes = _watch(process)
        wall_seconds = time.perf_counter() - began
        calls = Counter((folder / "calls").read_text().split())
        faults = _faults(folder, repeats, process.returncode)
        return Cost(repeats, cpu_seconds, calls, peak_bytes, wall_seconds, tuple(faults))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(folder: Path, repeats: int, lanes: int, seconds: float, poll_seconds: float) -> dict[str, str]:
    """Write the hosts file, the suite and the commands; return the controller's environment."""
    for name in ("bin", "shared", "runs"):
        (folder / name).mkdir()
    for name in ("sbatch", "squeue", "sinfo", "scancel"):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {PROJECT}/tests/benchmarks/slurm/standin.py {name} "$@"\n')
        script.chmod(0o755)
    (folder / "state.json").write_text(json.dumps({"seconds": seconds, "arrays": []}))
    block = {"model": list(MODELS), "precision": ["fp32", "fp16"], "batch_per_gpu": 32, "device": "cpu"}
    (folder / "suite.yml").write_text(json.dumps({"repeats": repeats // 8, "cases": [block]}))
    slurm = {"container": "none", "shared_folder": str(folder / "shared"), "max_jobs": lanes}
    fleets = {"cluster": {"slurm": {**slurm, "poll_seconds": poll_seconds}}}
    (folder / "hosts.yml").write_text(json.dumps({"version": 1, "defaults": {"suite": "suite.yml"}, "fleets": fleets}))
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "SIMULATED_SLURM": str(folder),
        "TFBENCH_RUNS_DIR": str(folder / "runs"),
        "COLUMNS": "200",
    }


def _watch(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Wait for a process; return its own CPU seconds and its largest resident set, as last seen."""
    ticks = peak = 0
    while process.poll() is None:
        try:
            words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        if words[0] != "Z":
            ticks = int(words[11]) + int(words[12])
        peak = max([peak, *(int(line.split()[1]) * 1024 for line in status.splitlines() if "VmHWM" in line)])
        time.sleep(0.02)
    process.wait()
    return ticks / CLOCK_TICKS, peak


def _faults(folder: Path, repeats: int, exit_code: int) -> list[str]:
    """Say what is missing or wrong."""
    faults = [] if exit_code == 0 else [f"exit code {exit_code}: {(folder / 'output.txt').read_text()[-2000:]}"]
    records = [from_json(path.read_bytes()) for path in folder.glob("runs/*/records/*.json")]
    if len(records) != repeats:
        faults.append(f"{repeats} repeats were planned, {len(records)} records are there")
    if any(record.status is not Status.OK for record in records):
        faults.append("not all records are ok")
    if any(record.origin is None or not record.origin.host.startswith("node-") for record in records):
        faults.append("a record does not name its node")
    if left := [path.name for path in (folder / "shared").iterdir()]:
        faults.append(f"left behind: {left}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--lanes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="that a simulated repeat takes")
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    parsed = parser.parse_args()
    sys.stdout.write(HEADER)
    faulty = False
    for repeats in parsed.repeats:
        cost = measure(repeats, lanes=parsed.lanes, seconds=parsed.seconds, poll_seconds=parsed.poll_seconds)
        sys.stdout.write(row(cost))
        for fault in cost.faults:
            sys.stdout.write(f"fault: {fault}\n")
        faulty = faulty or bool(cost.faults)
    return int(faulty)


def row(cost: Cost) -> str:
    """Return a line of the table; see `HEADER`."""
    calls = cost.calls.total()
    return (
        f"{cost.repeats:7d} {cost.cpu_seconds:7.2f} {cost.cpu_seconds / cost.repeats * 1000:10.2f} {calls:6d} "
        f"{calls / cost.repeats:13.3f} {cost.peak_bytes / 1e6:8.0f} {cost.wall_seconds:7.1f}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
