"""The answer to a question: a row for each GPU and count, and one sentence. The ratio leads, prices follow."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from results.compare.pairs import THRESHOLD, compare_pair
from results.digits import significant, with_interval
from results.recommend.figures import (
    NO_FIGURE,
    Basis,
    FigureTable,
    KnownRate,
    bound,
    measured_tables,
    published_figures,
    published_tables,
)
from results.recommend.prediction import (
    Observation,
    Prediction,
    measured_observations,
    predict,
    published_observations,
)
from results.recommend.questions import PRECISIONS, YOURS, RentalQuestion
from results.reference import GIBI, all_published
from results.reference.gpus import PEAKS, UNSUPPORTED, memory_of, specifications
from results.reference.networks import networks
from results.reference.prices import Offer
from results.stats import Interval
from results.table.cells import fleet_notes
from results.table.fleets import FleetRate
from results.text import counted, enumerated

SECONDS_PER_HOUR = 3600

MARGIN = 0.05
"""Smallest relative difference of two published figures that says something: each is one run on one host.

Source: figures of one GPU, network and precision by one source in neighbouring software, `published.csv`: ResNet50
FP16 on RTX A6000 1404 and 1478, on A100 SXM4 40GB 1888 and 1990: 5 % apart.
"""

OTHER_SOFTWARE = 0.2
"""Likewise of figures that were measured with different software: one GPU gained 18 % between two containers."""

PREDICTED_NOTE = (
    "predicted: for a short list; median error on hidden figures 11 % (one GPU), 25 % (TensorFlow rows); intervals "
    "reach a factor of 1.5 each way"
)

FROM_RUN = "hosts.yml"
"""Origin of a price that came with the measurement."""

LED = 3
"""Most GPUs that the sentence compares with the slowest one; the others are in the table."""


@dataclass(frozen=True, kw_only=True)
class RentalOption:
    """One row: a number of GPUs, what it does, and what it costs.

    Attributes:
        known: Its throughput, or why there is none.
        offers: Prices that count: within the budget, of hosts with enough GPUs.
        hours: Time for the job.
        misfit: Which limit it does not meet; empty: it meets all.
        excluded: Why it is not ranked; empty: it is.
        notes: What a reader must know of it.
        wins_below: USD per hour for all its GPUs below which it gives the most samples a dollar.
    """

    known: KnownRate
    offers: tuple[Offer, ...]
    hours: float | None
    misfit: str
    excluded: str
    notes: tuple[str, ...] = ()
    wins_below: float | None = None

    @property
    def name(self) -> str:
        """What is rented: `2 × RTX A5000`, or the fleet."""
        return self.known.name

    @property
    def rate(self) -> float:
        """Samples per second over all GPUs; 0 without a figure."""
        return self.known.samples_per_second or 0.0

    @property
    def usd(self) -> tuple[float, float] | None:
        """Lowest and highest price per hour of all GPUs; None without one."""
        prices = [offer.usd_per_hour(self.known.count) or 0.0 for offer in self.offers]
        return (min(prices), max(prices)) if prices else None

    @property
    def samples_per_usd(self) -> tuple[float, float] | None:
        """Samples a dollar at the highest and at the lowest price; None without a price or a figure."""
        if self.usd is None or not self.rate:
            return None
        low, high = (SECONDS_PER_HOUR * self.rate / usd for usd in reversed(self.usd))
        return low, high

    @property
    def cheapest(self) -> Offer:
        """The offer at the lowest price."""
        return min(self.offers, key=lambda offer: offer.usd_per_hour(self.known.count) or 0.0)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer to a question in one setting.

    Attributes:
        question: What is asked.
        table: The figures that it rests on.
        options: Ranked ones first, in their order; then predicted ones, then those without a figure.
        sentence: The answer.
        winner: What to rent, where prices decide it; None: they do not.
        notes: What holds for the whole table.
    """

    question: RentalQuestion
    table: FigureTable
    options: tuple[RentalOption, ...]
    sentence: str
    winner: RentalOption | None
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """What distinguishes this answer from others."""
        return f"{self.table.network} {self.question.precision}, {self.table.mode}, {self.table.basis}"

    @property
    def ranked(self) -> list[RentalOption]:
        """Options that were measured or published in this setting and meet the limits."""
        return [option for option in self.options if not option.excluded]


