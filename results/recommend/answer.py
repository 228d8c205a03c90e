"""The answer to a question: a row for each GPU and count, and one sentence. The ratio leads, prices follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from results.compare.pairs import THRESHOLD, compare_pair
from results.digits import significant, with_interval
from results.recommend.figures import (
    Basis,
    FigureTable,
    KnownRate,
    bound,
    measured_tables,
    missing,
    published_figures,
    published_tables,
)
from results.recommend.prediction import predict, published_observations
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
        notes: What a reader must know of it.
        wins_below: USD per hour for all its GPUs below which it gives the most samples a dollar.
    """

    known: KnownRate
    offers: tuple[Offer, ...]
    hours: float | None
    misfit: str
    notes: tuple[str, ...] = ()
    wins_below: float | None = None

    @property
    def excluded(self) -> str:
        """Why it is not ranked; empty: it is."""
        reason = "" if self.known.ranked else self.known.note or str(self.known.basis)
        return "; ".join(filter(None, (self.misfit, reason)))

    @property
    def name(self) -> str:
        """What is rented: `2 × RTX A5000`, or the fleet."""
        return self.known.subject if self.known.count == 1 else f"{self.known.count} × {self.known.subject}"

    @property
    def rate(self) -> float:
        """Samples per second over all GPUs; 0 without a figure."""
        return self.known.samples_per_second or 0.0

    @property
    def is_bound(self) -> bool:
        """Whether its rate is an upper bound."""
        return self.known.basis is Basis.BOUND

    @property
    def usd(self) -> tuple[float, ...]:
        """Lowest and highest price per hour of all GPUs; empty without one."""
        prices = sorted(_usd(offer, self.known.count) for offer in self.offers)
        return (prices[0], prices[-1]) if prices else ()

    @property
    def samples_per_usd(self) -> tuple[float, ...]:
        """Samples a dollar at the highest and at the lowest price; empty without a price or a figure."""
        return tuple(SECONDS_PER_HOUR * self.rate / usd for usd in reversed(self.usd)) if self.rate else ()

    @property
    def cheapest(self) -> Offer:
        """The offer at the lowest price."""
        return min(self.offers, key=lambda offer: _usd(offer, self.known.count))


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
    hints = _other_flags(question, rates) if not tables else []
    rows = [rate for table in tables for rate in table.rates]
    known = {(rate.gpu, rate.count) for rate in rows if rate.samples_per_second}
    failed = {(row.gpu, row.count): row.note for row in rows if row.failed and (row.gpu, row.count) not in known}
    if question.mode == "infer":
        tables = tables or [_no_inference(question)]
    elif not tables or any(key not in known and key not in failed for key in question.gpus):
        tables += published_tables(question, failed, lambda key: not _misfit(question, *key, offers))
    if not any(rate.samples_per_second for table in tables for rate in table.rates):
        hints += _other_precisions(question)
    return [_advice(question, table, offers, hints) for table in tables]


def unused_prices(advices: Sequence[Advice], offers: Sequence[Offer]) -> list[str]:
    """Return which prices of the user no row of any answer counts with, and why."""
    options = [option for advice in advices for option in advice.options]
    used = {id(offer) for option in options for offer in option.offers}
    asked = {name for option in options for name in (option.known.gpu, option.known.subject)}
    limits, no_row = "it is over the budget, or its host has too few GPUs", "the answer has no row of this GPU"
    return [
        f"price not used: {offer.usd_per_gpu_hour:g} USD for {offer.gpu}: {limits if offer.gpu in asked else no_row}"
        for offer in offers
        if offer.origin == YOURS and id(offer) not in used
    ]


def _no_inference(question: RentalQuestion) -> FigureTable:
    note = "inference was not measured in any run, and published figures are of training"
    rates = tuple(missing(gpu, count, note) for gpu, count in question.gpus)
    return FigureTable(
        basis=Basis.MEASURED, mode="inference", network=question.network, setting="", rates=rates, remarks=(note,)
    )


