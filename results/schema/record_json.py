"""Records as JSON: written in one line, read distrustfully.

Standard library only, because this file also runs in every container. What comes back from a host is refused with all
of its mistakes where it has unknown or repeated keys, wrong types, values outside of `results.schema.bounds`, numbers
that do not follow from their parts, or an `ok` without a passed validity check.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import math
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from results.schema import DEVICE_MODEL, SCHEMA_VERSION, Case, DeviceResult, Measurement, Record, Status
from results.schema.bounds import MAX_LIST_LENGTH, TIMES, Bound, bound_of, text_problem
from results.schema.case import REMOVED_SETTINGS

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""A record larger than this is refused unread: 100,000 step times take about 2 MB."""


MAX_TEXTS = 1000
"""Most entries of an object of texts: an environment has a dozen variables that matter."""

MAX_PROBLEMS = 20
"""Most mistakes that are reported of one record."""


class RecordError(ValueError):
    """A text is not a record.

    Attributes:
        problems: One line per mistake: where, what came in, what was expected.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def to_json(record: Record) -> str:
    """Write a record as JSON, one line, keys in the order of the schema.

    Raises:
        ValueError: A number is not finite; JSON has no word for it.
    """
    return json.dumps(record, default=vars, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(text: str | bytes) -> Record:
    """Read and validate a record.

    Args:
        text: At most `MAX_RECORD_BYTES`; nothing in it is trusted.

    Raises:
        RecordError: Not a record; all mistakes at once (at most `MAX_PROBLEMS`).
    """
    if len(text) > MAX_RECORD_BYTES:
        raise RecordError([f"larger than {MAX_RECORD_BYTES} bytes: {len(text)} came in"])
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise RecordError([f"not JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise RecordError([f"must be a JSON object. Received: {_shown(document)}"])
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordError(
            [f"schema_version must be {SCHEMA_VERSION}, the one this tfbench reads. Received: {_shown(version)}"]
        )
    _without_removed_settings(document)
    problems: list[str] = []
    record = _build_dataclass(Record, document, "", problems)
    problems = problems[:MAX_PROBLEMS] or _contradictions(record)
    if problems:
        raise RecordError(problems)
    return typing.cast(Record, record)


def _without_removed_settings(document: dict[str, Any]) -> None:
    """Read a record of 0.9 or earlier, whose timed steps could end early (`target_ci`): those taken are its steps.

    Raises:
        RecordError: A removed setting was not at its default: nothing of today is comparable with that record.
    """
    case, measured = document.get("case"), document.get("measurement")
    if not isinstance(case, dict):
        return
    for name, default in REMOVED_SETTINGS.items():
        if case.pop(name, default) != default:
            raise RecordError([f"case.{name} was removed. Measure the case again without it"])
    if case.pop("target_ci", None) is not None and isinstance(measured, dict):
        case["num_steps"] = measured.get("num_steps")


T = TypeVar("T")


def from_dict(kind: type[T], document: dict[str, Any]) -> T:
    """Build a dataclass of the schema from parsed JSON, checking every field.

    Raises:
        RecordError: Missing or unknown keys, wrong types, values outside of their bounds; at most `MAX_PROBLEMS`.
    """
    problems: list[str] = []
    built = _build_dataclass(kind, document, "", problems)
    if problems:
        raise RecordError(problems[:MAX_PROBLEMS])
    return typing.cast(T, built)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of JSON, in which no key may come twice: readers disagree on which of the two counts."""
    built = dict(pairs)
    if len(built) != len(pairs):
        (key, count), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {_shown(key)} appears {count} times")
    return built


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 2, 80, 80


def _shown(value: object) -> str:
    """Show what came in, short enough for a message and without characters that a terminal obeys."""
    text = _BRIEF.repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


_Builder = Callable[[Any, str, list[str]], Any]
"""Builds a field's value from JSON: takes what came in, its path, and the list that mistakes are reported to."""


class _Field(NamedTuple):
    """What a field of a dataclass takes.

    Attributes:
        required: Whether it has no default.
        scalars: Types of JSON that are taken as they are.
        bound: Range of its numbers.
        build: Checks and builds all that is not obviously good.
    """

    name: str
    required: bool
    scalars: frozenset[type]
    bound: Bound
    build: _Builder


