"""Answers a question with a row per GPU and count, their prices and limits, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from results.compare.comparison import fleets_of
from results.number_format import significant
from results.recommend.figures import advice_of_others, figures_of_others, gpus_of_fleets, measured_figures
from results.recommend.options import SECONDS_PER_HOUR, Advice, Basis, RentalOption, missing
from results.recommend.prediction import predict
from results.recommend.prices import Prices, asked_prices, offers_of, span, unused_prices
from results.recommend.questions import MODES, RentalQuestion
from results.recommend.sentence import LED, answer, within_places
from results.reference import GIBI, all_published
from results.reference.gpus import PEAKS, UNSUPPORTED, memory_of, roofline, specifications
from results.reference.networks import networks
from results.reference.prices import FROM_RUN, Offer
from results.schema import Precision
from results.stats import Interval
from results.table.cell_text import fleet_notes, warned_notes
from results.table.columns import NO_ORIGIN
from results.table.fleets import FleetRate, outliers, unambiguous
from results.text import counted, enumerated

PREDICTED_NOTE = (
    "predicted: for a short list; median error on held-out figures 11 % (one GPU), 25 % (TensorFlow rows); intervals "
    "reach a factor of 1.5 each way"
)


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
        BadQuestion: A price cannot be parsed.
    """
    prices = asked_prices(inline, files, fleets_of(rates))
    _, left_out = unambiguous([rate for rate in rates if any(question.covers(rate.case) for question in questions)])
    rates, _ = unambiguous(rates)
    advices = [advice for question in questions for advice in answers(question, rates, prices)]
    return advices, [*left_out, *unused_prices(advices, prices)]


def answers(question: RentalQuestion, rates: Sequence[FleetRate], prices: Prices) -> list[Advice]:
    """Answer a question, once for each setting.

    Measured settings come first, then the figures that this project measured, then published ones. Each follows only if
    there was no run, or a requested GPU or family has no figure yet, and none replaces a GPU's failure in these runs.

    Args:
        question: The question.
        rates: Measured throughputs; may be empty.
        prices: The prices to use.
    """
    advices = measured_figures(question, rates)
    options = [option for advice in advices for option in advice.options]
    hints = _other_flags(question, rates, {option.subject for option in options})
    if question.mode == "infer" and not advices:
        note = "inference was not measured in any run, and published figures are of training"
        absent = tuple(missing(*key, note) for key in question.gpus)
        measured, network = Basis.MEASURED, question.network
        advices = [
            Advice(
                question=question,
                basis=measured,
                mode="inference",
                model=network,
                options=absent,
                notes=() if absent else (note,),
            )
        ]
    elif question.mode != "infer":
        advices += _of_others(question, options, prices)
        if not any(option.samples_per_second for advice in advices for option in advice.options):
            hints += _other_precisions(question)
    return [_finished(advice, prices, hints) for advice in advices]


def _of_others(question: RentalQuestion, measured: Sequence[RentalOption], prices: Prices) -> list[Advice]:
    """Return the figures of others that the answer needs in addition to those of the run."""
    known = {(option.gpu, option.count) for option in measured if option.samples_per_second}
    tried = {(option.gpu, option.count): option.note for option in measured if option.failed}
    failed = {key: note for key, note in tried.items() if key not in known}
    families = question.families or [(key,) for key in question.gpus]
    advices: list[Advice] = []
    for basis in (Basis.PROJECT, Basis.PUBLISHED):
        unanswered = any(known.isdisjoint(family) and not {*failed} >= {*family} for family in families)
        if unanswered or not (measured or (families and advices)):
            advice = advice_of_others(
                question, basis, failed, lambda key: not _misfits(question, missing(*key), prices)
            )
            advices += [advice] if advice else []
            known |= {
                (option.gpu, option.count) for of in advices for option in of.options if option.samples_per_second
            }
    return advices


def _other_flags(question: RentalQuestion, rates: Sequence[FleetRate], shown: Collection[str]) -> list[str]:
    """Return a hint with the flags for which the runs have figures of fleets without a row, closest first."""
    gpus, wanted = gpus_of_fleets(rates), {gpu for gpu, _ in question.gpus}
    other = [rate for rate in rates if rate.rates and rate.fleet not in shown and rate.case.mode in MODES]
    other = [rate for rate in other if not wanted or gpus[rate.fleet, rate.case.device] in wanted]
    other = [of for of in other if of.case.num_hosts == 1 and of.case.num_gpus > 0 and of.case.all_reduce]
    cases = sorted(
        (rate.case for rate in other),
        key=lambda case: (case.model != question.network, case.precision != question.precision),
    )
    flags = dict.fromkeys(
        f"--model {case.model} --precision {case.precision} --num-gpus {case.num_gpus} --mode {case.mode}"
        for case in cases
    )
    fleets = [name for name in fleets_of(other) if name != NO_ORIGIN]
    names = enumerated(fleets) if len(fleets) <= LED else counted(len(fleets), "fleet")
    about = f"your run has other figures{f' of {names}' if names else ''}"
    return [f"{about}; to use it: {' or '.join([*flags][:LED])}"] if flags else []


