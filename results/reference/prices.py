"""Prices per GPU-hour, by provider and region; never averaged, because prices of a GPU model differ up to sixfold.

They are shipped examples, or read from the user's files and from lists of clouds and catalogs, as CSV or JSON.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.errors import NotATable
from results.reference import FOLDER, names
from results.reference.gpus import counted_gpu, gpus_named, memory_of
from results.table_files import heading_key, read_text, tables_of

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

    def usd_per_hour(self, count: int) -> float:
        """Return the hourly price of a job with `count` GPUs, renting a whole host; 0: it has fewer GPUs."""
        gpus = self.gpus_per_host or count
        return gpus * self.usd_per_gpu_hour if gpus >= count else 0.0


def known_prices() -> list[Offer]:
    """Return the shipped example offers."""
    return read_prices(FOLDER / "prices.csv")


def positive_number(text: str) -> float | None:
    """Parse a decimal number above 0; None: it is not one."""
    return (float(text) or None) if re.fullmatch(r"\d{1,15}(\.\d*)?|\.\d+", text.strip()) else None


def span(values: Iterable[float]) -> str:
    """Format the range of some values, or a single value."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(f"{float(f'{value:.3g}'):g}" for value in (*found[:1], *found[-1:])))


FOREIGN = frozenset({"eur", "euro", "gbp", "chf", "inr", "cad", "aud", "jpy", "cny"})
"""Currencies other than USD."""

PRICE = FOREIGN | {"usd", "price", "cost", "rate", "dph", "hourly", "bid"}
PRICE_WORDS = PRICE | {
    *("per", "hour", "h", "hr", "gpu", "total", "on", "demand", "ondemand", "spot", "min", "minimum", "cents"),
    *("secure", "community", "instance", "host", "node", "machine", "retail", "unit", "uninterruptable"),
}
"""A heading is an hourly price if it has a word of `PRICE` and all its words are among these."""

RUNPOD = frozenset({"secure", "community"})
"""Words in RunPod's headings of prices, which are of one GPU like those with the word `gpu`; others are of a host."""

SPOT = frozenset({"spot", "bid"})

SKYPILOT = {"A100": "A100 40GB", "V100": "V100 16GB"}
"""What SkyPilot's catalogs mean by names without memory; other sizes are `A100-80GB` and `V100-32GB`."""

SAME_MEMORY = 0.1
"""Largest relative difference of a GPU's nominal memory and what a driver or a cloud states: 22.5 of 24 GB."""

Row = Mapping[str, str]
"""The texts of a row by heading."""


def read_prices(path: Path) -> list[Offer]:
    """Read the prices in a file; a part of a GPU, `0.167 of A10`, means no GPU.

    Raises:
        NotATable: It cannot be read, lacks a column, or has a price that is not a positive number of USD.
    """
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        rows = _json_rows(text, path)
    else:
        table = tables_of(text, path)[0]
        rows = [dict(zip(map(heading_key, table.headings), cells, strict=True)) for cells in table.rows]
    headings = dict.fromkeys(name for row in rows for name in row)
    roles, prices = _roles(headings), _price_columns(headings)
    needed = [] if "gpu" in roles else ["of GPUs, named gpu"]
    needed += [] if prices else ["of prices per hour in USD, named usd_per_gpu_hour"]
    if needed:
        raise NotATable(f"{path}: needs a column {' and one '.join(needed)}. Columns: {', '.join(headings)}")
    catalog = path.stem if {"accelerator_name", "accelerator_count"} <= {*headings} else ""  # of SkyPilot: its cloud
    offers: list[Offer] = []
    for number, cells in enumerate(rows, 1):
        where = f"{path}: row {number}"
        row = defaultdict(str, {role: cells.get(name, "").strip() for role, name in roles.items()})
        if row["gpu"] and not re.fullmatch(r"[0.]+", row["count"]):  # else another instance, without a GPU
            offers += _offers_of(row, {heading: cells.get(heading, "").strip() for heading in prices}, where, catalog)
    if not offers:
        raise NotATable(f"{path}: no row has a GPU and a price")
    return offers


