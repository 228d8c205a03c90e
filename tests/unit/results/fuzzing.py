"""Folders of records as no orchestrator would leave them, and every command of `python -m results` run on them.

A folder starts from good records. Some are then spoilt: values of wrong types, at the ends of their bounds or beyond,
hostile texts, missing and unknown keys, halves of files, copies. A command may refuse, in a line and with a documented
exit code. It may never raise, hang (pytest's timeout), or send a control character to whoever reads what it prints.
"""

import contextlib
import copy
import dataclasses
import functools
import io
import json
import re
import traceback
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import results.__main__ as program
from results.schema import Latency, Mode, Record, Telemetry
from results.schema.record_json import to_json
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, make_record

FLEETS = (
    *("a4000", "a5000", "😀" * 50, "=cmd|' /C calc'!A0", "[bold]x[/]:bomb:", "a|b`*_", "</script><b>", "-", "ä \u200d"),
)
GPUS = ("NVIDIA RTX A4000", "NVIDIA RTX A5000", "NVIDIA A100-SXM4-80GB", "\x1b[31mNVIDIA\x07 H100", "=1+1", "")
MODELS = ("resnet50", "vgg16", "inception_v3", "bert_large", "gpt2_small", "no_such_network")
RATES = (1e-9, 1e-3, 99.0, 100.0, 100.1, 101.0, 453.2, 1610.0, 1e6, 1e14)
TIMES = ("1970-01-01T00:00:00Z", "2026-11-01T10:00:00Z", "2026-11-02T10:00:00.5+00:00", "9999-12-31T23:59:59Z")
NASTY: tuple[Any, ...] = (
    *(None, True, [], {}, "", [[]], {"a": None}, 0, -0.0, -1, -1.0, 1, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**30),
    *(10**400, -(10**400), 1e15, 1e25, 1e30, 1e304, 1e308, -1e308, 1e-30, 1e-200, 5e-324),
    *("\ud800", "😀" * 50, "\x1b[2J\x1b]0;x\x07", "\x00", "\u202e", "\u2028", "\ufffe", "a\nb", "=1+1", "x" * 30_000),
    *("yesterday", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00Z", "2026-11-01T10:00:00", "1", "nan", "inf", "-5"),
    *([1.0] * 3, [0.0] * 4, [1e308] * 4, ["x"], [None], [[[[[[]]]]]]),
)
"""Values to put in the place of any other."""

BYTES = (b"", b"null", b"[]", b"\xff\xfe{\x00", b"[" * 3000, b'{"schema_version": 1}', b'{"a": 1e999}', b"9" * 5000)
"""Files that are no records."""

COMMANDS = (
    "validate",
    "show run-1 run-2",
    "export run-1 run-2 --by=all",
    "export run-1 --by=all --format=markdown",
    "compare run-1 --by=all --format=markdown",
    "compare {first} {last} run-1 --strict",
    "compare run-1 --baseline=run-2 --by=all --fail-on=5%",
    "recommend run-1 --model={model} --precision=fp32 --num-gpus=8 --budget=1",
    "recommend run-1 --model={model}, --format=json --gpus=A4000,A5000",
    "report run-1 run-2 --format=md",
    "report run-1 --output=report.html",
    "audit table.csv --format=markdown",
    "prices table.csv --provider=x --retrieved-on=2026-11-01",
)
"""`{first}` and `{last}` are fleets; `table.csv` is what `export` printed last."""

Place = tuple[tuple[str | int, ...], str, type | None, Any]
"""Where a field lies, its name, and the type and the bound of its values; None: it holds parts or one of some words."""


def places(part: Any, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Yield every field of a record, with those of its parts."""
    for item in dataclasses.fields(part):
        hint, value = _hints(type(part))[item.name], getattr(part, item.name)
        yield (*path, item.name), item.name, *_kind(hint)
        first = value[0] if isinstance(value, list) and value else value
        if dataclasses.is_dataclass(first):
            yield from places(first, (*path, item.name) if first is value else (*path, item.name, 0))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _kind(hint: Any) -> tuple[type | None, Any]:
    """Return the type of a number, a text or those in a list, and its bound; without one None."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    kind, bound = getattr(hint, "__origin__", hint), next(iter(getattr(hint, "__metadata__", ())), None)
    if typing.get_origin(kind) is list:
        return _kind(typing.get_args(kind)[0])
    return (kind, bound) if kind in (int, float, str) else (None, None)


@st.composite
def records(draw: st.DrawFn, fleets: tuple[str, ...], models: tuple[str, ...], device: str) -> Record:
    """Draw a good record."""
    fleet, mode = draw(st.sampled_from(fleets)), draw(st.sampled_from((Mode.TRAIN, Mode.TRAIN, Mode.INFER)))
    case = make_case(
        draw(st.sampled_from(models)),
        precision=draw(st.sampled_from(("fp32", "fp32", "fp16"))),
        device=device,
        num_gpus=draw(st.sampled_from((1, 1, 1, 2, 8))),
        mode=mode,
        all_reduce=mode is Mode.INFER or draw(st.integers(0, 9)) > 0,
    )
    origin = make_origin(
        fleet,
        draw(st.sampled_from(("node-a", "node-b", "x" * 200))),
        draw(st.integers(1, 4)),
        run_id=draw(st.sampled_from(("run-1", "run-2"))),
        usd_per_gpu_hour=draw(st.sampled_from((None, None, 1e-9, 0.17, 0.36, 1e6))),
    )
    gpu, driver = GPUS[FLEETS.index(fleet) % len(GPUS)], draw(st.sampled_from((None, None, "550.54.14", "570.86.10")))
    environment = make_environment(case.num_gpus if device == "gpu" else 0, gpu, driver=driver)
    if draw(st.integers(0, 4)) == 0:
        status, cause = draw(st.sampled_from((("oom", "out of memory"), ("error", "\x1b[31mred\n😀 <b>|" * 500))))
        known = draw(st.sampled_from((None, environment)))
        return make_failure(status, cause, case=case, origin=origin, environment=known)
    record = make_record(
        draw(st.sampled_from(RATES) | st.floats(90, 110)),
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
def contents(draw: st.DrawFn, record: Record) -> bytes:
    """Draw what a record's file holds: the record, one at the ends of its bounds, or one that is spoilt."""
    document = json.loads(to_json(record))
    for _ in range(draw(st.sampled_from((0, 0, 1, 2, 3)))):
        path, _, kind, bound = draw(st.sampled_from(list(places(record))))
        ends: tuple[Any, ...] = ()
        if kind in (int, float):
            ends = (bound.low, bound.high, bound.closest_to_zero, bound.low / 2, bound.high * 2, bound.low - 1, 0)
        value = draw(st.sampled_from(ends if ends and draw(st.booleans()) else (*NASTY, ...)))
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change took the part away
            part = functools.reduce(lambda part, step: part[step], path[:-1], document)
            if value is ...:
                part["unknown"] = part.pop(path[-1])
            else:
                part[path[-1]] = kind(value) if kind and value in ends else copy.deepcopy(value)
    content = json.dumps(document).encode()
    return draw(st.sampled_from((*[content] * 12, content[: len(content) // 2], content + content)))


@st.composite
def folders(draw: st.DrawFn) -> tuple[dict[str, bytes], dict[str, str]]:
    """Draw the files of two runs, and what commands name of them."""
    fleets = (*FLEETS[:2], *draw(st.lists(st.sampled_from(FLEETS), max_size=1)))
    models = tuple(draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=2)))
    device, files = draw(st.sampled_from(("gpu", "cpu"))), {}
    for number in range(draw(st.sampled_from((8, 10, 12, 14, 4, 2, 1, 0)))):
        content = draw(contents(draw(records(fleets, models, device))))
        files[f"{draw(st.sampled_from(('run-1', 'run-1', 'run-2')))}/records/job-{number}.json"] = content
        if draw(st.integers(0, 14)) == 0:
            files[f"run-1/records/copy-{number}.json"] = content
    if draw(st.booleans()):
        name = draw(st.sampled_from(("a\nb", "\udcff\udcfe", "=x", "", "[b]:bomb:", "x" * 240)))
        files[f"run-1/records/{name}.json"] = draw(st.sampled_from(BYTES))
    return files, {"first": fleets[0], "last": fleets[-1], "model": models[0]}


def write(files: dict[str, bytes], parent: Path) -> None:
    """Write the files of `folders` below a folder."""
    for run in ("run-1", "run-2"):
        (parent / run / "records").mkdir(parents=True)
    for name, content in files.items():
        (parent / name).write_bytes(content)


def fault_of(*line: str) -> str:
    """Run one command in the current folder; return what it did that it must not; empty: nothing."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = program.main(["results", *line])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 2
    except Exception:  # noqa: BLE001 (what it is for)
        return traceback.format_exc()
    printed, said = (typing.cast(io.BytesIO, stream.buffer).getvalue().decode() for stream in (output, errors))
    if line[0] == "export":
        Path("table.csv").write_text(printed, encoding="utf-8")
    if code not in (0, 2, 3, 5):  # done; usage, or a file that is no table; something failed; a regression
        return f"exit code {code}: {said}"
    hidden = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed + said)
    return f"printed {hidden.group()!r}" if hidden else ""