def _other_precisions(question: RentalQuestion) -> list[str]:
    """Return a hint with the other precisions for which there are published figures."""
    found = []
    for name in Precision:
        settings = figures_of_others(replace(question, precision=name), Basis.PUBLISHED).values()
        if name != question.precision and any(question.wants(*key) for of in settings for key in of):
            found.append(name)
    return [f"published in other precisions: --precision {','.join(found)}"] if found else []


def _finished(advice: Advice, prices: Prices, hints: Sequence[str]) -> Advice:
    """Add predictions, prices, limits, order, notes and the sentence."""
    question, found = advice.question, advice.options
    options = _with_predictions(advice, prices) if advice.basis is Basis.PUBLISHED else found
    every = _ordered(question, [_with_prices(question, option, prices) for option in options])
    shown = [option for option in every if question.gpus or option.basis is Basis.MEASURED or not option.misfit]
    shown = shown if any(option.samples_per_second for option in shown) else every
    hidden = [option for option in every if option not in shown]
    shown = [replace(option, wins_below=_wins_below(option, shown)) for option in shown]
    winner, sentence = answer(question, shown, [*shown, *hidden])
    measured = [replace(option.measured, prices={}) for option in found if option.measured and option.ranked]
    notes = [
        *hints,
        f"setting: {advice.setting}" if advice.setting else "",
        f"{counted(len(hidden), 'other option')} outside the limits" if hidden else "",
        PREDICTED_NOTE if any(option.basis is Basis.PREDICTED for option in shown) else "",
        *_price_notes(shown),
        *advice.notes,
        *within_places(shown),
        *map(str, outliers(measured)),
        *warned_notes(measured),
        *fleet_notes(measured),
    ]
    notes = [note for note in notes if note]
    return replace(advice, options=tuple(shown), winner=winner, sentence=sentence, notes=tuple(notes))


def _price_notes(options: Sequence[RentalOption]) -> list[str]:
    """Return the date of the shipped offers among the prices, and what a price is of."""
    priced = [(option.count, offer) for option in options for offer in option.offers]
    listed = ", ".join(sorted({offer.retrieved_on for _, offer in priced if not offer.origin}))
    notes = [f"shipped offers are of {listed}; for your own prices: --price GPU=USD"] if listed else []
    if any(max(count, offer.gpus_per_host or 1) > 1 for count, offer in priced if offer.origin != FROM_RUN):
        return [*notes, "USD/h: all GPUs of a row; a host is rented whole"]
    return [*notes, "USD/h: all GPUs of a row"] if any(count > 1 for count, _ in priced) else notes


def _with_predictions(advice: Advice, prices: Prices) -> list[RentalOption]:
    """Fill gaps in published figures with predictions, or with upper bounds if these are below the best figure."""
    question = advice.question
    rows = {(option.gpu, option.count): option for option in advice.options}
    if not question.gpus and (question.budget or question.memory):
        named = (gpu for offers in prices for gpu in offers if gpu in specifications())
        for key in dict.fromkeys((gpu, count) for gpu in named for count in question.counts):
            if key not in rows and not _misfits(question, missing(*key), prices):
                rows[key] = missing(*key)
    best = max((option.samples_per_second for option in rows.values()), default=0.0)
    source = advice.setting.split(":")[0]
    for (gpu, count), option in rows.items():
        if not (option.samples_per_second or option.failed or gpu in UNSUPPORTED):
            found = predict(gpu, count, advice.model, question.precision, source)
            limit = _bound(question, gpu, count) or best
            if isinstance(found, Interval):
                row = replace(option, basis=Basis.PREDICTED, origin="predicted", note="", interval=found)
                rows[gpu, count] = replace(row, samples_per_second=found.value)
            elif limit < best:
                row = replace(option, basis=Basis.BOUND, origin="bandwidth and arithmetic at most")
                rows[gpu, count] = replace(row, samples_per_second=limit)
            else:
                rows[gpu, count] = replace(option, note=f"{option.note}, not predicted: {found}")
    return [*rows.values()]


def _bound(question: RentalQuestion, gpu: str, count: int) -> float | None:
    """Return the upper bound in samples per second for any software; None: unknown."""
    cost = networks().get(question.network)
    line = roofline(specifications().get(gpu, {}), cost, question.precision) if cost else None
    return count * line.hard_limit if line is not None and math.isfinite(line.hard_limit) else None


