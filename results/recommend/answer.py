"""Answers a question with a row per GPU and count, their prices and limits, and one sentence.

Figures are measured in these runs, by this project, or published by others in one setting; a table never mixes them.
Each source chose its own batch, often the largest that fits the GPU.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.compare.comparison import fleets_of
from results.recommend.options import (
    SECONDS_PER_HOUR,
    Advice,
    Basis,
    GpuCount,
    RentalOption,
    RentalQuestion,
    asked_prices,
    gpus_of_fleets,
    measured_questions,
    option_of,
    unused_prices,
)
from results.recommend.output import LED, OTHER_SOFTWARE, OTHER_VERSION, answer
from results.recommend.prediction import predict
from results.reference import all_published, read_rows
from results.reference.gpus import UNSUPPORTED, specifications
from results.reference.networks import published_names
from results.reference.prices import FROM_RUN, Offer
from results.schema import Precision
from results.stats import Interval
from results.table.columns import NO_ORIGIN
from results.table.comparable import EFFORT, grouped, match, mode_text, setting_of, setting_text
from results.table.fleets import FleetRate, fleet_notes, outliers, unambiguous, warned_notes
from results.text import counted, enumerated

PREDICTED_NOTE = (
    "predicted: for a short list, from similar GPUs of this setting by specification; of 76 held-out figures half "
    "were within 8 %, 90 % within 20 %"
)

NOT_INFERRED = "inference was not measured in any run, and published figures are of training"

NOT_MEASURED = "not measured in this setting"

HOST_FAILURES = frozenset({"unreachable", "pull_failed", "lost", "stopped", "invalid"})
"""Statuses that do not depend on the GPU or come from a null GPU; published figures may replace them."""

COMPILERS = {"on": ", XLA", "replica": ", XLA", "off": ", no XLA", "": ""}

OTHER_NOTE = (
    f"other software than the first rows: only differences above a factor of {1 + OTHER_VERSION:g} (versions of one "
    f"framework) or {1 + OTHER_SOFTWARE:g} (others) decide"
)

Rates = Sequence[FleetRate]

Keyed = Sequence[tuple[GpuCount, FleetRate]]
"""Rates, each with its GPU and count."""


def advise(
    questions: Sequence[RentalQuestion], rates: Rates, inline: Sequence[str], files: Sequence[Path]
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


def answers(question: RentalQuestion, rates: Rates, prices: Sequence[Offer]) -> list[Advice]:
    """Answer a question, once for each setting.

    Measured settings come first, then the figures that this project measured, then published ones. Each follows only if
    there was no run, or a requested GPU or family has no figure yet, and none replaces a GPU's failure in these runs.

    Args:
        question: The question.
        rates: Measured throughputs; may be empty.
        prices: The prices to use.
    """
    question = replace(question, prices=prices)
    advices = _measured(question, rates)
    hints = _other_flags(question, rates, {option.subject for advice in advices for option in advice.options})
    if question.mode != "infer":
        advices = _with_others(question, advices)
        if not any(option.samples_per_second for advice in advices for option in advice.options):
            hints += _other_precisions(question)
    elif not advices:
        absent = tuple(option_of(question, key, {"note": NOT_INFERRED}) for key in question.gpus)
        advices = [Advice(question, Basis.MEASURED, "inference", question.network, absent, notes=(NOT_INFERRED,))]
    return [_finished(advice, hints) for advice in advices]


def _measured(question: RentalQuestion, rates: Rates) -> list[Advice]:
    """Return the figures of these runs, one table per setting, the one with the most figures first.

    Each table has all fleets of the question, with their figure or the reason for having none.
    """
    gpus = gpus_of_fleets(rates)
    covered = [rate for rate in rates if question.covers(rate.case)]
    keyed = [((gpus[rate.fleet, rate.case.device], rate.case.num_gpus), rate) for rate in covered]
    relevant = [(key, rate) for key, rate in keyed if question.wants(key)]
    advices = []
    for of_case in grouped((replace(rate.case, num_gpus=1), (key, rate)) for key, rate in relevant).values():
        failures = [(key, rate) for key, rate in of_case if not rate.rates]
        settings = grouped((setting_of(rate, across=("num_gpus",)), (key, rate)) for key, rate in of_case if rate.rates)
        advices += [_of_setting(question, [*of, *failures], relevant) for of in [*settings.values()] or [[]]]
    return sorted(advices, key=lambda advice: -sum(bool(option.samples_per_second) for option in advice.options))


def _of_setting(question: RentalQuestion, own: Keyed, relevant: Keyed) -> Advice:
    """Return the figures of one setting: its fleets and the failures in its case, then what was not measured."""
    absent = {"note": NOT_MEASURED}
    options: dict[object, RentalOption] = {}
    for key, fleet, figure in (
        *((key, rate.fleet, _of_run(rate)) for key, rate in own),
        *((key, rate.fleet, absent) for key, rate in relevant),
        *((key, "", absent) for key in question.gpus if key not in dict(relevant)),
    ):
        options.setdefault((fleet, key), option_of(question, key, figure, fleet))
    measured = [rate for _, rate in own if rate.rates]
    differs = dict.fromkeys(name for rate in measured[1:] for name in match(measured[0], rate)[1])
    notes = [
        f"also differs: {name} " + ", ".join(f"{rate.named(name) or 'none'} ({rate.fleet})" for rate in measured)
        for name in differs
    ]
    case = own[0][1].case
    text = setting_text(case, without=("model", "mode", "precision", "num_gpus", *EFFORT))
    return Advice(
        question, Basis.MEASURED, mode_text(case.mode), question.network, (*options.values(),), text, (*notes,)
    )


def _of_run(rate: FleetRate) -> dict[str, Any]:
    """Return the attributes of the option of a measurement or failure of these runs."""
    if not rate.rates:
        statuses = dict.fromkeys(rate.failures.values())
        return {"note": f"{', '.join(statuses)} in this run", "failed": bool(statuses.keys() - HOST_FAILURES)}
    return {
        "basis": Basis.MEASURED,
        "samples_per_second": rate.mean or 0.0,
        "interval": rate.interval,
        "origin": f"this run, {counted(len(rate.rates), 'host')}",
        "batch": str(rate.case.batch_per_gpu),
        "measured": rate,
    }


def _with_others(question: RentalQuestion, measured: Sequence[Advice]) -> list[Advice]:
    """Add the figures of others that the answer needs in addition to those of the run."""
    families = question.families or [(key,) for key in question.gpus]
    advices = [*measured]
    for basis in (Basis.PROJECT, Basis.PUBLISHED):
        options = [option for advice in advices for option in advice.options]
        known = {option.key for option in options if option.samples_per_second}
        failed = {option.key: option.note for option in options if option.failed and option.key not in known}
        unanswered = any(known.isdisjoint(family) and not failed.keys() >= {*family} for family in families)
        if unanswered or not (measured or (families and advices)):
            advices += _of_basis(question, basis, failed)
    return advices


def figures_of(question: RentalQuestion, basis: Basis) -> list[RentalOption]:
    """Return the figures of others for a question without suspect rows, one for each network, setting, GPU and count.

    Of several, the fastest counts, but of this project's the one of the most processes; these come first.
    """
    if basis is Basis.PROJECT:
        models, described = [question.network], _of_project
        rows = sorted(read_rows("measured.csv"), key=lambda row: (int(row["processes"]), int(row["method_version"])))
    else:
        models, described = published_names(question.network), _published
        rows = sorted(map(dict, all_published()), key=lambda row: float(row["samples_per_second"]))
    options: dict[object, RentalOption] = {}
    for row in reversed(rows):
        if row["model"] in models and row["precision"] == question.precision and not row.get("suspect"):
            key = row["gpu"], int(row["num_gpus"])
            option = option_of(question, key, {"basis": basis, "network": row["model"], **described(row)})
            options.setdefault((option.network, option.setting, key), option)
    if basis is Basis.PROJECT:
        return [*options.values()]
    return sorted(options.values(), key=lambda option: (option.setting, option.network), reverse=True)


def _of_basis(question: RentalQuestion, basis: Basis, failed: Mapping[GpuCount, str]) -> list[Advice]:
    """Return the setting with the most of the GPUs, then the others; nothing if this project measured nothing of use.

    Args:
        question: The question.
        basis: `PROJECT` or `PUBLISHED`; published figures of other software fill the gaps, marked.
        failed: GPUs that failed in these runs, with the reason; no figure of others replaces them.
    """
    figures = figures_of(question, basis)
    wanted = [option for option in figures if question.wants(option.key) and option.key not in failed]
    able = [option for option in wanted if not option.unmet]
    if basis is Basis.PROJECT and not (wanted if question.gpus else able):
        return []
    pool = able or wanted or figures
    sizes = Counter((option.network, option.setting) for option in pool)
    of_network = Counter(network for network, _ in {(option.network, option.key) for option in pool})
    first = max(sizes, key=lambda setting: (sizes[setting], of_network[setting[0]]), default=(question.network, ""))
    network, setting = first
    options = {option.key: option for option in wanted if (option.network, option.setting) == first}
    framework = next((option.framework for option in options.values()), "")
    note = "not measured" if basis is Basis.PROJECT else "no figure"
    notes: tuple[str, ...] = ()
    for key in (key for key in question.gpus if key not in options):
        others = [option for option in wanted if (option.network, option.key) == (network, key)]
        if others and basis is Basis.PUBLISHED:
            best = max(others, key=lambda option: (option.framework == framework, option.setting))
            options[key] = replace(best, note="other software", foreign=best.framework != framework)
            notes = (OTHER_NOTE,)
        else:
            options[key] = option_of(question, key, {"note": failed.get(key, note), "failed": key in failed})
    if basis is Basis.PUBLISHED:
        of_setting = [option for option in figures if (option.network, option.setting, option.count) == (*first, 1)]
        options = _with_predictions(question, options, {of.gpu: of.samples_per_second for of in of_setting})
    return [Advice(question, basis, "training", network, tuple(options.values()), setting, notes)]


def _published(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of the option of a published row."""
    batch = row["batch_per_gpu"] or "not stated"
    what = f"{row['model']} {row['precision']} ×{row['num_gpus']}: {row['samples_per_second']} {row['unit']}/s"
    framework = re.sub(r"\+\w+|, NVIDIA DeepLearningExamples|tf_cnn_benchmarks, | \(.*\)", "", row["framework"])
    software = f"{row['source']}: {row['framework']}{COMPILERS[row['xla']]}"
    return {
        "samples_per_second": float(row["samples_per_second"]),
        "origin": ", ".join(filter(None, (row["source"].split()[0], framework, row["year"]))),
        "batch": batch,
        "setting": ", ".join(filter(None, (software, row["conditions"]))),
        "sources": (f"{what}, batch {batch}; {row['framework']}; {row['source']}, {row['url']}",),
    }


