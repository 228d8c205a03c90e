"""What a controller costs on a queue: CPU and calls per repeat, over a simulated Slurm.

    python -m tests.benchmarks.slurm.bench_slurm --repeats 200 2000

Runs `python -m orchestrate run` as its users do, with fakes for Slurm's commands in PATH, and prints what the
controller's own process took and how often it asked.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.benchmarks.controller_cost import HEADER, PROJECT, Cost, find_faults, run_controller, show, write_plan


def measure(repeats: int, *, slots: int, seconds: float, poll_seconds: float) -> Cost:
    """Run a plan of `repeats` repeats, a multiple of eight.

    Args:
        repeats: In all.
        slots: Jobs at a time.
        seconds: That each takes.
        poll_seconds: Between looks.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfb-queue-"))
    try:
        ran = run_controller(folder, prepare(folder, repeats, slots, seconds, poll_seconds))
        calls = Counter((folder / "calls").read_text().split())
        left = [path.name for path in (folder / "shared").iterdir()]
        faults = [*find_faults(folder, repeats, ran), *([f"left behind: {left}"] if left else [])]
        return Cost(repeats, ran, calls, tuple(faults))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare(folder: Path, repeats: int, slots: int, seconds: float, poll_seconds: float) -> dict[str, str]:
    """Write the hosts file, the suite and the commands; return what is added to the controller's environment."""
    for name in ("bin", "shared"):
        (folder / name).mkdir()
    for name in ("sbatch", "squeue", "sinfo", "scancel"):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {PROJECT}/tests/benchmarks/slurm/standin.py {name} "$@"\n')
        script.chmod(0o755)
    (folder / "state.json").write_text(json.dumps({"seconds": seconds, "arrays": []}))
    slurm = {"container": "none", "shared_folder": str(folder / "shared"), "max_jobs": slots}
    write_plan(folder, repeats, {"slurm": {**slurm, "poll_seconds": poll_seconds}})
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "SIMULATED_SLURM": str(folder),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="that a simulated repeat takes")
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    parsed = parser.parse_args()
    sys.stdout.write(HEADER)
    return max(
        show(measure(repeats, slots=parsed.slots, seconds=parsed.seconds, poll_seconds=parsed.poll_seconds))
        for repeats in parsed.repeats
    )


if __name__ == "__main__":
    sys.exit(main())
