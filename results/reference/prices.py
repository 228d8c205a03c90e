"""Prices per GPU-hour, by provider and region; never averaged, because prices of a GPU model differ up to sixfold."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from results.errors import NotATable
from results.reference import read_rows
from results.reference.gpus import gpus_named


@dataclass(frozen=True)
class Offer:
    """Price of one GPU.

    Attributes:
        gpu: Name in `reference/gpu_specs.csv` if it is there, else as received.
        gpus_per_host: GPUs of the instance; None: not stated.
        usd_per_gpu_hour: Price of one GPU.
        commitment: `on demand`, `spot`, …
        retrieved_on: Date, as precise as known.
        origin: Source of the price: `yours`, `hosts.yml`; empty: shipped with tfbench.
        family: Name that the user gave, if it means several GPUs.
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

    @property
    def name(self) -> str:
        """Provider, region, size of host, commitment and date, if known."""
        host = f"×{self.gpus_per_host}" if self.gpus_per_host else ""
        parts = (self.provider, self.region, host, self.commitment, self.retrieved_on)
        return ", ".join(part for part in parts if part)

    def usd_per_hour(self, count: int) -> float:
        """Return the hourly price of a job with `count` GPUs, renting a whole host; 0: it has fewer GPUs."""
        gpus = self.gpus_per_host or count
        return gpus * self.usd_per_gpu_hour if gpus >= count else 0.0


def read_prices(path: Path) -> list[Offer]:
    """Read a price file of the user, or a catalog in SkyPilot's format, whose prices are per instance.

    Raises:
        NotATable: It cannot be read, lacks a column, or has a price that is not a positive number of USD.
    """
    rows = _read_csv(path)
    if rows and {"AcceleratorName", "AcceleratorCount", "Price"} <= rows[0].keys():
        rows = [cells for row in rows for cells in _of_instance(row, path.stem)]
    missing = [name for name in ("gpu", "usd_per_gpu_hour") if rows and name not in rows[0]]
    if missing or not rows:
        raise NotATable(
            f"{path}: needs the columns gpu and usd_per_gpu_hour; provider, region, gpus_per_host, commitment and "
            f"retrieved_on may be added. Missing: {', '.join(missing) or 'rows'}"
        )
    return [offer for number, row in enumerate(rows, 2) for offer in _offers(row, f"{path}:{number}")]


def _of_instance(row: Mapping[str, str], provider: str) -> Iterator[dict[str, str]]:
    """Convert an instance of a catalog to rows of a price file: on demand and spot."""
    count = positive_number(row["AcceleratorCount"])
    for column, commitment in (("Price", "on demand"), ("SpotPrice", "spot")):
        price = positive_number(row.get(column) or "")
        if row["AcceleratorName"] and count and price:
            yield {
                "gpu": row["AcceleratorName"],
                "usd_per_gpu_hour": str(price / count),
                "gpus_per_host": row["AcceleratorCount"],
                "provider": provider,
                "region": row.get("Region") or "",
                "commitment": commitment,
                "source": row.get("InstanceType") or "",
            }


def known_prices(without: Collection[str] = ()) -> list[Offer]:
    """Return the shipped example offers of all GPUs except `without`."""
    shipped = [offer for row in read_rows("prices.csv") for offer in _offers(row, "prices.csv")]
    return [offer for offer in shipped if offer.gpu not in without]


def _offers(row: Mapping[str, str], where: str) -> list[Offer]:
    """Return an offer for each GPU that a row's name resolves to; with the row's name if it is unknown."""
    price = positive_number(row["usd_per_gpu_hour"])
    if not price:
        raise NotATable(f"{where}: usd_per_gpu_hour must be a number above 0. Received: {row['usd_per_gpu_hour']!r}")
    if (currency := (row.get("currency") or "USD").strip()).upper() != "USD":
        raise NotATable(f"{where}: currency must be USD: convert the prices. Received: {currency!r}")
    count = positive_number(row.get("gpus_per_host") or "")
    texts = {name: row.get(name) or "" for name in ("provider", "region", "commitment", "retrieved_on", "source")}
    gpus = gpus_named(row["gpu"]) or (row["gpu"],)
    family = row["gpu"] if len(gpus) > 1 else ""
    return [
        Offer(gpu=gpu, usd_per_gpu_hour=price, gpus_per_host=int(count) if count else None, family=family, **texts)
        for gpu in gpus
    ]


def positive_number(text: str) -> float | None:
    """Parse a number above 0; None: it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _read_csv(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotATable(f"{path}: cannot be read as CSV: {error}") from error
