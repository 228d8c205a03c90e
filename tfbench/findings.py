"""The findings of a repeat so far, its time breakdown, and its record: the file, and a table of 80 columns."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from results import schema
from results.schema import Device, Mode, Record
from results.schema.health import GPUFacts
from results.schema.progress import record_lines, state_line
from results.schema.record_json import RecordError, contradictions, to_json


class Phases:
    """Times consecutive phases; the times of a phase that is entered twice are added up."""

    def __init__(self) -> None:
        self._entered: list[tuple[str, float, float]] = []

    def enter(self, name: str) -> None:
        """End the current phase and begin the next, with a line on stderr.

        Args:
            name: One of `results.schema.progress.STATES`.
        """
        self._entered.append((name, time.perf_counter(), time.process_time()))
        print(state_line(name), file=sys.stderr, flush=True)  # noqa: T201 (progress is this program's stderr)

    def ended(self) -> list[schema.Phase]:
        """Return the phases that have ended, in the order of their first begin."""
        spent: dict[str, list[tuple[float, float]]] = {}
        for (name, wall, cpu), (_, wall_end, cpu_end) in itertools.pairwise(self._entered):
            spent.setdefault(name, []).append((wall_end - wall, cpu_end - cpu))
        totals = {name: [sum(parts) for parts in zip(*times, strict=True)] for name, times in spent.items()}
        return [schema.Phase(name=name, seconds=wall, cpu_seconds=cpu) for name, (wall, cpu) in totals.items()]


@dataclass
class Findings:
    """The parts of a record, filled while a case is measured."""

    environment: schema.Environment | None = None
    measurement: schema.Measurement | None = None
    telemetry: schema.Telemetry | None = None
    checks: list[schema.Check] = field(default_factory=list)
    warnings: list[schema.SoftWarning] = field(default_factory=list)
    device_results: list[schema.DeviceResult] = field(default_factory=list)
    gpus: list[GPUFacts] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)

    @property
    def valid(self) -> bool:
        """Return whether no check failed and at least one passed."""
        return all(check.passed is not False for check in self.checks) and any(check.passed for check in self.checks)


def utc_now() -> str:
    """Return the current time for a record: UTC, ISO 8601, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(record: Record, output: Path | None, *, as_table: bool = False) -> None:
    """Write a record as JSON to a file, or to stdout.

    The file appears complete or not at all: it is written under another name, then renamed.

    Args:
        record: The record.
        output: File; None: stdout.
        as_table: Print a table on stdout, instead of JSON if there is no file.

    Raises:
        RecordError: The record contradicts itself; nothing was written.
    """
    if problems := contradictions(record):
        raise RecordError(problems)
    text = to_json(record)
    if as_table or output is None:
        sys.stdout.write(record_table(record) if as_table else text)
        sys.stdout.flush()
    if output is None:
        return
    beside = _part_of(output)
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(output)


def try_output(output: Path) -> None:
    """Try to write next to a record that is yet to be written.

    Raises:
        OSError: It could not be written.
    """
    if output.exists() and not output.is_file():
        raise OSError(errno.EEXIST, "it exists and is not a file", str(output))
    beside = _part_of(output)
    beside.touch()
    beside.unlink()


def _part_of(output: Path) -> Path:
    """Return the name under which a record is written, in a folder that exists."""
    output.parent.mkdir(parents=True, exist_ok=True)
    return output.with_name(f".{output.name}.{os.getpid()}.part")


