"""Answers a question with a row per GPU and count, and one sentence: ratios first, then prices."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.compare.pairs import THRESHOLD, compare_pair, fleets_of
from results.digits import significant, with_interval
from results.recommend.figures import (
    SECONDS_PER_HOUR,
    Basis,
    FigureTable,
    RentalOption,
    bound,
    gpus_of_fleets,
    measured_tables,
    missing,
    published_figures,
    published_tables,
)
from results.recommend.prediction import predict, published_observations
from results.recommend.questions import (
    PRECISIONS,
    YOURS,
    RentalQuestion,
    asked_prices,
    price_of,
    refuse_unknown,
    span,
    unused_lines,
)
from results.reference import GIBI, all_published
from results.reference.gpus import PEAKS, UNSUPPORTED, memory_of, specifications
from results.reference.networks import networks
from results.reference.prices import Offer
from results.stats import Interval
from results.table.cells import fleet_notes, warned_notes
from results.table.columns import NO_ORIGIN
from results.table.fleets import FleetRate, outliers, unambiguous
from results.text import counted, enumerated

MARGIN = 0.05
"""Smallest relative difference of two published figures that is significant: each is one run on one host.

Source: figures of one GPU, network and precision by one source in neighbouring software, `published.csv`: ResNet50
FP16 on RTX A6000 1404 and 1478, on A100 SXM4 40GB 1888 and 1990: 5 % apart.
"""

OTHER_SOFTWARE = 0.2
"""Likewise for figures of different software: one GPU gained 18 % between two containers."""

PREDICTED_NOTE = (
    "predicted: for a short list; median error on hidden figures 11 % (one GPU), 25 % (TensorFlow rows); intervals "
    "reach a factor of 1.5 each way"
)

FROM_RUN = "hosts.yml"
"""Origin of the prices in records."""

LED = 3
"""Maximum number of GPUs that the sentence compares with the slowest one, and of names and flags in a hint."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer to a question in one setting.

    Attributes:
        question: The question.
        table: The figures behind it.
        options: Ranked options in order, then predicted ones, then those without a figure.
        sentence: The answer.
        winner: What to rent; None: prices do not decide.
        notes: Notes on the whole table.
    """

    question: RentalQuestion
    table: FigureTable
    options: tuple[RentalOption, ...]
    sentence: str
    winner: RentalOption | None
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """Network, precision, mode and basis."""
        return f"{self.table.network} {self.question.precision}, {self.table.mode}, {self.table.basis}"

    @property
    def ranked(self) -> list[RentalOption]:
        """Options measured or published in this setting that meet the limits."""
        return _ranked(self.options)


def _ranked(options: Iterable[RentalOption]) -> list[RentalOption]:
    return [option for option in options if not option.excluded]


def advise(
    questions: Sequence[RentalQuestion], rates: Sequence[FleetRate], inline: Sequence[str], files: Sequence[Path]
) -> tuple[list[Advice], list[str]]:
    """Answer questions with the user's prices.

    Args:
        questions: The questions, e.g. of `read_questions`.
        rates: Measured throughputs; may be empty.
        inline: Prices `GPU=USD` per GPU-hour; a fleet may be named in place of a GPU.
        files: The user's price files.

    Returns:
        The answers in the order of the questions; lines about cases that are left out and prices that are not used.

    Raises:
        BadQuestion: A network is unknown, or a price cannot be parsed.
    """
    refuse_unknown(questions, [rate.case.model for rate in rates])
    given = asked_prices(inline, files, fleets_of(rates))
    relevant = [rate for rate in rates if any(question.covers(rate.case) for question in questions)]
    _, left_out = unambiguous(relevant)
    rates, _ = unambiguous(rates)
    advices = [advice for question in questions for advice in answers(question, rates, given.offers)]
    return advices, [*left_out, *given.unused, *unused_prices(advices, given.offers)]


def answers(question: RentalQuestion, rates: Sequence[FleetRate], offers: Sequence[Offer]) -> list[Advice]:
    """Answer a question, once for each setting.

    Measured settings come first. Published figures follow if nothing was measured, or a requested GPU or family has no
    figure. They never replace the failure of a GPU in these runs.

    Args:
        question: The question.
        rates: Measured throughputs; may be empty.
        offers: Prices; the user's are marked by their origin.
    """
    tables = measured_tables(question, rates)
    rows = [row for table in tables for row in table.rows]
    hints = _other_flags(question, rates, {row.subject for row in rows})
    known = {(row.gpu, row.count) for row in rows if row.samples_per_second}
    failed = {(row.gpu, row.count): row.note for row in rows if row.failed and (row.gpu, row.count) not in known}
    if question.mode == "infer":
        tables = tables or [_no_inference(question)]
    elif not tables or any(
        known.isdisjoint(family) and not failed.keys() >= {*family}
        for family in question.families or [(key,) for key in question.gpus]
    ):
        tables += published_tables(question, failed, lambda key: _fits(question, key, offers))
    if question.mode != "infer" and not any(row.samples_per_second for table in tables for row in table.rows):
        hints += _other_precisions(question)
    return [_advice(question, table, offers, hints) for table in tables]


def unused_prices(advices: Sequence[Advice], offers: Sequence[Offer]) -> list[str]:
    """Return a line for each reason why some of the user's prices are in no answer; a family's price is one."""
    options = [option for advice in advices for option in advice.options]
    used = {price_of(offer) for option in options for offer in option.offers}
    unused: dict[tuple[str, float, str], list[Offer]] = {}
    for offer in offers:
        if offer.origin == YOURS and price_of(offer) not in used:
            unused.setdefault(price_of(offer), []).append(offer)
    why: dict[str, list[Offer]] = {}
    for price in unused.values():
        why.setdefault(_unused(price, advices), []).append(price[0])
    return [line for reason, of in why.items() for line in unused_lines(of, reason)]


def _unused(price: Sequence[Offer], advices: Sequence[Advice]) -> str:
    """Return why no answer uses a price, which is that of several GPUs if it is a family's."""
    gpus, offer = {of.gpu for of in price}, price[0]
    rows = [(advice.question.budget, option) for advice in advices for option in advice.options if option.gpu in gpus]
    usd = [(offer.usd_per_hour(option.count), budget) for budget, option in rows]
    if not rows:
        return "the answer has no row of this GPU"
    if not any(of_host for of_host, _ in usd):
        return f"its host has only {counted(offer.gpus_per_host or 0, 'GPU')}"
    if all(budget is not None and of_host > budget for of_host, budget in usd if of_host):
        return "it is over the budget"
    return "a host with the GPUs of the job, or the price of a fleet, comes first"


