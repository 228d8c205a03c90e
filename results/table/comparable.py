"""What may be compared with what: the one rule behind every ratio, ranking, table and chart.

Two throughputs are comparable when the whole case is equal and nothing differs that changes what is measured. Software
that differs otherwise is named next to the ratio, because it may be the cause. Hardware is what a comparison is about.

Where a comparison is about a column of the case itself (scaling: the number of GPUs; gain of a precision: the
precision), that column is excluded with `across`, and with it what follows from it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from results.schema import DEVICE_MODEL, Case, Communication
from results.table.columns import CASE_COLUMNS, SOFTWARE_COLUMNS, Value

HARDWARE = frozenset({"gpu", "power_limit_watts", "cpu", "cpu_limit"})
"""Columns of the identity that two sides may differ in without a remark: comparing them is what fleets are for."""

MEASURED = ("method_version", "parameters", "tf32", "unit")
"""What changes the thing that is measured: where one of these differs, there is no ratio."""

HOST_COLUMNS = ("cpu", "cpu_limit", "driver", "launcher")
"""Columns of the identity that belong to a host: where a fleet's GPU hosts differ in them, that is spread between hosts
and no second measurement. On a CPU the processor is the hardware itself, and there is no driver; how a host starts
benchmarks, in containers or as processes, belongs to the host there too."""

CPU_HOST_COLUMNS = ("launcher",)
"""Likewise on a CPU."""

IMPLIED = {"model": ("parameters", "unit"), "precision": ("tf32",)}
"""What follows from a column of the case: with that column it does not count in the rule."""

OWN_SETTINGS = ("batch_norm", "optimizer")
"""Columns of a case that name the network's own choice where the user made none."""


class Measured(Protocol):
    """What the rule needs of a measurement; `fleets.FleetRate` is one."""

    @property
    def case(self) -> Case:
        """What was measured."""

    @property
    def unit(self) -> str:
        """What a sample is; empty without a number."""

    def named(self, column: str) -> Value:
        """Return a value of `CASE_COLUMNS` or `SOFTWARE_COLUMNS` by its column."""


T = TypeVar("T", bound=Measured)


SharedSetting = tuple[tuple[str, Value], ...]
"""What measurements must share to be compared: columns of the case, then `MEASURED`, and their values."""


@dataclass(frozen=True)
class Match:
    """Whether two measurements may be compared.

    Attributes:
        blocking: Columns that differ and make a ratio meaningless; empty: comparable.
        differs: Columns of the software that differ, to be named next to the ratio.
    """

    blocking: tuple[str, ...]
    differs: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        """Whether there may be a ratio."""
        return not self.blocking

    @property
    def reason(self) -> str:
        """Return why the two are not comparable; empty where they are."""
        return f"{', '.join(self.blocking)} differ: not the same is measured" if self.blocking else ""


def setting_of(item: Measured, *, across: Collection[str] = ()) -> SharedSetting:
    """Return what a measurement must share with any other that it is compared with.

    Args:
        item: A measurement with a number.
        across: Columns of the case that the comparison is about; what follows from them (`IMPLIED`) is excluded too,
            and across networks what is each network's own choice counts as equal.
    """
    excluded = _excluded(across)
    values: list[tuple[str, Value]] = []
    for name in (*CASE_COLUMNS, *MEASURED):
        if name not in excluded:
            value = item.unit if name == "unit" else item.named(name)
            values.append((name, _own(item, name, value) if "model" in excluded else value))
    return tuple(values)


def match(a: Measured, b: Measured, *, across: Collection[str] = ()) -> Match:
    """Return whether two measurements may be compared, and what else differs.

    Args:
        a: A measurement with a number.
        b: Another one.
        across: Columns of the case that the comparison is about; see `setting_of`.
    """
    left, right = setting_of(a, across=across), setting_of(b, across=across)
    blocking = tuple(name for (name, x), (_, y) in zip(left, right, strict=True) if x != y)
    silent = HARDWARE | _excluded(across)
    differs = (name for name in SOFTWARE_COLUMNS if name not in silent and a.named(name) != b.named(name))
    return Match(blocking, tuple(differs))


def by_setting(items: Iterable[T], *, across: Collection[str] = ()) -> dict[SharedSetting, list[T]]:
    """Group measurements so that those of a group are comparable with each other, and with no other.

    Args:
        items: Measurements with numbers.
        across: Columns of the case that the comparison is about; see `setting_of`.
    """
    groups: dict[SharedSetting, list[T]] = defaultdict(list)
    for item in items:
        groups[setting_of(item, across=across)].append(item)
    return dict(groups)


