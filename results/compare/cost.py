"""What a sample costs, and at which price ratio the choice between two fleets flips."""

from __future__ import annotations

from dataclasses import dataclass

from results.compare.pairs import Comparison
from results.digits import with_interval
from results.stats import Interval, divided, inverse
from results.table.fleets import FleetRate

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
    if rate.mean is None or not price:
        return None
    factor = SECONDS_PER_HOUR / (price * rate.case.replicas)
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


def per_dollar(comparison: Comparison, prices: float | None = None) -> Interval | None:
    """Return how many times the samples per dollar `a` gives over `b`.

    Prices are known and not estimated, so that the interval is that of the ratio of throughputs over their ratio.

    Args:
        comparison: Of one case, with equal numbers of GPUs on both sides.
        prices: Price of a's GPU over that of b's; None: as given with the records.

    Returns:
        None where there is no ratio or no price; ends are open where the ratio has no interval.
    """
    limit, asked = break_even(comparison), prices or price_ratio(comparison)
    return divided(limit, asked) if limit is not None and asked is not None else None


def price_sentence(a: str, b: str, limit: Interval, asked: float | None) -> str:
    """Return which side a dollar goes further on, and at which price ratio that flips.

    Args:
        a: What the first side is called.
        b: What the second side is called.
        limit: How many times faster a is: the price ratio at which a sample costs the same; may have open ends.
        asked: Price of a's GPU over that of b's; None: not known.
    """
    worth = f"{a} is worth up to {with_interval(limit)} × the price of {b}"
    if asked is None:
        return worth
    gain = divided(limit, asked)
    if gain.contains(1.0):
        return f"{worth}; it costs {asked:.2f} × as much: no significant difference in samples per dollar"
    better, by = (a, gain) if gain.value > 1 else (b, inverse(gain))
    return f"{worth}; it costs {asked:.2f} × as much: {better} gives {with_interval(by)} × the samples per dollar"