def answers(question: RentalQuestion, rates: Sequence[FleetRate], offers: Sequence[Offer]) -> list[Advice]:
    """Answer a question, once for each setting.

    Measured settings come first. Published figures follow where nothing was measured, or a GPU that was asked for has
    no figure here; a GPU that failed the question's case in these runs is never recommended by them.

    Args:
        question: What is asked.
        rates: What was measured; empty: nothing.
        offers: Prices; those of the user are marked by their origin.
    """
    tables = measured_tables(question, rates)
    hints = _other_flags(question, rates) if rates and not tables else ()
    rows = [rate for table in tables for rate in table.rates]
    known = {(rate.gpu, rate.count) for rate in rows if rate.samples_per_second}
    failed = {(row.gpu, row.count): row.note for row in rows if row.failed and (row.gpu, row.count) not in known}
    if question.mode == "infer":
        tables = tables or [_no_inference(question)]
    elif not tables or any(key not in known and key not in failed for key in question.gpus):
        tables += published_tables(question, failed, lambda key: _misfit(question, *key, offers) == "")
    if not any(rate.samples_per_second for table in tables for rate in table.rates):
        hints = (*hints, *_other_precisions(question))
    evidence = [*_published_rows(), *measured_observations(rates)]
    return [_advice(question, table, offers, evidence, hints) for table in tables]


def unused_prices(advices: Sequence[Advice], offers: Sequence[Offer]) -> list[str]:
    """Say which prices of the user no row of any answer counts with, and why."""
    used = {id(offer) for advice in advices for option in advice.options for offer in option.offers}
    asked = {
        name for advice in advices for option in advice.options for name in (option.known.gpu, option.known.subject)
    }
    unused: dict[tuple[float, str], list[str]] = {}
    for offer in offers:
        if offer.origin != YOURS or id(offer) in used:
            continue
        over = "it is over the budget" + (", or its host has too few GPUs" if offer.gpus_per_host else "")
        why = over if offer.gpu in asked else "the answer has no row of this GPU"
        unused.setdefault((offer.usd_per_gpu_hour, why), []).append(offer.gpu)
    return [f"price not used: {usd:g} USD for {', '.join(gpus)}: {why}" for (usd, why), gpus in unused.items()]


@functools.cache
def _published_rows() -> tuple[Observation, ...]:
    return tuple(published_observations())


def _no_inference(question: RentalQuestion) -> FigureTable:
    note = "inference was not measured in any run, and published figures are of training"
    rates = tuple(
        KnownRate(basis=Basis.NONE, subject=gpu, gpu=gpu, count=count, note=note) for gpu, count in question.gpus
    )
    return FigureTable(
        basis=Basis.MEASURED, mode="inference", network=question.network, setting="", rates=rates, remarks=(note,)
    )


def _other_flags(question: RentalQuestion, rates: Sequence[FleetRate]) -> tuple[str, ...]:
    """Say with which flags the answer would use the run, which has nothing that fits the question."""
    flags = dict.fromkeys(
        f"--model {case.model} --precision {case.precision}"
        + (f" --num-gpus {case.num_gpus}" if case.num_gpus > 1 else "")
        + (f" --mode {case.mode}" if question.mode not in (None, case.mode) else "")
        for case in (rate.case for rate in rates if rate.rates)
        if case.num_hosts == 1 and case.num_gpus and case.mode != "device"
    )
    if not flags:
        return ()
    shown = " or ".join(list(flags)[:LED])
    more = f" (and {len(flags) - LED} more)" if len(flags) > LED else ""
    return (f"your run has no such figure of {question.network} {question.precision}; to use it: {shown}{more}",)


def _other_precisions(question: RentalQuestion) -> tuple[str, ...]:
    """Name the precisions in which figures were published, where the one that was asked for has none."""
    found = [
        name
        for name in PRECISIONS
        if any(
            question.wants(*key) for of in published_figures(replace(question, precision=name)).values() for key in of
        )
    ]
    return (f"published in other precisions: --precision {','.join(found)}",) if found else ()


