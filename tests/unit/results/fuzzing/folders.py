"""Folders of records as no orchestrator would leave them: hypothesis strategies that know a record's structure.

A folder starts from good records, some with values at the ends of their bounds. Some are then spoilt: wrong types, extreme
numbers, hostile texts, missing, unknown and repeated keys, halves of files, copies, and what is no file at all.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from results.schema import Latency, Mode, Record, Telemetry
from results.schema.bounds import bound_of
from results.schema.record_json import to_json
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, make_record

FLEETS = (
    "a4000",
    "a5000",
    "😀" * 50,
    "=cmd|' /C calc'!A0",
    "[bold]x[/]:bomb:",
    "a|b`*_",
    "</script><b>",
    "-",
    "\u00e4 \u200d",
)
GPUS = ("NVIDIA RTX A4000", "NVIDIA RTX A5000", "NVIDIA A100-SXM4-80GB", "\x1b[31mNVIDIA\x07 H100", "=1+1", "")
MODELS = ("resnet50", "vgg16", "inception_v3", "bert_large", "gpt2_small", "no_such_network")
RATES = (1e-9, 1e-3, 99.0, 100.0, 100.1, 101.0, 453.2, 1610.0, 1e6, 1e14)
PRICES = (None, None, 1e-9, 0.17, 0.36, 1e6)
TIMES = ("1970-01-01T00:00:00Z", "2026-11-01T10:00:00Z", "2026-11-02T10:00:00.5+00:00", "9999-12-31T23:59:59Z")

NASTY: tuple[Any, ...] = (
    *(None, True, [], {}, "", [[]], {"a": None}, 0, -0.0, -1, -1.0, 1, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**25, 10**30),
    *(10**400, -(10**400), 1e15, 1e25, 1e30, 1e304, 1e308, -1e308, 1e-30, 1e-200, 5e-324),
    *("\ud800", "😀" * 50, "\x1b[2J\x1b]0;x\x07", "\x00", "\u202e", "\u2028", "\ufffe", "a\nb", "=1+1", "x" * 30_000, "/" * 400),
    *("yesterday", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00Z", "2026-11-01T10:00:00", "1", "nan", "inf", "-5"),
    *([1.0] * 3, [0.0] * 4, [1e308] * 4, ["x"], [None], [[[[[[]]]]]]),
)  # fmt: skip
"""Values to put in the place of any other."""

BYTES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe{\x00",
    b"\x00" * 40,
    b"[" * 3000,
    b'{"schema_version": 1}',
    b'{"a": 1e999}',
    b"9" * 5000,
)
"""Files that are no records."""

NAMES = (
    "a.json",
    "\x1b[31m.json",
    "a\nb.json",
    "\udcff\udcfe.json",
    "=x.json",
    ".json",
    "[b]:bomb:.json",
    "x" * 240 + ".json",
)
"""Names of files that a shell can make."""

KINDS = ("fifo", "folder", "loop", "device", "broken", "unreadable")
"""What a name may lead to that is no file to read."""


@dataclass(frozen=True)
class Entry:
    """One file, or what is in its place.

    Attributes:
        kind: `file`, or one of `KINDS`.
    """

    run: str
    name: str
    kind: str
    content: bytes = b""


@dataclass(frozen=True)
class World:
    """What the records of a folder have in common, so that they meet in rows, fleets and pairs.

    Attributes:
        gpus: By fleet.
    """

    gpus: dict[str, str]
    models: tuple[str, ...]
    device: str


@dataclass(frozen=True)
class Folder:
    """Runs to be written.

    Attributes:
        world: What their records name.
    """

    entries: tuple[Entry, ...]
    world: World

    def write(self, parent: Path) -> list[str]:
        """Write the runs; return their ids."""
        runs = ["run-1", "run-2"]
        for run in runs:
            (parent / run / "records").mkdir(parents=True)
        for entry in self.entries:
            _write(entry, parent / entry.run / "records" / entry.name)
        return runs


def _write(entry: Entry, path: Path) -> None:
    if path.exists() or path.is_symlink():
        return  # two drew one name
    match entry.kind:
        case "file":
            path.write_bytes(entry.content)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "device":
            path.symlink_to("/dev/zero")
        case "broken":
            path.symlink_to("nothing")
        case "unreadable":
            path.write_bytes(entry.content)
            path.chmod(0)


Step = str | int
Place = tuple[tuple[Step, ...], str, str, tuple[type, ...]]
"""Where a field lies, its class, its name and the scalars that it takes."""


def places(record: Record) -> list[Place]:
    """Return every field of a record, with those of its parts."""
    return list(_places(record, ()))


def _places(part: Any, path: tuple[Step, ...]) -> typing.Iterator[Place]:
    kind = type(part)
    for name, scalars in _scalars(kind).items():
        value = getattr(part, name)
        yield (*path, name), kind.__name__, name, scalars
        if dataclasses.is_dataclass(value):
            yield from _places(value, (*path, name))
        elif isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
            yield from _places(value[0], (*path, name, 0))


@functools.cache
def _scalars(kind: Any) -> dict[str, tuple[type, ...]]:
    hints = typing.get_type_hints(kind)
    found = {}
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[item.name] = tuple(part for part in parts if part in (int, float))
    return found


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw two fleets, or one or three, with what they measure."""
    fleets = draw(st.sampled_from((FLEETS[:2], FLEETS[:2], FLEETS[:1])))
    if draw(st.booleans()):
        fleets = (fleets[0], *draw(st.lists(st.sampled_from(FLEETS), min_size=1, max_size=2)))
    return World(
        gpus={name: draw(st.sampled_from(GPUS)) for name in fleets},
        models=tuple(draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=2))),
        device=draw(st.sampled_from(("gpu", "cpu"))),
    )


