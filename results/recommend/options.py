"""Questions, and options to rent: their throughput, the prices that count, and how they meet the question's limits.

The prices that the user typed come first, then those of the user's files, of the run, and shipped ones.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, SupportsFloat

from results.compare.comparison import fleets_of
from results.errors import BadQuestion
from results.reference.gpus import UNSUPPORTED, counted_gpu, gpu_key, gpus_named, memory_of, unknown_gpu
from results.reference.networks import model_key, network_names, published_names, unknown_network
from results.reference.prices import FROM_RUN, YOURS, Offer, known_prices, positive_number, read_prices, span
from results.schema import Case, Device, Mode, Precision
from results.stats import Interval
from results.table.columns import Software
from results.table.comparable import grouped
from results.table.fleets import FleetRate
from results.text import counted, significant

SECONDS_PER_HOUR = 3600

TYPED = "--price"
"""Source of a typed price: of two for one GPU the first counts."""

ORIGINS = (YOURS, FROM_RUN, "")
"""Origins of prices, the preferred ones first."""

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
        prices: The prices to use.
    """

    budget: float | None = None
    hours: float | None = None
    samples: float = 1e6
    memory: float | None = None
    network: str
    precision: str
    mode: str | None = None
    gpus: tuple[GpuCount, ...] = ()
    families: tuple[tuple[GpuCount, ...], ...] = ()
    counts: tuple[int, ...] = (1,)
    prices: Sequence[Offer] = field(default=(), compare=False, repr=False)

    def covers(self, case: Case) -> bool:
        """Return whether a case is of this network, precision and mode, on one host with its usual all-reduce."""
        asked = (self.network, self.precision, 1)
        same = (case.model, case.precision, case.num_hosts) == asked and self.mode in (None, case.mode)
        return same and case.all_reduce

    def wants(self, key: GpuCount) -> bool:
        """Return whether a GPU and count are among the choices."""
        return key in self.gpus if self.gpus else key[1] in self.counts


class Basis(enum.StrEnum):
    """Basis of a throughput; only the first three are ranked."""

    MEASURED = "measured"
    PROJECT = "measured by this project"
    PUBLISHED = "published"
    PREDICTED = "predicted"
    NONE = "none"


