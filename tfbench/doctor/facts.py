"""Reads all facts about a machine, in two minutes at most; as a program, prints those of the driver as JSON.

The driver is read in a process of its own, because one that has lost a GPU can hang in any of these queries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from results.schema.health import GPUFacts, GPUSlice
from tfbench.doctor.trial import Trial, report
from tfbench.machine.driver_gpus import ask_cuda, problems_of, read_driver_gpus
from tfbench.machine.host import MachineFacts, read_machine
from tfbench.machine.nvml import Driver, opened, read_gpu, versions


@dataclass(frozen=True, kw_only=True)
class DriverFacts(Driver):
    """The driver and all its GPUs.

    Attributes:
        cuda_problem: Why the CUDA driver does not start, e.g. `cuInit failed with … (802)`; None: it does.
        cuda_devices: Names of the devices that CUDA gives to a process, in its order.
    """

    cuda_problem: str | None = None
    cuda_devices: list[str] = field(default_factory=list)

    @property
    def answering(self) -> list[GPUFacts]:
        """The GPUs that answer."""
        return [gpu for gpu in self.gpus if gpu.problem is None]


DRIVER_SECONDS = 20.0
"""Without persistence mode each GPU takes a second or two to wake up."""

TRIAL_SECONDS = 75.0
"""TensorFlow imports in 5 to 15 s; CUDA's first kernel on eight GPUs and NCCL's start take as long again. All limits
together are below two minutes."""

DRIVER_STAGES = ("reading its GPUs", "starting CUDA")
ALL_REDUCING = "summing over all GPUs"
TRIAL_STAGES = ("importing TensorFlow", "listing its GPUs", "multiplying two matrices", ALL_REDUCING)
"""What a child does before each line that it prints."""


@dataclass(frozen=True, kw_only=True)
class DoctorFacts:
    """One machine.

    Attributes:
        device: What cases will run on: `gpu` or `cpu`; for `cpu` the driver is not read.
    """

    device: str = "gpu"
    machine: MachineFacts = field(default_factory=MachineFacts)
    driver: DriverFacts = field(default_factory=DriverFacts)
    trial: Trial = field(default_factory=Trial)


def read_facts(device: str) -> DoctorFacts:
    """Read all facts of this machine, usually in 10 to 40 s and at most in 100 s."""
    machine, driver, variables = read_machine(), DriverFacts(), {"CUDA_VISIBLE_DEVICES": ""}
    if device == "gpu":
        driver, variables = driver_from(*ask(["tfbench.doctor.facts"], DRIVER_STAGES, DRIVER_SECONDS)), {}
    reported, problem = ask(["tfbench.doctor.trial", device], TRIAL_STAGES, TRIAL_SECONDS, **variables)
    return DoctorFacts(device=device, machine=machine, driver=driver, trial=Trial(**reported, problem=problem))


def driver_from(reported: Mapping[str, Any], problem: str | None) -> DriverFacts:
    """Return what the child printed; a driver that hung or crashed has that as its problem."""
    if not reported:
        return DriverFacts(problem=f"the driver {problem or 'printed nothing'}")
    gpus = [_gpu_facts(**gpu) for gpu in reported.get("gpus", ())]
    parsed = {"gpus": gpus} | ({} if problem is None else {"cuda_problem": problem})
    return DriverFacts(**{**reported, **parsed})


def _gpu_facts(slices: Sequence[Mapping[str, Any]] = (), **reported: Any) -> GPUFacts:  # noqa: ANN401
    return GPUFacts(slices=[GPUSlice(**part) for part in slices], **reported)


PROJECT = Path(__file__).resolve().parents[2]

LAST_WORDS = 3
"""Number of last lines of a child's stderr that are kept to explain its end."""

MAX_LINE = 300


def ask(
    arguments: Sequence[str], stages: Sequence[str], seconds: float, **variables: str
) -> tuple[dict[str, Any], str | None]:
    """Run `python -m ARGUMENTS`, which prints JSON objects, one a line.

    Args:
        arguments: One of the doctor's own modules, and its arguments.
        stages: What it does before each line.
        seconds: Time limit, after which it is killed with all its children.
        variables: Added to the environment.

    Returns:
        What it printed; and how it failed, in which stage, with its last words: `crashed with SIGSEGV while listing its
        GPUs: …`, `did not answer in 20 s while …`; None: it did not.
    """
    # In an image, PYTHONPATH names the folder of the packages.
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    problem = None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = child.wait(seconds)
            if code:
                problem = f"crashed with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            problem = f"did not answer in {seconds:.0f} s"
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is abandoned
                child.wait(2.0)
        objects = []
        for line in _lines(output):
            with contextlib.suppress(ValueError, TypeError):  # others are the loader's messages
                objects.append(dict(json.loads(line)))
        last_words = " | ".join(line[:MAX_LINE] for line in _lines(errors)[-LAST_WORDS:])
    if problem is not None:
        stage = stages[min(len(objects), len(stages) - 1)]
        problem = f"{problem} while {stage}" + (f": {last_words}" if last_words else "")
    return {key: value for found in objects for key, value in found.items()}, problem


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]


def main() -> None:
    """Print the facts of NVML, then those of CUDA, which may hang although NVML answers."""
    with opened() as problem:
        if problem is not None:
            report(problem=problem)
            return
        gpus = read_driver_gpus()
        facts = [dataclasses.asdict(read_gpu(gpu)) for gpu in gpus]
        report(**versions(), gpus=facts, gpu_problems=problems_of(gpus))
    devices, problem = ask_cuda()
    report(cuda_problem=problem, cuda_devices=[device.name for device in devices])


if __name__ == "__main__":
    main()
