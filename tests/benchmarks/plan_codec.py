"""Is writing or reading `plan.json` slower than by the hand-written codec before? Both take turns on one large plan.

    git archive 23ce864 | tar x -C ../before
    python -m tests.benchmarks.plan_codec --other=../before

Two lines, for writing and for reading: median seconds of both versions, this version's time over the other's, and its
quartiles over the rounds. Writing ends with the text of the file, reading begins with its bytes. Each version runs in
a process of its own; while one works the other waits, so that both see the same moments of a shared machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.planning.codec import plan_to_json
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import make_plan
from orchestrate.suites import CaseBlock, Suite
from results.schema import GPU

HERE = Path(__file__).parents[2]

WORKER = """
import json, pathlib, sys, time
{functions}
data = pathlib.Path(sys.argv[1]).read_bytes()
plan = read(data)
for line in sys.stdin:
    began = time.perf_counter()
    write(plan) if line.strip() == "write" else read(data)
    print(time.perf_counter() - began, flush=True)
"""

OURS = """
from orchestrate.planning.codec import plan_from_json as read, plan_to_json as write
"""

THEIRS = """
from orchestrate.plan import plan_from_dict, plan_to_dict
encoder = json.JSONEncoder(indent=2, allow_nan=False, ensure_ascii=False)
def read(data): return plan_from_dict(json.loads(data))
def write(plan): return "".join(encoder.iterencode(plan_to_dict(plan)))
"""


def large_plan(repeats: int) -> str:
    """Return the `plan.json` of a fleet of 10 repeats of 8 cases a host."""
    models = ["resnet50", "googlenet", "vgg16", "alexnet"]
    suite = Suite("large", "", 10, (CaseBlock(model=models, batch_per_gpu=8, num_gpus=[1, 2]),))
    facts = Facts(gpus=tuple(GPU(index=index, name="NVIDIA RTX A4000", uuid=f"GPU-{index}") for index in range(2)))
    hosts = [
        Host(fleet=f"fleet{index % 10}", name=f"node-{index}", docker=DockerAddress(scheme="ssh", target=f"n{index}"))
        for index in range(repeats // 80)
    ]
    plan = make_plan(hosts, {host.place: facts for host in hosts}, lambda _: suite, run_id="large", seed=1)
    return plan_to_json(plan)


class Version:
    """One version of the codec, in a process that waits for its turns."""

    def __init__(self, folder: Path, functions: str, plan: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(functions=functions), str(plan)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, what: str) -> float:
        """Write or read the plan once, and return how long that took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> int:
    """Compare, and print a line for each direction."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, required=True, help="checkout of commit 23ce864")
    parser.add_argument("--repeats", type=int, default=24_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        text = large_plan(options.repeats)
        file.write(text)
        file.flush()
        count = sum(len(entry["jobs"]) for entry in json.loads(text)["hosts"])
        print(f"{count} repeats, {len(text) / 1e6:.0f} MB")  # noqa: T201
        ours, theirs = Version(HERE, OURS, Path(file.name)), Version(options.other.resolve(), THEIRS, Path(file.name))
        for what in ("write", "read"):
            took: dict[Version, list[float]] = {ours: [], theirs: []}
            for number in range(options.rounds + 1):
                for version in (ours, theirs) if number % 2 else (theirs, ours):
                    took[version].append(version.seconds(what))
            pairs = list(zip(took[ours][1:], took[theirs][1:], strict=True))  # the first round warms up
            low, middle, high = statistics.quantiles([mine / other for mine, other in pairs], n=4)
            means = [statistics.median(column) for column in zip(*pairs, strict=True)]
            print(  # noqa: T201
                f"{what:<6} this {means[0]:.2f} s, other {means[1]:.2f} s, this / other {middle:.2f}  "
                f"quartiles {low:.2f} to {high:.2f}",
                flush=True,
            )
        ours.close()
        theirs.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
