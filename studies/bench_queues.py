"""Measures the controller's CPU time and requests per repeat on a queue, with a fake of Slurm or Kubernetes.

    python -m studies.bench_queues slurm --repeats 200 2000 --slots 100

Runs `python -m orchestrate run` and prints the CPU time of its process and the number of its calls.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from studies.controller_cost import HEADER, PROJECT, Cost, find_faults, run_controller, show, write_plan
from tests.support import write_program
from tests.support.engines.kubernetes import plays
from tests.support.engines.kubernetes.fake_server import FakeServer, Object

NODE = {
    "metadata": {"name": "node-1", "labels": {}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "8", "memory": "64Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kernelVersion": "6.1", "osImage": "Debian 12", "kubeletVersion": "v1.33.0"},
    },
}


def measure_slurm(repeats: int, *, slots: int, seconds: float, poll_seconds: float = 1.0) -> Cost:
    """Run a plan on a fake Slurm.

    Args:
        repeats: Total number of repeats, a multiple of eight.
        slots: Jobs at a time.
        seconds: Duration of a repeat.
        poll_seconds: Interval of polling.
    """
    with tempfile.TemporaryDirectory(prefix="tfb-queue-") as path:
        folder = Path(path)
        ran = run_controller(folder, prepare_slurm(folder, repeats, slots, seconds, poll_seconds))
        calls = Counter((folder / "calls").read_text().split())
        left = [path.name for path in (folder / "shared").iterdir()]
        faults = [*find_faults(folder, repeats, ran), *([f"left behind: {left}"] if left else [])]
        return Cost(repeats, ran, calls, tuple(faults))


def prepare_slurm(folder: Path, repeats: int, slots: int, seconds: float, poll_seconds: float) -> dict[str, str]:
    """Write the hosts file, suite and commands; return variables for the controller's environment."""
    (folder / "shared").mkdir()
    for name in ("sbatch", "squeue", "sinfo", "scancel"):
        script = f'#!/bin/sh\nexec {sys.executable} {PROJECT}/studies/fake_slurm.py {name} "$@"\n'
        write_program(folder / "bin" / name, script)
    (folder / "state.json").write_text(json.dumps({"seconds": seconds, "arrays": []}))
    slurm = {"container": "none", "shared_folder": str(folder / "shared"), "max_jobs": slots}
    write_plan(folder, repeats, {"slurm": {**slurm, "poll_seconds": poll_seconds}})
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(PROJECT), "SIMULATED_SLURM": str(folder)}


def measure_kubernetes(repeats: int, *, slots: int, seconds: float) -> Cost:
    """Run a plan on a fake Kubernetes; see `measure_slurm`."""

    def work(server: FakeServer, job: Object) -> None:
        pod = plays.make_pod(server, job)
        plays.run(server, pod)
        server.closed.wait(seconds)
        for line in plays.lines_of(job):
            server.log(pod["metadata"]["name"], line)
        plays.end(server, pod)

    server = FakeServer(work)
    with tempfile.TemporaryDirectory(prefix="tfb-queue-") as path:
        folder = Path(path)
        try:
            server.put("nodes", json.loads(json.dumps(NODE)))
            server.write_kubeconfig(folder / "kube.yml")
            queue = {"context": "bench", "kubeconfig": "kube.yml", "max_jobs": slots}
            write_plan(folder, repeats, {"image": f"tfbench@{plays.DIGEST}", "device": "cpu", "kubernetes": queue})
            ran = run_controller(folder, {})
            return Cost(repeats, ran, Counter(map(kind_of, server.requests)), tuple(find_faults(folder, repeats, ran)))
        finally:
            server.close()


def kind_of(request: str) -> str:
    """Return the kind of a request: `create`, `delete`, `log` or `read`."""
    method, _, path = request.partition(" ")
    if method != "GET":
        return {"POST": "create", "DELETE": "delete"}[method]
    return "log" if "/log" in path else "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queue", choices=["slurm", "kubernetes"])
    parser.add_argument("--repeats", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a simulated repeat")
    parsed = parser.parse_args()
    measure = {"slurm": measure_slurm, "kubernetes": measure_kubernetes}[parsed.queue]
    sys.stdout.write(HEADER)
    return max(show(measure(repeats, slots=parsed.slots, seconds=parsed.seconds)) for repeats in parsed.repeats)


if __name__ == "__main__":
    sys.exit(main())
