"""Options to rent: their throughput, their prices, and how they meet the limits of the question."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from results.recommend.questions import GpuCount, RentalQuestion
from results.reference import all_published
from results.reference.gpus import UNSUPPORTED, memory_of
from results.reference.prices import FROM_RUN, Offer, span
from results.stats import Interval
from results.table.fleets import FleetRate
from results.text import significant

SECONDS_PER_HOUR = 3600

TASKS = {"squad": "SQuAD fine-tuning", "pretraining": "pre-training"}


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
        pool: Prices that count, of hosts with enough GPUs.
        usd_of_run: Prices of a GPU-hour in the records of its fleet.
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
    pool: tuple[Offer, ...] = ()
    usd_of_run: frozenset[float] = frozenset()
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
            lowest = min((offer.usd_per_hour(self.count) for offer in self.pool), default=None)
            reasons.append(f"{lowest:.3g} USD/h is over the budget" if lowest else "no price known")
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
    def offers(self) -> tuple[Offer, ...]:
        """The prices within the budget."""
        budget = self.question.budget
        return tuple(offer for offer in self.pool if budget is None or offer.usd_per_hour(self.count) <= budget)

    @property
    def only_spot(self) -> bool:
        """Whether it has a price, but none that is not a spot price."""
        return bool(self.offers) and all(offer.commitment == "spot" for offer in self.offers)

    @property
    def usd(self) -> tuple[float, ...]:
        """Lowest and highest price per hour of all GPUs; empty without one."""
        prices = sorted(offer.usd_per_hour(self.count) for offer in self.offers)
        return (prices[0], prices[-1]) if prices else ()

    @property
    def samples_per_usd(self) -> tuple[float, ...]:
        """Samples a dollar at the highest and the lowest price; empty without a price or figure."""
        rate = SECONDS_PER_HOUR * self.samples_per_second
        return tuple(rate / usd for usd in reversed(self.usd)) if self.has_figure else ()

    @property
    def cheapest(self) -> Offer:
        """The offer at the lowest price."""
        return min(self.offers, key=lambda offer: offer.usd_per_hour(self.count))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks."""
        priceless = self.samples_per_second and not self.pool and self.question.budget is None
        replaced = self.usd_of_run and self.usd_of_run != {offer.usd_per_gpu_hour for offer in self.pool}
        notes = (
            self.note if self.ranked else "",
            self._batch_note(),
            "spot only" if self.only_spot else "",
            "no price known" if priceless else "",
            f"your price is used, not {span(self.usd_of_run)} from {FROM_RUN}" if replaced else "",
        )
        return tuple(filter(None, notes))

    def _batch_note(self) -> str:
        """Return a note if the figure has another batch than requested, with the memory needed for it."""
        question, asked, needed = self.question, self.question.batch_size, self.question.memory_needed
        if asked is None or not self.batch.isdecimal() or int(self.batch) == asked:
            return ""
        text = f"{self.basis} with batch {self.batch}, not {asked}"
        if needed:
            return f"{text}, which needs {needed:.1f} GiB for activations alone"
        fitting = [
            (memory_of(row["gpu"]) or 0.0, row["gpu"])
            for row in all_published()
            if row["model"].startswith(question.network) and row["precision"] == question.precision
            if not row["suspect"] and int(row["batch_per_gpu"] or 0) >= asked > int(self.batch)
        ]
        for memory, gpu in sorted(fitting)[:1]:
            text += f"; the smallest GPU published with {asked} or more has {memory:g} GB ({gpu})"
        return text


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
    def network(self) -> str:
        """The network with its task and sequence length: `bert_large (SQuAD fine-tuning, 384 tokens)`."""
        found = re.fullmatch(rf"(\w+?)_({'|'.join(TASKS)})_(\d+)", self.model)
        return f"{found[1]} ({TASKS[found[2]]}, {found[3]} tokens)" if found else self.model

    @property
    def title(self) -> str:
        """Network, precision, mode and basis."""
        return f"{self.network} {self.question.precision}, {self.mode}, {self.basis}"

    @property
    def ranked(self) -> list[RentalOption]:
        """Options with a known figure in this setting that meet the limits."""
        return [option for option in self.options if not option.excluded]
