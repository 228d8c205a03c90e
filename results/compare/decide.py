"""Decides which option gives the most samples per dollar; the only code that says which GPU to rent.

`compare`, `recommend`, `--stop-early` and the report ask `decide` or `cheaper`; the report's calculator has its
`price_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from results.stats import Interval

K = TypeVar("K", bound=Hashable)

THRESHOLD = 0.01
"""Smallest relative difference that decides: hosts of one model differ by up to 0.7 % in ResNet50.

Source: 39 hosts with one H100 each measured by Lambda, coefficient of variation 0.07 % (TF32) to 0.63 % (FP16).
"""


def price_limits(ratio: Interval) -> tuple[float, float]:
    """Return the price ratios at which a comparison is decided.

    Args:
        ratio: Throughput of `a` over that of `b`.

    Returns:
        Below the first price of `a` over that of `b`, `a` surely gives more samples per dollar; above the second, `b`.
    """
    return min(ratio.low, ratio.value / (1 + THRESHOLD)), max(ratio.high, ratio.value * (1 + THRESHOLD))


def cheaper(ratio: Interval, price_ratio: float = 1.0) -> int:
    """Return 1 if `a` surely gives more samples per dollar, -1 if `b`, and 0 if that is undecided.

    Args:
        ratio: Throughput of `a` over that of `b`.
        price_ratio: Price of `a` over that of `b`; of equal prices, the faster one is cheaper.
    """
    low, high = price_limits(ratio)
    return (price_ratio < low) - (price_ratio > high)


def decide(prices: Mapping[K, Sequence[float]], ratio: Callable[[K, K], Interval]) -> tuple[list[K], list[K]]:
    """Decide which options give the most samples per dollar, whichever of its prices each has.

    Args:
        prices: Possible prices of each option, in one unit, e.g. USD per hour of all its GPUs.
        ratio: Throughput of an option over that of another one.

    Returns:
        The options that no other one surely beats, of which a single one is to be rented; and the others.
    """
    beaten = [
        name
        for name in prices
        if any(cheaper(ratio(of, name), max(prices[of]) / min(prices[name])) > 0 for of in prices if of != name)
    ]
    return [name for name in prices if name not in beaten], beaten
