"""Prepares throughputs, ratios and prices for the calculator "My job" of a report, as plain data for its script.

The page decides like `recommend`: an option is cheaper only if the interval of the ratio of throughputs excludes the
ratio of prices, and the difference exceeds the threshold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.compare.pairs import THRESHOLD, compare_pair
from results.reference.prices import Offer
from results.schema import Mode
from results.table.columns import SOFTWARE_COLUMNS
from results.table.comparable import by_setting, case_name, differing
from results.table.fleets import FleetRate
from results.text import enumerated


@dataclass(frozen=True)
class FleetPrice:
    """Initial price of a fleet in the calculator.

    Attributes:
        usd: USD per GPU-hour; None: unknown.
        source: Source of the price; empty: the records or the user.
    """

    fleet: str
    usd: float | None
    source: str


def job_data(rates: Sequence[FleetRate]) -> dict[str, Any]:
    """Return throughputs and ratios of fleets for each setting.

    Returns:
        `threshold`, and `cases`: label, unit, `fleets` (rate with its interval and replicas, or why it has none) and
        `ratios` (two fleets and the interval of the first over the second).
    """
    labels: dict[str, int] = {}
    cases = []
    known = sorted((rate for rate in rates if rate.rates), key=lambda rate: rate.case.mode is not Mode.TRAIN)
    for group in by_setting(known).values():
        label = case_name(rates, group[0])
        labels[label] = labels.get(label, 0) + 1
        failed = [rate for rate in rates if not rate.rates and rate.case == group[0].case]
        own = {rate.fleet: [other for other in group if other.fleet == rate.fleet] for rate in group}
        single = {fleet: found[0] for fleet, found in own.items() if len(found) == 1}
        mixed = {fleet: differing(found, SOFTWARE_COLUMNS) for fleet, found in own.items() if fleet not in single}
        cases.append(
            {
                # Settings with equal labels may still differ in what is measured, e.g. in method_version.
                "label": label if labels[label] == 1 else f"{label} ({labels[label]})",
                "unit": group[0].unit or "samples",
                "fleets": {
                    **{rate.fleet: {"failed": ", ".join(dict.fromkeys(rate.failures.values()))} for rate in failed},
                    **{fleet: {"failed": f"several {enumerated(columns)}"} for fleet, columns in mixed.items()},
                    **{fleet: _rate(rate) for fleet, rate in single.items()},
                },
                "ratios": [_ratio(a, b) for a, b in itertools.combinations(single.values(), 2)],
            }
        )
    return {"threshold": THRESHOLD, "cases": cases}


def fleet_prices(rates: Sequence[FleetRate], offers: Mapping[str, Offer]) -> list[FleetPrice]:
    """Return the price of each fleet that has a number.

    Args:
        rates: Measured throughputs.
        offers: Prices used by the recommendation, by fleet.
    """
    found = []
    for fleet in dict.fromkeys(rate.fleet for rate in rates if rate.rates):
        own = next((r.usd_per_gpu_hour for r in rates if r.fleet == fleet and r.rates and r.usd_per_gpu_hour), None)
        offer = offers.get(fleet)
        if own is None and offer is not None:
            found.append(FleetPrice(fleet, offer.usd_per_gpu_hour, offer.name))
        else:
            found.append(FleetPrice(fleet, own, "" if own is not None else "no price given"))
    return found


def _rate(rate: FleetRate) -> dict[str, Any]:
    interval = rate.interval
    known = interval is not None and interval.low > 0 and math.isfinite(interval.high)
    return {
        "rate": rate.mean,
        "low": interval.low if interval and known else None,
        "high": interval.high if interval and known else None,
        "gpus": rate.case.replicas,
    }


def _ratio(a: FleetRate, b: FleetRate) -> list[Any]:
    interval = compare_pair(a, b).interval
    known = interval is not None and math.isfinite(interval.half_width)
    ends = [interval.low, interval.high] if interval and known else [None, None]
    return [a.fleet, b.fleet, *ends]
