"""Reads the figures of a process: a record of tfbench, a probe's JSON, or the output of tf_cnn_benchmarks."""

import contextlib
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.runs.reading import from_json
from results.schema import Record, Status
from results.schema.record_json import RecordError
from studies.tf_cnn_benchmarks import images_per_second


class NoFigure(Exception):
    """A step has no figure.

    Attributes:
        outcome: The outcome instead.
        cause: One line, for people.
    """

    def __init__(self, outcome: str, cause: str) -> None:
        super().__init__(cause)
        self.outcome, self.cause = outcome, " ".join(cause.split())


@dataclass(frozen=True)
class Figure:
    """A number with its unit; `limit` is that of a validity check."""

    value: float
    unit: str
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Figures of a process or a comparison.

    Attributes:
        figures: By name.
        details: Further values.
        note: One line for the summary.
    """

    figures: dict[str, Figure]
    details: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An ended process.

    Attributes:
        exit_code: Negative: the signal; None: stopped at the limit.
        record: Its record or standard output; may be missing.
        log: Its other output.
    """

    name: str
    command: list[str]
    seconds: float
    exit_code: int | None
    record: Path
    log: Path


def read_step(answer: str, runs: Sequence[Ended]) -> Reading:
    """Read a step; for a comparison, divide the first side's median by the second's, over the complete pairs.

    Args:
        answer: Name of the figure.
        runs: Runs in order, up to the first that failed.

    Raises:
        NoFigure: There is no such figure.
    """
    if not runs[0].name.endswith("-1"):
        return read(answer, runs[0])
    sides: dict[str, list[float]] = {}
    details: dict[str, Any] = {}
    broken, warned = None, []
    for run in runs:
        side = run.name.rpartition("-")[0]
        try:
            reading = read(answer, run)
        except NoFigure as error:
            broken = NoFigure(error.outcome, f"{run.name}: {error.cause}")
            break
        sides.setdefault(side, []).append(reading.figures[answer].value)
        details |= {f"{side}_{name}": value for name, value in reading.details.items()}
        warned += [f"{run.name}: {reading.note}"] if reading.note else []
    pairs = min(map(len, sides.values())) if len(sides) == 2 else 0
    if pairs == 0:
        raise broken or NoFigure(
            "failed", f"no pair was measured: {runs[-1].name} ended with exit code {runs[-1].exit_code}"
        )
    (first, ours), (second, theirs) = ((name, values[:pairs]) for name, values in sides.items())
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio = Figure(statistics.median(ours) / statistics.median(theirs), f"× {second}")
    notes = [f"{pairs} pair(s): {min(ratios):.3f} to {max(ratios):.3f}", *([f"then {broken.cause}"] if broken else [])]
    return Reading(
        figures={answer: ratio}, details=details | {first: ours, second: theirs}, note="; ".join([*notes, *warned])
    )


def read(answer: str, run: Ended) -> Reading:
    """Read one process.

    Raises:
        NoFigure: It has no figure of that name.
    """
    with contextlib.suppress(RecordError):
        record = _record(run)
        reading = _of_record(record)
        if record.simulated:
            raise NoFigure("failed", f"{record.status}: {record.cause}")
        if record.status not in (Status.OK, Status.INVALID) or answer not in reading.figures:
            raise NoFigure(_outcome(record.status), f"{record.status}: {record.cause or f'it has no {answer}'}")
        return reading
    text = run.record.read_text(encoding="utf-8", errors="replace") if run.record.exists() else ""
    document = _printed_object(text)
    if run.exit_code is None or (run.exit_code != 0 and "findings" not in document):
        raise _ended_badly(run)
    if "outcome" in document:
        raise NoFigure(document["outcome"], document["cause"])
    if document.get("verdict") == "not ready":
        raise NoFigure("failed", document["summary"])
    if "findings" in document:
        count = Figure(len(document["findings"]), "findings")
        return Reading(figures={"findings": count}, details=document, note=document["summary"])
    if "figures" in document:
        figures = {name: Figure(*figure) for name, figure in document["figures"].items()}
        return Reading(figures=figures, details=document.get("details", {}), note=document.get("note", ""))
    if (rate := images_per_second(text)) is not None:
        return Reading(figures={"throughput": Figure(rate, "images/s")})
    raise NoFigure("failed", "it printed no figure")


def _record(run: Ended) -> Record:
    """Return a run's record.

    Raises:
        RecordError: There is none.
    """
    try:
        return from_json(run.record.read_bytes())
    except FileNotFoundError:
        raise RecordError(["it wrote none"]) from None


def _outcome(status: Status) -> str:
    return str(status) if status in (Status.NO_GPU, Status.TIMEOUT) else "failed"


def _of_record(record: Record) -> Reading:
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {"case": record.case.name, "method_version": record.method_version}
    note = [warning.code for warning in record.warnings]
    if record.validity is not None:
        applied = [check for check in record.validity.checks if check.passed is not None]
        passed = sum(bool(check.passed) for check in applied)
        figures["checks_passed"] = Figure(passed, f"of {len(applied)} checks")
        figures |= {check.name: Figure(check.value, "", check.limit) for check in applied if check.value is not None}
        note += [f"FAILED {check.name}: {check.detail}" for check in applied if not check.passed]
    if (measurement := record.measurement) is not None:
        figures["throughput"] = Figure(measurement.samples_per_second, f"{measurement.unit}/s")
        figures["batch"] = Figure(record.case.batch_per_gpu, "samples per GPU")
        if (latency := measurement.latency) is not None:
            figures["latency_p50"] = Figure(1000 * latency.p50_seconds, "ms")
            figures["latency_p99"] = Figure(1000 * latency.p99_seconds, "ms")
        names = ("step_p50_seconds", "step_cv", "flops_utilisation", "bandwidth_utilisation", "compile_seconds")
        details |= {name: getattr(measurement, name) for name in names}
    if record.telemetry is not None:
        details |= vars(record.telemetry)
    for result in record.device_results:
        name = "-".join(filter(None, (result.metric, result.arithmetic)))
        if result.value is None:
            details[f"{name}_not_measured"] = result.reason
        else:  # the largest all-reduce is the last
            scale, prefix = (1e12, "T") if result.unit.startswith("FLOP") else (1e9, "G")
            figures[name] = Figure(result.value / scale, prefix + result.unit)
    return Reading(
        figures=figures,
        details={name: value for name, value in details.items() if value is not None},
        note="; ".join(note),
    )


def _printed_object(text: str) -> dict[str, Any]:
    """Return the first JSON object at the start of a line; empty: there is none."""
    for line in re.finditer(r"^{", text, re.MULTILINE):
        with contextlib.suppress(ValueError):
            return dict(json.JSONDecoder().raw_decode(text, line.start())[0])
    return {}


def _ended_badly(run: Ended) -> NoFigure:
    """Return the cause of a process without a result, with the last line of its output."""
    if run.exit_code is None:
        return NoFigure("timeout", f"cut after {run.seconds:.0f} s")
    lines = [line for line in run.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return NoFigure("failed", f"exit code {run.exit_code}: {lines[-1][:300] if lines else 'it printed nothing'}")
