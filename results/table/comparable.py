"""Decides which measurements are comparable, for every ratio, ranking, table and chart.

Two throughputs are comparable if their cases are equal and nothing differs that changes what is measured. Other
differences in software are shown next to the ratio, because they may be the cause. Hardware may differ.

If a comparison is about a column of the case (for scaling the number of GPUs, for the gain of a precision the
precision), `across` excludes that column and those derived from it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from results.schema import DEVICE_MODEL, Case, Communication
from results.table.columns import CASE_COLUMNS, SOFTWARE_COLUMNS, Software, Value
from results.text import counted

HARDWARE = frozenset({"gpu", "power_limit_watts", "cpu", "cpu_limit"})
"""Columns of the identity whose differences are not reported: comparing them is the purpose of fleets."""

MEASURED = ("method_version", "parameters", "tf32", "unit")
"""Columns that change what is measured: if one differs, there is no ratio."""

IMPLIED = {"model": ("parameters", "unit"), "precision": ("tf32",)}
"""Columns derived from a column of the case, and excluded with it."""

OWN_SETTINGS = ("batch_norm", "optimizer")
"""Columns of a case whose default depends on the network."""


class Measured(Protocol):
    """A measurement that can be compared, such as `fleets.FleetRate` or a row of the table."""

    @property
    def case(self) -> Case:
        """The measured case."""

    @property
    def software(self) -> Software:
        """Software and hardware."""

    @property
    def unit(self) -> str | None:
        """What a sample is; empty or None without a number."""


def value_of(item: Measured, column: str) -> Value:
    """Return the value of a column of `CASE_COLUMNS`, `SOFTWARE_COLUMNS` or `MEASURED`."""
    source = item if column == "unit" else item.software if column in SOFTWARE_COLUMNS else item.case
    value: Value = getattr(source, column)
    return value


T = TypeVar("T", bound=Measured)
K = TypeVar("K")
V = TypeVar("V")


SharedSetting = tuple[tuple[str, Value], ...]
"""Columns and values that comparable measurements share: those of the case, then `MEASURED`."""


class Match(NamedTuple):
    """Whether two measurements may be compared.

    Attributes:
        reason: Why a ratio would be meaningless; empty: comparable.
        differs: Software columns that differ, shown next to the ratio.
    """

    reason: str
    differs: tuple[str, ...]


def setting_of(item: Measured, *, across: Collection[str] = ()) -> SharedSetting:
    """Return what a measurement must share with those it is compared with.

    Args:
        item: A measurement with a number.
        across: Columns of the case that the comparison is about. Those in `IMPLIED` are excluded too; across networks,
            the default settings of each network count as equal.
    """
    excluded, usual = _excluded(across), _usual(item.case.model)
    own = OWN_SETTINGS if "model" in excluded else ()
    values = ((name, value_of(item, name)) for name in (*CASE_COLUMNS, *MEASURED) if name not in excluded)
    return tuple((name, None if name in own and value == getattr(usual, name) else value) for name, value in values)


def match(a: Measured, b: Measured, *, across: Collection[str] = ()) -> Match:
    """Return whether two measurements may be compared, and what else differs.

    Args:
        a: A measurement with a number.
        b: Another one.
        across: Columns of the case that the comparison is about; see `setting_of`.
    """
    left, right = setting_of(a, across=across), setting_of(b, across=across)
    blocking = [name for (name, x), (_, y) in zip(left, right, strict=True) if x != y]
    silent = HARDWARE | _excluded(across)
    differs = (name for name in SOFTWARE_COLUMNS if name not in silent and value_of(a, name) != value_of(b, name))
    reason = f"{', '.join(blocking)} differ, so different things are measured" if blocking else ""
    return Match(reason, tuple(differs))


def by_setting(items: Iterable[T], *, across: Collection[str] = ()) -> dict[SharedSetting, list[T]]:
    """Group measurements by what they must share to be comparable.

    Args:
        items: Measurements with numbers.
        across: Columns of the case that the comparison is about; see `setting_of`.
    """
    return grouped((setting_of(item, across=across), item) for item in items)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order of appearance."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def setting_text(item: Measured, *, without: Collection[str] = ("model",)) -> str:
    """Describe a case's settings: mode, precision, batch and count, then all that differ from their default.

    Args:
        item: A measurement.
        without: Columns to omit.

    Returns:
        For example `training, fp16, batch 256, 1 GPU, xla replica`.
    """
    case, usual = item.case, _usual(item.case.model)
    count = counted(case.num_gpus, case.device.upper())
    parts = {
        "mode": mode_text(case.mode),
        "precision": str(case.precision),
        "batch_per_gpu": f"batch {case.batch_per_gpu}",
        "num_gpus": count if case.num_hosts == 1 else f"{case.num_hosts} hosts of {count}",
    }
    for name in CASE_COLUMNS:
        if (
            name not in parts
            and name not in ("device", *EFFORT)
            and getattr(case, name) not in (None, getattr(usual, name))
        ):
            parts[name] = f"{name.replace('_', ' ')} {getattr(case, name)}"
    return ", ".join(text for name, text in parts.items() if name not in without)


EFFORT = ("warmup_steps", "num_steps", "min_seconds")
"""Columns of the case that set the length of a measurement; omitted by `setting_text`."""

MODES = {"train": "training", "infer": "inference", "device": "device"}


def mode_text(mode: str | None) -> str:
    """Return the display name of a mode."""
    return MODES.get(str(mode), str(mode))


def _excluded(across: Collection[str]) -> frozenset[str]:
    return frozenset((*across, *(name for column in across for name in IMPLIED.get(column, ()))))


@functools.lru_cache(maxsize=256)
def _usual(model: str) -> Case:
    return Case(model=model or DEVICE_MODEL)


def differing(items: Sequence[Measured], columns: Sequence[str]) -> list[str]:
    """Return the columns in which the measurements differ, in the given order.

    Batch normalisation and optimizer do not count if they depend only on the network.
    """

    def network(item: Measured, name: str) -> str:
        return item.case.model if name in OWN_SETTINGS else ""

    return [name for name in columns if ambiguous((network(item, name), value_of(item, name)) for item in items)]


def ambiguous(pairs: Iterable[tuple[Hashable, Value]]) -> bool:
    """Return whether a key has two values, which must then be shown."""
    seen: dict[Hashable, Value] = {}
    return any(seen.setdefault(key, value) != value for key, value in pairs)


def differences(items: Sequence[Measured], columns: Sequence[str]) -> str:
    """Describe what differs: `keras (3.12.0, 3.15.1)`; of the environment only the variables that differ."""
    parts = []
    for name in columns:
        values = [value_of(item, name) for item in items]
        texts = {name: ["none" if value is None else str(value) for value in values]}
        if name == "variables":
            settings = [dict(_VARIABLE.findall(str(value or ""))) for value in values]
            names = sorted({*itertools.chain(*settings)})
            texts = {key: [of.get(key, "unset") or "empty" for of in settings] for key in names}
        parts += [f"{key} ({', '.join(sorted({*of_key}))})" for key, of_key in texts.items() if len({*of_key}) > 1]
    return ", ".join(parts)


_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*?)(?=,[A-Za-z_]\w*=|$)")
"""A variable and its value in the column `variables`; a value may have commas."""


def case_label(item: Measured, among: Sequence[Measured], *, known: Collection[str] = ()) -> str:
    """Name a case: network, precision, and the settings in which the cases shown together differ.

    Args:
        item: The case.
        among: All cases shown together; of many measurements, `of_each_case`.
        known: Columns to omit, because the reader sees them elsewhere.

    Returns:
        For example `resnet50 fp16, batch 256, 4 GPUs`.
    """
    varying = [name for name in differing(among, CASE_COLUMNS) if name not in (*known, "model", "precision")]
    varying += ["num_gpus"] if "device" in varying else []  # the count names the device
    text = setting_text(item, without=[name for name in CASE_COLUMNS if name not in varying])
    effort = [f"{name.replace('_', ' ')} {value_of(item, name)}" for name in EFFORT if name in varying]
    return ", ".join(part for part in (f"{item.case.model} {item.case.precision}", text, *effort) if part)


def of_each_case(items: Iterable[T]) -> list[T]:
    """Return one measurement of each case."""
    return list({item.case: item for item in items}.values())


CLUSTER_COLUMNS = ("num_gpus", "num_hosts", "communication")
"""Columns of a case that define its devices; tables show them as columns rather than rows."""


def cluster_name(case: Case) -> str:
    """Name the devices of a case: `4` GPUs; for a multi-host job `2×4`, with the communication if it was chosen."""
    if case.num_hosts == 1:
        return str(case.num_gpus)
    chosen = "" if case.communication is Communication.AUTO else f" {case.communication}"
    return f"{case.num_hosts}×{case.num_gpus}{chosen}"


def cluster_names(cases: Iterable[Case]) -> list[str]:
    """Return the distinct `cluster_name` of the cases, smallest first, single hosts before multi-host jobs."""
    ordered = sorted(cases, key=lambda case: (case.num_hosts != 1, case.replicas, cluster_name(case)))
    return list(dict.fromkeys(map(cluster_name, ordered)))