def _other_flags(question: RentalQuestion, rates: Sequence[FleetRate]) -> list[str]:
    """Report with which flags the answer would use the run, which has nothing that fits the question."""
    cases = [rate.case for rate in rates if rate.rates and rate.case.num_hosts == 1 and rate.case.mode != "device"]
    flags = dict.fromkeys(
        f"--model {case.model} --precision {case.precision} --num-gpus {case.num_gpus} --mode {case.mode}"
        for case in cases
        if case.num_gpus
    )
    about = f"your run has no such figure of {question.network} {question.precision}; to use it"
    return [f"{about}: {' or '.join([*flags][:LED])}"] if flags else []


def _other_precisions(question: RentalQuestion) -> list[str]:
    """Name the precisions in which figures were published, where the one that was asked for has none."""
    published = {name: published_figures(replace(question, precision=name)).values() for name in PRECISIONS}
    found = [name for name, settings in published.items() if any(question.wants(*key) for of in settings for key in of)]
    return [f"published in other precisions: --precision {','.join(found)}"] if found else []


def _advice(question: RentalQuestion, table: FigureTable, offers: Sequence[Offer], hints: Sequence[str]) -> Advice:
    known = _with_predictions(question, table, offers)
    every = _ordered(question, [_option(question, rate, offers) for rate in known])
    options = [option for option in every if question.gpus or option.known.rate or not option.misfit]
    options = options if any(option.rate for option in options) else every
    winner, verdict = _verdict(question, options)
    listed = [offer for option in options for offer in option.offers if not offer.origin]
    notes = {
        f"setting: {table.setting}": bool(table.setting),
        f"{counted(len(every) - len(options), 'other GPU')} outside of the limits": len(options) < len(every),
        PREDICTED_NOTE: any(option.known.basis is Basis.PREDICTED for option in options),
        f"offers of {', '.join(sorted({o.retrieved_on for o in listed}))}; yours: --price GPU=USD": bool(listed),
        "USD/h: all GPUs of a row; a host is rented whole": any(option.known.count > 1 for option in options),
    }
    return Advice(
        question=question,
        table=table,
        options=tuple(options),
        sentence="; ".join(filter(None, (_lead(question, options), verdict))),
        winner=winner,
        notes=(
            *hints,
            *(note for note, holds in notes.items() if holds),
            *table.remarks,
            *_within_places(options),
            *fleet_notes([replace(rate.rate, prices={}) for rate in table.rates if rate.rate]),
        ),
    )


def _with_predictions(question: RentalQuestion, table: FigureTable, offers: Sequence[Offer]) -> list[KnownRate]:
    """Fill the gaps of a table with predictions, or with upper bounds where these decide."""
    rows = list(table.rates)
    if table.basis is Basis.PUBLISHED and not question.gpus and (question.usd_per_hour or question.memory_gib):
        present = {(row.gpu, row.count) for row in rows}
        priced = dict.fromkeys((offer.gpu, count) for offer in offers for count in question.counts)
        fitting = [key for key in priced if key[0] in specifications() and not _misfit(question, *key, offers)]
        rows += [missing(*key) for key in fitting if key not in present]
    gaps = {
        (row.gpu, row.count)
        for row in rows
        if not row.samples_per_second and not row.failed and row.gpu not in UNSUPPORTED
    }
    if not table.model or question.precision not in PEAKS or not gaps:
        return rows
    found = predict(sorted(gaps), table.model, question.precision, published_observations(), table.source)
    best = max((row.samples_per_second or 0.0 for row in rows), default=0.0)
    return [_filled(question, row, found.get((row.gpu, row.count)), best) for row in rows]


def _filled(question: RentalQuestion, row: KnownRate, found: Interval | str | None, best: float) -> KnownRate:
    """Return a row with its prediction, or else with its upper bound where that is below the best figure."""
    if isinstance(found, Interval):
        rate, note = found.value, ""
        return replace(
            row, basis=Basis.PREDICTED, origin="predicted", samples_per_second=rate, interval=found, note=note
        )
    limit = bound(question, row.gpu, row.count) or best
    if found and limit < best:
        return replace(row, basis=Basis.BOUND, samples_per_second=limit, origin="bandwidth and arithmetic at most")
    return replace(row, note=f"{row.note}, not predicted: {found}") if found else row


