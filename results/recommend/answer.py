"""Answers a question with a row per GPU and count, their prices and limits, and one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.compare.pairs import fleets_of
from results.digits import significant
from results.recommend.figures import (
    SECONDS_PER_HOUR,
    Basis,
    FigureTable,
    GpuCount,
    RentalOption,
    bound,
    gpus_of_fleets,
    measured_tables,
    missing,
    project_table,
    published_figures,
    published_table,
)
from results.recommend.prediction import predict, published_observations
from results.recommend.questions import (
    FROM_RUN,
    MODES,
    PRECISIONS,
    YOURS,
    RentalQuestion,
    asked_prices,
    price_of,
    refuse_unknown,
    span,
    unused_lines,
)
from results.recommend.sentence import LED, answer, within_places
from results.reference import GIBI, all_published
from results.reference.gpus import PEAKS, UNSUPPORTED, memory_of, specifications
from results.reference.networks import networks
from results.reference.prices import Offer
from results.schema import Case
from results.stats import Interval
from results.table.cells import fleet_notes, warned_notes
from results.table.columns import NO_ORIGIN
from results.table.fleets import FleetRate, outliers, unambiguous
from results.text import counted, enumerated

PREDICTED_NOTE = (
    "predicted: for a short list; median error on hidden figures 11 % (one GPU), 25 % (TensorFlow rows); intervals "
    "reach a factor of 1.5 each way"
)


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
        return [option for option in self.options if not option.excluded]


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

    Measured settings come first, then the figures that this project measured, then published ones. Each follows only if
    there was no run, or a requested GPU or family has no figure yet, and none replaces a GPU's failure in these runs.

    Args:
        question: The question.
        rates: Measured throughputs; may be empty.
        offers: Prices; the user's are marked by their origin.
    """
    tables = measured_tables(question, rates)
    rows = [row for table in tables for row in table.rows]
    hints = _other_flags(question, rates, {row.subject for row in rows})
    if question.mode == "infer":
        tables = tables or [_no_inference(question)]
        return [_advice(question, table, offers, hints) for table in tables]
    failed, no_run = _failed(rows), not tables

    def fits(key: GpuCount) -> bool:
        return _fits(question, key, offers)

    if no_run or _unanswered(question, rows, failed):
        ours = project_table(question, failed, fits)
        if ours:
            tables.append(ours)
            rows += ours.rows
    if not tables or (no_run and not question.gpus) or _unanswered(question, rows, failed):
        tables.append(published_table(question, failed, fits))
    if not any(row.samples_per_second for table in tables for row in table.rows):
        hints += _other_precisions(question)
    return [_advice(question, table, offers, hints) for table in tables]


def _failed(rows: Sequence[RentalOption]) -> dict[GpuCount, str]:
    """Return the GPUs and counts that only failed, with the reason."""
    known = {(row.gpu, row.count) for row in rows if row.samples_per_second}
    return {(row.gpu, row.count): row.note for row in rows if row.failed and (row.gpu, row.count) not in known}


def _unanswered(question: RentalQuestion, rows: Sequence[RentalOption], failed: Collection[GpuCount]) -> bool:
    """Return whether nothing is known of a GPU, or of a whole family, that was asked for."""
    known = {(row.gpu, row.count) for row in rows if row.samples_per_second}
    families = question.families or [(key,) for key in question.gpus]
    return any(known.isdisjoint(family) and not {*failed} >= {*family} for family in families)


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
    other = [rate for rate in rates if rate.fleet not in shown and rate.rates and _answerable(rate.case)]
    other = [rate for rate in other if not wanted or gpus[rate.fleet, rate.case.device] in wanted]
    cases = [rate.case for rate in other]
    cases.sort(key=lambda case: (case.model != question.network, case.precision != question.precision))
    flags = dict.fromkeys(
        f"--model {case.model} --precision {case.precision} --num-gpus {case.num_gpus} --mode {case.mode}"
        for case in cases
    )
    fleets = [name for name in fleets_of(other) if name != NO_ORIGIN]
    names = enumerated(fleets) if len(fleets) <= LED else counted(len(fleets), "fleet")
    about = f"your run has other figures{f' of {names}' if names else ''}"
    return [f"{about}; to use it: {' or '.join([*flags][:LED])}"] if flags else []


def _answerable(case: Case) -> bool:
    """Return whether a question can be about a case."""
    return case.num_hosts == 1 and case.mode in MODES and case.num_gpus > 0 and case.all_reduce