def setting_text(item: Measured, *, without: Collection[str] = ("model",)) -> str:
    """Name the setting of a measurement in words: mode, precision, batch and count, then what is not the default.

    Args:
        item: A measurement.
        without: Columns that the reader knows already.

    Returns:
        For example `training, fp16, batch 256, 1 GPU, xla replica`.
    """
    usual = _usual(item.case.model)
    parts = [_part(item, name) for name in ("mode", "precision", "batch_per_gpu", "num_gpus") if name not in without]
    for name in CASE_COLUMNS:
        if name in without or name in _ALWAYS or name in EFFORT:
            continue
        value = item.named(name)
        if value is not None and value != getattr(usual, name):
            parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(part for part in parts if part)


_ALWAYS = ("model", "mode", "precision", "batch_per_gpu", "num_gpus", "device")
EFFORT = ("warmup_steps", "num_steps", "min_seconds")
"""How long was measured: part of the case, but `setting_text` leaves it out."""

MODES = {"train": "training", "infer": "inference", "device": "device"}


def mode_text(mode: str | None) -> str:
    """Name a mode in words."""
    return MODES.get(str(mode), str(mode))


def count_text(item: Measured) -> str:
    """Name what trains together: `1 GPU`, `4 GPUs`, `2 hosts of 4 GPUs`."""
    case = item.case
    unit = case.device.upper() if case.num_gpus == 1 else f"{case.device.upper()}s"
    count = f"{case.num_gpus} {unit}"
    return count if case.num_hosts == 1 else f"{case.num_hosts} hosts of {count}"


def _excluded(across: Collection[str]) -> frozenset[str]:
    return frozenset((*across, *(name for column in across for name in IMPLIED.get(column, ()))))


def _part(item: Measured, name: str) -> str:
    if name == "mode":
        return mode_text(item.case.mode)
    if name == "num_gpus":
        return count_text(item)
    return f"batch {item.case.batch_per_gpu}" if name == "batch_per_gpu" else str(item.case.precision)


def _own(item: Measured, name: str, value: Value) -> Value:
    """Return None for what is the network's own choice, so that networks can be put together."""
    if name in OWN_SETTINGS and value == getattr(_usual(item.case.model), name):
        return None
    return value


@functools.lru_cache(maxsize=256)
def _usual(model: str) -> Case:
    return Case(model=model or DEVICE_MODEL)


def differing(items: Sequence[Measured], columns: Sequence[str]) -> list[str]:
    """Return those of the columns in which the measurements are not all equal, in their order.

    A variant that follows from the network, as its usual optimizer does, does not differ.
    """
    return [
        name
        for name in columns
        if len({item.named(name) for item in items}) > 1
        and not (name in OWN_SETTINGS and _follows_from_network(items, name))
    ]


def _follows_from_network(items: Sequence[Measured], column: str) -> bool:
    found = {(item.case.model, item.named(column)) for item in items}
    return len(found) == len({model for model, _ in found})


def case_name(rates: Sequence[Measured], rate: Measured, *, known: Collection[str] = ()) -> str:
    """Name a case by what the cases at hand do not have in common, always by its network.

    Args:
        rates: The cases at hand.
        rate: One of them.
        known: Columns that the reader knows already.

    Returns:
        For example `resnet50, training, fp16, 4 GPUs`.
    """
    return ", ".join(part for part in (rate.case.model, setting_name(rates, rate, known=known)) if part)


def setting_name(rates: Sequence[Measured], rate: Measured, *, known: Collection[str] = ()) -> str:
    """Name what a case does not have in common with the cases at hand, without its network; may be empty."""
    varying = [name for name in differing(rates, CASE_COLUMNS) if name not in known]
    text = setting_text(rate, without=["model", *(name for name in CASE_COLUMNS if name not in varying)])
    effort = [f"{name.replace('_', ' ')} {rate.named(name)}" for name in EFFORT if name in varying]
    return ", ".join(part for part in (text, *effort) if part)


CLUSTER_COLUMNS = ("num_gpus", "num_hosts", "communication")
"""Columns of a case that define what trains together: columns of a table rather than rows."""


def cluster_name(case: Case) -> str:
    """Name what trains together: `4` GPUs; of several hosts `2×4`, and how they communicate where that was chosen."""
    if case.num_hosts == 1:
        return str(case.num_gpus)
    chosen = "" if case.communication is Communication.AUTO else f" {case.communication}"
    return f"{case.num_hosts}×{case.num_gpus}{chosen}"


def cluster_names(cases: Iterable[Case]) -> list[str]:
    """Return the names of all that trained together, the smallest first: those of one host before all others."""

    def order(case: Case) -> tuple[bool, int, str]:
        return case.num_hosts != 1, case.replicas, cluster_name(case)

    return list(dict.fromkeys(cluster_name(case) for case in sorted(cases, key=order)))
