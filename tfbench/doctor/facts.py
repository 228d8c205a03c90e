"""All that the doctor knows of a machine, and how it comes to know it in two minutes at most."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from results.schema.record_json import RecordError, from_dict
from tfbench.doctor.children import Answers, ask
from tfbench.doctor.driver import DriverFacts
from tfbench.doctor.libraries import Library
from tfbench.doctor.machine import MachineFacts, read_machine
from tfbench.doctor.trial import STAGES, Trial

DRIVER_SECONDS = 20.0
"""Without persistence mode each GPU takes a second or two to wake up."""

LIBRARIES_SECONDS = 15.0
TRIAL_SECONDS = 75.0
"""TensorFlow imports in 5 to 15 s, CUDA's first kernel on eight GPUs and NCCL's start take as long again. All limits
together stay below two minutes."""

NAMES = {
    "import": "importing TensorFlow",
    "devices": "listing its GPUs",
    "compute": "multiplying two matrices",
    "all_reduce": "summing over all GPUs",
}
"""What the trial did in each stage, for a person."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One machine.

    Attributes:
        device: What cases will run on: `gpu` or `cpu`; for the CPU neither driver nor libraries are asked.
    """

    device: str = "gpu"
    machine: MachineFacts = field(default_factory=MachineFacts)
    driver: DriverFacts = field(default_factory=DriverFacts)
    libraries: list[Library] = field(default_factory=list)
    trial: Trial = field(default_factory=Trial)


def read_facts(device: str) -> Facts:
    """Look at this machine; takes 10 to 40 s as a rule, and 115 s at most."""
    machine = read_machine()
    if device == "cpu":
        trial = trial_from(ask("tfbench.doctor.trial", ["cpu"], TRIAL_SECONDS, CUDA_VISIBLE_DEVICES=""))
        return Facts(device=device, machine=machine, trial=trial)
    return Facts(
        device=device,
        machine=machine,
        driver=driver_from(ask("tfbench.doctor.driver", [], DRIVER_SECONDS)),
        libraries=libraries_from(ask("tfbench.doctor.libraries", [], LIBRARIES_SECONDS)),
        trial=trial_from(ask("tfbench.doctor.trial", ["gpu"], TRIAL_SECONDS)),
    )


def driver_from(answers: Answers) -> DriverFacts:
    """Read what the driver's child printed; a driver that hangs or crashes has that as its problem."""
    if not answers.lines:
        return DriverFacts(problem=f"the driver {answers.problem or 'printed nothing'} {answers.last_words}".strip())
    facts = from_dict(DriverFacts, {key: value for line in answers.lines for key, value in line.items()})
    if answers.problem is not None:
        return replace(facts, cuda_problem=f"{answers.problem} {answers.last_words}".strip())
    return facts


def libraries_from(answers: Answers) -> list[Library]:
    """Read what the libraries' child printed, up to the one that crashed it."""
    found = [from_dict(Library, line) for line in answers.lines]
    if answers.problem:
        found.append(Library(name="the next library", problem=f"loading it {answers.problem} {answers.last_words}"))
    return found


def trial_from(answers: Answers) -> Trial:
    """Put the trial's lines together, and say in which stage it ended if not well."""
    reported = {key: value for line in answers.lines for key, value in line.items()}
    try:
        trial = from_dict(Trial, reported)
    except RecordError as error:
        return Trial(problem=f"the trial's answer is malformed: {error}")
    if answers.problem is None:
        return trial
    stage = STAGES[min(len(answers.lines), len(STAGES) - 1)]
    words = f": {answers.last_words}" if answers.last_words else ""
    return replace(trial, problem=f"{answers.problem} while {NAMES[stage]}{words}")
