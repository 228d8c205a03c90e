"""Reads all facts about a machine, in two minutes at most."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.schema.health import GPUFacts, GPUSlice
from tfbench.doctor.driver import DriverFacts, GPUPair
from tfbench.doctor.trial import STAGES, Trial
from tfbench.machine.host import MachineFacts, read_machine

DRIVER_SECONDS = 20.0
"""Without persistence mode each GPU takes a second or two to wake up."""

TRIAL_SECONDS = 75.0
"""TensorFlow imports in 5 to 15 s; CUDA's first kernel on eight GPUs and NCCL's start take as long again. All limits
together are below two minutes."""

NAMES = {
    "import": "importing TensorFlow",
    "devices": "listing its GPUs",
    "compute": "multiplying two matrices",
    "all_reduce": "summing over all GPUs",
}
"""What the trial did in each stage, in words."""


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
    machine = read_machine()
    if device == "cpu":
        trial = trial_from(ask("tfbench.doctor.trial", ["cpu"], TRIAL_SECONDS, CUDA_VISIBLE_DEVICES=""))
        return DoctorFacts(device=device, machine=machine, trial=trial)
    return DoctorFacts(
        device=device,
        machine=machine,
        driver=driver_from(ask("tfbench.doctor.driver", [], DRIVER_SECONDS)),
        trial=trial_from(ask("tfbench.doctor.trial", ["gpu"], TRIAL_SECONDS)),
    )


def driver_from(answers: ChildAnswers) -> DriverFacts:
    """Parse the output of `doctor.driver`; a driver that hung or crashed has that as its problem."""
    if not answers.lines:
        return DriverFacts(problem=f"the driver {answers.problem or 'printed nothing'} {answers.last_words}".strip())
    reported = {key: value for line in answers.lines for key, value in line.items()}
    gpus = [_gpu_facts(**gpu) for gpu in reported.pop("gpus", ())]
    pairs = [GPUPair(**pair) for pair in reported.pop("pairs", ())]
    facts = DriverFacts(**reported, gpus=gpus, pairs=pairs)
    if answers.problem is not None:
        return replace(facts, cuda_problem=f"{answers.problem} {answers.last_words}".strip())
    return facts


def _gpu_facts(slices: Sequence[Mapping[str, Any]] = (), **reported: Any) -> GPUFacts:  # noqa: ANN401
    return GPUFacts(slices=[GPUSlice(**part) for part in slices], **reported)


def trial_from(answers: ChildAnswers) -> Trial:
    """Parse the output of `doctor.trial`; after a failure, `problem` names the stage."""
    reported = {key: value for line in answers.lines for key, value in line.items()}
    try:
        trial = Trial(**reported)
    except TypeError as error:
        return Trial(problem=f"the trial's answer is malformed: {error}")
    if answers.problem is None:
        return trial
    stage = STAGES[min(len(answers.lines), len(STAGES) - 1)]
    words = f": {answers.last_words}" if answers.last_words else ""
    return replace(trial, problem=f"{answers.problem} while {NAMES[stage]}{words}")


PROJECT = Path(__file__).resolve().parents[2]

LAST_WORDS = 3
"""Number of last lines of a child's stderr that are kept to explain its end."""

MAX_LINE = 300


@dataclass(frozen=True, kw_only=True)
class ChildAnswers:
    """The output of a child process.

    Attributes:
        lines: The JSON objects that it printed, in order.
        problem: How it failed: `crashed with SIGSEGV`, `did not answer in 20 s`; None: it did not.
        last_words: The end of its stderr; empty after success.
    """

    lines: list[dict[str, Any]]
    problem: str | None = None
    last_words: str = ""


def ask(module: str, arguments: Sequence[str], seconds: float, **variables: str) -> ChildAnswers:
    """Run `python -m MODULE ARGUMENTS`, which prints JSON objects, one a line.

    Args:
        module: One of the doctor's own.
        arguments: Its arguments.
        seconds: Time limit, after which it is killed with all its children.
        variables: Added to the environment.
    """
    # In an image, PYTHONPATH names the folder of the packages.
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    problem = None
    try:
        reported, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(child)
        problem = f"did not answer in {seconds:.0f} s"
        reported, errors = _rest(child)
    if problem is None and child.returncode:
        code = child.returncode
        problem = f"crashed with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return ChildAnswers(lines=_objects(reported), problem=problem, last_words=_last_words(errors) if problem else "")


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.kill()


def _rest(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return the output of a killed child; one that hangs in the kernel cannot be killed and is abandoned."""
    try:
        return child.communicate(timeout=2.0)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", error.stderr or b""


def _objects(reported: bytes) -> list[dict[str, Any]]:
    found = []
    for line in reported.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # the loader's message
        if isinstance(value, dict):
            found.append(value)
    return found


def _last_words(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(line[:MAX_LINE] for line in lines[-LAST_WORDS:])
