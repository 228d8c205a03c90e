"""Which GPU to rent: every offer ranked by what a million samples cost, and where the ranking flips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from results.digits import with_interval
from results.evidence import (
    Basis,
    Evidence,
    bound_evidence,
    measured_evidence,
    precision_gains,
    published_evidence,
)
from results.fleets import FleetRate
from results.limits import BYTES
from results.prices import Offer
from results.reference import GIBI, networks, specifications
from results.stats import Estimate, Interval, ratio_of_estimates

MILLION = 1_000_000
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        mix: Share of the samples by network; shares add up to 1.
        precision: Arithmetic.
        count: GPUs per job.
        gpus: Names of `reference/gpu_specs.csv` to choose from; empty: all that have a price.
        usd_per_hour: Most that all GPUs together may cost; None: any.
        hours: Most that `samples` may take; None: any.
        samples: Samples of the whole job, for the deadline.
        memory_gib: Memory that each GPU must have; None: what the batch needs, as far as known.
        batch_per_gpu: Batch for which memory is checked; None: not checked.
    """

    mix: Mapping[str, float]
    precision: str
    count: int = 1
    gpus: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    hours: float | None = None
    samples: float = MILLION
    memory_gib: float | None = None
    batch_per_gpu: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One GPU at one price.

    Attributes:
        samples_per_second: Of the mix, over all GPUs.
        estimate: That with its uncertainty; None when not known.
        usd_per_million: Cost of a million samples.
        hours_per_million: Time for them.
        excluded: Why it does not answer the question; empty when it does.
        wins_below: Price per GPU-hour below which it would be the best choice; None for the best itself.
    """

    basis: Basis
    subject: str
    gpu: str
    offer: Offer
    setting: str
    samples_per_second: float
    estimate: Estimate | None
    usd_per_million: float
    hours_per_million: float
    excluded: str = ""
    wins_below: float | None = None

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the throughput; None when it is not known."""
        return self.estimate.interval() if self.estimate else None


def recommend(question: Question, rates: Sequence[FleetRate], offers: Sequence[Offer]) -> list[Choice]:
    """Rank what can be rented by the cost of a sample.

    Measured evidence comes first; where there is none for any GPU, published figures of one source and software are
    compared; a GPU that neither knows is listed with its upper bound and not ranked.

    Returns:
        Ranked choices first, then those that are excluded or only bounded.
    """
    gpus = question.gpus or tuple(dict.fromkeys(offer.gpu for offer in offers if offer.gpu in specifications()))
    evidence = _mixed(question, rates, gpus)
    choices = []
    for item in evidence:
        for offer in _offers_for(item, offers):
            choices.append(_choice(question, item, offer))
    ranked = sorted((c for c in choices if not c.excluded), key=lambda choice: choice.usd_per_million)
    rest = sorted((c for c in choices if c.excluded), key=lambda choice: choice.usd_per_million)
    return [*_with_flips(ranked, question), *rest]


def break_even_lines(choices: Sequence[Choice]) -> list[str]:
    """Say for each GPU against the best one at which price ratio the choice flips."""
    ranked = [choice for choice in choices if not choice.excluded]
    if not ranked:
        return []
    best = ranked[0]
    lines = []
    for other in {choice.subject: choice for choice in reversed(ranked[1:])}.values():
        if other.subject == best.subject:
            continue
        fast, slow = sorted((best, other), key=lambda choice: -choice.samples_per_second)
        asked = fast.offer.usd_per_gpu_hour / slow.offer.usd_per_gpu_hour
        lines.append(
            f"{fast.subject} is worth up to {_ratio_text(fast, slow)} × the price of {slow.subject}; "
            f"at these prices it costs {asked:.2f} ×, so {best.subject} wins"
        )
    return lines


def _ratio_text(fast: Choice, slow: Choice) -> str:
    if fast.estimate and slow.estimate:
        return with_interval(ratio_of_estimates(fast.estimate, slow.estimate))
    return f"{fast.samples_per_second / slow.samples_per_second:.2f}"


def precision_line(question: Question, rates: Sequence[FleetRate], best: Choice) -> str:
    """Say what another precision would give on the best choice; empty where that is not known."""
    if len(question.mix) != 1:
        return ""
    (model,) = question.mix
    evidence = Evidence(best.basis, best.subject, best.gpu, best.samples_per_second, best.estimate, best.setting)
    gains = precision_gains(rates, evidence, model, question.count)
    others = [f"{name} {gain:.2f} ×" for name, gain in gains.items() if name != question.precision]
    return f"precision: on {best.subject}, against {question.precision}: {', '.join(others)}" if others else ""


