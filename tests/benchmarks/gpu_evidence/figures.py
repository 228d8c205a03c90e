"""Reads a step's figure: from its records where there are some, from what was printed only where there are none."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.runs.reading import from_json
from results.schema import Record, Status
from results.schema.record_json import RecordError
from tests.benchmarks.gpu_evidence.runner import Ended
from tests.benchmarks.gpu_evidence.steps import NoFigure, Outcome
from tests.benchmarks.tf_cnn_benchmarks import images_per_second

LAYOUT_KERNELS = ("transpose", "nchwtonhwc", "nhwctonchw", "swapdimension")
"""Parts of the names of kernels that only turn a tensor's layout, in lower case; TensorFlow's and cuDNN's."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number with its unit.

    Attributes:
        limit: Of a gate: the largest value that passes; None: it is no gate.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a step's runs say.

    Attributes:
        figures: The first is the step's answer.
        details: Beside them, by name.
        note: For the summary, one line.
    """

    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def read_figure(reader: str, runs: Sequence[Ended]) -> Reading:
    """Read the figure of a step that has ended.

    Args:
        reader: Name in `READERS`.
        runs: In order; the last may have failed, and those after it are missing.

    Raises:
        NoFigure: There is none, and why.
    """
    return READERS[reader](runs)


def throughput(runs: Sequence[Ended]) -> Reading:
    """Read a record's throughput, with power and utilisation."""
    record = measured(runs[-1])
    return Reading(figures=[rate_of(record)], details=details_of(record), note=warnings_of(record))


def gates(runs: Sequence[Ended]) -> Reading:
    """Count the gates that passed; those that do not apply do not count."""
    record = read_record(runs[-1])
    if record.validity is None or record.status not in (Status.OK, Status.INVALID, Status.NOT_FINITE):
        raise _not_measured(runs[-1], record)
    applied = [check for check in record.validity.checks if check.passed is not None]
    failed = [check for check in applied if not check.passed]
    figure = Figure(name="gates_passed", value=len(applied) - len(failed), unit=f"of {len(applied)} gates")
    details = {check.name: check.value for check in applied if check.value is not None}
    return Reading(
        figures=[figure],
        details=details_of(record) | details,
        note="; ".join(f"FAILED {check.name}: {check.detail}" for check in failed),
    )


def update(runs: Sequence[Ended]) -> Reading:
    """Read by how much an update differs from that of one device, also where the gate failed."""
    record = read_record(runs[-1])
    checks = {check.name: check for check in (record.validity.checks if record.validity else [])}
    check = checks.get("update_equals_one_device")
    if check is None or check.value is None:
        raise _not_measured(runs[-1], record)
    figure = Figure(name=check.name, value=check.value, unit="relative difference", limit=check.limit)
    details = {other.name: other.value for other in checks.values() if other.value is not None}
    notes = [] if check.passed else [f"GATE FAILED: {check.detail}"]
    if record.status not in (Status.OK, Status.INVALID):
        notes.append(f"then {record.status}: {record.cause}")
    return Reading(figures=[figure], details=details_of(record) | details, note="; ".join(notes))


def device(runs: Sequence[Ended]) -> Reading:
    """Read the peaks of a device; int8 first, which a desk check doubted."""
    record = _with_results(runs[-1])
    figures, reasons = [], {}
    for result in record.device_results:
        name = "-".join(filter(None, (result.metric, result.arithmetic)))
        name += f"-{result.size}" if result.metric == "all_reduce" else ""
        if result.value is None:
            reasons[name] = result.reason
        else:
            tera = result.unit.startswith(("FLOP", "OP"))
            unit = ("T" if tera else "G") + result.unit
            figures.append(Figure(name=name, value=result.value / (1e12 if tera else 1e9), unit=unit))
    if not figures:
        raise NoFigure(Outcome.FAILED, f"nothing was measured: {reasons}")
    figures.sort(key=lambda figure: figure.name != "matrix_product-int8")
    note = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if name == "matrix_product-int8")
    return Reading(figures=figures, details=details_of(record) | {"not_measured": reasons}, note=note)


def all_reduce(runs: Sequence[Ended]) -> Reading:
    """Read the bus bandwidth of the largest all-reduce."""
    reading = device(runs)
    figures = [figure for figure in reading.figures if figure.name.startswith("all_reduce")]
    if not figures:
        raise NoFigure(Outcome.FAILED, f"no all-reduce was measured: {reading.details['not_measured']}")
    figures.sort(key=lambda figure: -int(figure.name.rpartition("-")[2]))
    return Reading(figures=figures, details=reading.details)


def max_batch(runs: Sequence[Ended]) -> Reading:
    """Read the largest batch that fitted."""
    record = measured(runs[-1])
    batch = Figure(name="largest_batch", value=record.case.batch_per_gpu, unit="samples per GPU")
    return Reading(figures=[batch, rate_of(record)], details=details_of(record))