@dataclass(frozen=True, eq=False)
class RentalOption:
    """An option: a GPU and count with its throughput, or the reason for having none, and its prices.

    Attributes:
        question: The question that it may answer.
        subject: Fleet, or GPU for figures of others.
        gpu: Name in the reference, else as received.
        count: GPUs of the job.
        samples_per_second: Over all GPUs, measured or predicted; 0: unknown.
        interval: None: uncertainty unknown.
        origin: Short description of the source.
        batch: Batch per GPU; empty: not stated.
        note: Why it is not ranked, or a remark; may be empty.
        network: Name of the network in a figure of others.
        setting: Source and software of a figure of others.
        foreign: Whether it was published by others, or with another framework, than the first rows of its table.
        failed: Whether it was tried here and failed because of the GPU, e.g. `oom`.
        measured: Measurement of these runs.
        sources: What the source of a figure states, with its URL, one line each.
        offers: The prices that count, of hosts with enough GPUs and within the budget, the lowest first.
        lowest: Lowest price of all its GPUs, which may be over the budget; 0: unknown.
        wins_below: USD per hour for all its GPUs below which it gives more samples per dollar than any other GPU.
    """

    question: RentalQuestion
    subject: str
    gpu: str
    count: int
    basis: Basis = Basis.NONE
    samples_per_second: float = 0.0
    interval: Interval | None = None
    origin: str = ""
    batch: str = ""
    note: str = ""
    network: str = ""
    setting: str = ""
    foreign: bool = False
    failed: bool = False
    measured: FleetRate | None = None
    sources: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    lowest: float = 0.0
    wins_below: float | None = None

    @property
    def key(self) -> GpuCount:
        """What is rented."""
        return self.gpu, self.count

    @property
    def name(self) -> str:
        """Display name: `2 × RTX A5000`, or the fleet."""
        return self.subject if self.count == 1 else f"{self.count} × {self.subject}"

    @property
    def framework(self) -> str:
        """Publisher and framework of a published figure, without version: `Lambda PyTorch`."""
        return " ".join(part.split()[0] for part in self.origin.split(", ")[:2])

    @property
    def ranked(self) -> bool:
        """Whether its throughput is known, ignoring limits."""
        return self.basis in (Basis.MEASURED, Basis.PROJECT, Basis.PUBLISHED)

    @property
    def doubt(self) -> str:
        """Why its figure decides only by a wide margin; empty if it does not."""
        return "predicted" if self.basis is Basis.PREDICTED else "other software" if self.foreign else ""

    @property
    def hours(self) -> float | None:
        """Time for the job; None: unknown."""
        rate = self.samples_per_second
        return self.question.samples / rate / SECONDS_PER_HOUR if rate else None

    @property
    def unmet(self) -> str:
        """Limits that it does not meet, other than time."""
        memory, needed = memory_of(self.gpu), self.question.memory
        reasons = ["not supported: tfbench runs on NVIDIA GPUs"] if self.gpu in UNSUPPORTED else []
        if needed and not (memory and needed <= memory):
            reasons.append(f"needs {needed:.0f} GiB, has {memory:.0f}" if memory else "memory not known")
        if self.question.budget and not self.offers:
            reasons.append(f"{self.lowest:.3g} USD/h is over the budget" if self.lowest else "no price known")
        return "; ".join(reasons)

    @property
    def misfit(self) -> str:
        """Limits that it does not meet; may be empty."""
        late = self.question.hours and self.hours and self.hours > self.question.hours
        return "; ".join(filter(None, (self.unmet, f"takes {significant(self.hours or 0)} h" if late else "")))

    @property
    def excluded(self) -> str:
        """Why it is not ranked; empty if it is."""
        return "; ".join(filter(None, (self.misfit, "" if self.ranked else self.note or str(self.basis))))

    @property
    def only_spot(self) -> bool:
        """Whether it has a price, but none that is not a spot price."""
        return bool(self.offers) and all(offer.commitment == "spot" for offer in self.offers)

    @property
    def usd(self) -> tuple[float, ...]:
        """Lowest and highest price per hour of all GPUs; empty without one."""
        return tuple(offer.usd_per_hour(self.count) for offer in (*self.offers[:1], *self.offers[-1:]))

    @property
    def samples_per_usd(self) -> tuple[float, ...]:
        """Samples a dollar at the highest and the lowest price; empty without a price or figure."""
        rate = SECONDS_PER_HOUR * self.samples_per_second
        return tuple(rate / usd for usd in reversed(self.usd)) if rate else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks."""
        priceless = self.samples_per_second and not self.lowest and self.question.budget is None
        note, spot = self.note if self.ranked else "", "spot only" if self.only_spot else ""
        return tuple(filter(None, (note, spot, "no price known" if priceless else "")))


@dataclass(frozen=True)
class Advice:
    """The answer to a question in one setting.

    Attributes:
        mode: `training` or `inference`.
        model: Name of the network in the figures.
        options: Ranked options in order, then predicted ones, then those without a figure.
        setting: Description of the shared setting.
        notes: Notes on the whole table.
        sentence: The answer.
        winner: What to rent; None: prices do not decide.
    """

    question: RentalQuestion
    basis: Basis
    mode: str
    model: str
    options: tuple[RentalOption, ...] = ()
    setting: str = ""
    notes: tuple[str, ...] = ()
    sentence: str = ""
    winner: RentalOption | None = None

    @property
    def title(self) -> str:
        """Network, precision, mode and basis."""
        return f"{self.model} {self.question.precision}, {self.mode}, {self.basis}"

    @property
    def ranked(self) -> list[RentalOption]:
        """Options with a known figure in this setting that meet the limits."""
        return [option for option in self.options if not option.excluded]


def asked_prices(inline: Sequence[str], files: Sequence[Path], rates: Sequence[FleetRate] = ()) -> list[Offer]:
    """Return the prices to use.

    Args:
        inline: `GPU=USD` per GPU-hour, applied to all GPUs that the name resolves to.
        files: The user's price files.
        rates: Rates of the run, with its prices; the name of a fleet may be used in place of a GPU.

    Raises:
        BadQuestion: A price cannot be parsed.
    """
    fleets, gpus = fleets_of(rates), gpus_of_fleets(rates)
    typed = [_typed(text, fleets) for text in inline]
    read = [
        replace(offer, origin=YOURS, gpus=offer.gpus or (*({offer.gpu} & {*fleets}),))
        for path in files
        for offer in read_prices(path)
    ]
    run = dict.fromkeys(
        Offer(gpus[rate.fleet, rate.case.device], usd, provider=host, origin=FROM_RUN, gpus=(rate.fleet,))
        for rate in rates
        for host, usd in rate.prices.items()
    )
    return [*typed, *read, *run, *known_prices()]


def gpus_of_fleets(rates: Sequence[FleetRate]) -> Mapping[tuple[str, Device], str]:
    """Return what each fleet trains on, by device: the recorded GPU or processor; an unknown GPU keeps its name.

    The name of a fleet counts only if nothing was recorded, because all its repeats failed early.
    """
    gpus: dict[tuple[str, Device], str] = {}
    recorded = {rate.fleet for rate in rates if rate.software != Software()}
    for rate in sorted(rates, key=lambda rate: not (rate.software.gpu or rate.software.cpu)):
        name = rate.software.gpu or rate.software.cpu or rate.fleet
        if rate.case.device is Device.GPU and (rate.software.gpu or rate.fleet not in recorded):
            name = gpu_key(name) or name
        gpus.setdefault((rate.fleet, rate.case.device), name)
    return gpus


def _typed(text: str, fleets: Collection[str]) -> Offer:
    """Parse `GPU=USD` into an offer for all GPUs, and the fleet, that the name means."""
    name, _, price = text.rpartition("=")
    value = positive_number(price)
    if value is None:
        raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
    gpu = name if name in fleets else counted_gpu(name)[1]
    gpus = (*gpus_named(gpu), *({name} & {*fleets}))
    if not gpus:
        raise BadQuestion(unknown_gpu(gpu))
    return Offer(gpus[0] if len(gpus) == 1 else name, value, origin=YOURS, source=TYPED, gpus=gpus)


def option_of(question: RentalQuestion, key: GpuCount, figure: Mapping[str, Any], fleet: str = "") -> RentalOption:
    """Return an option with the prices that count, of hosts with enough GPUs.

    A price of a fleet comes before one of its GPU, and next to `A100-80GB`, `A100` is the 40 GB card.

    Args:
        question: The question, with the prices to use.
        key: GPU and count.
        figure: Other attributes of the option: its figure, or why it has none.
        fleet: Fleet of the run with this GPU; empty: none.
    """
    gpu, count = key
    subject = fleet or gpu
    ranked = grouped(
        ((ORIGINS.index(offer.origin), offer.source != TYPED, subject not in offer.gpus, len(offer.gpus)), offer)
        for offer in question.prices
        if {subject, gpu} & {*offer.gpus}
    )
    exact = ranked[min(ranked)] if ranked else []
    exact = [offer for offer in exact if offer.source == TYPED][:1] or exact
    enough = [offer for offer in exact if offer.usd_per_hour(count)]
    # A larger host is rented whole, so it counts only if no host of this size is offered.
    enough = [offer for offer in enough if offer.gpus_per_host in (None, count)] or enough
    best: dict[object, Offer] = {}
    for offer in sorted(enough, key=lambda offer: offer.usd_per_hour(count)):
        best.setdefault(offer if offer.origin else (offer.provider, offer.region, offer.commitment), offer)
    prices = {offer: offer.usd_per_hour(count) for offer in best.values()}
    offers = tuple(offer for offer, usd in prices.items() if question.budget is None or usd <= question.budget)
    lowest = min(prices.values(), default=0.0)
    return RentalOption(question, subject, gpu, count, offers=offers, lowest=lowest, **figure)


def unused_prices(advices: Sequence[Advice], prices: Sequence[Offer]) -> list[str]:
    """Return a line for each reason why some of the user's prices are in no answer."""
    options = [option for advice in advices for option in advice.options]
    used = {offer for option in options for offer in option.offers}
    unused = dict.fromkeys(offer for offer in prices if offer.origin == YOURS and offer not in used)
    lines = []
    for reason, offers in grouped((_unused(offer, options), offer) for offer in unused).items():
        usd = grouped((offer.gpu, offer.usd_per_gpu_hour) for offer in offers)
        named = ", ".join(f"{span(values)} USD for {name}" for name, values in usd.items())
        lines.append(f"price not used: {named}: {reason}")
    return lines