def _option(question: RentalQuestion, known: KnownRate, offers: Sequence[Offer]) -> RentalOption:
    """Add prices, time and what speaks against a GPU."""
    pool, budget = _offers_of(known, offers), question.usd_per_hour
    within = [offer for offer in pool if budget is None or _usd(offer, known.count) <= budget]
    hours = question.samples / known.samples_per_second / SECONDS_PER_HOUR if known.samples_per_second else None
    run_prices = sorted(known.prices.values())
    notes = {
        known.note: known.ranked,
        _batch_note(question, known): True,
        "spot only": within and all(offer.commitment == "spot" for offer in within),
        "only one offer": [offer.origin for offer in pool] == [""],
        "no price known": known.samples_per_second and not pool and budget is None,
        f"your price is used, not {span(run_prices)} from {FROM_RUN}": run_prices and pool[0].origin == YOURS,
    }
    misfits = [_misfit(question, known.gpu, known.count, pool)]
    if question.hours and hours and hours > question.hours:
        misfits.append(f"takes {significant(hours)} h")
    return RentalOption(
        known=known,
        offers=tuple(within),
        hours=hours,
        misfit="; ".join(filter(None, misfits)),
        notes=tuple(note for note, holds in notes.items() if note and holds),
    )


def span(values: Sequence[float]) -> str:
    """Write what lies between the lowest and the highest of some values, or the one value."""
    ends = sorted(values)[:: max(len(values) - 1, 1)]
    return " to ".join(dict.fromkeys(f"{float(f'{value:.3g}'):g}" for value in ends))


def _misfit(question: RentalQuestion, gpu: str, count: int, offers: Sequence[Offer]) -> str:
    """Return why a number of GPUs cannot be chosen whatever its speed; empty where it can."""
    memory, needed, budget = memory_of(gpu), _memory_needed(question), question.usd_per_hour
    prices = [_usd(offer, count) for offer in offers if offer.gpu == gpu or offer.origin == FROM_RUN]
    lowest = min(filter(None, prices), default=0.0)
    reasons = {
        "not supported: tfbench runs on NVIDIA GPUs": gpu in UNSUPPORTED,
        "memory not known": question.memory_gib and memory is None,
        f"needs {needed or 0:.0f} GiB, has {memory or 0:.0f}": memory and needed and needed > memory,
        "no price known": budget and not lowest,
        f"{lowest:.3g} USD/h is over the budget": budget and lowest > budget,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def _usd(offer: Offer, count: int) -> float:
    """Return what a job of `count` GPUs costs per hour; 0 where the host has fewer."""
    return offer.usd_per_hour(count) or 0.0


def _offers_of(known: KnownRate, offers: Sequence[Offer]) -> list[Offer]:
    """Return the prices of a GPU: the user's, else those that came with the measurement, else the shipped ones."""
    own = [offer for offer in offers if offer.gpu in (known.gpu, known.subject) and _usd(offer, known.count)]
    run = [Offer(known.gpu, price, provider=host, origin=FROM_RUN) for host, price in known.prices.items()]
    given = [offer for offer in own if offer.origin == YOURS] or run
    if given:
        return given
    # A larger host is rented whole, so it counts only where no host of this size is offered.
    exact = [offer for offer in own if offer.gpus_per_host == known.count] or own
    best: dict[str, Offer] = {}
    for offer in sorted(exact, key=lambda offer: _usd(offer, known.count)):
        best.setdefault(_place(offer), offer)
    return list(best.values())


def _place(offer: Offer) -> str:
    return ", ".join(filter(None, (offer.provider, offer.region, offer.commitment)))


def _memory_needed(question: RentalQuestion) -> float | None:
    """Return the GiB that are asked for, or that the saved activations of the batch alone take; None: not known."""
    cost = networks().get(question.network)
    if question.memory_gib is not None or question.batch_per_gpu is None or cost is None:
        return question.memory_gib
    return cost.saved_bytes.get(PEAKS[question.precision][1], 0.0) * question.batch_per_gpu / GIBI or None


def _batch_note(question: RentalQuestion, known: KnownRate) -> str:
    """Report that a figure is of another batch than the one asked for, and what memory that one needs."""
    asked = question.batch_per_gpu
    if asked is None or not known.batch.isdecimal() or int(known.batch) == asked:
        return ""
    text, needed = f"{known.basis} with batch {known.batch}, not {asked}", _memory_needed(question)
    fitting = [
        (memory_of(row["gpu"]) or 0.0, row["gpu"])
        for row in all_published()
        if row["model"].startswith(question.network) and row["precision"] == question.precision and not row["suspect"]
        if row["batch_per_gpu"].isdecimal() and int(row["batch_per_gpu"]) >= asked > int(known.batch)
    ]
    if needed or not fitting:
        return f"{text}, which needs {needed:.1f} GiB for activations alone" if needed else text
    memory, gpu = min(fitting)
    return f"{text}; the smallest GPU published with {asked} or more has {memory:g} GB ({gpu})"


def _ordered(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Put ranked options first: by samples a dollar where the user's prices or budget decide, else by speed."""
    priced = [option for option in options if option.offers and not option.excluded]
    given = all(offer.origin for option in priced for offer in option.offers)
    by_cost = bool(priced) and (question.usd_per_hour is not None or given)

    def order(option: RentalOption) -> tuple[bool, bool, float]:
        cost = max(option.samples_per_usd, default=0.0) if by_cost else 0.0
        return bool(option.excluded), option.known.basis is not Basis.PREDICTED, -(cost or option.rate * (not by_cost))

    return [_with_flip(option, priced) for option in sorted(options, key=order)]


def _with_flip(option: RentalOption, priced: Sequence[RentalOption]) -> RentalOption:
    """Add the price below which an option beats all others at their lowest prices."""
    flips = [option.rate / other.rate * other.usd[0] for other in priced if other.name != option.name and other.usd]
    known = option.rate and not option.is_bound
    return replace(option, wins_below=min(flips)) if known and flips else option


def _ratio(a: RentalOption, b: RentalOption) -> Interval:
    """Return how many times as fast `a` is; ends infinite where no interval is known."""
    value = a.rate / b.rate
    measured = compare_pair(a.known.rate, b.known.rate).interval if a.known.rate and b.known.rate else None
    if measured is not None or not _predicted(a, b):
        return measured or Interval(value, float("-inf"), float("inf"))
    left, right = (option.known.interval or Interval(option.rate, option.rate, option.rate) for option in (a, b))
    return Interval(value, left.low / right.high, left.high / right.low, 0.9)


def _predicted(*options: RentalOption) -> bool:
    return any(option.known.basis is Basis.PREDICTED for option in options)


def _ratio_text(a: RentalOption, b: RentalOption) -> str:
    ratio = _ratio(a, b)
    if _predicted(a, b):
        return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}, predicted)"
    return with_interval(ratio) if ratio.half_width < float("inf") else f"{ratio.value:.2f}"