def _advice(
    question: RentalQuestion,
    table: FigureTable,
    offers: Sequence[Offer],
    rows: Sequence[Observation],
    hints: Sequence[str],
) -> Advice:
    known = _with_predictions(question, table, offers, rows)
    every = _ordered(question, [_option(question, rate, offers) for rate in known])
    fitting = [option for option in every if question.gpus or option.known.rate or not option.misfit]
    options = fitting if any(option.rate for option in fitting) else every
    winner, clause = _price_clause(question, options)
    sentence = "; ".join(
        part for part in (_lead(question, options), clause, _left_out(question, options), *hints) if part
    )
    notes = [*([f"setting: {table.setting}"] if table.setting else []), *table.remarks]
    if len(options) < len(every):
        notes.append(f"{counted(len(every) - len(options), 'other GPU')} outside of the limits")
    if any(option.known.basis is Basis.PREDICTED for option in options):
        notes.append(PREDICTED_NOTE)
    dates = {offer.retrieved_on for option in options for offer in option.offers if not offer.origin}
    if dates:
        notes.append(f"offers of {', '.join(sorted(dates))}; yours: --price GPU=USD")
    if any(option.known.count > 1 for option in options):
        notes.append("USD/h: all GPUs of a row; a host is rented whole")
    notes += fleet_notes([replace(rate.rate, prices={}) for rate in table.rates if rate.rate])
    return Advice(
        question=question, table=table, options=tuple(options), sentence=sentence, winner=winner, notes=tuple(notes)
    )


def _with_predictions(
    question: RentalQuestion, table: FigureTable, offers: Sequence[Offer], rows: Sequence[Observation]
) -> list[KnownRate]:
    """Fill the gaps of a table with predictions, or with upper bounds where these decide."""
    known = {(rate.gpu, rate.count): rate for rate in table.rates}
    gaps = [
        key
        for key, rate in known.items()
        if not rate.samples_per_second and rate.subject == rate.gpu and not rate.failed
    ]
    gaps = [key for key in gaps if key[0] not in UNSUPPORTED]
    if not question.gpus and (question.usd_per_hour or question.memory_gib) and table.basis is Basis.PUBLISHED:
        priced = dict.fromkeys((offer.gpu, count) for offer in offers for count in question.counts)
        gaps += [
            key
            for key in priced
            if key not in known and key[0] in specifications() and not _misfit(question, *key, offers)
        ]
    if not table.model or question.precision not in PEAKS or not gaps:
        return list(table.rates)
    best = max((rate.samples_per_second or 0.0 for rate in table.rates), default=0.0)
    found = predict(gaps, table.model, question.precision, rows, table.source)
    filled = {key: _filled(question, key, found.get(key, ""), known.get(key), best) for key in gaps}
    return [
        *(filled.get((rate.gpu, rate.count), rate) for rate in table.rates),
        *(rate for key, rate in filled.items() if key not in known),
    ]


def _filled(
    question: RentalQuestion, key: tuple[str, int], found: Prediction | str, known: KnownRate | None, best: float
) -> KnownRate:
    """Return a prediction for a GPU without a figure; else its upper bound, where that is below the best figure."""
    gpu, count = key
    plain = known or KnownRate(basis=Basis.NONE, subject=gpu, gpu=gpu, count=count, note=NO_FIGURE)
    if isinstance(found, Prediction):
        return replace(
            plain,
            basis=Basis.PREDICTED,
            samples_per_second=found.samples_per_second,
            interval=Interval(found.samples_per_second, found.low, found.high, 0.9),
            origin="predicted",
            note="",
            sources=(
                f"{counted(found.rows, 'row')} of other GPUs; median error of this kind {found.error * 100:.0f} %",
            ),
        )
    limit = bound(question, gpu, count)
    if limit is not None and 0 < limit < best:
        return replace(plain, basis=Basis.BOUND, samples_per_second=limit, origin="bandwidth and arithmetic at most")
    return replace(plain, note=f"{plain.note}, not predicted: {found}" if found else plain.note)


def _option(question: RentalQuestion, known: KnownRate, offers: Sequence[Offer]) -> RentalOption:
    """Add prices, time and what speaks against a GPU."""
    pool = _offers_of(known, offers)
    budget = question.usd_per_hour
    affordable = [offer for offer in pool if budget is None or _usd(offer, known.count) <= budget]
    hours = question.samples / known.samples_per_second / SECONDS_PER_HOUR if known.samples_per_second else None
    misfit = _misfit(question, known.gpu, known.count, pool)
    if question.hours and hours and hours > question.hours:
        misfit = "; ".join(part for part in (misfit, f"takes {significant(hours)} h") if part)
    ranked = known.ranked and known.basis in (Basis.MEASURED, Basis.PUBLISHED)
    reason = "" if ranked else known.note or str(known.basis)
    notes = [known.note] if ranked and known.note else []
    notes += _batch_notes(question, known)
    if affordable and all(offer.commitment == "spot" for offer in affordable):
        notes.append("spot only")
    if known.samples_per_second and not pool and budget is None:
        notes.append("no price known")
    if known.prices and any(offer.origin == YOURS for offer in pool):
        notes.append(f"your price is used, not {_span(known.prices.values())} from {FROM_RUN}")
    return RentalOption(
        known=known,
        offers=tuple(affordable),
        hours=hours,
        misfit=misfit,
        excluded="; ".join(part for part in (misfit, reason) if part),
        notes=tuple(notes),
    )


