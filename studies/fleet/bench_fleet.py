"""Measures the controller's CPU time per repeat and memory, with fleets of fake engines.

    python -m studies.fleet.bench_fleet --hosts 100 1000 --seconds 8

Runs `python -m orchestrate run` against fake engines behind real unix sockets, checks that each record exists exactly
once, and prints the resources of the controller's process. Exit code 1: a fault. The targets are 10 ms per repeat,
400 MB, and equal cost per host with a hundred and a thousand hosts.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from studies.controller_cost import HEADER, MODELS, PROJECT, Cost, Ran, find_faults, run_controller, show
from studies.fleet.engine import socket_path

REPEATS_PER_CASE = 3
FLEET_SIZE = 50


def write_hosts(folder: Path, hosts: int, cases: int) -> Path:
    """Write a hosts file with fake engines and a suite with `cases` cases."""
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
def fake_engines(folder: Path, engines: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Serve engines in another process, which writes `counts.json` at its end."""
    command = [sys.executable, "-m", "studies.fleet.engine", f"--folder={folder}", f"--engines={engines}"]
    process = subprocess.Popen([*command, f"--seconds={seconds}"], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the fake engines did not start")
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def faults_of(folder: Path, ran: Ran) -> list[str]:
    """Return what is missing, duplicate or left behind."""
    (run,) = (folder / "runs").iterdir()
    planned = {job["id"] for host in json.loads((run / "plan.json").read_text())["hosts"] for job in host["jobs"]}
    counted = json.loads((folder / "counts.json").read_text())
    faults = find_faults(folder, len(planned), ran)
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    if Counter(event["job"] for event in events if event["event"] == "job_result") != Counter(planned):
        faults.append("not every repeat has one result")
    names = [f"{done} tfbench-{run.name}-{name}" for name in planned for done in ("created", "started")]
    if any(counted["counts"].get(name) != 1 for name in names):
        faults.append("not every container was created and started once")
    if counted["left"] or counted["counts"].get("unknown"):
        faults.append("containers were left behind, or requests not understood by the fake")
    return faults


def measure(hosts: int, repeats: int, seconds: float) -> Cost:
    """Run one fleet.

    Args:
        hosts: Number of engines.
        repeats: Repeats per host, a multiple of three.
        seconds: Average duration of a benchmark.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfb-fleet-"))
    try:
        write_hosts(folder, hosts, repeats // REPEATS_PER_CASE)
        with fake_engines(folder, hosts, seconds):
            ran = run_controller(folder)
        faults = faults_of(folder, ran)
        counts = json.loads((folder / "counts.json").read_text())["counts"]
        asked = {name: number for name, number in counts.items() if not name.startswith(("created ", "started "))}
        return Cost(hosts * repeats, ran, Counter(asked), tuple(faults[:20]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Measure the requested fleets and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=24, help="per host, a multiple of 3 up to 24 (default: 24)")
    parser.add_argument("--seconds", type=float, default=2.0, help="average duration of a benchmark (default: 2)")
    parsed = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # up to three per host
    sys.stdout.write(HEADER)
    return max(show(measure(hosts, parsed.repeats, parsed.seconds)) for hosts in parsed.hosts)


if __name__ == "__main__":
    sys.exit(main())
