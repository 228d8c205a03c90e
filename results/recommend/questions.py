"""Parses questions: networks, GPUs and limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import SupportsFloat

from results.errors import BadQuestion
from results.reference import GIBI
from results.reference.gpus import PEAKS, counted_gpu, gpus_named, unknown_gpu
from results.reference.networks import model_key, network_names, networks, published_names, unknown_network
from results.reference.prices import Prices
from results.schema import Case, Mode, Precision

MODES = (Mode.TRAIN, Mode.INFER)
"""Modes with throughput of a network, unlike `device`."""

GpuCount = tuple[str, int]
"""A GPU and its number in a job."""


@dataclass(frozen=True, kw_only=True)
class RentalQuestion:
    """A question about one network and one precision, for any GPUs and counts; None: no limit.

    Attributes:
        network: Its canonical name.
        mode: `train` or `infer`; None: each that was measured, in separate tables.
        gpus: GPUs to choose from, with their counts; empty: all with a figure, in `counts`.
        families: Those of `gpus` that each name means: a figure of one answers for all; empty: each GPU alone.
        counts: Numbers of GPUs of the job.
        budget: Maximum USD per hour of the job.
        hours: Maximum hours for `samples`.
        samples: Samples of the whole job.
        memory: Minimum GiB per GPU.
        batch_size: Batch per GPU that must fit; preferred if measured.
        prices: The prices to use.
    """

    budget: float | None = None
    hours: float | None = None
    samples: float = 1e6
    memory: float | None = None
    batch_size: int | None = None
    network: str
    precision: str
    mode: str | None = None
    gpus: tuple[GpuCount, ...] = ()
    families: tuple[tuple[GpuCount, ...], ...] = ()
    counts: tuple[int, ...] = (1,)
    prices: Prices = field(default=(), compare=False, repr=False)

    @property
    def memory_needed(self) -> float | None:
        """The requested GiB, or those of the batch's saved activations alone; None: unknown."""
        cost = networks().get(self.network)
        if self.memory is not None or self.batch_size is None or cost is None:
            return self.memory
        return cost.saved_bytes.get(PEAKS[self.precision][1], 0.0) * self.batch_size / GIBI or None

    def covers(self, case: Case) -> bool:
        """Return whether a case is of this network, precision and mode, on one host with its usual all-reduce."""
        asked = (self.network, self.precision, 1)
        same = (case.model, case.precision, case.num_hosts) == asked and self.mode in (None, case.mode)
        return same and case.all_reduce

    def wants(self, key: GpuCount) -> bool:
        """Return whether a GPU and count are among the choices."""
        return key in self.gpus if self.gpus else key[1] in self.counts


def measured_questions(cases: Iterable[Case]) -> list[RentalQuestion]:
    """Return a question for each network, precision, number of GPUs and mode that was measured on one host."""
    questions: dict[RentalQuestion, None] = {}
    for case in cases:
        question = RentalQuestion(network=case.model, precision=case.precision, mode=case.mode, counts=(case.num_gpus,))
        if case.num_gpus > 0 and case.mode in MODES and question.covers(case):
            questions[question] = None
    return list(questions)


def read_questions(
    *,
    model: Sequence[str] = (),
    precision: str = "fp16",
    num_gpus: str = "1",
    mode: str | None = None,
    gpus: str = "",
    measured: Collection[str] = (),
    **limits: float | None,
) -> list[RentalQuestion]:
    """Build a question for each network and precision from the flags of `recommend`.

    Args:
        model: Networks; empty: `resnet50`.
        precision: One or several, comma-separated.
        num_gpus: One or several, comma-separated, for GPUs without a count.
        mode: `train` or `infer`; None: both.
        gpus: Names, comma-separated, optionally with a count: `2x A5000`.
        measured: Networks that were measured, in addition to those of the reference.
        limits: `budget`, `hours`, `samples`, `memory` and `batch_size`.

    Raises:
        BadQuestion: A GPU, network, precision or number is unknown or invalid.
    """
    for name, value in limits.items():
        if value is not None and not (isinstance(value, SupportsFloat) and 0 < float(value) < math.inf):
            raise BadQuestion(f"--{name.replace('_', '-')}: must be a number above 0. Received: {value}")
    numbers, precisions = _listed(num_gpus), _listed(precision)
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise BadQuestion(f"--num-gpus: must be whole numbers above 0, e.g. 1,4. Received: {num_gpus!r}")
    if unknown := [name for name in precisions if name not in [*Precision]]:
        raise BadQuestion(f"--precision: must be among {', '.join(Precision)}. Received: {', '.join(unknown)!r}")
    counts = tuple(map(int, numbers))
    families = tuple(family for name in _listed(gpus) if name for family in _asked(name, counts))
    asked = [_network(text, measured) for text in model or ["resnet50"]]
    return [
        RentalQuestion(
            network=network,
            precision=kind,
            mode=mode,
            gpus=tuple(dict.fromkeys(itertools.chain(*families))),
            families=families,
            counts=counts,
            **limits,  # type: ignore[arg-type]
        )
        for network, kind in itertools.product(asked, precisions)
    ]


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in str(text).split(",")))


def _network(text: str, measured: Collection[str]) -> str:
    """Return the canonical name of a network; a typo must not look like a network without figures."""
    if "=" in text or "," in text or not text.strip():
        raise BadQuestion(f"--model: must be one network; repeat the flag for several answers. Received: {text!r}")
    name, known = model_key(text), list(dict.fromkeys([*network_names(), *measured]))
    if name not in known and not published_names(name):
        raise BadQuestion(unknown_network(name, known))
    return name


def _asked(name: str, counts: Sequence[int]) -> list[tuple[GpuCount, ...]]:
    """Parse `2x A5000` or `A100` into GPUs and their counts, by count."""
    count, gpu = counted_gpu(name)
    gpus = gpus_named(gpu)
    if not gpus:
        raise BadQuestion(unknown_gpu(gpu))
    if count is not None and (count < 1 or not count.is_integer()):
        raise BadQuestion(f"--gpus: must have a count above 0, e.g. '2x A5000'. Received: {name!r}")
    return [tuple((gpu, number) for gpu in gpus) for number in (counts if count is None else [int(count)])]