def _span(prices: Iterable[float]) -> str:
    low, high = min(prices := list(prices)), max(prices)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _misfit(question: RentalQuestion, gpu: str, count: int, offers: Sequence[Offer]) -> str:
    """Say why a number of GPUs cannot be chosen whatever its speed; empty where it can."""
    reasons = []
    memory, needed = memory_of(gpu), _memory_needed(question)
    if gpu in UNSUPPORTED:
        reasons.append("not supported: tfbench runs on NVIDIA GPUs")
    if question.memory_gib and memory is None:
        reasons.append("memory not known")
    elif memory and needed and needed > memory:
        reasons.append(f"needs {needed:.0f} GiB, has {memory:.0f}")
    if question.usd_per_hour is not None:
        prices = [_usd(offer, count) for offer in offers if offer.gpu == gpu or offer.origin == FROM_RUN]
        lowest = min((usd for usd in prices if usd), default=None)
        if lowest is None:
            reasons.append("no price known")
        elif lowest > question.usd_per_hour:
            reasons.append(f"{lowest:.3g} USD/h is over the budget")
    return "; ".join(reasons)


def _usd(offer: Offer, count: int) -> float:
    """Return what a job of `count` GPUs costs per hour; 0 where the host has fewer."""
    return offer.usd_per_hour(count) or 0.0


def _offers_of(known: KnownRate, offers: Sequence[Offer]) -> list[Offer]:
    """Return the prices of a GPU: the user's, else those that came with the measurement, else the shipped ones."""
    own = [offer for offer in offers if offer.gpu in (known.gpu, known.subject)]
    by_price: dict[float, list[str]] = {}
    for host, price in known.prices.items():
        by_price.setdefault(price, []).append(host)
    run = [Offer(known.gpu, price, provider=", ".join(hosts), origin=FROM_RUN) for price, hosts in by_price.items()]
    given = [offer for offer in own if offer.origin == YOURS and _usd(offer, known.count)]
    if given or run:
        return given or run
    # A larger host is rented whole, so it counts only where no host of this size is offered.
    large = [offer for offer in own if not offer.origin and _usd(offer, known.count)]
    best: dict[tuple[str, str, str], Offer] = {}
    for offer in sorted(large, key=lambda offer: _usd(offer, known.count)):
        if offer.gpus_per_host == known.count or all(other.gpus_per_host != known.count for other in large):
            best.setdefault((offer.provider, offer.region, offer.commitment), offer)
    return list(best.values())


def _memory_needed(question: RentalQuestion) -> float | None:
    """Return the GiB that are asked for, or that the saved activations of the batch alone take; None: not known."""
    if question.memory_gib is not None or question.batch_per_gpu is None:
        return question.memory_gib
    size = PEAKS[question.precision][1]
    cost = networks().get(question.network)
    return cost.saved_bytes.get(size, 0.0) * question.batch_per_gpu / GIBI or None if cost else None


def _batch_notes(question: RentalQuestion, known: KnownRate) -> list[str]:
    """Say that a figure is of another batch than the one asked for, and what memory that one needs."""
    asked = question.batch_per_gpu
    if asked is None or not known.batch.isdecimal() or int(known.batch) == asked:
        return []
    text, needed = f"{known.basis} with batch {known.batch}, not {asked}", _memory_needed(question)
    if needed:
        return [f"{text}, which needs {needed:.1f} GiB for activations alone"]
    fitting = [
        (memory_of(row["gpu"]) or 0.0, row["gpu"])
        for row in all_published()
        if row["model"].startswith(question.network) and row["precision"] == question.precision and not row["suspect"]
        if row["batch_per_gpu"].isdecimal() and int(row["batch_per_gpu"]) >= asked and memory_of(row["gpu"])
    ]
    if int(known.batch) > asked or not fitting:
        return [text]
    memory, gpu = min(fitting)
    return [f"{text}; the smallest GPU published with {asked} or more has {memory:g} GB ({gpu})"]


