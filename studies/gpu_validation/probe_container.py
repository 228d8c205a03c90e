"""Runs tfbench in containers of this machine's engine, next to bare processes of this interpreter.

Each action is one step: `check` asks `tfbench check`; `compare` runs the same case in a container and bare; `resume` kills the controller
(SIGKILL) while a container works, and resumes the run; `networks` trains BERT-Large and a batch that fills the GPU. Runs stay in `--folder`.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from orchestrate.engines.docker.engine import DockerEngine, controller_address
from orchestrate.engines.invocation import RUN_LABEL
from results.runs.reading import from_json
from results.schema import Record, Status
from tests.support import PROJECT

CONTAINER, BARE = "container", "bare"
SHORT = {"num_gpus": 1, "warmup_steps": 10, "num_steps": 50}
ON_GPU: dict[str, list[dict[str, Any]]] = {
    "compare": [{"model": "resnet50", "precision": "fp16", "batch_per_gpu": 256, "min_seconds": 6}],
    "resume": [{"model": "resnet50", "precision": ["fp16", "fp32"], "batch_per_gpu": {"fp16": 256, "fp32": 128}}],
    "networks": [
        {"model": "bert_large", "precision": "fp16", "batch_per_gpu": 64, "xla": "replica"},
        {"model": "resnet50", "precision": ["fp16", "fp32"], "batch_per_gpu": "fit"},
    ],
}
ON_CPU = {"model": "googlenet", "batch_per_gpu": 2, "image_size": 64, "warmup_steps": 1, "num_steps": 3}
REPEATS = {"compare": 3, "resume": 1, "networks": 1}


class FailedError(Exception):
    """The step has no figure; the message is the cause."""


def main() -> int:
    """Print the action's figures, or why it has none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["check", *ON_GPU])
    parser.add_argument("--engine", default=None, help="unix://… Default: DOCKER_HOST, or the usual socket")
    parser.add_argument("--image", default="", help="image on the engine. Default: built from this checkout")
    parser.add_argument("--folder", type=Path, required=True, help="where runs stay")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    options = parser.parse_args()
    try:
        document = Action(options).figures()
    except FailedError as error:
        document = {"outcome": "failed", "cause": str(error)}
    print(json.dumps(document))  # noqa: T201
    return 0