def _of_project(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of the option of a row of `measured.csv`."""
    rate, ends = float(row["samples_per_second"]), [float(row[end]) for end in ("ci95_low", "ci95_high") if row[end]]
    framework = f"TensorFlow {row['tensorflow']}, CUDA {row['cuda']}{COMPILERS[row['xla']]}"
    place = ", container" if row["container"] == "yes" else ""
    return {
        "samples_per_second": rate,
        "interval": Interval(rate, *ends) if ends else None,
        "origin": f"{Basis.PROJECT}, {row['date']}",
        "batch": row["batch_per_gpu"],
        "setting": f"{framework}, batch {row['batch_per_gpu']}, synthetic{place}, method {row['method_version']}",
        "sources": (f"results/reference/measured/{row['records']}, {counted(row['processes'], 'process')}",),
    }


def _other_flags(question: RentalQuestion, rates: Rates, shown: Collection[str]) -> list[str]:
    """Return a hint with the flags for which the runs have figures of fleets without a row, closest first."""
    gpus, wanted = gpus_of_fleets(rates), {gpu for gpu, _ in question.gpus}
    others = [rate for rate in rates if rate.rates and rate.fleet not in shown]
    others = [rate for rate in others if not wanted or gpus[rate.fleet, rate.case.device] in wanted]
    closest = sorted(
        measured_questions(rate.case for rate in others),
        key=lambda other: (other.network != question.network, other.precision != question.precision),
    )[:LED]
    flags = [
        f"--model {of.network} --precision {of.precision} --num-gpus {of.counts[0]} --mode {of.mode}" for of in closest
    ]
    others = [rate for rate in others if any(other.covers(rate.case) for other in closest)]
    fleets = [name for name in fleets_of(others) if name != NO_ORIGIN]
    about = f"your run has other figures{f' of {enumerated(fleets)}' if fleets else ''}"
    return [f"{about}; to use it: {' or '.join(flags)}"] if flags else []


def _other_precisions(question: RentalQuestion) -> list[str]:
    """Return a hint with the other precisions for which there are published figures."""
    names = []
    for name in (name for name in Precision if name != question.precision):
        options = figures_of(replace(question, precision=name), Basis.PUBLISHED)
        names += [name] if any(question.wants(option.key) for option in options) else []
    return [f"published in other precisions: --precision {','.join(names)}"] if names else []


def _finished(advice: Advice, hints: Sequence[str]) -> Advice:
    """Add order, notes and the sentence."""
    question = advice.question
    every = _ordered(advice.options)
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


def _with_predictions(
    question: RentalQuestion, options: Mapping[GpuCount, RentalOption], figures: Mapping[str, float]
) -> dict[GpuCount, RentalOption]:
    """Fill gaps in published figures with predictions.

    Args:
        question: The question.
        options: A published setting's, and the GPUs without a figure in it.
        figures: That setting's samples per second of single GPUs, by name.
    """
    filled = {**options}
    if not question.gpus and (question.budget or question.memory):
        named = dict.fromkeys(gpu for offer in question.prices for gpu in offer.gpus if gpu in specifications())
        added = [option_of(question, key, {"note": "no figure"}) for key in itertools.product(named, question.counts)]
        filled = {option.key: option for option in added if not option.misfit} | filled
    for key, option in filled.items():
        if option.samples_per_second or option.failed or option.gpu in UNSUPPORTED:
            continue
        predicted = "several GPUs" if option.count > 1 else predict(option.gpu, question.precision, figures)
        if isinstance(predicted, Interval):
            figure = replace(option, samples_per_second=predicted.value, interval=predicted)
            filled[key] = replace(figure, basis=Basis.PREDICTED, origin="predicted", note="")
        else:
            filled[key] = replace(option, note=f"{option.note}, not predicted: {predicted}")
    return filled


def _ordered(options: Sequence[RentalOption]) -> list[RentalOption]:
    """Sort options that meet the limits first, then sure figures.

    They are sorted by samples per dollar if there are the user's prices or a budget, else by throughput.
    """
    priced = [option for option in options if option.samples_per_second and not option.misfit and option.offers]
    by_cost = bool(priced) and all(
        offer.origin or option.question.budget is not None for option in priced for offer in option.offers
    )

    def order(option: RentalOption) -> tuple[bool, bool, bool, float]:
        cost = max(option.samples_per_usd, default=0.0) if by_cost else option.samples_per_second
        return bool(option.misfit), not option.samples_per_second, bool(option.doubt), -cost

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
    return SECONDS_PER_HOUR * option.samples_per_second / most if option.samples_per_second and most else None
