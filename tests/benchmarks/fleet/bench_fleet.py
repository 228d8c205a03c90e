"""What a controller costs: CPU per repeat and memory, over fleets of simulated engines.

    python -m tests.benchmarks.fleet.bench_fleet --hosts 100 1000 --seconds 8

Starts `python -m orchestrate run` as its users do, against stand-in engines behind real unix sockets, checks that
every record is there exactly once, and prints what the controller's process alone took. Exit code 1: something was
missing or came twice.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from results.runs.reading import from_json
from results.schema import Status
from tests.benchmarks.fleet.__main__ import socket_path

PROJECT = Path(__file__).parents[3]
MODELS = ("resnet50", "resnet152", "inception_v3", "googlenet")
REPEATS_PER_CASE = 3
FLEET_SIZE = 50
HEADER = " hosts  repeats    CPU s  ms/repeat  peak MB   wall s  engines CPU s\n"
TARGET_CPU_MILLISECONDS, TARGET_MEGABYTES, TARGET_RATIO = 10.0, 400.0, 1.3


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        cpu_seconds: User and system time of the controller's process.
        peak_bytes: Its largest resident set.
        wall_seconds: From its start to its end.
        engine_cpu_seconds: Of the process that plays all engines.
    """

    hosts: int
    repeats: int
    cpu_seconds: float
    peak_bytes: int
    wall_seconds: float
    engine_cpu_seconds: float

    @property
    def cpu_milliseconds_per_repeat(self) -> float:
        """CPU time of the controller for one repeat, everything included."""
        return self.cpu_seconds / self.repeats * 1000