def _lead(question: RentalQuestion, options: Sequence[RentalOption]) -> str:
    """Return how many times as fast each GPU is as the slowest, and what that makes it worth."""
    shown = sorted(compared(question, options), key=lambda option: option.rate)
    if not shown:
        return f"no answer: {'; '.join([*dict.fromkeys(option.excluded for option in options)][:LED])}"
    slow, fast = shown[0], shown[:0:-1][:LED]
    origin = "; ".join(dict.fromkeys(option.known.origin for option in (*fast, slow)))
    if not fast:
        return f"only {slow.name} has a figure, {significant(slow.rate, 4)} samples/s ({origin})"
    ratio = _ratio(fast[0], slow)
    if _predicted(fast[0], slow):
        worth = "measure for an hour first"
    elif len(fast) > 1:
        worth = f"each is worth up to its ratio times the price of {slow.name}"
    elif fast[0].known.rate and ratio.contains(1.0):
        worth = "no significant difference in speed: rent the cheaper one"
    else:
        worth = f"rent it where it costs less than {ratio.value:.2f} times as much"
    times = [f"{option.name} {'' if i else 'is '}{_ratio_text(option, slow)} times" for i, option in enumerate(fast)]
    return f"{enumerated(times)} as fast as {slow.name} ({origin}): {worth}"