def _no_inference(question: RentalQuestion) -> FigureTable:
    note = "inference was not measured in any run, and published figures are of training"
    rows = tuple(missing(gpu, count, note) for gpu, count in question.gpus)
    return FigureTable(basis=Basis.MEASURED, mode="inference", model=question.network, rows=rows, remarks=(note,))


def _other_flags(question: RentalQuestion, rates: Sequence[FleetRate], shown: Collection[str]) -> list[str]:
    """Return a hint with the flags for which the runs have figures of fleets without a row, closest first."""
    gpus, wanted = gpus_of_fleets(rates), {gpu for gpu, _ in question.gpus}
    other = [
        rate
        for rate in rates
        if rate.fleet not in shown and (not wanted or gpus[rate.fleet, rate.case.device] in wanted)
    ]
    usable = [rate for rate in other if rate.rates and rate.case.num_hosts == 1 and rate.case.mode != "device"]
    usable = [rate for rate in usable if rate.case.num_gpus and rate.case.all_reduce]
    cases = [rate.case for rate in usable]
    cases.sort(key=lambda case: (case.model != question.network, case.precision != question.precision))
    flags = dict.fromkeys(
        f"--model {case.model} --precision {case.precision} --num-gpus {case.num_gpus} --mode {case.mode}"
        for case in cases
    )
    fleets = [name for name in fleets_of(usable) if name != NO_ORIGIN]
    names = enumerated(fleets) if len(fleets) <= LED else counted(len(fleets), "fleet")
    about = f"your run has other figures{f' of {names}' if names else ''}"
    return [f"{about}; to use it: {' or '.join([*flags][:LED])}"] if flags else []