@functools.cache
def _fields(kind: Any) -> dict[str, _Field]:
    """Return what each field of a dataclass takes; looked up once, it takes a millisecond."""
    hints = typing.get_type_hints(kind)
    found = {}
    for item in dataclasses.fields(kind):
        hint, bound = hints[item.name], bound_of(kind.__name__, item.name)
        parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        (wanted,) = (part for part in parts if part is not types.NoneType)
        found[item.name] = _Field(
            item.name,
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING,
            frozenset(part for part in parts if part in _TYPE_NAMES or part is types.NoneType),
            bound,
            _builder(wanted, item.name, bound),
        )
    return found


def _builder(kind: Any, name: str, bound: Bound) -> _Builder:
    """Return what builds a value of a type that is not None, for the field `name`."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_build_dataclass, kind)
    if origin is list:
        (item,) = typing.get_args(kind)
        return functools.partial(_build_list, item, bound, _builder(item, name, bound))
    if origin is dict:
        return functools.partial(_build_texts, name)
    return functools.partial(_build_scalar, kind, name, bound)


def _is_good(value: Any, field: _Field) -> bool:
    """Return whether `value` obviously is what a field takes: most are, and need no closer look."""
    kind = type(value)
    if kind not in field.scalars:
        return False
    if kind is float or kind is int:
        return field.bound.holds(value)
    return kind is not str or (
        len(value) <= 100 and value.isascii() and value.isprintable() and field.name not in TIMES
    )


def _build_dataclass(kind: Any, value: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        problems.append(f"{where or 'record'}: must be an object. Received: {_shown(value)}")
        return None
    wanted = _fields(kind)
    prefix = f"{where}." if where else ""
    unknown = [key for key in value if key not in wanted]
    problems.extend(
        f"{prefix}{key if key.isidentifier() and key.isascii() else _shown(key)}: unknown key"
        for key in unknown[:MAX_PROBLEMS]
    )
    arguments = {}
    for name, field in wanted.items():
        if name in value:
            item = value[name]
            if not _is_good(item, field):  # most are: nothing to build, nothing to report
                item = field.build(item, prefix + name, problems)
            arguments[name] = item
        elif field.required:
            problems.append(f"{prefix}{name}: missing")
    return None if problems else kind(**arguments)


def _build_list(kind: Any, bound: Bound, build: _Builder, value: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(value, list) or len(value) > MAX_LIST_LENGTH:
        problems.append(f"{where}: must be a list of at most {MAX_LIST_LENGTH} items. Received: {_shown(value)}")
        return []
    if kind is float and set(map(type, value)) == {float} and bound.holds_all(value):
        return value  # step times: the long list of a record
    built = []
    for index, item in enumerate(value):
        built.append(build(item, f"{where}[{index}]", problems))
        if len(problems) >= MAX_PROBLEMS:
            break
    return built


def _build_texts(name: str, value: Any, where: str, problems: list[str]) -> Any:
    """Check an object of texts by name."""
    if (
        not isinstance(value, dict)
        or len(value) > MAX_TEXTS
        or not all(isinstance(text, str) for text in value.values())
    ):
        problems.append(f"{where}: must be an object of at most {MAX_TEXTS} texts. Received: {_shown(value)}")
        return {}
    found = [problem for pair in value.items() for text in pair if (problem := text_problem(name, text))]
    problems.extend(f"{where}: {problem}" for problem in found[:1])
    return value


def _build_scalar(kind: Any, name: str, bound: Bound, value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(kind)
            problems.append(f"{where}: must be one of {words}. Received: {_shown(value)}")
            return None
    if type(value) is not kind and not (kind is float and type(value) is int):
        problems.append(f"{where}: must be {_TYPE_NAMES[kind]}. Received: {_shown(value)}")
    elif kind in (float, int):
        if bound.holds(value):
            return kind(value)
        problems.append(f"{where}: must be {bound}. Received: {_shown(value)}")
    elif kind is str and (problem := text_problem(name, value)):
        problems.append(f"{where}: {problem}. Received: {_shown(value)}")
    return value


_TYPE_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def _contradictions(record: Record) -> list[str]:
    """Name what a well-formed record claims and cannot be: a number without proof, a failure without a cause."""
    problems = []
    if record.status is Status.OK:
        measured = record.device_results if record.case.model == DEVICE_MODEL else record.measurement
        if not measured or record.environment is None or record.validity is None:
            problems.append("status is ok, but measurement, environment or validity is missing")
        elif record.simulated:
            problems.append("status is ok, but its GPUs are simulated")
        elif not record.validity.valid or any(check.passed is False for check in record.validity.checks):
            problems.append("status is ok, but a validity check failed")
        elif not any(check.passed for check in record.validity.checks):
            problems.append("status is ok, but no validity check was made")
    elif not record.cause:
        problems.append(f"status is {record.status}, but cause is empty")
    if not bound_of("Measurement", "global_batch").holds(record.case.global_batch):
        problems.append(f"case: the global batch is {record.case.global_batch}, which is too large for any machine")
    if record.measurement is not None:
        problems.extend(_measurement_contradictions(record.case, record.measurement))
    for index, result in enumerate(record.device_results):
        problems.extend(f"device_results[{index}]: {problem}" for problem in _result_contradictions(result))
    return problems


def _result_contradictions(result: DeviceResult) -> list[str]:
    """Check that a device's figure follows from what was counted, or is missing for a reason."""
    if result.value is None:
        return [] if result.reason else ["has neither a value nor a reason"]
    if result.amount is None or result.seconds is None or min(result.amount, result.seconds, result.value) <= 0:
        return ["amount, seconds and value must be positive"]
    if not math.isclose(result.value, result.amount / result.seconds, rel_tol=1e-6):
        return [f"value is {result.value}, but amount / seconds is {result.amount / result.seconds}"]
    return []