def compared(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Return the options that the sentence compares: ranked ones, and predicted ones that were asked for.

    Where none meets the limits, those with a figure: how they compare is known all the same.
    """
    shown = [
        option
        for option in options
        if not option.excluded
        or (_predicted(option) and not option.misfit and (option.known.gpu, option.known.count) in question.gpus)
    ]
    return shown or [option for option in options if option.known.ranked]


def _verdict(question: RentalQuestion, options: Sequence[RentalOption]) -> tuple[RentalOption | None, str]:
    """Return what the prices decide, and what to rent where they do."""
    ranked = [option for option in options if not option.excluded]
    priced = [option for option in ranked if option.usd]
    if not ranked:
        fastest = max(options, key=lambda option: option.rate, default=None)
        found = fastest is not None and fastest.rate and fastest.misfit
        return None, f"none meets the limits: the fastest, {fastest.name}, {found}" if fastest and found else ""
    if not priced:
        return None, f"no price is known: give --price '{ranked[0].known.gpu}=USD'"
    if len(priced) == 1:
        return None, f"only {priced[0].name} has a price, {_usd_text(priced[0])}"
    if question.usd_per_hour is not None:
        return priced[0], _within_budget(question.usd_per_hour, priced)
    origins = {offer.origin for option in priced for offer in option.offers}
    offers = counted(sum(len(option.offers) for option in priced), "offer")
    where = {YOURS: "at your prices", FROM_RUN: "at the prices of this run", "": f"at every one of the {offers} listed"}
    at = where[min(origins)] if len(origins) == 1 else "at these prices"
    best = next((a for a in priced if all(_surely_cheaper(a, b) for b in priced if b is not a)), None)
    if best is not None:
        flip = f"the cheapest per sample below {best.wins_below:.3g} USD/h"
        return best, f"{at}, rent {best.name} ({_usd_text(best)}), {flip}"
    if "" in origins:
        return None, f"the {offers}{' listed' if len(origins) == 1 else ''} do not decide"
    cheap, fast = min(priced[:2], key=lambda option: option.usd), max(priced[:2], key=lambda option: option.rate)
    text = f"rent {cheap.name} for the lower price ({_usd_text(cheap)}), {fast.name} for the shorter time"
    return cheap if cheap is fast else None, f"{at}, no significant difference in samples a dollar: {text}"


def _within_budget(budget: float, priced: Sequence[RentalOption]) -> str:
    """Name what gives the most samples a dollar within the budget, and without spot prices too."""
    best = priced[0]
    firm = [replace(o, offers=tuple(x for x in o.offers if x.commitment != "spot")) for o in priced]
    firm.sort(key=lambda option: -max(option.samples_per_usd, default=0.0))
    text = f"within {budget:g} USD/h, rent {best.name} ({best.usd[0]:.3g} USD/h)"
    if best.cheapest.commitment != "spot" or not firm[0].offers:
        return text
    return f"{text}, a spot price, on demand it is {firm[0].name} ({_usd_text(firm[0])})"


def _surely_cheaper(a: RentalOption, b: RentalOption) -> bool:
    """Return whether `a` gives more samples a dollar at its highest price than `b` at its lowest, beyond the noise."""
    price, ratio = a.usd[1] / b.usd[0], _ratio(a, b)
    if a.known.rate and b.known.rate:
        return ratio.low > price and ratio.value / price - 1 >= THRESHOLD
    return ratio.value / price - 1 >= (MARGIN if a.known.origin == b.known.origin else OTHER_SOFTWARE)


def _within_places(options: Iterable[RentalOption]) -> list[str]:
    """Compare the fastest GPU with the slowest one within each provider, region and commitment that offers both."""
    priced = sorted((o for o in options if o.usd and not o.excluded), key=lambda option: option.rate)
    if len(priced) < 2:
        return []
    slow, fast = priced[0], priced[-1]
    usd = [{_place(o): _usd(o, of.known.count) for o in of.offers if not o.origin} for of in (slow, fast)]
    times = {place: usd[1][place] / usd[0][place] for place in usd[1] if place in usd[0]}
    return [
        f"within {place}, {fast.name} costs {ratio:.2f} times as much as {slow.name}: "
        f"{(fast if ratio < _ratio(fast, slow).value else slow).name} is cheaper per sample"
        for place, ratio in times.items()
    ]


def _usd_text(option: RentalOption) -> str:
    """Write the price of a row, and whether it is of spot offers alone."""
    spot = ", spot" if all(offer.commitment == "spot" for offer in option.offers) else ""
    return f"{span(option.usd)} USD/h{spot}"