class Action:
    """One call of the probe.

    Args:
        options: Parsed command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._engine = controller_address(options.engine)
        self._address = f"{self._engine.scheme}://{self._engine.target}"
        self._run_id = f"{options.action}-{time.strftime('%Y%m%d-%H%M%S')}"
        self._folder = options.folder.resolve() / self._run_id
        self._folder.mkdir(parents=True)
        self._variables = {**os.environ, "DOCKER_HOST": self._address, "PYTHONPATH": str(PROJECT)}

    def figures(self) -> dict[str, Any]:
        """Do it and return the probe's document.

        Raises:
            FailedError: A command failed, or a repeat did.
        """
        self.write_files()
        action = self._options.action
        if action == "check":
            self._tfbench("check", "--hosts=hosts.yml")
            return {"figures": {"hosts_ready": (2, "hosts")}}
        if action == "resume":
            return self._resumed()
        limit = [f"--limit={CONTAINER}"] if action == "networks" else []
        self._tfbench("run", *self._run_flags(), *limit, "--max-parallel=1")
        rates = {name: [self._rate(record) for record in found] for name, found in self._records().items()}
        figures = {name: (statistics.fmean(values), "samples/s") for name, values in rates.items()}
        if action == "networks":
            return {"figures": {"repeats_ok": (len(figures), "repeats"), **figures}, "details": {"rates": rates}}
        inside, outside = (
            statistics.fmean(
                itertools.chain.from_iterable(rates[name] for name in rates if name.startswith(f"{fleet}."))
            )
            for fleet in (CONTAINER, BARE)
        )
        ratio = {"throughput": (inside / outside, f"× {BARE}")}
        return {"figures": {**ratio, **figures}, "details": {"rates": rates}}

    def write_files(self) -> None:
        """Write the hosts file and the suite: JSON is YAML."""
        # Without an image, one is built on this machine's engine, which is the same.
        given = self._options.image
        image = {"image": given, "image_source": "local"} if given else {"image_source": "transfer"}
        fleets = {
            CONTAINER: {"hosts": {CONTAINER: {"docker": self._address, **image}}},
            BARE: {"hosts": {BARE: {"process": True}}},
        }
        device, action = self._options.device, self._options.action
        hosts = {"version": 1, "defaults": {"device": device}, "fleets": fleets}
        cases = [SHORT | case for case in ON_GPU.get(action, ())] if device == "gpu" else [ON_CPU]
        suite = {
            "repeats": REPEATS.get(action, 1) if device == "gpu" else 1,
            "cases": [case | {"device": device} for case in cases],
        }
        (self._folder / "hosts.yml").write_text(json.dumps(hosts), encoding="utf-8")
        if cases:
            (self._folder / "suite.yml").write_text(json.dumps(suite), encoding="utf-8")

    def _run_flags(self) -> list[str]:
        return ["--hosts=hosts.yml", "--suite=suite.yml", f"--run-id={self._run_id}", "--no-report", "--display=plain"]

    def _resumed(self) -> dict[str, Any]:
        """Kill the controller while a container works, resume its run, and look for what is left."""
        command = self._command("run", *self._run_flags(), f"--limit={CONTAINER}")
        with subprocess.Popen(command, cwd=self._folder, env=self._variables, stdout=sys.stderr) as controller:
            self._wait_for_container(controller)
            controller.kill()
        self._tfbench("resume", self._run_id, "--no-report", "--display=plain")
        records = self._records()
        for found in records.values():
            for record in found:
                self._rate(record)
        reattached, left = "reattached" in self._states(), self._containers()
        if not reattached or left:
            raise FailedError(f"the container was {'' if reattached else 'not '}reattached; {left} containers are left")
        return {"figures": {"repeats_ok": (sum(map(len, records.values())), "repeats after SIGKILL and resume")}}

    def _wait_for_container(self, controller: subprocess.Popen[bytes]) -> None:
        """Wait until a benchmark runs in a container."""
        while not (self._states() & {"building", "compiling", "warming", "timing"} and self._containers()):
            if controller.poll() is not None:
                raise FailedError(f"the run ended before its controller was killed: exit code {controller.returncode}")
            time.sleep(0.2)

    def _states(self) -> set[str]:
        """Return all states that repeats of the run have been in."""
        events = self._folder / "runs" / self._run_id / "events.jsonl"
        lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
        return {json.loads(line).get("state", "") for line in lines if line.endswith("}")}

    def _containers(self) -> int:
        """Return the number of containers of the run."""
        plan = json.loads((self._folder / "runs" / self._run_id / "plan.json").read_text(encoding="utf-8"))
        with contextlib.closing(DockerEngine(self._engine)) as engine:
            return len(engine.labelled(f"{RUN_LABEL}={plan['run_id']}"))

    def _records(self) -> dict[str, list[Record]]:
        """Return the run's records by fleet and case."""
        found: dict[str, list[Record]] = {}
        for path in sorted((self._folder / "runs" / self._run_id / "records").glob("*.json")):
            found.setdefault(re.sub(r"\.r\d+$", "", path.stem), []).append(from_json(path.read_bytes()))
        if not found:
            raise FailedError("the run has no records")
        return found

    def _rate(self, record: Record) -> float:
        if record.status is not Status.OK or record.measurement is None:
            raise FailedError(f"{record.case.name}: {record.status}: {record.cause}")
        return record.measurement.samples_per_second

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "orchestrate", *arguments]

    def _tfbench(self, *arguments: str) -> None:
        """Run a command of tfbench in the folder, with its output on stderr.

        Raises:
            FailedError: It failed.
        """
        command, variables = self._command(*arguments), self._variables
        done = subprocess.run(command, cwd=self._folder, env=variables, stdout=sys.stderr, check=False)
        if done.returncode != 0:
            raise FailedError(f"tfbench {' '.join(arguments)}: exit code {done.returncode}; see the log")


if __name__ == "__main__":
    sys.exit(main())