def _unused(offer: Offer, options: Sequence[RentalOption]) -> str:
    """Return why no answer uses a price."""
    if not offer.gpus:
        return "less than a GPU" if " of " in offer.gpu else "unknown GPU"
    rows = [option for option in options if {option.gpu, option.subject} & {*offer.gpus}]
    if not rows:
        return "the answer has no row of this GPU"
    usd = [(offer.usd_per_hour(option.count), option.question.budget) for option in rows]
    if not any(price for price, _ in usd):
        return f"its host has only {counted(offer.gpus_per_host or 0, 'GPU')}"
    if all(budget is not None and price > budget for price, budget in usd if price):
        return "it is over the budget"
    return "another price of this GPU comes first"


def measured_questions(cases: Iterable[Case]) -> list[RentalQuestion]:
    """Return a question for each network, precision, number of GPUs and mode that was measured on one host."""
    asked = {
        case: RentalQuestion(network=case.model, precision=case.precision, mode=case.mode, counts=(case.num_gpus,))
        for case in cases
        if case.num_gpus > 0 and case.mode in MODES
    }
    return list(dict.fromkeys(question for case, question in asked.items() if question.covers(case)))


def read_questions(
    *,
    model: Sequence[str] = (),
    precision: str | Sequence[str] = "fp16",
    num_gpus: str | int | Sequence[int] = "1",
    mode: str | None = None,
    gpus: str | Sequence[str] = "",
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
        limits: `budget`, `hours`, `samples` and `memory`.

    Raises:
        BadQuestion: A GPU, network, precision or number is unknown or invalid.
    """
    for name, value in limits.items():
        if value is not None and not (isinstance(value, SupportsFloat) and 0 < float(value) < math.inf):
            raise BadQuestion(f"--{name}: must be a number above 0. Received: {value}")
    numbers, precisions = listed(num_gpus), listed(precision)
    if not numbers or not all(number.isdecimal() and int(number) for number in numbers):
        raise BadQuestion(f"--num-gpus: must be whole numbers above 0, e.g. 1,4. Received: {num_gpus!r}")
    if unknown := [name for name in precisions if name not in [*Precision]]:
        raise BadQuestion(f"--precision: must be among {', '.join(Precision)}. Received: {', '.join(unknown)!r}")
    counts = tuple(map(int, numbers))
    families = tuple(family for name in listed(gpus) if name for family in _asked(name, counts))
    chosen = tuple(dict.fromkeys(itertools.chain(*families)))
    common: dict[str, Any] = {"mode": mode, "gpus": chosen, "families": families, "counts": counts, **limits}
    asked = [_network(text, measured) for text in model or ["resnet50"]]
    return [RentalQuestion(network=name, precision=kind, **common) for name in asked for kind in precisions]


def listed(values: object) -> list[str]:
    """Return one value, or each of several, as texts; names may be separated by commas."""
    several = values if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    return list(dict.fromkeys(name.strip() for value in several for name in str(value).split(",")))


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
