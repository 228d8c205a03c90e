"""Prepares throughputs, ratios and prices for the calculator "My job" of a report, as plain data for its script.

The page decides like `recommend`: it has the price ratios of `compare.decide` at which each comparison is decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from results.compare.comparison import fleets_of
from results.compare.decide import price_limits
from results.report.comparison import Pair
from results.schema import Case, Mode
from results.table.columns import SOFTWARE_COLUMNS
from results.table.comparable import case_label, differing, of_each_case
from results.table.fleets import FleetRate
from results.text import enumerated


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