def print_record(output: Path | None) -> None:
    """Print the record in a file as lines on stdout, if the file exists."""
    if output is None or not output.is_file():
        return
    for line in record_lines(output.read_bytes()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()  # one write per line: no other output can come in between


COLUMNS = 80

LABEL_WIDTH = 13

MODES = {Mode.TRAIN: "training", Mode.INFER: "inference", Mode.DEVICE: "no network: the device itself"}

SHOWN_ELSEWHERE = {"precision", "batch_per_gpu", "num_gpus", "num_hosts", "device", "mode", "num_steps", "warmup_steps"}
"""Settings of a case that have a row of their own, or whose result has."""


def record_table(record: Record) -> str:
    """Return a record as lines of at most 80 columns: what was measured on what, the figures, a line per warning."""
    warnings = [("warning", f"{warning.code}: {warning.message}") for warning in record.warnings]
    lines: list[str] = []
    for label, *parts in (*_case_rows(record), *_figure_rows(record), *warnings):
        lines += textwrap.wrap(
            ", ".join(filter(None, parts)),
            COLUMNS,
            initial_indent=f"{label:{LABEL_WIDTH}}",
            subsequent_indent=" " * LABEL_WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines) + "\n"


Row = tuple[str, ...]
"""A label, and the parts of a text; without one, the row is left out."""


def _case_rows(record: Record) -> Iterator[Row]:
    case, environment = record.case, record.environment
    yield "status", str(record.status)
    yield "reason", " ".join((record.cause or "").split())
    yield ("GPU" if case.device is Device.GPU else "CPU"), _hardware(record)
    if environment:
        versions = {"TensorFlow": environment.tensorflow, "CUDA": environment.cuda, "driver": environment.driver}
        yield "software", *(f"{name} {version}" for name, version in versions.items() if version)
    yield "network", case.model if case.mode is not Mode.DEVICE else "", MODES[case.mode]
    if case.mode is not Mode.DEVICE:
        in_all = f"{case.global_batch} in all" if case.global_batch > case.batch_per_gpu else ""
        yield "precision", str(case.precision)
        yield "batch", f"{case.batch_per_gpu} per {case.device.upper()}", in_all
        yield "settings", *(f"{name} {value}" for name, value in case.changed.items() if name not in SHOWN_ELSEWHERE)


def _hardware(record: Record) -> str:
    """Name the GPUs or the processor of a record; without any, what the case asks for."""
    case, environment = record.case, record.environment
    replicas = f"{case.num_hosts} hosts × {case.num_gpus}" if case.num_hosts > 1 else str(case.num_gpus)
    if environment and case.device is Device.CPU:
        divided = f", {replicas} replicas" if case.replicas > 1 else ""
        return f"{environment.cpu}, {environment.cpu_limit:g} of {environment.cpu_count} CPUs{divided}"
    if environment and environment.gpus:
        return f"{replicas} × {' + '.join(dict.fromkeys(gpu.name for gpu in environment.gpus))}"
    return f"{replicas} (unknown)"


def _figure_rows(record: Record) -> Iterator[Row]:
    for result in record.device_results:
        yield "", _device_text(result)
    m, seen = record.measurement, record.telemetry or schema.Telemetry()
    if m is None:
        return
    samples = f"sequences of {m.sequence_length:,} tokens" if m.unit == "sequences" and m.sequence_length else m.unit
    yield "samples/s", f"{m.samples_per_second:,.1f} {samples}/s"
    spread = "" if m.step_cv is None else f", CV {m.step_cv:.1%}"
    p50, p95 = m.step_p50_seconds * 1000, m.step_p95_seconds * 1000
    yield "step", f"{p50:.1f} ms, 95 % below {p95:.1f} ms{spread}; {m.num_steps} steps in {m.seconds:.1f} s"
    if m.latency is not None:
        p50, p95, p99 = (1000 * getattr(m.latency, f"p{share}_seconds") for share in (50, 95, 99))
        yield "latency", f"at batch 1: p50 {p50:.2f} ms, p95 {p95:.2f} ms, p99 {p99:.2f} ms"
    if m.input_limit is not None:
        bottleneck = "input" if m.input_limit.limited else "device"
        ratio = f"a step takes {m.input_limit.step_ratio:.2f} × one with synthetic data"
        yield "input", f"bottleneck: {bottleneck}; {ratio}, {m.input_limit.read_bytes_per_second / 1e6:.1f} MB/s"
    sizes = [gpu.memory_bytes for gpu in record.environment.gpus if gpu.memory_bytes] if record.environment else []
    size = f" of {min(sizes) / 2**30:.1f}" if sizes else ""
    device, host, joules = seen.device_memory_peak_bytes, seen.host_memory_peak_bytes, seen.energy_joules
    limit = f" of {seen.power_limit_watts:.0f}" if seen.power_limit_watts else ""
    yield (
        "memory",
        f"{device / 2**30:.1f}{size} GiB per GPU" if device else "",
        f"{host / 2**30:.1f} GiB of the host" if host else "",
    )
    yield (
        "power",
        f"{seen.power_mean_watts:.0f}{limit} W" if seen.power_mean_watts else "",
        f"{1000 * joules / m.samples:.4g} J per 1,000 {m.unit}" if joules else "",
    )
    shares = {"of peak FLOP/s": m.flops_utilisation, "of memory bandwidth": m.bandwidth_utilisation}
    yield "utilisation", *(f"{share:.0%} {name}" for name, share in shares.items() if share is not None)
    before = {"build": m.build_seconds, "compile": m.compile_seconds, "warm-up": m.warmup_seconds}
    yield "before", *(f"{name} {seconds:.1f} s" for name, seconds in before.items())


def _device_text(result: schema.DeviceResult) -> str:
    """Format one micro-benchmark of the device."""
    name = " ".join(filter(None, [result.metric, result.arithmetic]))
    name += f" over {result.devices}" if result.devices > 1 else ""
    name += f", device {result.gpu}" if result.gpu is not None else ""
    if result.value is None:
        value = f"not measured: {result.reason}"
    elif result.size is None:
        value = f"{result.value:10.4g} {result.unit}"
    else:
        size = f"n = {result.size}" if result.metric.endswith("_product") else f"{result.size:,} bytes"
        value = f"{result.value / 1e9:10.2f} G{result.unit}  ({size})"
    return f"{name:<28} {value}"
