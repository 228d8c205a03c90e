"""Prices per GPU-hour: dated, by provider and region, never averaged.

One GPU model is offered at prices that differ by more than six times, so an average says nothing about what anyone
pays.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from results.errors import NotATable
from results.reference import read_rows
from results.reference.gpus import gpu_key, gpus_named

HEADINGS = (
    *("gpu", "provider", "region", "gpus_per_host", "usd_per_gpu_hour", "commitment", "retrieved_on", "source"),
)
"""Columns of a prices file; `gpu` and `usd_per_gpu_hour` are needed, the others may be empty or missing."""

SKYPILOT_HEADINGS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")


@dataclass(frozen=True)
class Offer:
    """One GPU at one price.

    Attributes:
        gpu: Name in `reference/gpu_specs.csv` where it is known there, else as it came.
        gpus_per_host: GPUs of the instance that is offered; None where it is not stated.
        usd_per_gpu_hour: Price of one of them.
        commitment: `on demand`, `spot`, …
        retrieved_on: Date, as exact as it is known.
        origin: Who gave the price: `yours`, `hosts.yml`; empty: shipped with tfbench.
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

    @property
    def name(self) -> str:
        """Provider, region, size of host, commitment and date, as far as they are known."""
        host = f"×{self.gpus_per_host}" if self.gpus_per_host else ""
        parts = (self.provider, self.region, host, self.commitment, self.retrieved_on)
        return ", ".join(part for part in parts if part)

    def usd_per_hour(self, count: int) -> float:
        """Return what a job of `count` GPUs costs per hour: a host is rented whole; 0 where it has fewer."""
        gpus = self.gpus_per_host or count
        return gpus * self.usd_per_gpu_hour if gpus >= count else 0.0


def read_prices(path: Path) -> list[Offer]:
    """Read a prices file of the user.

    Raises:
        NotATable: It cannot be read, lacks a column, or a price is no positive number; says the line.
    """
    rows = _read_csv(path)
    missing = [name for name in ("gpu", "usd_per_gpu_hour") if rows and name not in rows[0]]
    if missing or not rows:
        raise NotATable(f"{path}: needs rows with the columns {', '.join(HEADINGS)}. Missing: {', '.join(missing)}")
    return [offer for number, row in enumerate(rows, 2) for offer in _offers(row, f"{path}:{number}")]


def known_prices(without: Collection[str] = ()) -> list[Offer]:
    """Return the shipped offers of all GPUs but those that are named: dated examples."""
    shipped = [offer for row in read_rows("prices.csv") for offer in _offers(row, "prices.csv")]
    return [offer for offer in shipped if offer.gpu not in without]


def import_skypilot(path: Path, provider: str, retrieved_on: str) -> list[Offer]:
    """Read prices from a CSV in the format of SkyPilot's catalogs.

    Args:
        path: Columns `InstanceType,AcceleratorName,AcceleratorCount,…,Price,Region,SpotPrice`; prices are per instance.
        provider: Whose catalog it is.
        retrieved_on: Date of the catalog.

    Raises:
        NotATable: It lacks a column.
    """
    rows = _read_csv(path)
    missing = [name for name in SKYPILOT_HEADINGS if not rows or name not in rows[0]]
    if missing:
        raise NotATable(f"{path}: not a SkyPilot catalog. Missing columns: {', '.join(missing)}")
    offers = []
    for row in rows:
        count = positive_number(row["AcceleratorCount"])
        if not row["AcceleratorName"] or not count:
            continue  # an instance without a GPU
        for column, commitment in (("Price", "on demand"), ("SpotPrice", "spot")):
            price = positive_number(row.get(column) or "")
            if price:
                offers.append(
                    Offer(
                        gpu=gpu_key(row["AcceleratorName"]) or row["AcceleratorName"],
                        usd_per_gpu_hour=price / count,
                        provider=provider,
                        region=row["Region"],
                        gpus_per_host=int(count),
                        commitment=commitment,
                        retrieved_on=retrieved_on,
                        source=f"{path.name} {row['InstanceType']}",
                    )
                )
    return offers


def prices_csv(offers: Iterable[Offer]) -> str:
    """Write offers as a prices file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    for offer in offers:
        cells = {name: getattr(offer, name) for name in HEADINGS}
        writer.writerow("" if cells[name] is None else cells[name] for name in HEADINGS)
    return text.getvalue()


def _offers(row: Mapping[str, str], where: str) -> list[Offer]:
    """Return the offers of a row: one for each GPU that its name means, or under its own name where it means none."""
    price = positive_number(row["usd_per_gpu_hour"])
    if not price:
        raise NotATable(f"{where}: usd_per_gpu_hour must be a number above 0. Received: {row['usd_per_gpu_hour']!r}")
    count = positive_number(row.get("gpus_per_host") or "")
    texts = {name: row.get(name) or "" for name in ("provider", "region", "commitment", "retrieved_on", "source")}
    return [
        Offer(gpu=gpu, usd_per_gpu_hour=price, gpus_per_host=int(count) if count else None, **texts)
        for gpu in gpus_named(row["gpu"]) or (row["gpu"],)
    ]


def positive_number(text: str) -> float | None:
    """Read a number above 0; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _read_csv(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotATable(f"{path}: cannot be read as CSV: {error}") from error