def _with_prices(question: RentalQuestion, option: RentalOption, prices: Prices) -> RentalOption:
    """Add prices, time and unmet limits to an option."""
    pool, rate, budget = offers_of(option, prices), option.samples_per_second, question.budget
    within = [offer for offer in pool if budget is None or offer.usd_per_hour(option.count) <= budget]
    hours = question.samples / rate / SECONDS_PER_HOUR if rate else None
    misfits = _misfits(question, option, prices)
    if question.hours and hours and hours > question.hours:
        misfits.append(f"takes {significant(hours)} h")
    notes = [option.note if option.ranked else "", _batch_note(question, option)]
    if within and all(offer.commitment == "spot" for offer in within):
        notes.append("spot only")
    if rate and not pool and budget is None:
        notes.append("no price known")
    of_run = {offer.usd_per_gpu_hour for offer in option.offers}
    if of_run and of_run != {offer.usd_per_gpu_hour for offer in pool}:
        notes.append(f"your price is used, not {span(of_run)} from {FROM_RUN}")
    notes = [note for note in notes if note]
    return replace(option, offers=tuple(within), hours=hours, misfit="; ".join(misfits), notes=tuple(notes))


def _misfits(question: RentalQuestion, option: RentalOption, prices: Prices) -> list[str]:
    """Return why an option does not meet the limits other than time."""
    offers: Sequence[Offer] = offers_of(option, prices) if question.budget else ()
    memory, needed, budget = memory_of(option.gpu), _memory_needed(question), question.budget
    lowest = min((offer.usd_per_hour(option.count) for offer in offers), default=0.0)
    reasons = ["not supported: tfbench runs on NVIDIA GPUs"] if option.gpu in UNSUPPORTED else []
    if question.memory and memory is None:
        reasons.append("memory not known")
    if memory and needed and needed > memory:
        reasons.append(f"needs {needed:.0f} GiB, has {memory:.0f}")
    if budget and not lowest:
        reasons.append("no price known")
    if budget and lowest > budget:
        reasons.append(f"{lowest:.3g} USD/h is over the budget")
    return reasons


def _memory_needed(question: RentalQuestion) -> float | None:
    """Return the requested GiB, or those of the batch's saved activations alone; None: unknown."""
    cost = networks().get(question.network)
    if question.memory is not None or question.batch_size is None or cost is None:
        return question.memory
    return cost.saved_bytes.get(PEAKS[question.precision][1], 0.0) * question.batch_size / GIBI or None


def _batch_note(question: RentalQuestion, option: RentalOption) -> str:
    """Return a note if a figure has another batch than requested, with the memory needed for it."""
    asked, needed = question.batch_size, _memory_needed(question)
    if asked is None or not option.batch.isdecimal() or int(option.batch) == asked:
        return ""
    text = f"{option.basis} with batch {option.batch}, not {asked}"
    if needed:
        return f"{text}, which needs {needed:.1f} GiB for activations alone"
    fitting = [
        (memory_of(row["gpu"]) or 0.0, row["gpu"])
        for row in all_published()
        if row["model"].startswith(question.network) and row["precision"] == question.precision
        if not row["suspect"] and int(row["batch_per_gpu"] or 0) >= asked > int(option.batch)
    ]
    for memory, gpu in sorted(fitting)[:1]:
        text += f"; the smallest GPU published with {asked} or more has {memory:g} GB ({gpu})"
    return text


def _ordered(question: RentalQuestion, options: Sequence[RentalOption]) -> list[RentalOption]:
    """Sort options that meet the limits first, then sure figures.

    They are sorted by samples per dollar if there are the user's prices or a budget, else by throughput.
    """
    priced = [option for option in options if option.has_figure and not option.misfit and option.offers]
    given = all(offer.origin for option in priced for offer in option.offers)
    by_cost = bool(priced) and (question.budget is not None or given)

    def order(option: RentalOption) -> tuple[bool, bool, bool, float]:
        cost = max(option.samples_per_usd, default=0.0) if by_cost else option.samples_per_second
        return bool(option.misfit), not option.has_figure, bool(option.doubt), -cost

    return sorted(options, key=order)


def _wins_below(option: RentalOption, options: Sequence[RentalOption]) -> float | None:
    """Return the price below which an option beats all others, at their lowest prices; None: it has no rival.

    Not counted are options whose price moves with it, and for one that meets the limits those that do not.
    """
    rivals = [of for of in options if of.samples_per_usd and of.subject != option.subject]
    rivals = [of for of in rivals if of.gpu != option.gpu or not {*of.offers} & {*option.offers}]
    rivals = [of for of in rivals if option.misfit or not of.misfit]
    most = max((of.samples_per_usd[-1] for of in rivals), default=None)
    return SECONDS_PER_HOUR * option.samples_per_second / most if option.has_figure and most else None