def _other_precisions(question: RentalQuestion) -> list[str]:
    """Return a hint with the other precisions for which there are published figures."""
    others = [name for name in PRECISIONS if name != question.precision]
    published = {name: published_figures(replace(question, precision=name)).values() for name in others}
    found = [name for name, settings in published.items() if any(question.wants(*key) for of in settings for key in of)]
    return [f"published in other precisions: --precision {','.join(found)}"] if found else []


def _advice(question: RentalQuestion, table: FigureTable, offers: Sequence[Offer], hints: Sequence[str]) -> Advice:
    rows = _with_predictions(question, table, offers) if table.basis is Basis.PUBLISHED else table.rows
    every = _ordered(question, [_with_prices(question, row, offers) for row in rows])
    options = [option for option in every if question.gpus or option.basis is Basis.MEASURED or not option.misfit]
    options = options if any(option.samples_per_second for option in options) else every
    hidden = [option for option in every if option not in options]
    options = _with_break_even(options)
    winner, sentence = answer(question, options, [*options, *hidden])
    measured = [replace(row.measured, prices={}) for row in table.rows if row.measured and row.ranked]
    return Advice(
        question=question,
        table=table,
        options=tuple(options),
        sentence=sentence,
        winner=winner,
        notes=(
            *hints,
            *([f"setting: {table.setting}"] if table.setting else []),
            *([f"{counted(len(hidden), 'other option')} outside the limits"] if hidden else []),
            *([PREDICTED_NOTE] if any(option.basis is Basis.PREDICTED for option in options) else []),
            *_price_notes(options),
            *table.remarks,
            *within_places(options),
            *map(str, outliers(measured)),
            *warned_notes(measured),
            *fleet_notes(measured),
        ),
    )


def _price_notes(options: Sequence[RentalOption]) -> list[str]:
    """Return the date of the shipped offers among the prices, and what a price is of."""
    priced = [(option.count, offer) for option in options for offer in option.offers]
    listed = ", ".join(sorted({offer.retrieved_on for _, offer in priced if not offer.origin}))
    notes = [f"offers, undated ({listed}); yours: --price GPU=USD"] if listed else []
    if any(max(count, offer.gpus_per_host or 1) > 1 for count, offer in priced if offer.origin != FROM_RUN):
        return [*notes, "USD/h: all GPUs of a row; a host is rented whole"]
    return [*notes, "USD/h: all GPUs of a row"] if any(count > 1 for count, _ in priced) else notes


def _with_predictions(question: RentalQuestion, table: FigureTable, offers: Sequence[Offer]) -> list[RentalOption]:
    """Fill gaps in published figures with predictions, or with upper bounds if these are decisive."""
    rows = {(row.gpu, row.count): row for row in table.rows}
    if not question.gpus and (question.budget or question.memory):
        for key in dict.fromkeys((offer.gpu, count) for offer in offers for count in question.counts):
            if key not in rows and key[0] in specifications() and _fits(question, key, offers):
                rows[key] = missing(*key)
    gaps = [key for key, row in rows.items() if not (row.samples_per_second or row.failed or row.gpu in UNSUPPORTED)]
    found = predict(sorted(gaps), table.model, question.precision, published_observations(), table.source)
    best = max((row.samples_per_second for row in rows.values()), default=0.0)
    return [_filled(question, row, found.get(key), best) for key, row in rows.items()]


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
        best.setdefault(offer.place, offer)
    return [*best.values()]


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
    """Sort options that meet the limits first, then sure figures.

    They are sorted by samples a dollar if there are the user's prices or a budget, else by throughput.
    """
    priced = [option for option in options if option.has_figure and not option.misfit and option.offers]
    given = all(offer.origin for option in priced for offer in option.offers)
    by_cost = bool(priced) and (question.budget is not None or given)

    def order(option: RentalOption) -> tuple[bool, bool, bool, float]:
        cost = max(option.samples_per_usd, default=0.0) if by_cost else option.samples_per_second
        return bool(option.misfit), not option.has_figure, bool(option.doubt), -cost

    return sorted(options, key=order)


def _with_break_even(options: Sequence[RentalOption]) -> list[RentalOption]:
    """Add the price below which each option beats all others that are shown, at their lowest prices.

    Not counted are options whose price moves with it, and for one that meets the limits those that do not.
    """

    def wins_below(option: RentalOption) -> float | None:
        rivals = [of for of in options if of.samples_per_usd and of.subject != option.subject]
        rivals = [of for of in rivals if not {*of.offers} & {*option.offers} and (option.misfit or not of.misfit)]
        most = max((of.samples_per_usd[-1] for of in rivals), default=None)
        return SECONDS_PER_HOUR * option.samples_per_second / most if option.has_figure and most else None

    return [replace(option, wins_below=wins_below(option)) for option in options]
