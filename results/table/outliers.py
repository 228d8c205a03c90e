"""Hosts that differ from their fleet, whose machines are meant to be equal."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from results.stats import LEVEL, Interval, t_quantile
from results.table.fleets import FleetRate

MIN_HOSTS = 3
"""With two hosts it is unknown which of them is the odd one."""

TOLERANCE = 0.03
"""Smaller differences are not worth a look, however certain. Source: 39 hosts of one model spread by 0.3 % (ResNet50,
TF32) to 6 % (BERT-Large) in a vendor's published logs; over five centres 8 % on average (Sinha et al., SC22)."""


@dataclass(frozen=True)
class Outlier:
    """A host that is faster or slower than the rest of its fleet.

    Attributes:
        ratio: Its throughput over that of the others; the interval is where one more equal host would lie around 1.
    """

    rate: FleetRate
    host: str
    ratio: Interval

    def __str__(self) -> str:
        """Say it in a sentence, with what to do."""
        direction = "slower" if self.ratio.value < 1 else "faster"
        return (
            f"{self.rate.fleet}/{self.host} is {abs(1 - self.ratio.value):.1%} {direction} than the "
            f"{len(self.rate.rates) - 1} other hosts of its fleet ({self.rate.case.model}, "
            f"{self.rate.case.precision}); an equal host would lie within "
            f"{self.ratio.low - 1:+.1%} to {self.ratio.high - 1:+.1%}. Look at its cooling, power limit and neighbours"
        )


def outliers(rates: list[FleetRate]) -> list[Outlier]:
    """Name hosts that differ from the rest of their fleet beyond chance and beyond `TOLERANCE`.

    Each host's mean is held against the prediction interval of the other hosts' means: where one more host of the same
    kind would lie. The level is 1 - (1 - `LEVEL`) / hosts, because as many hosts are looked at (Bonferroni).

    Args:
        rates: From `fleet_rates`: one for each fleet, case and software.

    Source: externally studentised residual, Beckman and Cook 1983.
    """
    found = []
    for rate in rates:
        means = rate.host_means
        if len(means) < MIN_HOSTS:
            continue
        for host, own in means.items():
            others = [mean for name, mean in means.items() if name != host]
            centre, spread = statistics.fmean(others), statistics.stdev(others)
            quantile = t_quantile(len(others) - 1, 1 - (1 - LEVEL) / len(means))
            half = quantile * spread * math.sqrt(1 + 1 / len(others)) / centre
            ratio = Interval(own / centre, 1 - half, 1 + half)
            if abs(ratio.value - 1) > max(half, TOLERANCE):
                found.append(Outlier(rate, host, ratio))
    return found
