"""Options to rent with their throughput and price, and the answer that compares those of one setting."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from results.recommend.questions import RentalQuestion
from results.reference.prices import Offer
from results.stats import Interval
from results.table.fleets import FleetRate

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
    """An option: a GPU and count with its throughput, or the reason for having none, and its price.

    Attributes:
        subject: Fleet, or GPU for figures of others.
        gpu: Name in the reference, else as received.
        count: GPUs of the job.
        samples_per_second: Over all GPUs; for a bound the limit; 0: unknown.
        interval: None: uncertainty unknown.
        origin: Short description of the source.
        batch: Batch per GPU; empty: not stated.
        note: Why it is not ranked, or a remark; may be empty.
        setting: Source and software of a figure of others.
        foreign: Whether it was published by others, or with another framework, than the first rows of its table.
        failed: Whether it was tried here and failed because of the GPU, e.g. `oom`.
        measured: Measurement or failure of these runs.
        sources: What the source of a figure states, with its URL, one line each.
        offers: Prices of the run, then those within the budget, of hosts with enough GPUs.
        hours: Time for the job.
        misfit: Limits that it does not meet; may be empty.
        notes: Remarks.
        wins_below: USD per hour for all its GPUs below which it gives more samples per dollar than any other GPU.
    """

    basis: Basis = Basis.NONE
    subject: str
    gpu: str
    count: int
    samples_per_second: float = 0.0
    interval: Interval | None = None
    origin: str = ""
    batch: str = ""
    note: str = ""
    setting: str = ""
    foreign: bool = False
    failed: bool = False
    measured: FleetRate | None = None
    sources: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    hours: float | None = None
    misfit: str = ""
    notes: tuple[str, ...] = ()
    wins_below: float | None = None

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
    def excluded(self) -> str:
        """Why it is not ranked; empty if it is."""
        reason = "" if self.ranked else self.note or str(self.basis)
        return "; ".join(filter(None, (self.misfit, reason)))

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


def missing(gpu: str, count: int, note: str = "no figure", subject: str = "", *, failed: bool = False) -> RentalOption:
    """Return an option without a figure, with the reason as its note."""
    return RentalOption(subject=subject or gpu, gpu=gpu, count=count, note=note, failed=failed)