def _offers_of(row: Row, prices: Row, where: str, catalog: str) -> Iterator[Offer]:
    """Return the offers of a row, one for each of its prices; one of several may be missing.

    Args:
        row: Texts by role.
        prices: Texts of prices by heading.
        where: Place of the row.
        catalog: Cloud whose SkyPilot catalog it is; empty: none.
    """
    count, name = counted_gpu(row["gpu"])
    if row["count"] and (count := _number(row["count"])) is None:
        raise NotATable(f"{where}: the number of GPUs must be a number. Received: {row['count']!r}")
    gpus = gpus_named(SKYPILOT.get(name, name) if catalog else name)
    stated = re.match(r"[\d.]+", row["memory"])
    if memory := _number(stated[0]) if stated else None:
        memory = memory / 1024 if memory >= 1024 else memory  # MiB, or GiB
        of_name = gpus_named(name)
        gpus = tuple(gpu for gpu in of_name if abs(memory / (memory_of(gpu) or memory) - 1) < SAME_MEMORY)
        name = name if gpus or not of_name else f"{name} {memory:.0f}GB"
    if count and not count.is_integer():
        name, gpus = f"{count:g} of {name}", ()
    size = int(count) if count else None
    for heading, text in prices.items():
        words, price = set(heading.split("_")), _number(text)
        if price is None and len(prices) > 1 and not text.strip("0."):
            continue
        if price is None:
            raise NotATable(f"{where}: {heading} must be a number above 0. Received: {text!r}")
        if (row["currency"] or "USD").upper() != "USD" or words & FOREIGN:
            received = row["currency"] or heading
            raise NotATable(f"{where}: currency must be USD: convert the prices. Received: {received!r}")
        host = 1 if words & {"gpu", *RUNPOD} else size or 1
        spot = bool(words & SPOT) or row["spot"].lower() in ("true", "yes", "1", "spot")
        usual = "spot" if spot else "on demand" if row["spot"] or len(prices) > 1 else ""
        yield Offer(
            gpus[0] if len(gpus) == 1 else name,
            price / host / (100 if "cents" in words else 1),
            provider=" ".join(filter(None, (row["provider"] or catalog, *sorted(words & RUNPOD)))),
            gpus_per_host=size,
            commitment=row["commitment"] or usual,
            gpus=gpus,
            **{role: row[role] for role in ("region", "source", "retrieved_on")},
        )


def _roles(headings: Collection[str]) -> dict[str, str]:
    """Return the preferred heading of each role that is among the headings."""
    return {role: name for name, role in reversed(names("price file")) if name in headings}


def _price_columns(headings: Collection[str]) -> list[str]:
    """Return the headings of prices; of those for one commitment only one, preferably the price of one GPU."""
    columns: dict[object, str] = {}
    for name in sorted(headings, key=lambda name: (bool({*name.split("_")} & FOREIGN), "gpu" not in name.split("_"))):
        words = set(name.split("_"))
        if words & PRICE and words <= PRICE_WORDS:
            columns.setdefault((bool(words & SPOT), frozenset(words & RUNPOD)), name)
    return list(columns.values())


def _number(text: str) -> float | None:
    """Parse a number above 0, as `0.17`, `$0.17/hr`, `0,17` or `1,200.50`; None: it is none."""
    bare = re.sub(r"(?i)\$|\busd\b|(/|\bper\b)\s*(gpu)?[\s/-]*(h|hr|hour)$", "", text.strip()).strip()
    bare = bare.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+\.\d+", bare) else bare
    return positive_number(re.sub(r"^(\d{1,3}),(\d{1,2})$", r"\1.\2", bare))


def _json_rows(text: str, path: Path) -> list[Row]:
    """Return the list or object in a document of which the most objects have a GPU and a price."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise NotATable(f"{path}: cannot be read as JSON: {error}") from error
    return max(
        _tables([document]), key=lambda rows: sum("gpu" in _roles(row) and bool(_price_columns(row)) for row in rows)
    )


def _tables(node: object) -> Iterator[list[Row]]:
    """Return the rows of each list of objects, and of each object of objects, whose keys are names."""
    named = node.items() if isinstance(node, dict) else [("", item) for item in node] if isinstance(node, list) else ()
    yield [_flat({"name": key, **item} if key else item) for key, item in named if isinstance(item, dict)]
    for _, item in named:
        yield from _tables(item)


def _flat(item: Mapping[str, Any]) -> Row:
    """Return an object with its inner objects as one row; its own keys have precedence."""
    row: dict[str, str] = {}
    for key, value in sorted(item.items(), key=lambda own: not isinstance(own[1], dict)):
        own = {} if isinstance(value, list) else {heading_key(key): "" if value is None else str(value)}
        row |= _flat(value) if isinstance(value, dict) else own
    return row
