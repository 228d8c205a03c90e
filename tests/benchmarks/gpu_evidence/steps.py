"""What a step is, and what becomes of it on a machine with or without GPUs."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results.reference import GIBI
from results.reference.networks import training_bytes
from results.schema import Case, Mode, Precision
from results.schema.networks import INPUTS

BESIDE_THE_STEP_GIB = 1.5
"""What context, libraries' workspaces and fragmentation take of a GPU's memory."""


class Outcome(enum.StrEnum):
    """How a step ended."""

    FIGURE = "figure"
    NO_GPU = "no_gpu"
    NO_PEER = "no_peer"
    SKIPPED = "skipped"  # the machine or this version lacks what it needs: the cause says what
    TIMEOUT = "timeout"
    FAILED = "failed"


FINAL = frozenset({Outcome.FIGURE, Outcome.TIMEOUT, Outcome.FAILED})
"""What a later call does not try again. The others cost nothing to judge anew, and the machine may have changed."""


class NoFigure(Exception):
    """A step has no figure.

    Attributes:
        outcome: What it has instead.
        cause: For a person, one line.
    """

    def __init__(self, outcome: Outcome, cause: str) -> None:
        super().__init__(cause)
        self.outcome, self.cause = outcome, " ".join(cause.split())


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process of a step.

    Attributes:
        name: Within the step; of a comparison the side.
        command: Arguments; `{…}` are filled in by `runner`.
        variables: Added to the environment.
        cpu: Flags added on a machine without GPUs, where later flags count; None: a CPU says nothing about this.
        reads_log: Whether its figure is printed and nowhere else.
    """

    name: str
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    cpu: tuple[str, ...] | None = None
    reads_log: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """One row of the plan.

    Attributes:
        name: `group.what`, letters, digits, `.`, `_` and `-`: also the name of its files.
        question: What its figure answers.
        runs: One after another; where two are compared, the first over the second, in alternating pairs.
        figure: Which reader of `figures` makes the figure.
        limit: Seconds, all runs together; then it is a `timeout`.
        gpus: How many it needs, unless it has a form for CPUs.
        needs_peer: Whether it runs tf_cnn_benchmarks.
        program: Needed on the PATH; None: no other.
        compares: Whether the two runs are repeated in alternating pairs.
    """

    name: str
    question: str
    runs: tuple[Run, ...]
    figure: str
    limit: float
    gpus: int = 1
    needs_peer: bool = False
    program: str | None = None
    compares: bool = False

    @property
    def group(self) -> str:
        """The name's first part."""
        return self.name.partition(".")[0]

    @property
    def has_cpu_form(self) -> bool:
        """Whether it says something on a machine without GPUs."""
        return all(run.cpu is not None for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides which steps can run.

    Attributes:
        gpus: That the driver shows and, once that is known, TensorFlow too.
        memory_gib: Of the smallest GPU; None: not known.
        why_no_gpu: Where `gpus` is 0.
        flags: Of `python -m tfbench`, without dashes; booleans without `no`.
        programs: Found on the PATH, of those that steps name.
        modules: Of this project, of those that steps name.
        peer: Folder with tf_cnn_benchmarks.py; None: not given.
        cpu_forms: Whether steps run at reduced sizes where there is no GPU; not where there is one that TensorFlow
            does not see.
    """

    gpus: int
    flags: frozenset[str]
    memory_gib: float | None = None
    why_no_gpu: str = ""
    programs: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    peer: Path | None = None
    cpu_forms: bool = True


def resolve(step: Step, machine: Machine, pairs: int) -> Step:
    """Return the step with the runs that this machine makes.

    Args:
        step: A row of the plan.
        machine: Where it is to run.
        pairs: Of a comparison on GPUs; a CPU makes one.

    Raises:
        NoFigure: This machine or this version cannot, and why.
    """
    on_cpu = machine.gpus == 0 and machine.cpu_forms and step.has_cpu_form
    if machine.gpus < step.gpus and not on_cpu:
        why = machine.why_no_gpu if machine.gpus == 0 else f"needs {step.gpus} GPUs, this machine has {machine.gpus}"
        raise NoFigure(Outcome.NO_GPU, why)
    if step.needs_peer and machine.peer is None:
        raise NoFigure(Outcome.NO_PEER, "--peer=FOLDER names a checkout of tf_cnn_benchmarks")
    if step.program is not None and step.program not in machine.programs:
        raise NoFigure(Outcome.SKIPPED, f"{step.program} is not on the PATH")
    for run in step.runs:
        if missing := lacking(run, machine):
            raise NoFigure(Outcome.SKIPPED, missing)
    runs = [_on_cpu(run) for run in step.runs] if on_cpu else _fitted(step.runs, machine.memory_gib)
    if step.compares:
        count = 1 if on_cpu else pairs
        runs = [dataclasses.replace(run, name=f"{run.name}-{pair}") for pair in range(1, count + 1) for run in runs]
    return dataclasses.replace(step, runs=tuple(runs))


def lacking(run: Run, machine: Machine) -> str | None:
    """Say what a run needs of this version that it has not; None: nothing."""
    command = run.command
    if "-m" in command and (module := command[command.index("-m") + 1]) != "tfbench":
        wanted = module.startswith("tfbench.") and module not in machine.modules
        return f"this version has no {module}" if wanted else None
    if "tfbench" not in command:
        return None
    for argument in command[command.index("tfbench") + 1 :]:
        name = argument.removeprefix("--").partition("=")[0]
        if name not in machine.flags and name.removeprefix("no") not in machine.flags:
            return f"unknown flag --{name}"
    return None


def _fitted(runs: Sequence[Run], memory_gib: float | None) -> list[Run]:
    """Halve the batch of a step until its training fits into the GPU's memory, the same for all of its runs."""
    given = {name: value for name, _, value in (argument.partition("=") for run in runs for argument in run.command)}
    model, batch = given.get("--model"), given.get("--batch_size")
    if memory_gib is None or batch is None or model not in INPUTS or given.get("--mode") == Mode.INFER:
        return list(runs)
    case = Case(model=model, precision=Precision(given.get("--precision", "fp32")), batch_per_gpu=int(batch))
    while case.batch_per_gpu > 1 and (training_bytes(case) or 0) / GIBI > memory_gib - BESIDE_THE_STEP_GIB:
        case = dataclasses.replace(case, batch_per_gpu=case.batch_per_gpu // 2)
    fitting = {f"--batch_size={batch}": f"--batch_size={case.batch_per_gpu}"}
    return [dataclasses.replace(run, command=tuple(fitting.get(part, part) for part in run.command)) for run in runs]


def _on_cpu(run: Run) -> Run:
    return dataclasses.replace(run, command=(*run.command, *(run.cpu or ())))


def definition(step: Step) -> str:
    """Return a digest of what a resolved step runs and reads; equal digests give comparable figures."""
    parts = [step.figure, [[run.name, run.command, run.variables] for run in step.runs]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