@st.composite
def records(draw: st.DrawFn, world: World) -> Record:
    """Draw a good record."""
    mode = draw(st.sampled_from((Mode.TRAIN, Mode.TRAIN, Mode.TRAIN, Mode.INFER)))
    fleet = draw(st.sampled_from(tuple(world.gpus)))
    case = make_case(
        draw(st.sampled_from(world.models)),
        precision=draw(st.sampled_from(("fp32", "fp32", "fp16"))),
        device=world.device,
        num_gpus=draw(st.sampled_from((1, 1, 1, 2, 8))),
        mode=mode,
        all_reduce=mode is Mode.INFER or draw(st.integers(0, 9)) > 0,
    )
    origin = make_origin(
        fleet,
        draw(st.sampled_from(("node-a", "node-b", "x" * 200))),
        draw(st.integers(1, 4)),
        run_id=draw(st.sampled_from(("run-1", "run-2"))),
        usd_per_gpu_hour=draw(st.sampled_from(PRICES)),
    )
    driver = draw(st.sampled_from((None, None, None, "550.54.14", "570.86.10")))
    gpus = case.num_gpus if world.device == "gpu" else 0
    environment = make_environment(gpus, world.gpus[fleet], driver=driver)
    if draw(st.integers(0, 4)) == 0:
        status = draw(st.sampled_from(("oom", "unreachable", "error")))
        cause = draw(st.sampled_from(("out of memory", "\x1b[31mred\nline", "😀 <b>|" * 500)))
        return make_failure(
            status, cause, case=case, origin=origin, environment=draw(st.sampled_from((None, environment)))
        )
    rate = draw(st.sampled_from(RATES)) if draw(st.booleans()) else draw(st.floats(90, 110))
    record = make_record(
        rate,
        case=case,
        origin=origin,
        environment=environment,
        started_at=draw(st.sampled_from(TIMES)),
        warnings=draw(st.sampled_from(((), ("throttled",), ("=1", "[b]")))),
        telemetry=Telemetry(energy_joules=draw(st.sampled_from((None, 0.0, 1e-30, 50.0, 1e18)))),
    )
    if draw(st.integers(0, 19)) == 0:
        record = dataclasses.replace(record, origin=None)
    if mode is Mode.INFER and record.measurement is not None:
        latency = Latency(p50_seconds=0.01, p95_seconds=0.02, p99_seconds=0.02, step_seconds=[0.01, 0.02])
        record = dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, latency=latency))
    return record


@st.composite
def contents(draw: st.DrawFn, world: World) -> bytes:
    """Draw what a record's file holds: the record, one at the ends of its bounds, or one that is spoilt."""
    record = draw(records(world))
    document: dict[str, Any] = json.loads(to_json(record))
    how = draw(st.integers(0, 19))
    if how > 9:
        return _encoded(document)
    found = places(record)
    for _ in range(draw(st.integers(1, 3))):
        path, kind, name, scalars = draw(st.sampled_from(found))
        if how < 6 and scalars:
            _put(document, path, _at_the_end(draw, kind, name, scalars))
        elif how == 6:
            _drop(document, path)
        else:
            _put(document, path, copy.deepcopy(draw(st.sampled_from(NASTY))))  # a later change may go into it
    content = _encoded(document)
    if how == 9 and draw(st.integers(0, 3)) == 0:
        content = draw(
            st.sampled_from((content[: len(content) // 2], b'{"status": "ok", ' + content[1:], content + content))
        )
    return content


def _at_the_end(draw: st.DrawFn, kind: str, name: str, scalars: tuple[type, ...]) -> float:
    """Draw a number at an end of its bound, or just beyond."""
    bound = bound_of(kind, name)
    ends = (bound.low, bound.high, bound.closest_to_zero, bound.low / 2, bound.high * 2, bound.low - 1, 0)
    return scalars[0](draw(st.sampled_from(ends)))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _put(document: Any, path: tuple[Step, ...], value: Any) -> None:
    """Set a field, unless an earlier change took away the part that it belongs to."""
    part = _part(document, path)
    if isinstance(part, dict):
        part[path[-1]] = value


def _drop(document: Any, path: tuple[Step, ...]) -> None:
    part = _part(document, path)
    if isinstance(part, dict):
        part.pop(path[-1], None)


def _part(document: Any, path: tuple[Step, ...]) -> Any:
    try:
        return functools.reduce(lambda part, step: part[step], path[:-1], document)
    except (KeyError, IndexError, TypeError):
        return None


@st.composite
def folders(draw: st.DrawFn) -> Folder:
    """Draw a folder of up to 14 records and two things that are none."""
    entries = []
    world = draw(worlds())
    for number in range(draw(st.sampled_from((8, 10, 12, 14, 6, 4, 2, 1, 0)))):
        content = draw(contents(world))
        run = draw(st.sampled_from(("run-1", "run-1", "run-2")))
        entries.append(Entry(run, f"job-{number}.json", "file", content))
        if draw(st.integers(0, 14)) == 0:
            entries.append(Entry("run-1", f"copy-{number}.json", "file", content))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(("file", *KINDS)))
        entries.append(Entry("run-1", draw(st.sampled_from(NAMES)), kind, draw(st.sampled_from(BYTES))))
    return Folder(tuple(entries), world)
