"""Upgrades of documents written by older versions of tfbench, and the changes that each version made.

A field that is only added needs a default and nothing here. A field that is removed, renamed or changed raises the
version of its document and has a row in its table of changes; see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldChange:
    """A field, or a value of one, that a version no longer has.

    Attributes:
        path: Names from the document to the field, separated by dots; lists are entered. `field=value`: only the value.
        renamed: Its new name, in the same object; empty: removed. A document with a removed value is refused.
        only: The one value that a removed setting may have, because another one measured something else; `...`: any.
    """

    path: str
    renamed: str = ""
    only: object = ...


CASE_CHANGES: Mapping[int, Sequence[FieldChange]] = {
    1: (
        FieldChange("target_ci"),
        FieldChange("frozen", only=False),
        FieldChange("compile_update", only=False),
        FieldChange("cublaslt", only=False),
        FieldChange("steps_per_call", only=1),
    )
}
"""By the version of the document that still had the field; as in `RECORD_CHANGES`."""

RECORD_CHANGES: Mapping[int, Sequence[FieldChange]] = {
    1: (
        *(FieldChange(f"case.{change.path}", change.renamed, change.only) for change in CASE_CHANGES[1]),
        FieldChange("case.optimizer=lamb"),
        FieldChange("environment.tf32_observed_in_convolution"),
        FieldChange("measurement.seed"),
        FieldChange("measurement.losses"),
        FieldChange("telemetry.cpu_energy_joules"),
        FieldChange("device_results.compiled", only=False),
        FieldChange("device_results.peer", only=None),
        FieldChange("device_observations.xid_errors"),
        FieldChange("device_observations.xid_known"),
        FieldChange("device_observations.clock_mean_mhz", "sm_clock_mhz"),
        FieldChange("device_observations.clock_max_mhz", "sm_clock_max_mhz"),
        FieldChange("device_observations.power_mean_watts", "power_watts"),
        FieldChange("device_observations.temperature_max_celsius", "temperature_celsius"),
    )
}
"""By `schema_version` of the record that still had the field."""


class CannotUpgrade(ValueError):
    """A document was measured with a setting that no longer exists."""


def upgrade(document: dict[str, Any], version: int, changes: Mapping[int, Sequence[FieldChange]]) -> None:
    """Change a parsed document of an older version into one of the current version.

    Args:
        document: Untrusted; changed in place.
        version: Its version.
        changes: By version; those from `version` on are applied.

    Raises:
        CannotUpgrade: A removed setting has a value other than the one that remains.
    """
    for _, rows in sorted((number, rows) for number, rows in changes.items() if number >= version):
        for change in rows:
            *parents, name = change.path.split(".")
            for holder in _holders(document, parents):
                _apply(change, name, holder)


def _apply(change: FieldChange, name: str, holder: dict[str, Any]) -> None:
    name, _, gone = name.partition("=")
    if name not in holder or (gone and holder[name] != gone):
        return
    value = holder.pop(name)
    if change.renamed:
        holder.setdefault(change.renamed, value)
    elif gone or change.only not in (..., value):
        received = f"Received: {str(value)[:80]!r}"
        raise CannotUpgrade(f"{change.path}: tfbench no longer has this setting. Use a version that has it. {received}")


def _holders(value: object, parents: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects that a path without its last name leads to; none where the document has another shape."""
    if isinstance(value, list):
        for item in value:
            yield from _holders(item, parents)
    elif isinstance(value, dict):
        if parents:
            yield from _holders(value.get(parents[0]), parents[1:])
        else:
            yield value
