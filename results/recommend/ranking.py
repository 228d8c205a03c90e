"""Which GPU to rent: every offer ranked by what a million samples cost, and where the ranking flips.

A question gets one verdict for each setting that was measured, and one for published figures where cards that were
asked for were not measured. Verdicts are never merged: a ranking holds figures of one setting and one basis only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results.compare.pairs import THRESHOLD
from results.recommend.evidence import Basis, Evidence, Group, failed_here, measured_groups, no_inference, speed_ratio
from results.recommend.published import BYTES, MARGIN, figures, published_groups
from results.recommend.questions import ASKED, MILLION, Question
from results.reference import GIBI
from results.reference.gpus import gpus_named as family
from results.reference.gpus import known_gpus as cards
from results.reference.gpus import memory_of
from results.reference.networks import networks
from results.reference.prices import Offer
from results.stats import Interval
from results.table.fleets import FleetRate

SECONDS_PER_HOUR = 3600

FROM_RUN = "hosts.yml"
"""Provider of a price that came with the measurement."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One GPU at one price.

    Attributes:
        offer: None where no price is known.
        usd_per_hour: What all GPUs of the job cost, those of the host that it leaves idle included.
        usd_per_million: Cost of a million samples.
        hours_per_million: Time for them.
        fits: Whether memory, price and budget allow it, whatever its speed.
        excluded: Why it has no rank; empty when it has one.
        wins_below: Price per GPU-hour below which it would be the cheapest per sample; None for the cheapest itself.
    """

    evidence: Evidence
    offer: Offer | None
    usd_per_hour: float | None = None
    usd_per_million: float | None = None
    hours_per_million: float | None = None
    fits: bool = False
    excluded: str = ""
    wins_below: float | None = None

    @property
    def subject(self) -> str:
        """Fleet, or GPU where others measured."""
        return self.evidence.subject

    @property
    def gpu(self) -> str:
        """Name of the card."""
        return self.evidence.gpu

    @property
    def basis(self) -> Basis:
        """Where the throughput comes from."""
        return self.evidence.basis

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of the mix over all GPUs; of a bound the limit."""
        return self.evidence.samples_per_second


