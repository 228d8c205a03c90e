"""What a sample costs, and at which price ratio the choice between two fleets flips."""

from __future__ import annotations

from dataclasses import dataclass

from results.clusters import replicas
from results.compare import Comparison
from results.fleets import FleetRate
from results.stats import Interval

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Value:
    """Samples per US dollar of one fleet in one case.

    Attributes:
        samples_per_usd: At the fleet's price.
        interval: 95 % interval, from that of the throughput; None where that has none.
    """

    samples_per_usd: float
    interval: Interval | None


def samples_per_usd(rate: FleetRate, usd_per_gpu_hour: float | None = None) -> Value | None:
    """Return how many samples a dollar buys.

    Args:
        rate: What the fleet measured; all replicas together.
        usd_per_gpu_hour: Price of one GPU; None: that of the fleet.

    Returns:
        None where throughput or price is not known, or the price is 0.
    """
    price = rate.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
    count = replicas(rate)
    if rate.mean is None or not price or not count:
        return None
    factor = SECONDS_PER_HOUR / (price * count)
    interval = rate.interval
    scaled = Interval(rate.mean * factor, interval.low * factor, interval.high * factor) if interval else None
    return Value(rate.mean * factor, scaled)


def price_ratio(comparison: Comparison) -> float | None:
    """Return price of a's GPU over that of b's; None where one is not known."""
    a, b = comparison.a.usd_per_gpu_hour, comparison.b.usd_per_gpu_hour
    return a / b if a and b else None


def break_even(comparison: Comparison) -> Interval | None:
    """Return the price ratio a / b at which a sample costs the same on both.

    Both sides use the same number of GPUs in a case, so this is the ratio of their throughputs: below it, `a` is the
    cheaper one. Its interval is that of the ratio; without one its ends are open.
    """
    if comparison.value is None:
        return None
    return comparison.interval or Interval(comparison.value, float("-inf"), float("inf"))


def verdict(comparison: Comparison) -> str:
    """Say in a sentence which side a dollar goes further on; empty without a ratio."""
    limit = break_even(comparison)
    if limit is None:
        return ""
    a, b = comparison.a.fleet, comparison.b.fleet
    worth = f"{a} is worth up to {limit.value:.2f} × the price of {b}"
    asked = price_ratio(comparison)
    if asked is None:
        return worth
    gain = limit.value / asked
    if comparison.interval is None or limit.low <= asked <= limit.high:
        return f"{worth}; it costs {asked:.2f} ×: no telling which is cheaper per sample"
    better, by = (a, gain) if gain > 1 else (b, 1 / gain)
    return f"{worth}; it costs {asked:.2f} ×: {better} gives {by:.2f} × the samples per dollar"
