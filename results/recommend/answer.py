"""Answers a question with a row per GPU and count, their prices and limits, and one sentence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from results.compare.comparison import fleets_of
from results.recommend.figures import advice_of_others, figures_of_others, measured_figures
from results.recommend.options import (
    SECONDS_PER_HOUR,
    Advice,
    Basis,
    RentalOption,
    asked_prices,
    gpus_of_fleets,
    option_of,
    unused_prices,
)
from results.recommend.output import LED, answer
from results.recommend.prediction import predict
from results.recommend.questions import RentalQuestion, measured_questions
from results.reference.gpus import UNSUPPORTED, roofline, specifications
from results.reference.networks import networks
from results.reference.prices import FROM_RUN, Prices
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

NOT_INFERRED = "inference was not measured in any run, and published figures are of training"


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
    prices = asked_prices(inline, files, rates)
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
    question = replace(question, prices=prices)
    advices = measured_figures(question, rates)
    hints = _other_flags(question, rates, {option.subject for advice in advices for option in advice.options})
    if question.mode != "infer":
        advices += _of_others(question, advices)
        if not any(option.samples_per_second for advice in advices for option in advice.options):
            hints += _other_precisions(question)
    elif not advices:
        advice = Advice(question=question, basis=Basis.MEASURED, mode="inference", model=question.network)
        absent = tuple(option_of(question, key, NOT_INFERRED) for key in question.gpus)
        advices = [replace(advice, options=absent, notes=(NOT_INFERRED,))]
    return [_finished(advice, hints) for advice in advices]


def _of_others(question: RentalQuestion, measured: Sequence[Advice]) -> list[Advice]:
    """Return the figures of others that the answer needs in addition to those of the run."""
    options = [option for advice in measured for option in advice.options]
    known = {option.key for option in options if option.samples_per_second}
    failed = {option.key: option.note for option in options if option.failed and option.key not in known}
    families = question.families or [(key,) for key in question.gpus]
    advices: list[Advice] = []
    for basis in (Basis.PROJECT, Basis.PUBLISHED):
        unanswered = any(known.isdisjoint(family) and not failed.keys() >= {*family} for family in families)
        if unanswered or not (options or (families and advices)):
            advice = advice_of_others(question, basis, failed)
            advices += [advice] if advice else []
            known |= {option.key for option in (advice.options if advice else ()) if option.samples_per_second}
    return advices


def _other_flags(question: RentalQuestion, rates: Sequence[FleetRate], shown: Collection[str]) -> list[str]:
    """Return a hint with the flags for which the runs have figures of fleets without a row, closest first."""
    gpus, wanted = gpus_of_fleets(rates), {gpu for gpu, _ in question.gpus}
    others = [rate for rate in rates if rate.rates and rate.fleet not in shown]
    others = [rate for rate in others if not wanted or gpus[rate.fleet, rate.case.device] in wanted]
    questions = measured_questions(rate.case for rate in others)
    if not questions:
        return []
    questions.sort(key=lambda other: (other.network != question.network, other.precision != question.precision))
    flags = [
        f"--model {other.network} --precision {other.precision} --num-gpus {other.counts[0]} --mode {other.mode}"
        for other in questions[:LED]
    ]
    others = [rate for rate in others if any(other.covers(rate.case) for other in questions)]
    fleets = [name for name in fleets_of(others) if name != NO_ORIGIN]
    about = f"your run has other figures{f' of {enumerated(fleets)}' if fleets else ''}"
    return [f"{about}; to use it: {' or '.join(flags)}"]


def _other_precisions(question: RentalQuestion) -> list[str]:
    """Return a hint with the other precisions for which there are published figures."""
    names = []
    for name in (name for name in Precision if name != question.precision):
        options = figures_of_others(replace(question, precision=name), Basis.PUBLISHED)
        names += [name] if any(question.wants(option.key) for option in options) else []
    return [f"published in other precisions: --precision {','.join(names)}"] if names else []


def _finished(advice: Advice, hints: Sequence[str]) -> Advice:
    """Add predictions, order, notes and the sentence."""
    question = advice.question
    every = _ordered(_with_predictions(advice) if advice.basis is Basis.PUBLISHED else advice.options)
    shown = [option for option in every if question.gpus or option.basis is Basis.MEASURED or not option.misfit]
    shown = shown if any(option.samples_per_second for option in shown) else every
    hidden = [option for option in every if option not in shown]
    shown = [replace(option, wins_below=_wins_below(option, shown)) for option in shown]
    winner, sentence = answer(question, shown, [*shown, *hidden])
    measured = [replace(option.measured, prices={}) for option in advice.options if option.measured]
    notes = [
        *hints,
        f"setting: {advice.setting}" if advice.setting else "",
        f"{counted(len(hidden), 'other option')} outside the limits" if hidden else "",
        PREDICTED_NOTE if any(option.basis is Basis.PREDICTED for option in shown) else "",
        *_price_notes(shown),
        *advice.notes,
        *outliers(measured),
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


def _with_predictions(advice: Advice) -> list[RentalOption]:
    """Fill gaps in published figures with predictions, or with upper bounds if these are below the best figure."""
    question = advice.question
    options = {option.key: option for option in advice.options}
    if not question.gpus and (question.budget or question.memory):
        named = dict.fromkeys(gpu for offers in question.prices for gpu in offers if gpu in specifications())
        added = [option_of(question, key) for key in itertools.product(named, question.counts)]
        options = {option.key: option for option in added if not option.unmet} | options
    best = max((option.samples_per_second for option in options.values()), default=0.0)
    source = advice.setting.split(":")[0]
    for key, option in options.items():
        if option.samples_per_second or option.failed or option.gpu in UNSUPPORTED:
            continue
        predicted = predict(*key, advice.model, question.precision, source)
        line = roofline(specifications().get(option.gpu, {}), networks().get(question.network), question.precision)
        limit = option.count * line.hard_limit if line else math.inf
        if isinstance(predicted, Interval):
            figure = replace(option, samples_per_second=predicted.value, interval=predicted)
            options[key] = replace(figure, basis=Basis.PREDICTED, origin="predicted", note="")
        elif limit < best:
            bound = replace(option, basis=Basis.BOUND, origin="bandwidth and arithmetic at most")
            options[key] = replace(bound, samples_per_second=limit)
        else:
            options[key] = replace(option, note=f"{option.note}, not predicted: {predicted}")
    return [*options.values()]


def _ordered(options: Sequence[RentalOption]) -> list[RentalOption]:
    """Sort options that meet the limits first, then sure figures.

    They are sorted by samples per dollar if there are the user's prices or a budget, else by throughput.
    """
    priced = [option for option in options if option.has_figure and not option.misfit and option.offers]
    by_cost = bool(priced) and all(
        offer.origin or option.question.budget is not None for option in priced for offer in option.offers
    )

    def order(option: RentalOption) -> tuple[bool, bool, bool, float]:
        cost = max(option.samples_per_usd, default=0.0) if by_cost else option.samples_per_second
        return bool(option.misfit), not option.has_figure, bool(option.doubt), -cost

    return sorted(options, key=order)


def _wins_below(option: RentalOption, options: Sequence[RentalOption]) -> float | None:
    """Return the price below which an option beats all others, at their lowest prices; None: it has no rival.

    Not counted are options whose price moves with it, and for one that meets the limits those that do not.
    """
    most = max(
        (
            rival.samples_per_usd[-1]
            for rival in options
            if rival.samples_per_usd and rival.subject != option.subject and (option.misfit or not rival.misfit)
            if rival.gpu != option.gpu or not {*rival.offers} & {*option.offers}
        ),
        default=None,
    )
    return SECONDS_PER_HOUR * option.samples_per_second / most if option.has_figure and most else None
