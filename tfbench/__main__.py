"""`python -m tfbench`: measure one case in this process and write its record."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from results.schema import Case, Device, DeviceResult, InputLimit, Latency, Measurement, Record, Status, Validity
from results.schema.exit_codes import ExitCode
from results.schema.streams import lasting_streams
from tfbench.flags import FlagsError, Request, help_text, parse
from tfbench.machine.cuda_libraries import prepare_gpu_libraries
from tfbench.machine.nvml import read_driver
from tfbench.outcomes.findings import Findings, print_record, try_output, utc_now, write_record
from tfbench.outcomes.outcome import Failure, doctor_hint, outcome_of
from tfbench.peers.links import Alone, Peers, may_be_a_peers
from tfbench.setup import collect_rarely, gpu_settings
from tfbench.supervisor import supervise


def summary(record: Record) -> str:
    """Return the figures of a record in a few lines of text; empty if it has no measurement."""
    if record.device_results:
        return "\n".join(map(_device_line, record.device_results))
    if record.measurement is None:
        return ""
    lines = _step_lines(record.case, record.measurement)
    if record.measurement.latency is not None:
        lines.append(_latency_line(record.measurement.latency))
    if record.measurement.input_limit is not None:
        lines.append(_input_line(record.measurement.input_limit))
    return "\n".join([*lines, *(f"  warning {warning.code}: {warning.message}" for warning in record.warnings)])


def _step_lines(case: Case, m: Measurement) -> list[str]:
    spread = "" if m.step_cv is None else f", CV {m.step_cv:.1%}"
    batches = f"{case.accumulate} batches of " if case.accumulate > 1 else ""
    samples = f"sequences of {m.sequence_length:,} tokens" if m.sequence_length else m.unit
    return [
        f"{case.name}: {m.samples_per_second:.1f} {m.unit}/s",
        f"  {m.num_steps} steps of {batches}{m.replicas} x {m.batch_per_gpu} {samples} in {m.seconds:.2f} s",
        f"  step {m.step_p50_seconds * 1000:.1f} ms (p95 {m.step_p95_seconds * 1000:.1f} ms{spread})",
        f"  build {m.build_seconds:.1f} s, compile {m.compile_seconds:.1f} s, warm-up {m.warmup_seconds:.1f} s",
    ]


def _latency_line(latency: Latency) -> str:
    seconds = (latency.p50_seconds, latency.p95_seconds, latency.p99_seconds)
    p50, p95, p99 = (f"{value * 1000:.2f} ms" for value in seconds)
    return f"  latency at batch 1: p50 {p50}, p95 {p95}, p99 {p99}"


def _input_line(limit: InputLimit) -> str:
    bottleneck = "the input" if limit.limited else "the device"
    return (
        f"  bottleneck: {bottleneck}; a step takes {limit.step_ratio:.2f} times one with synthetic data, "
        f"{limit.read_bytes_per_second / 1e6:.1f} MB/s read"
    )


def _device_line(result: DeviceResult) -> str:
    """Return one micro-benchmark as a line of text."""
    name = " ".join([result.metric, *([result.arithmetic] if result.arithmetic else [])])
    if result.devices > 1:
        name += f" over {result.devices}"
    if result.value is None:
        return f"{name:<24} not measured: {result.reason}"
    if result.gpu is not None:
        name += f", device {result.gpu}"
    if result.size is None:
        return f"{name:<24} {result.value:10.4g} {result.unit}"
    size = f"n = {result.size}" if result.metric.endswith("_product") else f"{result.size:,} bytes"
    return f"{name:<24} {result.value / 1e9:10.2f} G{result.unit}  ({size})"


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    try:
        request = parse(arguments)
    except FlagsError as error:
        print(f"tfbench: {error} (--help shows the flags)", file=sys.stderr)
        return ExitCode.USAGE
    if request.help:
        print(help_text())
        return ExitCode.OK
    try:
        if request.output is not None:
            try_output(request.output)
    except (OSError, ValueError) as error:
        print(f"tfbench: --output={request.output} cannot be written: {error}", file=sys.stderr)
        return ExitCode.USAGE
    code = measure(request)
    if request.print_record:
        print_record(request.output)
    return code


def measure(request: Request) -> int:
    """Measure, and write a record even after a failure."""
    started_at = utc_now()

    def write_outcome(ending: Failure) -> None:
        outcome, simulated = _of_real_gpus(request.case, ending)
        assert outcome is not None
        write_record(
            Record(
                status=outcome.status,
                cause=outcome.cause,
                case=request.case,
                started_at=started_at,
                finished_at=utc_now(),
                simulated=simulated,
            ),
            request.output,
        )
        _print_failure(request.case, outcome)

    def work(say_written: Callable[[int], None]) -> int:
        writing = threading.Lock()  # one record, even if another host is lost at the last moment

        def end(outcome: Failure) -> None:
            writing.acquire()
            write_outcome(outcome)
            say_written(ExitCode.SOME_FAILED)
            os._exit(ExitCode.SOME_FAILED)

        record = _measured(request, started_at, end)
        writing.acquire()
        if request.rank == 0 or record.status is not Status.OK:
            write_record(record, request.output)
        code = {Status.OK: ExitCode.OK, Status.ERROR: ExitCode.BUG}.get(record.status, ExitCode.SOME_FAILED)
        say_written(code)
        _print_summary(record)
        return code

    return supervise(work, request.max_seconds, write_outcome, ExitCode.SOME_FAILED)


def _measured(request: Request, started_at: str, end: Callable[[Failure], None]) -> Record:
    """Measure, and return the record.

    Args:
        request: What to measure.
        started_at: UTC, ISO 8601.
        end: Called if another host of the case is lost; ends this process with a record.
    """
    _prepare_environment(request.case)
    findings = Findings()
    findings.phases.enter("starting")
    failure, simulated = _of_real_gpus(request.case, _attempt(request, findings, end))
    findings.phases.enter("writing")
    return Record(
        status=Status.OK if failure is None else failure.status,
        cause=None if failure is None else failure.cause,
        case=request.case,
        started_at=started_at,
        finished_at=utc_now(),
        environment=findings.environment,
        measurement=findings.measurement,
        telemetry=findings.telemetry,
        validity=Validity(valid=findings.valid, checks=findings.checks) if findings.checks else None,
        warnings=findings.warnings,
        device_results=findings.device_results,
        phases=findings.phases.ended(),
        device_observations=findings.gpus if request.case.deep_check else [],
        simulated=simulated,
    )


def _of_real_gpus(case: Case, failure: Failure | None) -> tuple[Failure | None, bool]:
    """Return how a repeat failed, and whether its GPUs are simulated; a repeat on simulated GPUs always fails."""
    if case.device is not Device.GPU or not has_simulated_gpus():
        return failure, False
    note = "the GPUs are simulated (the tests' null GPU): nothing was computed"
    failed = failure or Failure(Status.INVALID, "")
    return dataclasses.replace(failed, cause=f"{note}. {failed.cause}".removesuffix(". ")), True


def has_simulated_gpus() -> bool:
    """Return whether CUDA's driver is the tests' null GPU, whose figures must never be taken for measurements."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "nullgpu_counts")
    except OSError:
        return False


