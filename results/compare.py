"""Two sides, case by case: how many times faster one is, how sure that is, and what else differs.

A side is a fleet, or a fleet at another time (a baseline). The interval of a ratio holds the spread between hosts where
a side has several, else that between runs or repeats. What differs beside the hardware is named next to the ratio,
because it may be the cause; where it changes what is measured there is no ratio at all.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from results.clusters import CLUSTER_COLUMNS, cluster_name
from results.columns import CASE_COLUMNS, SOFTWARE_COLUMNS
from results.fleets import FleetRate, differing
from results.stats import (
    Estimate,
    Interval,
    estimate,
    logarithm,
    ratio_of_estimates,
    sum_of_estimates,
)

HARDWARE = frozenset({"gpu", "power_limit_watts", "cpu", "cpu_limit"})
"""Columns of the identity that two sides may differ in without a word: it is what fleets are for."""

NOT_COMPARABLE = ("method_version", "parameters", "tf32")
"""Columns of the identity that change what is measured."""

THRESHOLD = 0.01
"""Smallest relative difference that gets a mark: hosts of one model differ by up to 0.7 % in ResNet50.

Source: 39 hosts with one H100 each measured by Lambda, coefficient of variation 0.07 % (TF32) to 0.63 % (FP16).
"""


class Mark(enum.StrEnum):
    """What a comparison says, in one character."""

    FASTER = "+"
    SLOWER = "-"
    SAME = "~"  # no difference that can be told from noise, or one below the threshold
    FAILED = "!"  # only the second side has a number
    WORKS = "*"  # only the first side has a number
    NOT_COMPARABLE = "x"


MEANINGS = {
    Mark.FASTER: "faster",
    Mark.SLOWER: "slower",
    Mark.SAME: "no difference that can be told",
    Mark.FAILED: "failed",
    Mark.WORKS: "works, the other failed",
    Mark.NOT_COMPARABLE: "not comparable",
}


@dataclass(frozen=True)
class Comparison:
    """How fast side `a` is against side `b` in one case.

    Attributes:
        case: Values of `CASE_COLUMNS`.
        value: a over b; None where one of them has no number or the two are not comparable.
        interval: 95 % interval of `value`; None with fewer than two repeats on a side.
        reason: Why the mark is what it is, where the ratio does not say it.
        differs: Columns of the software identity in which the two differ.
    """

    case: tuple[Hashable, ...]
    a: FleetRate
    b: FleetRate
    mark: Mark
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""
    differs: tuple[str, ...] = ()


def fleets_of(rates: Sequence[FleetRate]) -> list[str]:
    """Return the names of the fleets, in order of appearance."""
    return list(dict.fromkeys(rate.fleet for rate in rates))


def compare(
    a: Sequence[FleetRate], b: Sequence[FleetRate], *, by: Sequence[str] = (), threshold: float = THRESHOLD
) -> list[Comparison]:
    """Compare two sides in every case that both tried.

    Where a side measured a case with several software identities, each pair of them is compared.

    Args:
        a: First side.
        b: Second side.
        by: Columns of the identity that must be equal for a pair to be formed.
        threshold: Smallest relative difference that is more than `~`.
    """
    return [
        _compared(left, right, threshold)
        for left in a
        for right in b
        if left.case == right.case and all(left.named(name) == right.named(name) for name in by)
    ]


def unmatched(a: Sequence[FleetRate], b: Sequence[FleetRate]) -> list[FleetRate]:
    """Return the cases of `a` that `b` never tried."""
    tried = {rate.case for rate in b}
    return [rate for rate in a if rate.case not in tried]


def regressions(comparisons: Sequence[Comparison], tolerance: float) -> list[Comparison]:
    """Return where side `a` fails though `b` works, or is slower by more than `tolerance` beyond doubt.

    Args:
        comparisons: New side first.
        tolerance: Relative loss that is accepted, e.g. 0.05.
    """
    return [
        item
        for item in comparisons
        if item.mark is Mark.FAILED
        or (item.mark is Mark.SLOWER and item.value is not None and item.value < 1 - tolerance)
    ]


def geometric_mean(comparisons: Sequence[Comparison]) -> Interval | None:
    """Return the geometric mean of the ratios with its interval; None without ratios that have one.

    Cases measured on the same hosts share what those hosts have of their own, so the logarithms are averaged over the
    cases within each host first; with one host per side the cases are independent.

    Source: Fleming and Wallace, How not to lie with statistics, 1986; interval by the delta method.
    """
    usable = [item for item in comparisons if item.interval is not None]
    if not usable:
        return None
    left = _mean_logarithm([item.a for item in usable])
    right = _mean_logarithm([item.b for item in usable])
    return _exponential(sum_of_estimates([left, right], [1.0, -1.0]))


def _compared(a: FleetRate, b: FleetRate, threshold: float) -> Comparison:
    if not a.rates or not b.rates:
        return _one_sided(a, b)
    differs = tuple(differing([a, b], [name for name in SOFTWARE_COLUMNS if name not in HARDWARE]))
    blocking = [name for name in NOT_COMPARABLE if name in differs]
    if a.unit != b.unit:
        blocking.append("unit")
    if blocking:
        reason = f"{', '.join(blocking)} differ: not the same is measured"
        return Comparison(a.case, a, b, Mark.NOT_COMPARABLE, reason=reason, differs=differs)
    value = _mean(a) / _mean(b)
    interval = _ratio(a, b)
    reason = "" if interval else "fewer than 2 repeats on a side: no telling"
    return Comparison(a.case, a, b, _mark(value, interval, threshold), value, interval, reason, differs)


def _one_sided(a: FleetRate, b: FleetRate) -> Comparison:
    if b.rates:
        return Comparison(a.case, a, b, Mark.FAILED, reason=_failure(a))
    if a.rates:
        return Comparison(a.case, a, b, Mark.WORKS, reason=_failure(b))
    return Comparison(a.case, a, b, Mark.NOT_COMPARABLE, reason=f"both failed: {_failure(a)} / {_failure(b)}")


def _failure(rate: FleetRate) -> str:
    return ", ".join(dict.fromkeys(rate.failures.values()))


def _mark(value: float, interval: Interval | None, threshold: float) -> Mark:
    """Mark a ratio; a difference must be both significant and larger than the threshold."""
    if interval is None or interval.contains(1.0) or abs(value - 1) < threshold:
        return Mark.SAME
    return Mark.FASTER if value > 1 else Mark.SLOWER


def _mean(rate: FleetRate) -> float:
    assert rate.mean is not None, "callers look at `rates` first"
    return rate.mean


def _ratio(a: FleetRate, b: FleetRate) -> Interval | None:
    """Return the interval of a over b; host by host where both sides are the same several hosts.

    What a host has of its own cancels in its own ratio: a slow host is slow on both days.
    """
    if len(a.rates) > 1 and a.rates.keys() == b.rates.keys():
        left, right = a.host_means, b.host_means
        interval = _exponential(estimate([math.log(left[host] / right[host]) for host in left]))
        return Interval(_mean(a) / _mean(b), interval.low, interval.high)
    known = a.estimate, b.estimate
    return ratio_of_estimates(known[0], known[1]) if known[0] and known[1] else None


def _mean_logarithm(rates: Sequence[FleetRate]) -> Estimate:
    """Estimate the mean over cases of the logarithm of the throughput."""
    hosts = rates[0].rates.keys()
    if len(hosts) > 1 and all(rate.rates.keys() == hosts for rate in rates):
        means = [rate.host_means for rate in rates]
        return estimate([math.fsum(math.log(mean[host]) for mean in means) / len(means) for host in hosts])
    known = [logarithm(rate.estimate) for rate in rates if rate.estimate]
    return sum_of_estimates(known, [1 / len(known)] * len(known))


def _exponential(of_logarithm: Estimate) -> Interval:
    interval = of_logarithm.interval()
    return Interval(math.exp(interval.value), math.exp(interval.low), math.exp(min(interval.high, 700.0)))


def case_label(rates: Sequence[FleetRate], rate: FleetRate, *, count: bool = True) -> str:
    """Name a case by what the cases at hand do not have in common; always by network and precision.

    Args:
        rates: The cases at hand.
        rate: One of them.
        count: Whether to name the number of GPUs too.
    """
    always = ("model", "precision", "num_gpus") if count else ("model", "precision")
    varying = [name for name in differing(rates, CASE_COLUMNS) if name not in CLUSTER_COLUMNS]
    parts = []
    for name in CASE_COLUMNS:
        value = rate.named(name)
        if name in always or (name in varying and value is not None):
            parts.append(
                _case_part(name, cluster_name(rate) if name == "num_gpus" else value, str(rate.named("device")))
            )
    return " ".join(parts)


def _case_part(column: str, value: Hashable, device: str) -> str:
    if column == "num_gpus":
        return f"{value}×{device}"
    if column == "batch_per_gpu":
        return f"b{value}"
    if column in ("model", "precision"):
        return str(value)
    return f"{column}={value}"