def _other_precisions(question: RentalQuestion) -> list[str]:
    """Return a hint with the other precisions for which there are published figures."""
    others = [name for name in PRECISIONS if name != question.precision]
    published = {name: published_figures(replace(question, precision=name)).values() for name in others}
    found = [name for name, settings in published.items() if any(question.wants(*key) for of in settings for key in of)]
    return [f"published in other precisions: --precision {','.join(found)}"] if found else []


def _advice(question: RentalQuestion, table: FigureTable, offers: Sequence[Offer], hints: Sequence[str]) -> Advice:
    rows = _with_predictions(question, table, offers)
    every = _ordered(question, [_with_prices(question, row, offers) for row in rows])
    options = [option for option in every if question.gpus or option.basis is Basis.MEASURED or not option.misfit]
    options = options if any(option.samples_per_second for option in options) else every
    winner, verdict = _verdict(question, every)
    priced = [(option.count, offer) for option in options for offer in option.offers]
    listed = {offer.retrieved_on for _, offer in priced if not offer.origin}
    whole = any(max(count, offer.gpus_per_host or 1) > 1 for count, offer in priced if offer.origin != FROM_RUN)
    notes = {
        f"setting: {table.setting}": table.setting,
        f"{counted(len(every) - len(options), 'other option')} outside the limits": len(options) < len(every),
        PREDICTED_NOTE: _predicted(*options),
        f"offers, undated ({', '.join(sorted(listed))}); yours: --price GPU=USD": listed,
        "USD/h: all GPUs of a row": not whole and any(count > 1 for count, _ in priced),
        "USD/h: all GPUs of a row; a host is rented whole": whole,
    }
    measured = [replace(row.measured, prices={}) for row in table.rows if row.measured and row.ranked]
    return Advice(
        question=question,
        table=table,
        options=tuple(options),
        sentence="; ".join(filter(None, (_lead(question, options, every), verdict))),
        winner=winner,
        notes=(
            *hints,
            *(note for note, holds in notes.items() if holds),
            *table.remarks,
            *_within_places(options),
            *map(str, outliers(measured)),
            *warned_notes(measured),
            *fleet_notes(measured),
        ),
    )


def _with_predictions(question: RentalQuestion, table: FigureTable, offers: Sequence[Offer]) -> list[RentalOption]:
    """Fill gaps in a table with predictions, or with upper bounds if these are decisive."""
    rows = list(table.rows)
    if table.basis is Basis.PUBLISHED and not question.gpus and (question.budget or question.memory):
        present = {(row.gpu, row.count) for row in rows}
        priced = dict.fromkeys((offer.gpu, count) for offer in offers for count in question.counts)
        fitting = [key for key in priced if key[0] in specifications() and _fits(question, key, offers)]
        rows += [missing(*key) for key in fitting if key not in present]
    if table.basis is not Basis.PUBLISHED:
        return rows
    gaps = {
        (row.gpu, row.count)
        for row in rows
        if not row.samples_per_second and not row.failed and row.gpu not in UNSUPPORTED
    }
    found = predict(sorted(gaps), table.model, question.precision, published_observations(), table.source)
    best = max((row.samples_per_second for row in rows), default=0.0)
    return [_filled(question, row, found.get((row.gpu, row.count)), best) for row in rows]