def latency(runs: Sequence[Ended]) -> Reading:
    """Read how long one sample takes."""
    record = measured(runs[-1])
    if record.measurement is None or record.measurement.latency is None:
        raise NoFigure(Outcome.FAILED, "the record has no latency")
    latency = record.measurement.latency
    figures = [
        Figure(name=f"latency_{share}", value=1000 * seconds, unit="ms")
        for share, seconds in (
            ("p50", latency.p50_seconds),
            ("p95", latency.p95_seconds),
            ("p99", latency.p99_seconds),
        )
    ]
    return Reading(figures=[*figures, rate_of(record)], details=details_of(record))


def ratio(runs: Sequence[Ended]) -> Reading:
    """Divide the first side's median by the second's, over the pairs that are complete."""
    sides: dict[str, list[float]] = {}
    details: dict[str, Any] = {}
    broken: NoFigure | None = None
    for run in runs:
        side = run.name.rpartition("-")[0]
        try:
            rate, more = _rate_of_run(run)
        except NoFigure as error:
            broken = NoFigure(error.outcome, f"{run.name}: {error.cause}")
            break
        sides.setdefault(side, []).append(rate)
        details |= {f"{side}_{name}": value for name, value in more.items()}
    pairs = min(map(len, sides.values())) if len(sides) == 2 else 0
    if pairs == 0:
        raise broken or NoFigure(Outcome.FAILED, "no pair was measured")
    (first, ours), (second, theirs) = ((name, values[:pairs]) for name, values in sides.items())
    medians = statistics.median(ours), statistics.median(theirs)
    figures = [Figure(name=f"{first}_over_{second}", value=medians[0] / medians[1], unit=f"× {second}")]
    figures += [
        Figure(name=f"{name}_median", value=value, unit="samples/s") for name, value in zip(sides, medians, strict=True)
    ]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    details |= {"pairs": pairs, "ratios_of_pairs": ratios, first: ours, second: theirs}
    note = f"{pairs} pair(s): {min(ratios):.3f} to {max(ratios):.3f}" + (f"; then {broken.cause}" if broken else "")
    return Reading(figures=figures, details=details, note=note)


def probe(runs: Sequence[Ended]) -> Reading:
    """Read what a script of this folder wrote."""
    document = _document(runs[-1])
    if "outcome" in document:
        raise NoFigure(Outcome(document["outcome"]), document["cause"])
    figures = [Figure(**figure) for figure in document["figures"]]
    return Reading(figures=figures, details=document.get("details", {}), note=document.get("note", ""))


def doctor(runs: Sequence[Ended]) -> Reading:
    """Read the doctor's JSON from what it printed; its exit code only says whether it found something."""
    document = _printed_object(runs[-1].log.read_text(encoding="utf-8", errors="replace"))
    if document is None:
        raise _ended_badly(runs[-1])
    findings = document.get("findings", [])
    return Reading(
        figures=[Figure(name="findings", value=len(findings), unit="findings")],
        details=document,
        note=str(document.get("summary", "")),
    )


def nsys(runs: Sequence[Ended]) -> Reading:
    """Read the kernel summary that `nsys profile --stats=true` prints."""
    _require_end(runs[-1])
    shares = dict(_kernel_shares(runs[-1].log.read_text(encoding="utf-8", errors="replace")))
    if not shares:
        raise NoFigure(Outcome.FAILED, "nsys printed no kernels")
    layout = sum(share for name, share in shares.items() if is_layout_kernel(name))
    largest = dict(sorted(shares.items(), key=lambda item: -item[1])[:20])
    return Reading(
        figures=[Figure(name="layout_share", value=layout, unit="% of kernel time")],
        details={"kernels": len(shares), "largest_percent": largest},
    )


def ncu(runs: Sequence[Ended]) -> Reading:
    """Weigh each kernel's use of the multiprocessors by its duration."""
    _require_end(runs[-1])
    lines = runs[-1].log.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    kernels: dict[str, dict[str, float]] = {}
    for row in rows:
        value = row["Metric Value"].replace(",", "")
        kernels.setdefault(row["ID"], {})[row["Metric Name"].partition(".")[0]] = float(value)
    whole = [values for values in kernels.values() if {"gpu__time_duration", "sm__throughput"} <= values.keys()]
    seconds = sum(values["gpu__time_duration"] for values in whole)
    if not seconds:
        raise NoFigure(Outcome.FAILED, "ncu printed no kernels")
    busy = sum(values["gpu__time_duration"] * values["sm__throughput"] for values in whole) / seconds
    return Reading(
        figures=[Figure(name="sm_throughput", value=busy, unit="% of peak")], details={"kernels": len(whole)}
    )


READERS: dict[str, Callable[[Sequence[Ended]], Reading]] = {
    "throughput": throughput,
    "gates": gates,
    "update": update,
    "device": device,
    "all_reduce": all_reduce,
    "max_batch": max_batch,
    "latency": latency,
    "ratio": ratio,
    "probe": probe,
    "doctor": doctor,
    "nsys": nsys,
    "ncu": ncu,
}
"""By the name that a step gives."""