@dataclass(frozen=True, kw_only=True)
class Rival:
    """How the best choice stands against another one.

    Attributes:
        speed: How many times as fast the best is; ends infinite where no interval is known.
        price: How many times the other's price it costs; None where neither has one.
        certain: Whether the best is the better one beyond the noise.
    """

    choice: Choice
    speed: Interval
    price: float | None
    certain: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to a question in one setting.

    Attributes:
        choices: Ranked ones first, best first; then those without a rank, each with its reason.
        rivals: Every other subject with a rank, at its best offer, in their order.
        too_small: Most GPUs that any offered host of a card has, where the job needs more.
        ambiguous: Names in price files that mean several of the cards.
        unpriced: Cards that would have the memory, where a budget was given and no card, but have no known price.
    """

    question: Question
    group: Group
    choices: tuple[Choice, ...]
    rivals: tuple[Rival, ...]
    too_small: Mapping[str, int] = field(default_factory=dict)
    ambiguous: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[Choice]:
        """Choices that have a rank, best first."""
        return [choice for choice in self.choices if not choice.excluded]

    @property
    def best(self) -> Choice | None:
        """The first of them; None where nothing has a rank."""
        return next(iter(self.ranked), None)

    @property
    def by_cost(self) -> bool:
        """Whether the rank is by cost; else it is by speed, because fewer than two cards have a price."""
        return all(choice.usd_per_million is not None for choice in self.ranked)

    @property
    def open(self) -> list[Choice]:
        """Choices that might be better, but have no figure that could be ranked: they do not fail for any limit."""
        ranked = {choice.subject for choice in self.ranked}
        known = [c for c in self.choices if c.subject not in ranked and c.evidence.reason == c.excluded]
        return [choice for choice in known if not choice.evidence.failed]

    @property
    def uncompared(self) -> list[str]:
        """Names that were asked for, none of whose cards has a rank, where that leaves one name: nothing to choose."""
        names = self.question.asked
        known = [name for name in names if any(choice.gpu in family(name) for choice in self.ranked)]
        unknown = [name for name in names if any(choice.gpu in family(name) for choice in self.open)]
        return [name for name in unknown if name not in known] if len(known) == 1 else []

    @property
    def alone(self) -> bool:
        """Whether one choice has a figure, and no other is known or all others might be better."""
        others = {choice.subject for choice in self.choices} - {self.best.subject if self.best else ""}
        return self.best is not None and not self.rivals and (bool(self.open) or not others)

    @property
    def decided(self) -> bool:
        """Whether there is one choice that is better than others beyond the noise, or the only one that is possible."""
        return self.best is not None and not self.tied and not self.uncompared and not self.alone

    @property
    def tied(self) -> list[Rival]:
        """Rivals that do not differ significantly from the best."""
        return [rival for rival in self.rivals if not rival.certain]


def recommend(question: Question, rates: Sequence[FleetRate], offers: Sequence[Offer]) -> list[Verdict]:
    """Rank what can be rented by the cost of a sample, once for each setting.

    Measured settings come first. Published figures follow where nothing was measured, or a card that was asked for has
    no figure here; a card that failed the question's case in these runs is never ranked by them. A prediction for what
    is then left without a figure (`Verdict.choices` of basis `bound`) would follow as a verdict of a basis of its own.

    Args:
        question: What is asked.
        rates: What was measured; empty: nothing.
        offers: Prices, those that were typed marked by their provider.
    """
    groups = measured_groups(question, rates)
    verdicts = [_verdict(question, group, offers) for group in groups]
    failed = failed_here(groups)
    known = {*failed, *(item.gpu for group in groups for item in group.evidence)}
    if groups and not [card for card in question.gpus if card not in known]:
        return verdicts
    if question.mode == "infer":
        return verdicts or [_verdict(question, no_inference(question), offers)]
    candidates = _candidates(question, offers)
    fitting = [card for card in candidates if not _misfit(question, card, offers)]
    published = published_groups(question, candidates, fitting, failed)
    return [*verdicts, *(_verdict(question, group, offers) for group in published)]


def needed_memory_gib(question: Question) -> float | None:
    """Return the memory that the saved activations of the batch alone take; None when not known."""
    size = BYTES.get(question.precision)
    if question.memory_gib is not None or question.batch_per_gpu is None or size is None:
        return question.memory_gib
    saved = [networks()[model].saved_bytes.get(size) for model in question.mix if model in networks()]
    known = [value for value in saved if value]
    return max(known) * question.batch_per_gpu / GIBI if known else None


def unpriced(question: Question, offers: Sequence[Offer]) -> list[str]:
    """Return the cards that would have the memory but no price is known of, where a budget but no card was named."""
    if question.gpus or question.usd_per_hour is None:
        return []
    priced = {offer.gpu for offer in offers}
    return [card for card in cards() if card not in priced and not _memory_misfit(question, card)]


def _candidates(question: Question, offers: Sequence[Offer]) -> list[str]:
    """Return the cards to choose from: those that were named, else all with a price; all with a figure at the least."""
    priced = dict.fromkeys(offer.gpu for offer in offers)
    return list(question.gpus or priced or dict.fromkeys(gpu for of in figures(question).values() for gpu in of))


def _misfit(question: Question, card: str, offers: Sequence[Offer]) -> str:
    """Say why a card cannot be chosen whatever its speed; empty where it can."""
    memory = _memory_misfit(question, card)
    prices = [_price_misfit(question, offer) for offer in _large_enough(question, offers) if offer.gpu == card]
    return memory or ("" if not prices or not all(prices) else prices[0])


def _large_enough(question: Question, offers: Sequence[Offer]) -> list[Offer]:
    """Leave out the hosts that have fewer GPUs than the job: what they cost is no price of it."""
    return [offer for offer in offers if offer.paid_gpus(question.count) is not None]


def _memory_misfit(question: Question, card: str) -> str:
    needed, memory = needed_memory_gib(question), memory_of(card)
    if needed is None:
        return ""
    if memory is None:
        return "memory not known" if question.memory_gib is not None else ""
    return f"needs {needed:.0f} GiB, has {memory:.0f}" if needed > memory else ""


def _price_misfit(question: Question, offer: Offer) -> str:
    paid = offer.usd_per_hour(question.count) or 0.0
    if question.usd_per_hour is not None and paid > question.usd_per_hour:
        return f"{paid:.2f} USD per hour is over the budget"
    return ""


def _verdict(question: Question, group: Group, offers: Sequence[Offer]) -> Verdict:
    choices = [choice for item in (*group.evidence, *group.without) for choice in _choices(question, item, offers)]
    rankable = [choice for choice in choices if not choice.excluded]
    priced = sorted((c for c in rankable if c.usd_per_million is not None), key=lambda c: c.usd_per_million or 0.0)
    rest = [choice for choice in choices if choice.excluded]
    if len({choice.subject for choice in priced}) > 1 or len(priced) == len(rankable):
        ranked = priced
        rest = [*(replace(c, excluded="no price known") for c in rankable if c.usd_per_million is None), *rest]
    else:
        ranked = _by_speed(rankable)
    cheapest = priced[0] if priced else None
    flipped = [_with_flip(question, choice, cheapest) for choice in (*ranked, *rest)]
    return Verdict(
        question=question,
        group=group,
        choices=tuple(flipped),
        rivals=tuple(_rivals(flipped[: len(ranked)])),
        too_small=_too_small(question, offers),
        ambiguous=_ambiguous(offers, {choice.gpu for choice in flipped}),
        unpriced=tuple(unpriced(question, offers)),
    )


def _too_small(question: Question, offers: Sequence[Offer]) -> dict[str, int]:
    """Return the most GPUs of any offered host, by card, of the cards that have no host large enough."""
    large = {offer.gpu for offer in _large_enough(question, offers)}
    sizes: dict[str, int] = {}
    for offer in offers:
        if offer.gpu not in large and offer.gpus_per_host:
            sizes[offer.gpu] = max(offer.gpus_per_host, sizes.get(offer.gpu, 0))
    return sizes


def _ambiguous(offers: Sequence[Offer], shown: Collection[str]) -> tuple[str, ...]:
    """Return the names of offers that mean several cards, one of them shown: a guess could be wrong by half."""
    names = dict.fromkeys(offer.gpu for offer in offers if offer.gpu not in cards())
    return tuple(name for name in names if len(family(name)) > 1 and any(card in family(name) for card in shown))


def _by_speed(choices: Sequence[Choice]) -> list[Choice]:
    """Rank by speed, each card at its cheapest offer: for what fewer than two cards have a price."""
    cheapest = {choice.subject: choice for choice in sorted(choices, key=lambda c: -(c.usd_per_hour or 0.0))}
    return sorted(cheapest.values(), key=lambda choice: -(choice.samples_per_second or 0.0))


def _choices(question: Question, item: Evidence, offers: Sequence[Offer]) -> list[Choice]:
    """Return a choice for each offer that answers the question; else one that says why none does."""
    known: list[Offer | None] = [*_large_enough(question, _offers_for(item, offers))] or [None]
    found = [_choice(question, item, offer) for offer in known]
    fitting = [choice for choice in found if choice.fits and choice.excluded == item.reason]
    cheapest = min(found, key=lambda choice: choice.usd_per_hour or float("inf"))
    if not fitting:
        return [cheapest]
    # Of the hosts that one provider has in several sizes only the one that is cheapest for this job.
    sizes: dict[object, Choice] = {}
    for choice in sorted(fitting, key=lambda choice: choice.usd_per_hour or 0.0):
        offer = choice.offer
        sizes.setdefault((offer.provider, offer.region, offer.commitment) if offer else None, choice)
    return list(sizes.values())


def _offers_for(item: Evidence, offers: Sequence[Offer]) -> list[Offer]:
    """Return the prices of a card: what was typed goes first, then what came with the measurement, then all others.

    Hosts of one fleet that have different prices are an offer each.
    """
    own = [offer for offer in offers if offer.gpu in (item.gpu, item.subject)]
    typed = [offer for offer in own if offer.provider == ASKED]
    if typed:
        return typed[:1]
    by_price: dict[float, list[str]] = {}
    for host, price in item.prices.items():
        by_price.setdefault(price, []).append(host)
    if len(by_price) == 1:
        return [Offer(item.gpu, price, provider=FROM_RUN) for price in by_price]
    if by_price:
        return [Offer(item.gpu, price, provider=f"{FROM_RUN}: {', '.join(by_price[price])}") for price in by_price]
    return own


def _choice(question: Question, item: Evidence, offer: Offer | None) -> Choice:
    paid = offer.usd_per_hour(question.count) if offer else None
    rate = item.samples_per_second
    hours = MILLION / rate / SECONDS_PER_HOUR if rate else None
    return Choice(
        evidence=item,
        offer=offer,
        usd_per_hour=paid,
        usd_per_million=hours * paid if hours and paid else None,
        hours_per_million=hours,
        fits=offer is not None and not _memory_misfit(question, item.gpu) and not _price_misfit(question, offer),
        excluded=_exclusion(question, item, offer, hours * question.samples / MILLION if hours else None),
    )


def _exclusion(question: Question, item: Evidence, offer: Offer | None, hours: float | None) -> str:
    """Say why a choice has no rank: what the card lacks, then its price, then what is not known of its speed."""
    reasons = [_memory_misfit(question, item.gpu)]
    if offer is not None:
        reasons.append(_price_misfit(question, offer))
    elif question.usd_per_hour is not None:
        reasons.append("no price known: the budget cannot be checked")
    if question.hours is not None and hours is not None and hours > question.hours:
        reasons.append(f"takes {'at least ' if item.basis is Basis.BOUND else ''}{hours:.1f} hours")
    if item.reason:
        reasons.append(item.reason)
    return "; ".join(reason for reason in reasons if reason)


def _with_flip(question: Question, choice: Choice, best: Choice | None) -> Choice:
    """Add the price below which a choice would be cheaper than `best`, where nothing but its price is in the way."""
    if best is None or best.usd_per_million is None or choice.subject == best.subject:
        return choice
    if choice.evidence.reason or not choice.hours_per_million or _memory_misfit(question, choice.gpu):
        return choice
    gpus = choice.offer.paid_gpus(question.count) if choice.offer else question.count
    return replace(choice, wins_below=best.usd_per_million / choice.hours_per_million / gpus) if gpus else choice


def scaled(rate: Interval) -> Interval:
    """Return hours per million samples from samples per second above 0, with the interval."""
    hours = MILLION / SECONDS_PER_HOUR
    return Interval(hours / rate.value, hours / rate.high, hours / rate.low, rate.level)


def _rivals(ranked: Sequence[Choice]) -> list[Rival]:
    if not ranked:
        return []
    best = ranked[0]
    firsts = {choice.subject: choice for choice in reversed(ranked[1:]) if choice.subject != best.subject}
    return [_rival(best, firsts[name]) for name in dict.fromkeys(c.subject for c in ranked[1:]) if name in firsts]


def _rival(best: Choice, other: Choice) -> Rival:
    value = (best.samples_per_second or 0.0) / (other.samples_per_second or 1.0)
    known = speed_ratio(best.evidence, other.evidence)
    speed = known or Interval(value, float("-inf"), float("inf"))
    price = best.usd_per_hour / other.usd_per_hour if best.usd_per_hour and other.usd_per_hour else None
    gain = speed.value / (price or 1.0)
    if best.basis is Basis.PUBLISHED:
        certain = gain - 1 >= MARGIN
    else:
        certain = known is not None and not speed.contains(price or 1.0) and gain - 1 >= THRESHOLD
    return Rival(choice=other, speed=speed, price=price, certain=certain)