def _filled(question: RentalQuestion, row: RentalOption, found: Interval | str | None, best: float) -> RentalOption:
    """Return an option with its prediction, or with its upper bound if that is below the best figure."""
    if isinstance(found, Interval):
        filled = replace(row, basis=Basis.PREDICTED, origin="predicted", note="")
        return replace(filled, samples_per_second=found.value, interval=found)
    limit = bound(question, row.gpu, row.count) or best
    if found and limit < best:
        return replace(row, basis=Basis.BOUND, samples_per_second=limit, origin="bandwidth and arithmetic at most")
    return replace(row, note=f"{row.note}, not predicted: {found}") if found else row


def _with_prices(question: RentalQuestion, row: RentalOption, offers: Sequence[Offer]) -> RentalOption:
    """Add prices, time and unmet limits to an option."""
    pool, budget = _offers_of(row, offers), question.budget
    within = [offer for offer in pool if budget is None or offer.usd_per_hour(row.count) <= budget]
    hours = question.samples / row.samples_per_second / SECONDS_PER_HOUR if row.samples_per_second else None
    notes = {
        row.note: row.ranked,
        _batch_note(question, row): True,
        "spot only": within and all(offer.commitment == "spot" for offer in within),
        "only one offer": [offer.origin for offer in pool] == [""],
        "no price known": row.samples_per_second and not pool and budget is None,
        f"your price is used, not {span(row.run_prices.values())} from {FROM_RUN}": row.run_prices
        and {offer.usd_per_gpu_hour for offer in pool} != {*row.run_prices.values()},
    }
    late = f"takes {significant(hours)} h" if question.hours and hours and hours > question.hours else ""
    return replace(
        row,
        offers=tuple(within),
        hours=hours,
        misfit="; ".join(filter(None, (_misfit(question, row, pool), late))),
        notes=tuple(note for note, holds in notes.items() if note and holds),
    )


def _fits(question: RentalQuestion, key: tuple[str, int], offers: Sequence[Offer]) -> bool:
    """Return whether a GPU that was not measured, and its count, meet the limits other than time."""
    row = missing(*key)
    return not _misfit(question, row, _offers_of(row, offers))


