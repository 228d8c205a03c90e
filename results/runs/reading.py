"""Parses untrusted records of hosts: pydantic checks each field against `results.schema`.

A record is rejected, with all mistakes at once, for wrong types, values outside their types, inconsistent numbers, or
status `ok` without a passed validity check. Records of older versions are upgraded; unknown keys, as newer versions may
add them, are ignored, but for a setting of the case: with it, something else was measured.

A field that is only added needs a default and nothing here. A field that is removed, renamed or changed raises the
version of its document; if it was renamed, or other values of it are refused, it has a row here; see CONTRIBUTING.md.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pydantic_core
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from results.schema import SCHEMA_VERSION, SETTINGS, Record
from results.schema.record_json import MAX_RECORD_BYTES, NewerRecord, RecordError, contradictions
from results.text import printable

MAX_PROBLEMS = 20
"""Maximum number of mistakes reported per document."""

T = TypeVar("T")


def from_json(text: str | bytes) -> Record:
    """Parse and check a record.

    Args:
        text: Untrusted text, at most `MAX_RECORD_BYTES`.

    Raises:
        NewerRecord: It has a newer version than this tfbench reads, or a setting that this one does not know.
        RecordError: Not a record; has up to `MAX_PROBLEMS` mistakes.
    """
    if len(text) > MAX_RECORD_BYTES:
        raise RecordError([f"larger than {MAX_RECORD_BYTES} bytes. Received: {len(text)}"])
    try:
        document = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise RecordError([f"not JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise RecordError([f"must be a JSON object. Received: {_shown(document)}"])
    version = document.get("schema_version")
    expected = f"schema_version must be 1 to {SCHEMA_VERSION}. Received: {_shown(version)}"
    if type(version) is not int or version < 1:
        raise RecordError([expected])
    if version > SCHEMA_VERSION:
        raise NewerRecord([f"{expected}. A newer tfbench wrote this record: update tfbench to read it"])
    upgrade(document, version, RECORD_CHANGES)
    for case in _holders(document, ["case"]):
        if new := [name for name, value in case.items() if name not in SETTINGS and value not in (None, False)]:
            raise NewerRecord([f"case: this tfbench does not know {_shown(new)}: update it to read this record"])
    record = checked(Record, document | {"schema_version": SCHEMA_VERSION})
    if problems := contradictions(record):
        raise RecordError(problems)
    return record


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


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)
"""Pydantic's validator of a dataclass, cached because building it takes milliseconds."""


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 2, 80, 80


def _shown(value: object) -> str:
    """Format a received value for a message: short and without control characters."""
    text = _BRIEF.repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


_MISTAKES = {"missing": "is missing", "dataclass_type": "must be an object"}
"""By type of pydantic's errors, if its own words are not clear."""


def _problem(error: ErrorDetails) -> str:
    """Format a pydantic error as a line: where (`measurement.ranks[0].rank`), what was expected, what was received."""
    path = (f"[{part}]" if isinstance(part, int) else f".{printable(part[:80])}" for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    where = "".join(path).removeprefix(".") or "record"
    return f"{where}: {_MISTAKES.get(error['type'], message)}. Received: {_shown(error['input'])}"


class FieldChange(NamedTuple):
    """A field of an older version that another one has replaced, or that could not have any value today.

    Attributes:
        path: Names from the document to the field, separated by dots; lists are entered.
        renamed: Its new name, in the same object; empty: removed.
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
        *(change._replace(path=f"case.{change.path}") for change in CASE_CHANGES[1]),
        FieldChange("device_results.compiled", only=False),
        FieldChange("device_results.peer", only=None),
        FieldChange("device_observations.clock_mean_mhz", "sm_clock_mhz"),
        FieldChange("device_observations.clock_max_mhz", "sm_clock_max_mhz"),
        FieldChange("device_observations.power_mean_watts", "power_watts"),
        FieldChange("device_observations.temperature_max_celsius", "temperature_celsius"),
    )
}
"""By `schema_version` of the record that still had the field; a removed field without a row is ignored."""


def upgrade(document: dict[str, Any], version: int, changes: Mapping[int, Sequence[FieldChange]]) -> None:
    """Change a parsed document of an older version into one of the current version.

    Args:
        document: Untrusted; changed in place.
        version: Its version.
        changes: By version; those from `version` on are applied.

    Raises:
        RecordError: A removed setting has a value other than the one that remains.
    """
    for change in (change for number in sorted(changes) if number >= version for change in changes[number]):
        *parents, name = change.path.split(".")
        for holder in _holders(document, parents):
            if name not in holder:
                continue
            value = holder.pop(name)
            if change.renamed:
                holder.setdefault(change.renamed, value)
            elif change.only not in (..., value):
                gone = f"{change.path}: tfbench no longer has this setting. Use a version that has it"
                raise RecordError([f"{gone}. Received: {_shown(value)}"])


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
