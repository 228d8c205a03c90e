"""What a controller costs on Kubernetes: CPU and requests per repeat, over a fake for the API server.

    python -m tests.benchmarks.kubernetes.bench_kubernetes --repeats 200 2000

Runs `python -m orchestrate run` as its users do, and prints what the controller's own process took and what it asked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.benchmarks.controller_cost import HEADER, Cost, find_faults, run_controller, show, write_plan
from tests.support.engines.kubernetes import plays
from tests.support.engines.kubernetes.standin import Object, StandIn

NODE = {
    "metadata": {"name": "node-1", "labels": {}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "8", "memory": "64Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kernelVersion": "6.1", "osImage": "Debian 12", "kubeletVersion": "v1.33.0"},
    },
}


def measure(repeats: int, *, slots: int, seconds: float) -> Cost:
    """Run a plan of `repeats` repeats, a multiple of eight.

    Args:
        repeats: In all.
        slots: Jobs at a time.
        seconds: That each takes.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfb-queue-"))

    def work(server: StandIn, job: Object) -> None:
        pod = plays.make_pod(server, job)
        plays.run(server, pod)
        server.closed.wait(seconds)
        for line in plays.lines_of(job):
            server.log(pod["metadata"]["name"], line)
        plays.end(server, pod)

    server = StandIn(work)
    try:
        server.put("nodes", json.loads(json.dumps(NODE)))
        server.write_kubeconfig(folder / "kube.yml")
        queue = {"context": "bench", "kubeconfig": "kube.yml", "max_jobs": slots}
        write_plan(folder, repeats, {"image": f"tfbench@{plays.DIGEST}", "device": "cpu", "kubernetes": queue})
        ran = run_controller(folder, {})
        calls = Counter(map(kind_of, server.requests))
        return Cost(repeats, ran, calls, tuple(find_faults(folder, repeats, ran)))
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def kind_of(request: str) -> str:
    """Name a request by what it costs the server: `create`, `delete`, `log` or `read`."""
    method, _, path = request.partition(" ")
    if method != "GET":
        return {"POST": "create", "DELETE": "delete"}[method]
    return "log" if "/log" in path else "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--slots", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1.0, help="that a simulated repeat takes")
    parsed = parser.parse_args()
    sys.stdout.write(HEADER)
    code = 0
    for repeats in parsed.repeats:
        cost = measure(repeats, slots=parsed.slots, seconds=parsed.seconds)
        code = max(code, show(cost))
        sys.stdout.write(f"        {dict(cost.calls)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