def _misfit(question: RentalQuestion, row: RentalOption, pool: Sequence[Offer]) -> str:
    """Return why an option with its offers does not meet the limits other than time; empty if it does."""
    memory, needed, budget = memory_of(row.gpu), _memory_needed(question), question.budget
    lowest = min((offer.usd_per_hour(row.count) for offer in pool), default=0.0)
    reasons = {
        "not supported: tfbench runs on NVIDIA GPUs": row.gpu in UNSUPPORTED,
        "memory not known": question.memory and memory is None,
        f"needs {needed or 0:.0f} GiB, has {memory or 0:.0f}": memory and needed and needed > memory,
        "no price known": budget and not lowest,
        f"{lowest:.3g} USD/h is over the budget": budget and lowest > budget,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def _offers_of(row: RentalOption, offers: Sequence[Offer]) -> list[Offer]:
    """Return the prices of a GPU: the user's, else those of the records, else the shipped ones."""
    large = [offer for offer in offers if offer.usd_per_hour(row.count)]
    own = [of for of in large if of.fleet == row.subject] or [of for of in large if not of.fleet and of.gpu == row.gpu]
    run = [Offer(row.gpu, price, provider=host, origin=FROM_RUN) for host, price in row.run_prices.items()]
    given = [offer for offer in own if offer.origin == YOURS] or run or own
    # A larger host is rented whole, so it counts only if no host of this size is offered.
    exact = [offer for offer in given if offer.gpus_per_host in (None, row.count)] or given
    if given is not own:
        return exact
    best: dict[str, Offer] = {}
    for offer in sorted(exact, key=lambda offer: offer.usd_per_hour(row.count)):
        best.setdefault(_place(offer), offer)
    return [*best.values()]


def _place(offer: Offer) -> str:
    return ", ".join(filter(None, (offer.provider, offer.region, offer.commitment)))


def _memory_needed(question: RentalQuestion) -> float | None:
    """Return the requested GiB, or those of the batch's saved activations alone; None: unknown."""
    cost = networks().get(question.network)
    if question.memory is not None or question.batch_size is None or cost is None:
        return question.memory
    return cost.saved_bytes.get(PEAKS[question.precision][1], 0.0) * question.batch_size / GIBI or None


def _batch_note(question: RentalQuestion, row: RentalOption) -> str:
    """Return a note if a figure has another batch than requested, with the memory needed for it."""
    asked, needed = question.batch_size, _memory_needed(question)
    if asked is None or not row.batch.isdecimal() or int(row.batch) == asked:
        return ""
    text = f"{row.basis} with batch {row.batch}, not {asked}"
    if needed:
        return f"{text}, which needs {needed:.1f} GiB for activations alone"
    fitting = [
        (memory_of(other["gpu"]) or 0.0, other["gpu"])
        for other in all_published()
        if other["model"].startswith(question.network) and other["precision"] == question.precision
        if not other["suspect"] and int(other["batch_per_gpu"] or 0) >= asked > int(row.batch)
    ]
    for memory, gpu in sorted(fitting)[:1]:
        text += f"; the smallest GPU published with {asked} or more has {memory:g} GB ({gpu})"
    return text


def _ordered(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Sort ranked options first: by samples a dollar if there are user's prices or a budget, else by throughput.

    Adds the price below which each option beats all others at their lowest prices, without those whose price moves
    with it.
    """
    priced = [option for option in _ranked(options) if option.offers]
    given = all(offer.origin for option in priced for offer in option.offers)
    by_cost = bool(priced) and (question.budget is not None or given)

    def order(option: RentalOption) -> tuple[bool, bool, float]:
        cost = max(option.samples_per_usd, default=0.0) if by_cost else option.samples_per_second
        return bool(option.excluded), not _predicted(option), -cost

    def wins_below(option: RentalOption) -> float | None:
        apart = [of for of in priced if of.subject != option.subject and not {*of.offers} & {*option.offers}]
        others = [of.usd[0] / of.samples_per_second for of in apart]
        return option.samples_per_second * min(others) if option.has_figure and others else None

    return [replace(option, wins_below=wins_below(option)) for option in sorted(options, key=order)]


def _ratio(a: RentalOption, b: RentalOption) -> Interval:
    """Return the throughput of `a` over that of `b`; the interval is infinite if unknown."""
    value = a.samples_per_second / b.samples_per_second
    if _predicted(a, b):
        left, right = (of.interval or Interval(*[of.samples_per_second] * 3) for of in (a, b))
        return Interval(value, left.low / right.high, left.high / right.low, 0.9)
    measured = compare_pair(a.measured, b.measured).interval if a.measured and b.measured else None
    return measured or Interval(value, float("-inf"), float("inf"))


def _predicted(*options: RentalOption) -> bool:
    return any(option.basis is Basis.PREDICTED for option in options)


def _ratio_text(a: RentalOption, b: RentalOption) -> str:
    ratio = _ratio(a, b)
    return with_interval(ratio) if ratio.half_width < float("inf") else f"{ratio.value:.2f}"


def _lead(question: RentalQuestion, options: Sequence[RentalOption], every: Sequence[RentalOption]) -> str:
    """Return the first part of the sentence: ratios over the slowest GPU, and the prices that they justify."""
    shown = sorted(compared(question, options), key=lambda option: option.samples_per_second)
    if not shown:
        reasons = [*dict.fromkeys(option.excluded for option in options)][:LED]
        mode = f" in mode {question.mode}" if question.mode else ""
        return f"no answer: {'; '.join(reasons) or f'no figure of {question.network} {question.precision}{mode}'}"
    slow, fast = shown[0], shown[:0:-1][:LED]
    origin = "; ".join(dict.fromkeys(option.origin for option in (*fast, slow)))
    if not fast:
        alone = _alone(slow, every)
        return f"only {slow.name} {alone}, {significant(slow.samples_per_second, 4)} samples/s ({origin})"
    if _predicted(fast[0], slow):
        worth = "measure for an hour first"
    elif _without_interval(slow, fast):
        worth = "no interval, measure at least 2 repeats of each"
    elif len(fast) > 1:
        worth = f"each is worth up to its ratio times the price of {slow.name}"
    elif fast[0].measured and _ratio(fast[0], slow).contains(1.0):
        worth = "no significant difference in speed: rent the cheaper one"
    else:
        worth = f"rent it if it costs less than {_ratio_text(fast[0], slow).split(' ')[0]} times as much"
    times = [f"{option.name} {'' if i else 'is '}{_ratio_text(option, slow)} times" for i, option in enumerate(fast)]
    return f"{enumerated(times)} as fast as {slow.name} ({origin}): {worth}"


def _alone(option: RentalOption, every: Sequence[RentalOption]) -> str:
    """Return what only this option does or has, of those with a figure."""
    others = [other for other in every if other is not option and other.samples_per_second]
    limits = any(other.misfit for other in others)
    if any(other.basis is not Basis.BOUND and not other.misfit for other in others):
        return f"has a {option.basis} figure in this setting{' and meets the limits' if limits else ''}"
    return "meets the limits" if limits else "has a figure"


def _without_interval(option: RentalOption, others: Iterable[RentalOption]) -> bool:
    """Return whether the ratio of an option and one of the others is measured, but its uncertainty is unknown."""
    return any(option.measured and math.isinf(_ratio(option, other).half_width) for other in others)


def compared(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Return the options that the sentence compares: ranked ones, and requested ones with a prediction.

    If none meets the limits, all options with a comparable figure.
    """
    shown = [
        option
        for option in options
        if not option.excluded
        or (_predicted(option) and not option.misfit and (option.gpu, option.count) in question.gpus)
    ]
    return shown or [option for option in options if option.ranked]


def _verdict(question: RentalQuestion, options: Sequence[RentalOption]) -> tuple[RentalOption | None, str]:
    """Return what to rent if prices decide, and the second part of the sentence."""
    ranked, budget = _ranked(options), question.budget
    priced = [option for option in ranked if option.usd]
    if not ranked:
        misfits = [option for option in options if option.ranked and option.misfit]
        fastest = max(misfits, key=lambda option: option.samples_per_second, default=None)
        return None, f"none meets the limits; the fastest is {fastest.name}: {fastest.misfit}" if fastest else ""
    if not priced:
        return None, f"no price is known: give --price '{ranked[0].gpu}=USD'"
    if len(priced) == 1:
        why = "" if len(compared(question, options)) == 1 else _only_priced(priced[0], options)
        return None, f"{why}{_usd_text(priced[0])}"
    origins = {offer.origin for option in priced for offer in option.offers}
    offers = counted(sum(len(option.offers) for option in priced), "offer")
    where = {YOURS: "at your prices", FROM_RUN: "at the prices of this run", "": f"at every one of the {offers} listed"}
    at = where[min(origins)] if len(origins) == 1 else "at these prices"
    if budget is not None:
        at, priced = f"within {budget:g} USD/h", _at_lowest(priced)
    best, *tied = _tied(priced)
    if not tied:
        flip = "" if best.wins_below is None else f", the cheapest per sample below {best.wins_below:.3g} USD/h"
        return best, f"{at}, rent {best.name} ({_usd_text(best)}){flip if budget is None else _on_demand(best, ranked)}"
    if "" in origins and budget is None:
        return None, f"the {offers}{' listed' if len(origins) == 1 else ''} do not decide"
    if _without_interval(best, tied):
        return None, f"{at}, {_tie_text(best, tied)}"
    if any(option.usd[0] < option.usd[1] for option in (best, *tied)):
        return None, f"{at}, which is cheaper per sample depends on the offer"
    cheap, *dearer = sorted((best, *tied), key=lambda option: option.usd)
    faster = [option for option in dearer if _surely_above(option, cheap, 1.0)]
    if not faster and dearer[0].usd == cheap.usd:
        return None, f"{at}, {_tie_text(best, tied)}"
    fast = max(faster, key=lambda option: option.samples_per_second, default=None)
    time = f", {fast.name} for the shorter time" if fast else ""
    text = f"{at}, {_tie_text(best, tied)}: rent {cheap.name} for the lower price ({_usd_text(cheap)}){time}"
    return None if fast else cheap, text


def _only_priced(option: RentalOption, options: Sequence[RentalOption]) -> str:
    """Return what only this option has, of those that meet the limits."""
    others = [other for other in options if other is not option]
    figure = f"a {option.basis} figure and " if any(other.usd for other in others) else ""
    limits = " within the limits" if any(other.misfit for other in others) else ""
    return f"only {option.name} has {figure}a price{limits}, "


def _at_lowest(options: Iterable[RentalOption]) -> list[RentalOption]:
    """Return those with an offer, each with its cheapest one only."""
    return [replace(option, offers=(option.cheapest,)) for option in options if option.offers]


def _tied(priced: Sequence[RentalOption]) -> list[RentalOption]:
    """Return the option with the most samples a dollar, and those that may be as good."""
    best = max(priced, key=lambda option: option.samples_per_usd[-1])
    return [best, *(option for option in priced if option is not best and not _surely_cheaper(best, option))]


def _tie_text(best: RentalOption, tied: Sequence[RentalOption]) -> str:
    unknown = _without_interval(best, tied)
    return "undecided without an interval" if unknown else "no significant difference in samples a dollar"


def _on_demand(best: RentalOption, ranked: Sequence[RentalOption]) -> str:
    """Return what to rent on demand if the price of the best option is a spot price; empty if it is not."""
    firm = _at_lowest(replace(o, offers=tuple(x for x in o.offers if x.commitment != "spot")) for o in ranked)
    if best.cheapest.commitment != "spot" or not firm:
        return ""
    return f", on demand it is {' or '.join(f'{option.name} ({_usd_text(option)})' for option in _tied(firm))}"


def _surely_cheaper(a: RentalOption, b: RentalOption) -> bool:
    """Return whether `a` at its highest price gives significantly more samples a dollar than `b` at its lowest."""
    return _surely_above(a, b, a.usd[1] / b.usd[0])


def _surely_above(a: RentalOption, b: RentalOption, limit: float) -> bool:
    """Return whether `a` is significantly more than `limit` times as fast as `b`."""
    ratio = _ratio(a, b)
    if a.measured and b.measured:
        return ratio.low > limit and ratio.value / limit - 1 >= THRESHOLD
    return ratio.value / limit - 1 >= (MARGIN if a.origin == b.origin else OTHER_SOFTWARE)


def _within_places(options: Sequence[RentalOption]) -> list[str]:
    """Compare the fastest GPU with the slowest one within each provider, region and commitment with both."""
    priced = sorted((o for o in _ranked(options) if o.usd), key=lambda option: option.samples_per_second)
    if len(priced) < 2:
        return []
    slow, fast = priced[0], priced[-1]
    offers = [{_place(offer): offer for offer in of.offers if not offer.origin} for of in (slow, fast)]
    notes = []
    for place in (name for name in offers[1] if name in offers[0]):
        pair = [replace(of, offers=(at[place],)) for of, at in zip((slow, fast), offers, strict=True)]
        best, *tied = _tied(pair)
        result = _tie_text(best, tied) if tied else f"{best.name} is cheaper per sample"
        times = f"{pair[1].usd[0] / pair[0].usd[0]:.2f} times as much as {slow.name}"
        notes.append(f"within {place}, {fast.name} costs {times}: {result}")
    return notes


def _usd_text(option: RentalOption) -> str:
    """Format the price of an option, and whether it has only spot offers."""
    spot = ", spot" if all(offer.commitment == "spot" for offer in option.offers) else ""
    return f"{span(option.usd)} USD/h{spot}"
