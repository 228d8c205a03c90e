"""Prices per GPU-hour, by provider and region; never averaged, because prices of a GPU model differ up to sixfold."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from results.reference import read_rows


@dataclass(frozen=True)
class Offer:
    """Price of one GPU.

    Attributes:
        gpu: Name in `reference/gpu_specs.csv` if it is there, else as received.
        fleet: The only fleet that it is for; empty: all with this GPU.
        gpus_per_host: GPUs of the instance; None: not stated.
        usd_per_gpu_hour: Price of one GPU.
        commitment: `on demand`, `spot`, …
        retrieved_on: Date, as precise as known.
        origin: Source of the price: `yours`, `hosts.yml`; empty: shipped with tfbench.
        family: Name that the user gave, if it means several GPUs or a fleet.
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
    family: str = ""
    fleet: str = ""

    @property
    def name(self) -> str:
        """Provider, region, size of host, commitment and date, if known."""
        host = f"×{self.gpus_per_host}" if self.gpus_per_host else ""
        parts = (self.provider, self.region, host, self.commitment, self.retrieved_on)
        return ", ".join(part for part in parts if part)

    @property
    def place(self) -> str:
        """Provider, region and commitment, if known."""
        return ", ".join(filter(None, (self.provider, self.region, self.commitment)))

    def usd_per_hour(self, count: int) -> float:
        """Return the hourly price of a job with `count` GPUs, renting a whole host; 0: it has fewer GPUs."""
        gpus = self.gpus_per_host or count
        return gpus * self.usd_per_gpu_hour if gpus >= count else 0.0


def known_prices(without: Collection[str] = ()) -> list[Offer]:
    """Return the shipped example offers of all GPUs except `without`."""
    texts = ("gpu", "provider", "region", "commitment", "retrieved_on", "source")
    return [
        Offer(
            usd_per_gpu_hour=float(row["usd_per_gpu_hour"]),
            gpus_per_host=int(row["gpus_per_host"]),
            **{name: row[name] for name in texts},
        )
        for row in read_rows("prices.csv")
        if row["gpu"] not in without
    ]


def most_exact(offers: Sequence[Offer]) -> list[Offer]:
    """Leave out offers of a family for GPUs with offers of a more exact name: next to `A100-80GB`, `A100` is 40 GB."""
    members: dict[str, set[str]] = {}
    for offer in offers:
        members.setdefault(offer.family, set()).add(offer.gpu)
    fewest: dict[str, int] = {}
    for offer in offers:
        size = len(members[offer.family]) if offer.family else 1
        fewest[offer.gpu] = min(size, fewest.get(offer.gpu, size))
    return [offer for offer in offers if (len(members[offer.family]) if offer.family else 1) == fewest[offer.gpu]]


def positive_number(text: str) -> float | None:
    """Parse a number above 0; None: it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
