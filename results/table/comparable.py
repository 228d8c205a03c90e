"""Decides which measurements are comparable, for every ratio, ranking, table and chart, and names cases.

Two throughputs are comparable if their cases are equal and nothing differs that changes what is measured. Other
differences in software are shown next to the ratio, because they may be the cause. Hardware may differ.

A case is named among those that are shown with it: by network, precision, and the settings in which they differ.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from results.schema import DEVICE_MODEL, Case, Communication
from results.table.columns import CASE_COLUMNS, SOFTWARE_COLUMNS, Software, Value
from results.text import counted

HARDWARE = frozenset({"gpu", "power_limit_watts", "cpu", "cpu_limit"})
"""Columns of the identity whose differences are not reported: comparing them is the purpose of fleets."""

SHARED = (*CASE_COLUMNS, "method_version", "parameters", "tf32", "unit")
"""Columns that say what is measured: if one differs, there is no ratio."""

SharedSetting = tuple[tuple[str, Value], ...]
"""Columns of `SHARED` and their values."""


class Measured(Protocol):
    """A measurement that can be compared: `fleets.FleetRate`."""

    def named(self, column: str) -> Value:
        """Return the value of a column of the case or the software, or the unit."""


K = TypeVar("K")
V = TypeVar("V")


def match(a: Measured, b: Measured) -> tuple[str, tuple[str, ...]]:
    """Return whether two measurements with a number may be compared.

    Returns:
        Why a ratio would be meaningless (empty: comparable), and the other software columns that differ, which are
        shown next to the ratio.
    """
    blocking = [name for name in SHARED if a.named(name) != b.named(name)]
    reason = f"{', '.join(blocking)} differ, so different things are measured" if blocking else ""
    differs = (name for name in SOFTWARE_COLUMNS if name not in HARDWARE and a.named(name) != b.named(name))
    return reason, tuple(differs)


def setting_of(item: Measured, *, across: Collection[str] = ()) -> SharedSetting:
    """Return what a measurement shares with those it is compared with, but the columns that the comparison is about."""
    return tuple((name, item.named(name)) for name in SHARED if name not in across)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order of appearance."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


EFFORT = ("warmup_steps", "num_steps", "min_seconds")
"""Columns of the case that set the length of a measurement."""

MODES = {"train": "training", "infer": "inference", "device": "device"}


def mode_text(mode: str | None) -> str:
    """Return the display name of a mode."""
    return MODES.get(str(mode), str(mode))


def setting_text(case: Case, without: Collection[str]) -> str:
    """Describe a case's settings: mode, precision, batch and count, then those that differ from their default.

    Args:
        case: The case.
        without: Columns to omit.

    Returns:
        For example `training, fp16, batch 256, 1 GPU, xla replica`.
    """
    count, usual = counted(case.num_gpus, case.device.upper()), Case(model=case.model or DEVICE_MODEL)
    parts = {
        "mode": mode_text(case.mode),
        "precision": str(case.precision),
        "batch_per_gpu": f"batch {case.batch_per_gpu}",
        "num_gpus": count if case.num_hosts == 1 else f"{case.num_hosts} hosts of {count}",
    }
    for name in CASE_COLUMNS:
        value = getattr(case, name)
        if name not in (*parts, "device") and value not in (None, getattr(usual, name)):
            parts[name] = f"{name.replace('_', ' ')} {value}"
    return ", ".join(text for name, text in parts.items() if name not in without)


def case_labels(cases: Iterable[Case], *, known: Collection[str] = ()) -> dict[Case, str]:
    """Name cases: network, precision, and the settings in which they differ, e.g. `resnet50 fp16, batch 256, 4 GPUs`.

    Args:
        cases: All cases shown together.
        known: Columns to omit, because the reader sees them elsewhere.
    """
    distinct = list(dict.fromkeys(cases))
    varying = [name for name in differing(distinct, CASE_COLUMNS) if name not in (*known, "model", "precision")]
    varying += ["num_gpus"] if "device" in varying else []  # the count names the device
    hidden = [name for name in CASE_COLUMNS if name not in varying]
    texts = {case: setting_text(case, hidden) for case in distinct}
    return {case: ", ".join(filter(None, (f"{case.model} {case.precision}", text))) for case, text in texts.items()}


OWN_SETTINGS = ("batch_norm", "optimizer")
"""Columns of a case whose default depends on the network."""


def differing(items: Sequence[Case] | Sequence[Software], columns: Iterable[str]) -> list[str]:
    """Return the columns in which cases, or softwares, differ, in the given order.

    Batch normalisation and optimizer do not count if they depend only on the network.
    """

    def network(item: Case | Software, name: str) -> str:
        return item.model if name in OWN_SETTINGS and isinstance(item, Case) else ""

    return [name for name in columns if ambiguous((network(item, name), getattr(item, name)) for item in items)]


def ambiguous(pairs: Iterable[tuple[Hashable, Value]]) -> bool:
    """Return whether a key has two values, which must then be shown."""
    seen: dict[Hashable, Value] = {}
    return any(seen.setdefault(key, value) != value for key, value in pairs)


_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*?)(?=,[A-Za-z_]\w*=|$)")
"""A variable and its value in the column `variables`; a value may have commas."""


def differences(items: Sequence[Software], columns: Iterable[str]) -> str:
    """Describe what differs: `keras (3.12.0, 3.15.1)`; of the environment only the variables that differ."""
    parts = []
    for column in columns:
        values = [getattr(item, column) for item in items]
        texts = {column: ["none" if value is None else str(value) for value in values]}
        if column == "variables":
            settings = [dict(_VARIABLE.findall(value or "")) for value in values]
            names = sorted({*itertools.chain(*settings)})
            texts = {name: [of.get(name, "unset") or "empty" for of in settings] for name in names}
        parts += [f"{name} ({', '.join(sorted({*of}))})" for name, of in texts.items() if len({*of}) > 1]
    return ", ".join(parts)


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