def _ordered(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Put ranked options first: by samples a dollar where the user's prices or budget decide, else by speed."""
    ranked = [option for option in options if not option.excluded]
    priced = [option for option in ranked if option.offers]
    by_cost = bool(priced) and (question.usd_per_hour is not None or all(_own(option) for option in priced))

    def order(option: RentalOption) -> tuple[int, bool, float]:
        place = 0 if not option.excluded else 1 if option.known.basis is Basis.PREDICTED else 2
        cost = option.samples_per_usd if by_cost else None
        return place, by_cost and cost is None, -(cost[1] if cost else option.rate)

    return [_with_flip(option, priced) for option in sorted(options, key=order)]


def _own(option: RentalOption) -> bool:
    return all(offer.origin for offer in option.offers)


def _with_flip(option: RentalOption, priced: Sequence[RentalOption]) -> RentalOption:
    """Add the price below which an option beats all others at their lowest prices."""
    others = [other for other in priced if other.name != option.name and other.usd]
    if not option.rate or not others or option.known.basis is Basis.BOUND:
        return option
    return replace(option, wins_below=min(option.rate / other.rate * other.usd[0] for other in others if other.usd))


def _ratio(a: RentalOption, b: RentalOption) -> Interval:
    """Return how many times as fast `a` is; ends infinite where no interval is known."""
    value = a.rate / b.rate
    if a.known.rate and b.known.rate:
        found = compare_pair(a.known.rate, b.known.rate).interval
        if found is not None:
            return found
    if Basis.PREDICTED in (a.known.basis, b.known.basis):
        (low_a, high_a), (low_b, high_b) = (_ends(option) for option in (a, b))
        return Interval(value, low_a / high_b, high_a / low_b, 0.9)
    return Interval(value, float("-inf"), float("inf"))


def _ends(option: RentalOption) -> tuple[float, float]:
    interval = option.known.interval
    return (interval.low, interval.high) if interval else (option.rate, option.rate)


def _ratio_text(a: RentalOption, b: RentalOption) -> str:
    ratio = _ratio(a, b)
    if Basis.PREDICTED in (a.known.basis, b.known.basis):
        return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}, predicted)"
    return with_interval(ratio) if ratio.half_width < float("inf") else f"{ratio.value:.2f}"


def _lead(question: RentalQuestion, options: Sequence[RentalOption]) -> str:
    """Say how many times as fast each GPU is as the slowest, and what that makes it worth."""
    shown = compared(question, options)
    if not shown:
        reasons = dict.fromkeys(option.excluded for option in options if option.excluded)
        return f"no answer: {'; '.join(list(reasons)[:LED]) or 'no figure is known'}"
    slow, *others = sorted(shown, key=lambda option: option.rate)
    if not others:
        only = "measured" if slow.known.basis is Basis.MEASURED else str(slow.known.basis)
        rate = significant(slow.rate, 4)
        return f"only {slow.name} has a figure ({only}: {rate} samples/s, {slow.known.origin}), so nothing is compared"
    fast = list(reversed(others))[:LED]
    origin = "; ".join(dict.fromkeys(o.known.origin for o in (*fast, slow) if o.known.basis is not Basis.PREDICTED))
    if len(others) == 1:
        ratio, text = _ratio(fast[0], slow), _ratio_text(fast[0], slow)
        if fast[0].known.rate and ratio.contains(1.0):
            same = f"{fast[0].name} and {slow.name} do not differ significantly in speed"
            return f"{same} ({text} times; {origin}): rent the cheaper one"
        worth = f"rent it where it costs less than {ratio.value:.2f} times as much"
        if Basis.PREDICTED in (fast[0].known.basis, slow.known.basis):
            worth = f"worth {ratio.low:.2f} to {ratio.high:.2f} times its price: measure for an hour first"
        return f"{fast[0].name} is {text} times as fast as {slow.name} ({origin or 'both predicted'}): {worth}"
    parts = [
        f"{option.name} {'is ' if not i else ''}{_ratio_text(option, slow)} times" for i, option in enumerate(fast)
    ]
    more = f"{len(others) - LED} more in the table" if len(others) > LED else ""
    where = "; ".join(part for part in (origin, more) if part)
    worth = "each is worth up to that many times its price"
    if not origin:
        worth = "measure the best for an hour first"
    return f"{enumerated(parts)} as fast as {slow.name}{f' ({where})' if where else ''}: {worth}"