def needed_memory_gib(question: Question) -> float | None:
    """Return the memory that the saved activations of the batch alone take; None when not known."""
    size = BYTES.get(question.precision)
    if question.memory_gib is not None or question.batch_per_gpu is None or size is None:
        return question.memory_gib
    saved = [networks()[model].saved_bytes.get(size) for model in question.mix if model in networks()]
    known = [value for value in saved if value]
    return max(known) * question.batch_per_gpu / GIBI if known else None


def _mixed(question: Question, rates: Sequence[FleetRate], gpus: Sequence[str]) -> list[Evidence]:
    """Return the evidence for the mix: time per sample is the weighted mean of the networks' times per sample."""
    by_network = [_evidence(question, model, rates, gpus) for model in question.mix]
    subjects = [item for item in by_network[0] if all(_same(item, others) for others in by_network)]
    found = []
    for subject in subjects:
        parts = [_same(subject, others) for others in by_network]
        known = [part for part in parts if part is not None]
        shares = list(question.mix.values())
        seconds = math.fsum(s / part.samples_per_second for s, part in zip(shares, known, strict=True))
        settings = dict.fromkeys(part.setting for part in known)
        found.append(
            replace(
                subject,
                samples_per_second=1 / seconds,
                # The errors of several networks on one host hang together in ways that are not known here.
                estimate=known[0].estimate if len(known) == 1 else None,
                setting="; ".join(settings),
            )
        )
    return found


def _same(subject: Evidence, others: Sequence[Evidence]) -> Evidence | None:
    fitting = [item for item in others if (item.basis, item.subject) == (subject.basis, subject.subject)]
    return fitting[0] if fitting else None


def _evidence(question: Question, model: str, rates: Sequence[FleetRate], gpus: Sequence[str]) -> list[Evidence]:
    measured = measured_evidence(rates, model, question.precision, question.count)
    asked = [item for item in measured if not question.gpus or item.gpu in question.gpus]
    if asked:
        return asked
    found = published_evidence(model, question.precision, question.count, gpus)
    known = {item.gpu for item in found}
    unknown = [gpu for gpu in gpus if gpu not in known]
    return [*found, *bound_evidence(model, question.precision, question.count, unknown)]


def _offers_for(item: Evidence, offers: Sequence[Offer]) -> list[Offer]:
    """Return the price that came with a measurement, else every offer of its GPU."""
    if item.usd_per_gpu_hour is not None:
        return [Offer(item.gpu, item.usd_per_gpu_hour, provider="hosts.yml")]
    return [offer for offer in offers if offer.gpu == item.gpu]


def _choice(question: Question, item: Evidence, offer: Offer) -> Choice:
    per_hour = offer.usd_per_gpu_hour * question.count
    hours = MILLION / item.samples_per_second / SECONDS_PER_HOUR
    return Choice(
        basis=item.basis,
        subject=item.subject,
        gpu=item.gpu,
        offer=offer,
        setting=item.setting,
        samples_per_second=item.samples_per_second,
        estimate=item.estimate,
        usd_per_million=hours * per_hour,
        hours_per_million=hours,
        excluded=_exclusion(question, item, per_hour, hours * question.samples / MILLION),
    )


def _exclusion(question: Question, item: Evidence, usd_per_hour: float, hours: float) -> str:
    """Say why a choice does not answer the question; empty when it does."""
    memory, needed = specifications().get(item.gpu, {}).get("memory"), needed_memory_gib(question)
    if needed is not None and memory is not None and needed > memory:
        return f"needs {needed:.0f} GiB, has {memory:.0f}"
    if question.usd_per_hour is not None and usd_per_hour > question.usd_per_hour:
        return f"{usd_per_hour:.2f} USD per hour is over the budget"
    if question.hours is not None and hours > question.hours:
        return f"takes {hours:.1f} hours"
    return "never measured: an upper bound" if item.basis is Basis.BOUND else ""


def _with_flips(ranked: Sequence[Choice], question: Question) -> list[Choice]:
    """Add the price below which each choice would be the best."""
    if not ranked:
        return []
    best = ranked[0]
    flips = []
    for choice in ranked[1:]:
        price = best.usd_per_million / choice.hours_per_million / question.count
        flips.append(replace(choice, wins_below=price))
    return [best, *flips]
