"""Prepares throughputs, ratios and prices for the calculator "My job" of a report, as plain data for its script.

The page decides like `recommend`: it has the price ratios of `compare.decide` at which each comparison is decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from results.compare.decide import price_limits
from results.report.comparison import Pair
from results.schema import Case, Mode
from results.table.columns import SOFTWARE_COLUMNS
from results.table.comparable import case_label, differing
from results.table.fleets import FleetRate
from results.text import enumerated


def job_data(rates: Sequence[FleetRate], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return throughputs and ratios of fleets for each case.

    Args:
        rates: Measured throughputs.
        pairs: Comparisons of each two fleets.

    Returns:
        `cases`: label, unit, `fleets` (rate with its interval and replicas, or why it has none) and `limits` (two
        fleets and their `price_limits`).
    """
    labels: dict[str, int] = {}
    limits: dict[Case, list[list[Any]]] = {}
    for a, b, compared in pairs:
        for item in compared:
            if item.value is not None:
                ends = (
                    float(f"{limit:.7g}") if math.isfinite(limit) else None for limit in price_limits(item.interval)
                )
                limits.setdefault(item.case, []).append([a, b, *ends])
    cases = []
    measured = sorted((rate for rate in rates if rate.rates), key=lambda rate: rate.case.mode is not Mode.TRAIN)
    for case in dict.fromkeys(rate.case for rate in measured):
        of_case = [rate for rate in rates if rate.case == case]
        label = case_label(of_case[0], rates)
        labels[label] = labels.get(label, 0) + 1
        cases.append(
            {
                # Cases with equal labels may still differ, e.g. in how long they were timed.
                "label": label if labels[label] == 1 else f"{label} ({labels[label]})",
                "unit": next((rate.unit for rate in of_case if rate.unit), "samples"),
                "fleets": {fleet: _figure([r for r in of_case if r.fleet == fleet]) for fleet in _fleets(of_case)},
                "limits": limits.get(case, []),
            }
        )
    return {"cases": cases}


def fleet_prices(rates: Sequence[FleetRate]) -> dict[str, float | None]:
    """Return the price of each fleet that has a number, USD per GPU-hour; None: the user has to enter one.

    Shipped examples of prices are left out: an offer that somebody saw months ago is nobody's price today.
    """
    return {
        fleet: next((r.usd_per_gpu_hour for r in rates if r.fleet == fleet and r.rates and r.usd_per_gpu_hour), None)
        for fleet in _fleets([rate for rate in rates if rate.rates])
    }


def _fleets(rates: Sequence[FleetRate]) -> list[str]:
    return list(dict.fromkeys(rate.fleet for rate in rates))


def _figure(rates: Sequence[FleetRate]) -> dict[str, Any]:
    """Return a fleet's figure for a case, or why it has none."""
    measured = [rate for rate in rates if rate.rates]
    if not measured:
        return {"failed": ", ".join(dict.fromkeys(status for rate in rates for status in rate.failures.values()))}
    if len(measured) > 1:
        return {"failed": f"several {enumerated(differing(measured, SOFTWARE_COLUMNS))}"}
    (rate,) = measured
    interval = rate.interval
    known = interval is not None and interval.low > 0 and math.isfinite(interval.high)
    return {
        "rate": rate.mean,
        "low": interval.low if interval and known else None,
        "high": interval.high if interval and known else None,
        "gpus": rate.case.replicas,
    }
