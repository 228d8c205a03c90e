"""Builds the recommendation at the top of a report, from the answers of `recommend`.

There is one question per measured network, precision, number of GPUs and mode. The calculator "My job" of the page
decides like `recommend`: it has the price ratios of `compare.decide` at which each comparison is decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from results.compare.comparison import fleets_of
from results.compare.decide import price_limits
from results.recommend.answer import answers
from results.recommend.options import Advice
from results.recommend.output import advice_grid
from results.recommend.questions import measured_questions
from results.reference.prices import Prices
from results.report.comparison import Pair
from results.schema import Case, Device, Mode
from results.table.columns import SOFTWARE_COLUMNS
from results.table.comparable import case_label, differing, of_each_case
from results.table.fleets import FleetRate, unambiguous
from results.text import counted, enumerated
from results.text_table import Grid


def decide(rates: Sequence[FleetRate], prices: Prices) -> tuple[list[Advice], list[str]]:
    """Answer a question for each measured setting.

    Args:
        rates: Measured throughputs.
        prices: Prices for GPUs and fleets; prices of the records override all but the user's.

    Returns:
        The answers; the recommendation in one sentence, and lines for cases that a fleet measured with several software
        identities.
    """
    rates, left_out = unambiguous(rates)
    cases = [rate.case for rate in rates]
    questions = measured_questions(cases)
    advices = [advice for question in questions for advice in answers(question, rates, prices)]
    if not advices:
        first = "No recommendation: no training or inference of one host was measured."
    elif not any(len(advice.ranked) > 1 for advice in advices):
        names = ", ".join(dict.fromkeys(option.subject for advice in advices for option in advice.options))
        first = f"No two fleets have figures of one setting, so nothing is ranked: {names}."
    elif all(case.device is Device.CPU for case in cases):
        advices, first = [], "No GPU was measured, so there is nothing to rent: these figures compare processors."
    elif len(advices) == 1:
        first = f"{advices[0].sentence}."
    else:
        choices = Counter(map(_choice, advices)).most_common()
        parts = [f"{choice} in {number} of {len(advices)} settings" for choice, number in choices]
        first = f"{', '.join(parts)}; first: {advices[0].sentence}."
    return advices, [first, *left_out]


def decision_grids(advices: Sequence[Advice]) -> list[Grid]:
    """Return the tables of options; none if there is no choice."""
    if not any(len(advice.ranked) > 1 for advice in advices):
        return []
    if len(advices) == 1:
        return [advice_grid(advices[0])]
    rows = []
    for advice in advices:
        question = advice.question
        setting = [advice.mode, advice.model, question.precision, str(question.counts[0])]
        rows.append([*setting, _choice(advice), advice.sentence])
    return [Grid("What to rent, by setting", ["mode", "network", "precision", "GPUs>", "choice", "why"], rows)]


def setting_title(advice: Advice) -> str:
    """Return the title of an answer among those of all settings."""
    return f"{advice.title}, {counted(advice.question.counts[0], 'GPU')}"


def _choice(advice: Advice) -> str:
    """Return what to rent if prices decide, else the fastest option; a single one is not compared."""
    if advice.winner is not None:
        return f"Rent {advice.winner.subject}"
    if not advice.ranked:
        return "no answer"
    fastest = max(advice.ranked, key=lambda option: option.samples_per_second)
    if len(advice.ranked) > 1:
        return f"{fastest.subject} is the fastest"
    others = [option for option in advice.options if option.excluded]
    verb = "works" if others and all(option.failed for option in others) else "was measured"
    why = ", ".join(f"{option.subject}: {option.note.removesuffix(' in this run')}" for option in others)
    return f"only {fastest.subject} {verb}{f' ({why})' if why else ''}"


def job_data(rates: Sequence[FleetRate], pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return throughputs and ratios of fleets for each case.

    Args:
        rates: Measured throughputs.
        pairs: Comparisons of each two fleets.

    Returns:
        For each case with a number, training first: label, unit, `fleets` (rate with its interval and replicas, or why
        it has none) and `limits` (`price_limits` by first and second fleet; null: infinite).
    """
    limits: dict[Case, dict[str, dict[str, list[float | None]]]] = {}
    for a, b, compared in pairs:
        for item in compared:
            if item.value is not None:
                ends = [float(f"{end:.7g}") if math.isfinite(end) else None for end in price_limits(item.interval)]
                limits.setdefault(item.case, {}).setdefault(a, {})[b] = ends
    measured = sorted((rate for rate in rates if rate.rates), key=lambda rate: rate.case.mode is not Mode.TRAIN)
    cases, distinct = [], of_each_case(rates)
    for case in dict.fromkeys(rate.case for rate in measured):
        of_case = [rate for rate in rates if rate.case == case]
        fleets = {fleet: _figure([rate for rate in of_case if rate.fleet == fleet]) for fleet in fleets_of(of_case)}
        unit = next(rate.unit for rate in of_case if rate.unit)
        label = case_label(of_case[0], distinct)
        cases.append({"label": label, "unit": unit, "fleets": fleets, "limits": limits.get(case, {})})
    return cases


def fleet_prices(rates: Sequence[FleetRate]) -> dict[str, float | None]:
    """Return the price of each fleet that has a number, USD per GPU-hour; None: the user has to enter one.

    Shipped examples of prices are left out: an offer that somebody saw months ago is nobody's price today.
    """
    prices: dict[str, float | None] = {}
    for rate in rates:
        if rate.rates:
            prices[rate.fleet] = prices.get(rate.fleet) or rate.usd_per_gpu_hour
    return prices


def _figure(rates: Sequence[FleetRate]) -> dict[str, Any]:
    """Return a fleet's figure for a case, or why it has none."""
    measured = [rate for rate in rates if rate.rates]
    if not measured:
        return {"failed": ", ".join(dict.fromkeys(status for rate in rates for status in rate.failures.values()))}
    if len(measured) > 1:
        return {"failed": f"several {enumerated(differing(measured, SOFTWARE_COLUMNS))}"}
    (rate,) = measured
    interval = rate.interval if rate.interval and rate.interval.low > 0 else None
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {"rate": rate.mean, "low": low, "high": high, "gpus": rate.case.replicas}