def compared(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Return the options that the sentence compares: ranked ones, and predicted ones that were asked for.

    Where none meets the limits, those with a figure: how they compare is known all the same.
    """
    ranked = [option for option in options if not option.excluded]
    predicted = [
        option
        for option in options
        if option.known.basis is Basis.PREDICTED
        and not option.misfit
        and (option.known.gpu, option.known.count) in question.gpus
    ]
    known = [o for o in options if o.known.ranked and o.known.basis in (Basis.MEASURED, Basis.PUBLISHED)]
    return [*ranked, *predicted] or known


def _price_clause(question: RentalQuestion, options: Sequence[RentalOption]) -> tuple[RentalOption | None, str]:
    """Say what the prices decide, and what to rent where they do."""
    ranked = [option for option in options if not option.excluded]
    priced = [option for option in ranked if option.usd]
    if not ranked:
        return None, _none_fits(question, options)
    if question.usd_per_hour is not None and len(priced) > 1:
        return _within_budget(question, priced)
    if not priced:
        return None, f"no price is known: give --price '{ranked[0].known.gpu}=USD'"
    if len(ranked) == 1:
        return None, f"{priced[0].name} costs {_usd_text(priced[0])}"
    offers = [offer for option in priced for offer in option.offers]
    origins = {offer.origin for offer in offers}
    where = {frozenset({YOURS}): "at your prices", frozenset({FROM_RUN}): "at the prices of this run"}.get(
        frozenset(origins),
        f"at every one of the {len(offers)} offers listed"
        if origins == {""}
        else "at your prices and the offers listed",
    )
    unpriced = [option for option in ranked if not option.usd]
    waiting = "".join(
        f"; {option.name} has no price: it wins below {option.wins_below:.3g} USD/h"
        for option in unpriced[:LED]
        if option.wins_below
    )
    if len(priced) == 1:
        return None, f"only {priced[0].name} has a price, {_usd_text(priced[0])}{waiting}"
    best = next((a for a in priced if all(_surely_cheaper(a, b) for b in priced if b is not a)), None)
    if best is not None:
        single = _single_offers(priced) if origins == {""} else ""
        return best, f"{where}{single}, rent {best.name} ({_usd_text(best)}){_up_to(best)}{waiting}"
    if "" in origins:
        return None, f"{_undecided(priced, len(offers))}{waiting}"
    first, second = priced[:2]
    cheap, fast = min((first, second), key=lambda o: o.usd or (0, 0)), max((first, second), key=lambda o: o.rate)
    tie = f"{where}, no significant difference in samples a dollar between {first.name} and {second.name}"
    if cheap is fast:
        return cheap, f"{tie}: rent {cheap.name}, which is no slower, at {_usd_text(cheap)}{waiting}"
    text = f"rent {cheap.name} for the lower price ({_usd_text(cheap)}) or {fast.name} for the shorter time"
    return None, f"{tie}: {text}{waiting}"


def _none_fits(question: RentalQuestion, options: Sequence[RentalOption]) -> str:
    """Say which limit none of the GPUs with a figure meets."""
    fast = max((option for option in options if option.rate), key=lambda option: option.rate, default=None)
    if fast is None or not fast.misfit:
        return ""
    if question.hours and fast.hours and fast.hours > question.hours:
        return f"none takes at most {question.hours:g} h: the fastest, {fast.name}, takes {significant(fast.hours)} h"
    return f"none meets the limits: {fast.name} {fast.misfit}"


def _surely_cheaper(a: RentalOption, b: RentalOption) -> bool:
    """Return whether `a` gives more samples a dollar at its highest price than `b` at its lowest, beyond the noise."""
    if a.usd is None or b.usd is None:
        return False
    price, ratio = a.usd[1] / b.usd[0], _ratio(a, b)
    if a.known.rate and b.known.rate:
        return ratio.low > price and ratio.value / price - 1 >= THRESHOLD
    return ratio.value / price - 1 >= (MARGIN if a.known.origin == b.known.origin else OTHER_SOFTWARE)


def _up_to(best: RentalOption) -> str:
    return f", the cheapest per sample below {best.wins_below:.3g} USD/h" if best.wins_below else ""


def _undecided(priced: Sequence[RentalOption], offers: int) -> str:
    """Say that the offers listed decide nothing, and what they say within one provider."""
    slow, fast = sorted((min(priced, key=lambda o: o.rate), max(priced, key=lambda o: o.rate)), key=lambda o: o.rate)
    if slow.usd is None or fast.usd is None or slow is fast:
        return "the offers listed decide nothing"
    low, high = fast.usd[0] / slow.usd[1], fast.usd[1] / slow.usd[0]
    times = f"{low:.2f} to {high:.2f} times as much as {slow.name}"
    text = f"the {offers} offers listed do not decide: {fast.name} costs {times}"
    within = []
    for place, usd in _by_place(fast).items():
        if place in _by_place(slow):
            ratio = usd / _by_place(slow)[place]
            cheaper = fast if ratio < _ratio(fast, slow).value else slow
            within.append(f"{ratio:.2f} times within {place}, where {cheaper.name} is cheaper per sample")
    return f"{text}{_single_offers((slow, fast))}{''.join(f', {line}' for line in within[:LED])}"


def _single_offers(options: Sequence[RentalOption]) -> str:
    """Name the GPUs of which one offer alone is listed."""
    single = [option.name for option in options if len(option.offers) == 1]
    return f" (only one offer of {enumerated(single)})" if single else ""


def _by_place(option: RentalOption) -> dict[str, float]:
    """Return the lowest price by provider, region and commitment."""
    found: dict[str, float] = {}
    for offer in option.offers:
        place = ", ".join(part for part in (offer.provider, offer.region, offer.commitment) if part)
        usd = offer.usd_per_hour(option.known.count) or 0.0
        found[place] = min(usd, found.get(place, usd))
    return found


def _within_budget(question: RentalQuestion, priced: Sequence[RentalOption]) -> tuple[RentalOption, str]:
    """Name what gives the most samples a dollar within the budget, without spot too, and what is the fastest."""
    best, fast = priced[0], max(priced, key=lambda option: option.rate)
    most = (
        f"{best.name} gives the most samples a dollar at its lowest offer ({best.usd[0] if best.usd else 0:.3g} USD/h)"
    )
    text = f"within {question.usd_per_hour:g} USD/h {most}"
    if best.cheapest.commitment == "spot":
        firm = [option for option in priced if any(offer.commitment != "spot" for offer in option.offers)]
        if firm:
            on_demand = [replace(o, offers=tuple(x for x in o.offers if x.commitment != "spot")) for o in firm]
            other = max(on_demand, key=lambda option: (option.samples_per_usd or (0, 0))[1])
            text += f", a spot price; on demand it is {other.name} ({_usd_text(other)})"
    return best, text if fast.name == best.name else f"{text}; {fast.name} is the fastest"


def _usd_text(option: RentalOption) -> str:
    """Write the price of a row: `0.24 USD/h`, or from the lowest to the highest offer."""
    if option.usd is None:
        return "no price known"
    low, high = option.usd
    spot = ", spot" if all(offer.commitment == "spot" for offer in option.offers) else ""
    return f"{low:.3g} USD/h{spot}" if low == high else f"{low:.3g} to {high:.3g} USD/h{spot}"


def _left_out(question: RentalQuestion, options: Sequence[RentalOption]) -> str:
    """Name what failed here, does not fit, or cannot reach what another does."""
    failed = [
        f"{option.name} ({option.excluded})"
        for option in options
        if option.known.failed or option.misfit.startswith("needs")
    ]
    parts = [f"does not fit: {', '.join(failed[:LED])}{' and more' if len(failed) > LED else ''}"] if failed else []
    batch, batches = question.batch_per_gpu, {option.known.batch for option in options if not option.excluded}
    if batch is not None and batches and str(batch) not in batches:
        parts.append(f"no figure is of batch {batch}")
    best = max((option for option in options if not option.excluded), key=lambda option: option.rate, default=None)
    for option in options:
        if option.known.basis is Basis.BOUND and best is not None:
            parts.append(
                f"{option.name} reaches at most {significant(option.rate, 4)} samples/s with any software, "
                f"{best.rate / option.rate:.2f} times less than {best.name}"
            )
    return "; ".join(parts[:LED])
