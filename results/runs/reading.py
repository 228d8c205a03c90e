"""Parses untrusted records of hosts: pydantic checks each field against `results.schema`.

A record is rejected, with all mistakes at once, for duplicate keys, wrong types, values outside
`results.schema.bounds`, inconsistent numbers, or status `ok` without a passed validity check. Records of older versions
are upgraded; unknown keys, as newer versions may add them, are ignored and named.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import json
import math
import operator
import reprlib
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, SchemaValidator, ValidationError
from pydantic_core import core_schema as core

from results.schema import SCHEMA_VERSION, Record
from results.schema.bounds import MAX_LIST_LENGTH, Bound, bound_of, text_problem
from results.schema.record_json import MAX_RECORD_BYTES, NewerRecord, RecordError, contradictions
from results.schema.upgrades import RECORD_CHANGES, CannotUpgrade, upgrade

MAX_TEXTS = 1000
"""Maximum entries of an object of texts; an environment has about a dozen relevant variables."""

MAX_PROBLEMS = 20
"""Maximum number of mistakes reported per document."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ParsedRecord:
    """A record, and what it does not contain of its text.

    Attributes:
        unknown: Paths of keys that the schema does not have, without indices of lists; at most `MAX_PROBLEMS`.
    """

    record: Record
    unknown: tuple[str, ...] = ()


def from_json(text: str | bytes) -> Record:
    """Return the record of `parse_record`."""
    return parse_record(text).record


def parse_record(text: str | bytes) -> ParsedRecord:
    """Parse and check a record.

    Args:
        text: Untrusted text, at most `MAX_RECORD_BYTES`.

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
    unknown: tuple[str, ...] = ()
    try:
        record: Record = _validator(Record).validate_python(document)
    except ValidationError as error:
        unknown = _remove_unknown_keys(document, error)
        record = checked(Record, document)
    if problems := contradictions(record):
        raise RecordError(problems)
    return ParsedRecord(record, unknown)


def _upgrade(document: dict[str, Any]) -> None:
    """Change a parsed record of an older version into one of the current version."""
    version = document.get("schema_version")
    expected = f"schema_version must be 1 to {SCHEMA_VERSION}. Received: {_shown(version)}"
    if type(version) is not int or version < 1:
        raise RecordError([expected])
    if version > SCHEMA_VERSION:
        raise NewerRecord([f"{expected}. A newer tfbench wrote this record: update tfbench to read it"])
    try:
        upgrade(document, version, RECORD_CHANGES)
    except CannotUpgrade as error:
        raise RecordError([str(error)]) from error
    document["schema_version"] = SCHEMA_VERSION


def _remove_unknown_keys(document: dict[str, Any], error: ValidationError) -> tuple[str, ...]:
    """Remove keys that the schema does not have from a parsed record, and return their paths."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    places = [item["loc"] for item in found if item["type"] == "unexpected_keyword_argument"]
    for *parents, name in places:
        del functools.reduce(operator.getitem, parents, typing.cast(Any, document))[name]
    paths = dict.fromkeys(_where(part for part in place if isinstance(part, str)) for place in places)
    return tuple(itertools.islice(paths, MAX_PROBLEMS))


def checked(kind: type[T], document: object) -> T:
    """Build a dataclass of the schema from parsed JSON, checking every field.

    Raises:
        RecordError: Missing or unknown keys, wrong types or values out of bounds; at most `MAX_PROBLEMS`.
    """
    try:
        built: T = _validator(typing.cast(Any, kind)).validate_python(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise RecordError([_problem(item) for item in found[:MAX_PROBLEMS]]) from error
    return built


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
        case "unexpected_keyword_argument":
            return f"{where}: unknown key"
        case "dataclass_type":
            return f"{where}: must be an object. Received: {_shown(error['input'])}"
        case _:
            return f"{where}: {error['msg']}. Received: {_shown(error['input'])}"


def _where(parts: Iterable[str | int]) -> str:
    """Format the place of a value: `measurement.ranks[0].rank`."""
    return "".join(_step(part) for part in parts).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part if part.isidentifier() and part.isascii() else _shown(part)}"


@functools.cache
def _validator(kind: type) -> SchemaValidator:
    """Return the validator of a dataclass, cached because building it takes milliseconds."""
    return SchemaValidator(_dataclass(kind))


def _dataclass(kind: Any) -> CoreSchema:
    hints = typing.get_type_hints(kind)
    fields = []
    for item in dataclasses.fields(kind):
        schema = _value(hints[item.name], item.name, bound_of(kind.__name__, item.name))
        if item.default is not dataclasses.MISSING:
            schema = core.with_default_schema(schema, default=item.default)
        elif item.default_factory is not dataclasses.MISSING:
            schema = core.with_default_schema(schema, default_factory=item.default_factory)
        fields.append(core.dataclass_field(item.name, schema, kw_only=True))
    arguments = core.dataclass_args_schema(kind.__name__, fields, extra_behavior="forbid")
    names = [item.name for item in dataclasses.fields(kind)]
    return core.dataclass_schema(kind, arguments, names, post_init=hasattr(kind, "__post_init__"))


def _value(hint: Any, name: str, bound: Bound) -> CoreSchema:
    """Return the schema of a field's value, from its type."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = (part for part in kinds if part is not types.NoneType)
    schema = _known(kind, name, bound)
    return core.nullable_schema(schema) if types.NoneType in kinds else schema


def _known(kind: Any, name: str, bound: Bound) -> CoreSchema:
    """Return the schema of a value other than None."""
    text = core.no_info_after_validator_function(functools.partial(_text, name), core.str_schema(strict=True))
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if typing.get_origin(kind) is list:
        return core.list_schema(_value(typing.get_args(kind)[0], name, bound), max_length=MAX_LIST_LENGTH, strict=True)
    if typing.get_origin(kind) is dict:
        return core.dict_schema(text, text, max_length=MAX_TEXTS, strict=True)
    if issubclass(kind, enum.StrEnum):
        return _expecting(f"must be one of {', '.join(kind)}", core.enum_schema(kind, list(kind), sub_type="str"))
    if kind is str:
        return text
    if kind is bool:
        return core.bool_schema(strict=True)
    return _number(kind, bound)


def _number(kind: type, bound: Bound) -> CoreSchema:
    if kind is int:
        whole = core.int_schema(ge=math.ceil(bound.low), le=math.floor(bound.high), strict=True)
        return _expecting(f"must be an integer {bound}", whole)
    within = core.float_schema(ge=bound.low, le=bound.high, strict=True)
    far = core.no_info_after_validator_function(functools.partial(_far_from_zero, bound.closest_to_zero), within)
    return _expecting(f"must be a number {bound}", far)


def _expecting(message: str, schema: CoreSchema) -> CoreSchema:
    return core.custom_error_schema(schema, "value", custom_error_message=message)


def _far_from_zero(least: float, value: float) -> float:
    if -least < value < least and value != 0:
        raise ValueError("too close to 0")
    return value


def _text(name: str, value: str) -> str:
    if problem := text_problem(name, value):
        raise PydanticCustomError("value", problem)
    return value