def is_layout_kernel(name: str) -> bool:
    """Say whether a kernel only turns a tensor's layout."""
    return any(part in name.lower() for part in LAYOUT_KERNELS)


def _kernel_shares(text: str) -> Iterator[tuple[str, float]]:
    """Yield kernels with their share of kernel time in percent, from the table `cuda_gpu_kern_sum`."""
    within = False
    for line in text.splitlines():
        if "cuda_gpu_kern_sum" in line or "gpukernsum" in line:
            within = True
        elif within and line.startswith((" **", "**", "[")):
            return
        elif within:
            words = line.split()
            if len(words) > 8 and words[0].replace(".", "").isdigit():
                yield " ".join(words[8:]), float(words[0])


def rate_of(record: Record) -> Figure:
    """Return a record's throughput."""
    measurement = record.measurement
    if measurement is None:
        raise NoFigure(Outcome.FAILED, "the record has no measurement")
    return Figure(name="throughput", value=measurement.samples_per_second, unit=f"{measurement.unit}/s")


def details_of(record: Record) -> dict[str, Any]:
    """Return what a reader of a figure asks next; what the machine does not offer is left out."""
    details: dict[str, Any] = {"case": record.case.name, "method_version": record.method_version}
    if measurement := record.measurement:
        details |= {
            "step_p50_ms": 1000 * measurement.step_p50_seconds,
            "step_cv": measurement.step_cv,
            "flops_utilisation": measurement.flops_utilisation,
            "bandwidth_utilisation": measurement.bandwidth_utilisation,
            "compile_seconds": measurement.compile_seconds,
        }
    if telemetry := record.telemetry:
        details |= {
            "power_mean_watts": telemetry.power_mean_watts,
            "power_limit_watts": telemetry.power_limit_watts,
            "sm_clock_mean_mhz": telemetry.sm_clock_mean_mhz,
            "temperature_steady_celsius": telemetry.temperature_steady_celsius,
            "throttle_power_share": telemetry.throttle_power_share,
            "throttle_thermal_share": telemetry.throttle_thermal_share,
            "device_memory_peak_bytes": telemetry.device_memory_peak_bytes,
        }
    return {name: value for name, value in details.items() if value is not None}


def warnings_of(record: Record) -> str:
    """Name a record's warnings."""
    return ", ".join(warning.code for warning in record.warnings)


def measured(run: Ended) -> Record:
    """Return the record of a run that measured something.

    Raises:
        NoFigure: It did not.
    """
    record = read_record(run)
    if record.status is not Status.OK:
        raise _not_measured(run, record)
    return record


def read_record(run: Ended) -> Record:
    """Return a run's record, also one that says why nothing was measured.

    Raises:
        NoFigure: There is none, or none that can be read.
    """
    try:
        return from_json(run.record.read_bytes())
    except FileNotFoundError:
        raise _ended_badly(run) from None
    except RecordError as error:
        raise NoFigure(Outcome.FAILED, f"bad record: {error}") from error


def _with_results(run: Ended) -> Record:
    record = read_record(run)
    if record.status not in (Status.OK, Status.INVALID) or not record.device_results:
        raise _not_measured(run, record)
    return record


def _rate_of_run(run: Ended) -> tuple[float, dict[str, Any]]:
    if not run.reads_log:
        record = measured(run)
        return rate_of(record).value, details_of(record)
    _require_end(run)
    rate = images_per_second(run.log.read_text(encoding="utf-8", errors="replace"))
    if rate is None:
        raise NoFigure(Outcome.FAILED, "it printed no total images/sec")
    return rate, {}


def _document(run: Ended) -> dict[str, Any]:
    try:
        return dict(json.loads(run.record.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise _ended_badly(run) from None


def _printed_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that begins a line of a text; None: there is none."""
    for line in re.finditer(r"^{", text, re.MULTILINE):
        with contextlib.suppress(ValueError):
            return dict(json.JSONDecoder().raw_decode(text, line.start())[0])
    return None


def _require_end(run: Ended) -> None:
    if run.exit_code != 0:
        raise _ended_badly(run)


def _not_measured(run: Ended, record: Record) -> NoFigure:
    if run.exit_code is None or record.status is Status.TIMEOUT:
        return NoFigure(Outcome.TIMEOUT, record.cause or f"cut after {run.seconds:.0f} s")
    outcome = Outcome.NO_GPU if record.status is Status.NO_GPU else Outcome.FAILED
    return NoFigure(outcome, f"{record.status}: {record.cause}")


def _ended_badly(run: Ended) -> NoFigure:
    """Say how a run ended that left nothing, with the last thing that it printed."""
    if run.exit_code is None:
        return NoFigure(Outcome.TIMEOUT, f"cut after {run.seconds:.0f} s")
    lines = [line for line in run.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "it printed nothing"
    return NoFigure(Outcome.FAILED, f"exit code {run.exit_code}: {last}")