def _measurement_contradictions(case: Case, measurement: Measurement) -> list[str]:
    """Check the sums of a measurement: what is derived must follow from what was counted."""
    problems = []
    if measurement.seconds <= 0 or measurement.samples <= 0:
        return ["measurement: samples and seconds must be positive"]
    rate = measurement.samples / measurement.seconds
    if not math.isclose(measurement.samples_per_second, rate, rel_tol=1e-6):
        problems.append(
            f"measurement.samples_per_second is {measurement.samples_per_second}, but samples / seconds is {rate}"
        )
    tokens = (measurement.sequence_length or 1) if measurement.unit == "tokens" else 1
    if measurement.samples != measurement.global_batch * measurement.num_steps * tokens:
        problems.append("measurement.samples is not global_batch × num_steps (× sequence_length where they are tokens)")
    if measurement.global_batch != measurement.batch_per_gpu * measurement.replicas * case.accumulate:
        problems.append("measurement.global_batch is not batch_per_gpu × replicas × accumulate")
    if (measurement.replicas, measurement.batch_per_gpu) != (case.replicas, case.batch_per_gpu):
        problems.append("measurement: replicas or batch_per_gpu differ from the case's")
    most = case.num_steps if case.min_seconds is None else MAX_LIST_LENGTH
    if not case.num_steps <= measurement.num_steps <= most:
        problems.append(f"measurement.num_steps is {measurement.num_steps}, but the case asked for {case.num_steps}")
    if measurement.ranks or case.num_hosts > 1:
        problems.extend(_rank_contradictions(case, measurement))
    if len(measurement.step_seconds) != measurement.num_steps:
        problems.append("measurement.step_seconds must have one entry per step")
    elif min(measurement.step_seconds) < 0 or sum(measurement.step_seconds) > measurement.seconds * 1.001:
        problems.append("measurement.step_seconds adds up to more than measurement.seconds")
    return problems


def _rank_contradictions(case: Case, measurement: Measurement) -> list[str]:
    """Check that the ranks are those of the case, and that the whole follows from them."""
    ranks = measurement.ranks
    if case.num_hosts == 1 or [rank.rank for rank in ranks] != list(range(case.num_hosts)):
        return [f"measurement.ranks: must have one entry for each of {case.num_hosts} hosts that train together"]
    problems = []
    if sum(rank.samples for rank in ranks) != measurement.samples:
        problems.append("measurement.samples is not the sum over the ranks")
    if not math.isclose(measurement.seconds, max(rank.seconds for rank in ranks), rel_tol=1e-9):
        problems.append("measurement.seconds is not that of the slowest rank")
    for rank in ranks:
        if rank.seconds <= 0 or not math.isclose(rank.samples_per_second, rank.samples / rank.seconds, rel_tol=1e-6):
            problems.append(f"measurement.ranks[{rank.rank}]: samples_per_second is not samples / seconds")
    return problems