def _prepare_environment(case: Case) -> None:
    """Set the variables that TensorFlow and CUDA read when they start, except those that the user has set."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the driver's order, as everywhere else
    for name, value in gpu_settings(case).items():
        os.environ.setdefault(name, value)


def _attempt(request: Request, findings: Findings, end: Callable[[Failure], None]) -> Failure | None:
    """Measure into `findings`; return how it failed, or None."""
    peers: Peers | Alone = Alone()
    try:
        if request.case.device is Device.GPU:
            prepare_gpu_libraries()
        sys.modules.setdefault("pandas", cast(ModuleType, None))  # Keras would import it if installed: 0.3 s
        collect_rarely()
        from tfbench.repeat import run_repeat  # imports TensorFlow, which takes seconds and may fail

        collect_rarely()  # again, to exempt what was imported
        if request.cluster is not None:
            peers = Peers(request.cluster, request.case.name, end)
            peers.connect()
        run_repeat(request.case, request.options, findings, peers)
    except Exception as error:  # noqa: BLE001 (a failure is data, too)
        if may_be_a_peers(error):
            peers.await_loss()
        outcome = outcome_of(error, request.case.num_gpus)
        if request.case.device is Device.GPU and (problems := read_driver().reasons):
            outcome = dataclasses.replace(outcome, cause=f"{outcome.cause} ({'; '.join(problems)})")
        peers.report_failure(outcome)
        if outcome.status is Status.ERROR:
            _keep_traceback(request.output)
        return outcome
    return None


def _keep_traceback(output: Path | None) -> None:
    """Write the current exception's traceback next to the record, or to stderr if the record goes to stdout."""
    text = traceback.format_exc()
    if output is None:
        print(text, file=sys.stderr)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".traceback.txt").write_text(text, encoding="utf-8")


def _print_failure(case: Case, outcome: Failure) -> None:
    """Print why there is no number, and what to run next if the machine may be the cause."""
    print(f"tfbench: {outcome.status}: {outcome.cause}", file=sys.stderr, flush=True)
    if hint := doctor_hint(outcome, on_gpu=case.device is Device.GPU):
        print(f"tfbench: {hint}", file=sys.stderr, flush=True)


def _print_summary(record: Record) -> None:
    """Print the figures, or why there are none."""
    if record.status is Status.OK:
        print(summary(record), file=sys.stderr)
        return
    _print_failure(record.case, Failure(record.status, record.cause or ""))
    if record.status is Status.OOM:
        print("tfbench: use a smaller --batch_size; --accumulate=N adds up N batches before an update", file=sys.stderr)


if __name__ == "__main__":
    with lasting_streams(BrokenPipeError):  # a full disk is an error
        sys.exit(main(sys.argv[1:]))