def write_hosts(folder: Path, hosts: int, cases: int) -> Path:
    """Write a hosts file of stand-in engines and a suite of `cases` cases."""
    models = list(MODELS[:cases])
    precisions = ["fp32", "fp16"][: max(1, cases // len(models))]
    block = {"model": models, "precision": precisions, "batch_per_gpu": 32, "num_steps": 100, "device": "cpu"}
    (folder / "fleet.yml").write_text(json.dumps({"repeats": REPEATS_PER_CASE, "cases": [block]}))
    fleets: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    for number in range(hosts):
        fleet = fleets.setdefault(f"fleet-{number // FLEET_SIZE:02d}", {"hosts": {}})
        fleet["hosts"][f"node-{number:04d}"] = {"docker": f"unix://{socket_path(folder, number)}"}
    defaults = {"suite": "fleet.yml", "registry": "registry.example/you", "variant": "cpu", "device": "cpu"}
    path = folder / "hosts.yml"
    path.write_text(json.dumps({"version": 1, "defaults": defaults, "fleets": fleets}, indent=1))
    return path


@contextmanager
def stand_in_engines(folder: Path, engines: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Serve engines in a process of their own; what it counted lies in `counts.json` afterwards."""
    command = [sys.executable, "-m", "tests.benchmarks.fleet", f"--folder={folder}", f"--engines={engines}"]
    process = subprocess.Popen([*command, f"--seconds={seconds}"], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the stand-in engines did not start")
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def run_controller(
    folder: Path, hosts_file: Path, output: Path, launcher: Sequence[str] = ()
) -> tuple[int, float, int, float]:
    """Run `orchestrate run` to its end.

    Args:
        folder: Its records go to `runs/` in there.
        hosts_file: What it runs on.
        output: Takes what it prints.
        launcher: Stands before the command, e.g. a profiler.

    Returns:
        Exit code, CPU seconds, peak resident bytes, wall seconds.
    """
    command = [
        *(launcher or (sys.executable,)),
        "-m",
        "orchestrate",
        "run",
        f"--hosts={hosts_file}",
        "--display=plain",
        "--no-report",
    ]
    environment = {**os.environ, "TFBENCH_RUNS_DIR": str(folder / "runs"), "COLUMNS": "200"}
    began = time.perf_counter()
    with output.open("wb") as stream:
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=stream, stderr=stream)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_seconds = time.perf_counter() - began
    return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, wall_seconds


def find_faults(folder: Path) -> list[str]:
    """Say what is missing, came twice or was left behind; empty when every repeat ran and is there exactly once."""
    (run,) = (folder / "runs").iterdir()
    planned = {job["id"] for host in json.loads((run / "plan.json").read_text())["hosts"] for job in host["jobs"]}
    faults = []
    records = {path.stem: from_json(path.read_bytes()) for path in (run / "records").glob("*.json")}
    if records.keys() != planned:
        faults.append(f"{len(planned)} repeats were planned, {len(records)} records are there")
    for name, record in records.items():
        if record.status is not Status.OK:
            faults.append(f"{name}: {record.status}: {record.cause}")
        elif record.origin is None or f"{record.origin.fleet}.{record.origin.host}" not in name:
            faults.append(f"{name}: the record is of another host")
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    reported = Counter(event["job"] for event in events if event["event"] == "job_result")
    faults += [f"{name}: {number} results were reported" for name, number in reported.items() if number != 1]
    faults += [f"{name}: no result was reported" for name in planned - reported.keys()]
    counted = json.loads((folder / "counts.json").read_text())
    counts = counted["counts"]
    for name in planned:
        container = f"tfbench-{run.name}-{name}"
        if (counts.get(f"created {container}"), counts.get(f"started {container}")) != (1, 1):
            faults.append(f"{name}: its container was not created and started once")
    if counted["left"]:
        faults.append(f"{len(counted['left'])} containers were left behind")
    if counts.get("unknown"):
        faults.append(f"{counts['unknown']} requests were not understood by the stand-in")
    return faults


def measure(
    hosts: int, repeats: int, seconds: float, keep: Path | None = None, launcher: Sequence[str] = ()
) -> tuple[Cost, list[str]]:
    """Run one fleet.

    Args:
        hosts: How many engines there are.
        repeats: Per host, a multiple of three.
        seconds: How long a benchmark takes on average.
        keep: Where the run's folder is moved to; None: it is deleted.
        launcher: Stands before the controller's command, e.g. a profiler.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfb-fleet-"))
    try:
        hosts_file = write_hosts(folder, hosts, repeats // REPEATS_PER_CASE)
        output = folder / "output.txt"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with stand_in_engines(folder, hosts, seconds):
            exit_code, cpu_seconds, peak_bytes, wall_seconds = run_controller(folder, hosts_file, output, launcher)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        both = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        faults = find_faults(folder) if (folder / "runs").is_dir() else ["there is no run"]
        if exit_code != 0:
            faults.append(f"exit code {exit_code}: {output.read_text(errors='replace')[-2000:]}")
        cost = Cost(hosts, hosts * repeats, cpu_seconds, peak_bytes, wall_seconds, both - cpu_seconds)
        return cost, faults
    finally:
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        shutil.rmtree(folder, ignore_errors=True)


def allow_many_files() -> None:
    """Raise the limit of open files as far as it goes: every host takes up to three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def row(cost: Cost) -> str:
    """Return a line of the table; see `HEADER`."""
    return (
        f"{cost.hosts:6d} {cost.repeats:8d} {cost.cpu_seconds:8.1f} {cost.cpu_milliseconds_per_repeat:10.2f} "
        f"{cost.peak_bytes / 1e6:8.0f} {cost.wall_seconds:8.1f} {cost.engine_cpu_seconds:14.1f}\n"
    )


def verdict(costs: Sequence[Cost], faults: int) -> str:
    """Compare the last fleet with the first, and both with the targets."""
    ratio = costs[-1].cpu_milliseconds_per_repeat / costs[0].cpu_milliseconds_per_repeat
    return (
        f"every record exactly once: {'no' if faults else 'yes'}\n"
        f"cost per repeat, last fleet to first: {ratio:.2f} (target: at most {TARGET_RATIO:g})\n"
        f"targets: {TARGET_CPU_MILLISECONDS:g} ms per repeat, {TARGET_MEGABYTES:g} MB\n"
    )


def main() -> None:
    """Measure the fleets that were asked for and print a table."""
    parser = argparse.ArgumentParser(description="What a controller costs, over fleets of simulated engines.")
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=24, help="per host, a multiple of 3 up to 24 (default: 24)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a benchmark takes (default: 2)")
    parser.add_argument("--keep", type=Path, help="keep run folders and output in this folder")
    arguments = parser.parse_args()
    allow_many_files()
    costs: list[Cost] = []
    problems = 0
    sys.stdout.write(HEADER)
    for hosts in arguments.hosts:
        cost, faults = measure(
            hosts, arguments.repeats, arguments.seconds, arguments.keep and arguments.keep / str(hosts)
        )
        costs.append(cost)
        problems += len(faults)
        sys.stdout.write(row(cost))
        sys.stdout.writelines(f"  fault: {fault}\n" for fault in faults[:20])
        sys.stdout.flush()
    sys.stdout.write(verdict(costs, problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
