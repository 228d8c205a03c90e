"""Parses untrusted records of hosts: pydantic checks each field against `results.schema`.

A record is rejected, with all mistakes at once, for duplicate keys, wrong types, values outside
their types, inconsistent numbers, or status `ok` without a passed validity check. Records of older versions
are upgraded; unknown keys, as newer versions may add them, are ignored and named.

A field that is only added needs a default and nothing here. A field that is removed, renamed or changed raises the
version of its document and has a row in its table of changes; see CONTRIBUTING.md.
"""

from __future__ import annotations

import collections
import functools
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from results.schema import SCHEMA_VERSION, Record
from results.schema.record_json import MAX_RECORD_BYTES, NewerRecord, RecordError, contradictions

MAX_PROBLEMS = 20
"""Maximum number of mistakes reported per document."""

T = TypeVar("T")


def from_json(text: str | bytes) -> Record:
    """Return the record of `parse_record`."""
    return parse_record(text)[0]


def parse_record(text: str | bytes) -> tuple[Record, tuple[str, ...]]:
    """Parse and check a record.

    Args:
        text: Untrusted text, at most `MAX_RECORD_BYTES`.

    Returns:
        The record, and the paths of keys that the schema does not have, without indices of lists; at most
        `MAX_PROBLEMS`.

    Raises:
        NewerRecord: It has a newer version than this tfbench reads.
        RecordError: Not a record; has up to `MAX_PROBLEMS` mistakes.
    """
    if len(text) > MAX_RECORD_BYTES:
        raise RecordError([f"larger than {MAX_RECORD_BYTES} bytes. Received: {len(text)}"])
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise RecordError([f"not JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise RecordError([f"must be a JSON object. Received: {_shown(document)}"])
    _upgrade(document)
    adapter = _adapter(Record)
    unknown: tuple[str, ...] = ()
    try:
        record: Record = adapter.validate_python(document, extra="forbid")
    except ValidationError as error:
        unknown = _unknown_keys(error)
        record = checked(Record, document)
    if problems := contradictions(record):
        raise RecordError(problems)
    return record, unknown


def _upgrade(document: dict[str, Any]) -> None:
    """Change a parsed record of an older version into one of the current version."""
    version = document.get("schema_version")
    expected = f"schema_version must be 1 to {SCHEMA_VERSION}. Received: {_shown(version)}"
    if type(version) is not int or version < 1:
        raise RecordError([expected])
    if version > SCHEMA_VERSION:
        raise NewerRecord([f"{expected}. A newer tfbench wrote this record: update tfbench to read it"])
    upgrade(document, version, RECORD_CHANGES)
    document["schema_version"] = SCHEMA_VERSION


def _unknown_keys(error: ValidationError) -> tuple[str, ...]:
    """Return the paths of the keys that the schema does not have, without indices of lists."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    places = [item["loc"] for item in errors if item["type"] == "unexpected_keyword_argument"]
    paths = dict.fromkeys(_where(part for part in place if isinstance(part, str)) for place in places)
    return tuple(paths)[:MAX_PROBLEMS]


def checked(kind: Callable[..., T], document: object) -> T:
    """Build a dataclass of the schema from parsed JSON, checking every field; unknown keys are ignored.

    Raises:
        RecordError: Missing keys, wrong types or values out of bounds; at most `MAX_PROBLEMS`.
    """
    try:
        built: T = _adapter(kind).validate_python(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        raise RecordError([_problem(item) for item in errors[:MAX_PROBLEMS]]) from error
    return built


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's validator of a dataclass, cached because building it takes milliseconds."""
    return TypeAdapter(kind)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, rejecting duplicate keys: JSON readers differ in which of them counts."""
    built = dict(pairs)
    if len(built) != len(pairs):
        (key, count), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {_shown(key)} appears {count} times")
    return built


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 2, 80, 80


def _shown(value: object) -> str:
    """Format a received value for a message: short and without control characters."""
    text = _BRIEF.repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _problem(error: ErrorDetails) -> str:
    """Format a pydantic error as a line: where, what was expected, what was received."""
    where = _where(error["loc"]) or "record"
    match error["type"]:
        case "missing":
            return f"{where}: missing"
        case "dataclass_type":
            return f"{where}: must be an object. Received: {_shown(error['input'])}"
        case _:
            message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            return f"{where}: {message}. Received: {_shown(error['input'])}"


def _where(parts: Iterable[str | int]) -> str:
    """Format the place of a value: `measurement.ranks[0].rank`."""
    return "".join(_step(part) for part in parts).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part if part.isidentifier() and part.isascii() else _shown(part)}"


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


def upgrade(document: dict[str, Any], version: int, changes: Mapping[int, Sequence[FieldChange]]) -> None:
    """Change a parsed document of an older version into one of the current version.

    Args:
        document: Untrusted; changed in place.
        version: Its version.
        changes: By version; those from `version` on are applied.

    Raises:
        RecordError: A removed setting has a value other than the one that remains.
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
        no_longer = f"{change.path}: tfbench no longer has this setting. Use a version that has it. {received}"
        raise RecordError([no_longer])


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
