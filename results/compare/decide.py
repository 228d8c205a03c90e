"""Decides which option gives the most samples per dollar; the only code that says which GPU to rent.

`compare`, `recommend`, `--stop-early` and the report ask `decide`; the report's calculator has its `price_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from results.stats import Interval

THRESHOLD = 0.01
"""Smallest relative difference that decides: hosts of one model differ by up to 0.7 % in ResNet50.

Source: 39 hosts with one H100 each measured by Lambda, coefficient of variation 0.07 % (TF32) to 0.63 % (FP16).
"""


def price_limits(ratio: Interval | None) -> tuple[float, float]:
    """Return the price ratios at which a comparison is decided.

    Args:
        ratio: Throughput of `a` over that of `b`; None: its uncertainty is unknown.

    Returns:
        Below the first price of `a` over that of `b`, `a` surely gives more samples per dollar; above the second, `b`.
    """
    if ratio is None:
        return 0.0, float("inf")
    return min(ratio.low, ratio.value / (1 + THRESHOLD)), max(ratio.high, ratio.value * (1 + THRESHOLD))


def decide(
    prices: Mapping[str, Sequence[float]], ratio: Callable[[str, str], Interval | None]
) -> tuple[list[str], list[str]]:
    """Decide which options give the most samples per dollar, whichever of its prices each has.

    Args:
        prices: Possible prices of each option, in one unit, e.g. USD per hour of all its GPUs.
        ratio: Throughput of an option over that of another one, as in `price_limits`.

    Returns:
        The options that no other one surely beats, of which a single one is to be rented; and the others.
    """

    def beats(a: str, b: str) -> bool:
        return max(prices[a]) / min(prices[b]) < price_limits(ratio(a, b))[0]

    beaten = [name for name in prices if any(beats(other, name) for other in prices if other != name)]
    return [name for name in prices if name not in beaten], beaten
