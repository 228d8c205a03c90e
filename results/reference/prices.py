"""Prices per GPU-hour, by provider and region; never averaged, because prices of a GPU model differ up to sixfold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from results.reference import read_rows

YOURS = "yours"
"""Origin of the user's prices, which override all others of their GPU."""

FROM_RUN = "hosts.yml"
"""Origin of the prices in records."""


@dataclass(frozen=True)
class Offer:
    """Price of one GPU.

    Attributes:
        gpu: Name as stated: of a GPU, a family of GPUs, or a fleet.
        usd_per_gpu_hour: Price of one GPU.
        gpus_per_host: GPUs of the instance; None: not stated.
        commitment: `on demand`, `spot`, …
        retrieved_on: Date, as precise as known.
        origin: Source of the price: `yours`, `hosts.yml`; empty: shipped with tfbench.
        gpus: Names of the reference, and fleets, that the name means; empty: none.
    """

    gpu: str
    usd_per_gpu_hour: float
    provider: str = ""
    region: str = ""
    gpus_per_host: int | None = None
    commitment: str = ""
    retrieved_on: str = ""
    source: str = ""
    origin: str = ""
    gpus: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Provider, region and commitment, if known."""
        return ", ".join(filter(None, (self.provider, self.region, self.commitment)))

    def usd_per_hour(self, count: int) -> float:
        """Return the hourly price of a job with `count` GPUs, renting a whole host; 0: it has fewer GPUs."""
        gpus = self.gpus_per_host or count
        return gpus * self.usd_per_gpu_hour if gpus >= count else 0.0


Prices = Sequence[Mapping[str, Sequence[Offer]]]
"""Offers by the GPU or fleet that they are for, the preferred sources first; without a name those of unknown GPUs."""


def known_prices() -> list[Offer]:
    """Return the shipped example offers."""
    rows = [dict[str, str](row) for row in read_rows("prices.csv")]
    numbers = [(float(row.pop("usd_per_gpu_hour")), int(row.pop("gpus_per_host"))) for row in rows]
    return [
        Offer(usd_per_gpu_hour=usd, gpus_per_host=size, gpus=(row["gpu"],), **row)
        for row, (usd, size) in zip(rows, numbers, strict=True)
    ]


def positive_number(text: str) -> float | None:
    """Parse a number above 0; None: it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def span(values: Iterable[float]) -> str:
    """Format the range of some values, or a single value."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(f"{float(f'{value:.3g}'):g}" for value in (*found[:1], *found[-1:])))
