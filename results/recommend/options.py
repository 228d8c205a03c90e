"""Options to rent: their throughput, the prices that count, and how they meet the limits of the question.

The prices that the user typed come first, then those of the user's files, of the run, and shipped ones.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.compare.comparison import fleets_of
from results.errors import BadQuestion
from results.recommend.questions import GpuCount, RentalQuestion
from results.reference.gpus import UNSUPPORTED, counted_gpu, gpu_key, gpus_named, memory_of, unknown_gpu
from results.reference.prices import FROM_RUN, YOURS, Offer, Prices, known_prices, positive_number, read_prices, span
from results.schema import Device
from results.stats import Interval
from results.table.columns import Software
from results.table.fleets import FleetRate
from results.text import counted, significant

SECONDS_PER_HOUR = 3600

TYPED = "--price"
"""Source of a typed price: of two for one GPU the first counts."""


class Basis(enum.StrEnum):
    """Basis of a throughput; only the first three are ranked."""

    MEASURED = "measured"
    PROJECT = "measured by this project"
    PUBLISHED = "published"
    PREDICTED = "predicted"
    BOUND = "bound"  # an upper limit by bandwidth and arithmetic
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class RentalOption:
    """An option: a GPU and count with its throughput, or the reason for having none, and its prices.

    Attributes:
        question: The question that it may answer.
        subject: Fleet, or GPU for figures of others.
        gpu: Name in the reference, else as received.
        count: GPUs of the job.
        samples_per_second: Over all GPUs; for a bound the limit; 0: unknown.
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
    note: str = "no figure"
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
    def has_figure(self) -> bool:
        """Whether its throughput is known or predicted, rather than a bound."""
        return bool(self.samples_per_second) and self.basis is not Basis.BOUND

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
        memory, needed, budget = memory_of(self.gpu), self.question.memory_needed, self.question.budget
        reasons = ["not supported: tfbench runs on NVIDIA GPUs"] if self.gpu in UNSUPPORTED else []
        if self.question.memory and memory is None:
            reasons.append("memory not known")
        if memory and needed and needed > memory:
            reasons.append(f"needs {needed:.0f} GiB, has {memory:.0f}")
        if budget and not self.offers:
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
        return tuple(rate / usd for usd in reversed(self.usd)) if self.has_figure else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks."""
        asked, needed, other_batch = self.question.batch_size, self.question.memory_needed, ""
        if asked is not None and self.batch.isdecimal() and int(self.batch) != asked:
            other_batch = f"{self.basis} with batch {self.batch}, not {asked}"
            other_batch += f", which needs {needed:.1f} GiB for activations alone" if needed else ""
        priceless = self.samples_per_second and not self.lowest and self.question.budget is None
        notes = (
            self.note if self.ranked else "",
            other_batch,
            "spot only" if self.only_spot else "",
            "no price known" if priceless else "",
        )
        return tuple(filter(None, notes))


@dataclass(frozen=True, kw_only=True)
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
    mode: str = "training"
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


def asked_prices(inline: Sequence[str], files: Sequence[Path], rates: Sequence[FleetRate] = ()) -> Prices:
    """Return the prices to use.

    Args:
        inline: `GPU=USD` per GPU-hour, applied to all GPUs that the name resolves to.
        files: The user's price files.
        rates: Rates of the run, with its prices; the name of a fleet may be used in place of a GPU.

    Raises:
        BadQuestion: A price cannot be parsed.
    """
    fleets, gpus = fleets_of(rates), gpus_of_fleets(rates)
    read = [
        replace(offer, origin=YOURS, gpus=offer.gpus or (*({offer.gpu} & {*fleets}),))
        for path in files
        for offer in read_prices(path)
    ]
    of_run: dict[str, dict[str, Offer]] = defaultdict(dict)
    for rate in rates:
        gpu = gpus[rate.fleet, rate.case.device]
        for host, usd in rate.prices.items():
            of_run[rate.fleet][host] = Offer(gpu, usd, provider=host, origin=FROM_RUN, gpus=(gpu,))
    run = {fleet: [*offers.values()] for fleet, offers in of_run.items()}
    return [by_name(_typed(text, fleets) for text in inline), by_name(read), run, by_name(known_prices())]


FleetGpus = Mapping[tuple[str, Device], str]
"""What each fleet trains on, by device."""


def gpus_of_fleets(rates: Sequence[FleetRate]) -> FleetGpus:
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


def by_name(offers: Iterable[Offer]) -> Mapping[str, Sequence[Offer]]:
    """Return offers by the GPUs and fleets that they are for."""
    found: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        for name in offer.gpus or ("",):
            found[name].append(offer)
    return found


def option_of(question: RentalQuestion, key: GpuCount, note: str = "no figure", fleet: str = "") -> RentalOption:
    """Return an option without a figure, with the prices that count, of hosts with enough GPUs.

    A price of a fleet comes before one of its GPU, and next to `A100-80GB`, `A100` is the 40 GB card.

    Args:
        question: The question, with the prices to use.
        key: GPU and count.
        note: Why it has no figure.
        fleet: Fleet of the run with this GPU; empty: none.
    """
    gpu, count = key
    subject = fleet or gpu
    first = next((offers[name] for offers in question.prices for name in (subject, gpu) if name in offers), ())
    fewest = min((len(offer.gpus) for offer in first), default=0)
    exact = [offer for offer in first if len(offer.gpus) == fewest]
    exact = [offer for offer in exact if offer.source == TYPED][:1] or exact
    enough = [offer for offer in exact if offer.usd_per_hour(count)]
    # A larger host is rented whole, so it counts only if no host of this size is offered.
    enough = [offer for offer in enough if offer.gpus_per_host in (None, count)] or enough
    best: dict[object, Offer] = {}
    for offer in sorted(enough, key=lambda offer: offer.usd_per_hour(count)):
        best.setdefault(offer if offer.origin else offer.place, offer)
    prices = {offer: offer.usd_per_hour(count) for offer in best.values()}
    offers = tuple(offer for offer, usd in prices.items() if question.budget is None or usd <= question.budget)
    lowest = min(prices.values(), default=0.0)
    return RentalOption(
        question=question, subject=subject, gpu=gpu, count=count, note=note, offers=offers, lowest=lowest
    )


def unused_prices(advices: Sequence[Advice], prices: Prices) -> list[str]:
    """Return a line for each reason why some of the user's prices are in no answer."""
    given = dict.fromkeys(of for offers in prices for named in offers.values() for of in named if of.origin == YOURS)
    options = [option for advice in advices for option in advice.options]
    used = {offer for option in options for offer in option.offers}
    unused: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for offer in given:
        if offer not in used:
            unused[_unused(offer, options)][offer.gpu].append(offer.usd_per_gpu_hour)
    return [
        f"price not used: {', '.join(f'{span(values)} USD for {name}' for name, values in usd.items())}: {reason}"
        for reason, usd in unused.items()
    ]


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
