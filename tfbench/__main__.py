"""`python -m tfbench`: measure one case in this process and write its record."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from results.schema import Case, Device, DeviceResult, Record, Status, Validity
from results.schema.exit_codes import ExitCode
from results.schema.progress import state_line
from tfbench.flags import FlagsError, Request, help_text, parse
from tfbench.machine.cuda_libraries import package_folders, preload
from tfbench.machine.nvml import read_driver
from tfbench.max_batch import find_max_batch
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError, Outcome, doctor_hint, outcome_of
from tfbench.outcomes.record_file import print_record, utc_now, write_record
from tfbench.peers.links import Alone, Peers, may_be_a_peers
from tfbench.setup.gpu_settings import gpu_settings
from tfbench.supervisor import supervise


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
    code = measure(request)
    if request.print_record:
        print_record(request.output)
    return code


def measure(request: Request) -> int:
    """Measure and write the record, whatever happens."""
    started_at = utc_now()

    def write_outcome(outcome: Outcome) -> None:
        write_record(
            Record(
                status=outcome.status,
                cause=outcome.cause,
                case=request.case,
                started_at=started_at,
                finished_at=utc_now(),
            ),
            request.output,
        )
        _print_failure(request.case, outcome)

    if request.find_max_batch:
        try:
            batch = find_max_batch(request.case)
        except CaseFailedError as error:
            write_outcome(Outcome(error.status, str(error)))
            return ExitCode.SOME_FAILED
        request = dataclasses.replace(request, case=dataclasses.replace(request.case, batch_per_gpu=batch))

    def work(say_written: Callable[[], None]) -> int:
        writing = threading.Lock()  # one record, also when another host is lost in the last moment

        def end(outcome: Outcome) -> None:
            writing.acquire()
            write_outcome(outcome)
            say_written()
            os._exit(ExitCode.SOME_FAILED)

        record = _measured(request, started_at, end)
        writing.acquire()
        if request.rank == 0 or record.status is not Status.OK:
            write_record(record, request.output)
        say_written()
        _summarise(record)
        if record.status is Status.ERROR:
            return ExitCode.BUG
        return ExitCode.OK if record.status is Status.OK else ExitCode.SOME_FAILED

    return supervise(work, request.max_seconds, write_outcome, ExitCode.SOME_FAILED)


def _measured(request: Request, started_at: str, end: Callable[[Outcome], None]) -> Record:
    """Measure; an exception becomes a status and a cause.

    Args:
        request: What to measure.
        started_at: UTC, ISO 8601.
        end: Ends this process with a record, when another host of the case is lost.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of the driver, which tells the rest
    for name, value in gpu_settings(request.case).items():
        os.environ.setdefault(name, value)
    print(state_line("starting"), file=sys.stderr, flush=True)
    findings = Findings()
    status, cause = Status.OK, None
    peers: Peers | Alone = Alone()
    try:
        if request.case.device is Device.GPU:
            preload(package_folders())
        from tfbench.repeat import run_repeat  # imports TensorFlow, which takes seconds and may fail

        if request.cluster is not None:
            peers = Peers(request.cluster, request.case.name, end)
            peers.connect(request.options.max_rendezvous_seconds)
        run_repeat(request.case, request.options, findings, peers)
    except Exception as error:  # noqa: BLE001 (a failure is data, too)
        if may_be_a_peers(error):
            peers.await_loss()
        outcome = outcome_of(error)
        if request.case.device is Device.GPU and (problems := read_driver().problems):
            outcome = dataclasses.replace(outcome, cause=f"{outcome.cause} ({'; '.join(problems)})")
        peers.tell_failure(outcome)
        status, cause = outcome.status, outcome.cause
        if status is Status.ERROR:
            _keep_traceback(request.output)
    print(state_line("writing"), file=sys.stderr, flush=True)
    return Record(
        status=status,
        cause=cause,
        case=request.case,
        started_at=started_at,
        finished_at=utc_now(),
        environment=findings.environment,
        measurement=findings.measurement,
        telemetry=findings.telemetry,
        validity=Validity(valid=findings.valid, checks=findings.checks) if findings.checks else None,
        warnings=findings.warnings,
        device_results=findings.device_results,
    )


def _keep_traceback(output: Path | None) -> None:
    """Write the current exception's traceback beside the record; to stderr where there is no file."""
    text = traceback.format_exc()
    if output is None:
        print(text, file=sys.stderr)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".traceback.txt").write_text(text, encoding="utf-8")


def _device_line(result: DeviceResult) -> str:
    """Write one micro-benchmark for a person."""
    name = " ".join([result.metric, *([result.arithmetic] if result.arithmetic else [])])
    if result.compiled:
        name += " by XLA"
    if result.devices > 1:
        name += f" over {result.devices}"
    if result.value is None:
        return f"{name:<24} not measured: {result.reason}"
    size = f"n = {result.size}" if result.metric == "matrix_product" else f"{result.size:,} bytes"
    return f"{name:<24} {result.value / 1e9:10.2f} G{result.unit}  ({size})"


def _print_failure(case: Case, outcome: Outcome) -> None:
    """Print why there is no number, and what to run next where the machine may be the cause."""
    print(f"tfbench: {outcome.status}: {outcome.cause}", file=sys.stderr, flush=True)
    if hint := doctor_hint(outcome, on_gpu=case.device is Device.GPU):
        print(f"tfbench: {hint}", file=sys.stderr, flush=True)


def _summarise(record: Record) -> None:
    """Print what a person wants to know first."""
    if record.status is Status.OK and record.device_results:
        print("\n".join(map(_device_line, record.device_results)), file=sys.stderr)
        return
    if record.measurement is None:
        _print_failure(record.case, Outcome(record.status, record.cause or ""))
        if record.status is Status.OOM:
            print("tfbench: --find_max_batch searches the largest batch; --accumulate adds up several", file=sys.stderr)
        return
    m = record.measurement
    spread = "" if m.step_cv is None else f", CV {m.step_cv:.1%}"
    lines = [
        f"{record.case.name}: {m.samples_per_second:.1f} {m.unit}/s",
        f"  {m.num_steps} steps{_ended_early(record.case, m.num_steps)} of {m.replicas} x {m.batch_per_gpu} {m.unit} "
        f"in {m.seconds:.2f} s",
        f"  step {m.step_p50_seconds * 1000:.1f} ms (p95 {m.step_p95_seconds * 1000:.1f} ms{spread})",
        f"  build {m.build_seconds:.1f} s, compile {m.compile_seconds:.1f} s, warm-up {m.warmup_seconds:.1f} s",
    ]
    if m.latency is not None:
        p50, p95, p99 = (
            f"{seconds * 1000:.2f}" for seconds in (m.latency.p50_seconds, m.latency.p95_seconds, m.latency.p99_seconds)
        )
        lines.append(f"  latency at batch 1: p50 {p50} ms, p95 {p95} ms, p99 {p99} ms")
    if m.input_limit is not None:
        limit = "the input" if m.input_limit.limited else "the device"
        lines.append(
            f"  {limit} was the limit: {m.input_limit.step_ratio:.2f} times the step with synthetic data, "
            f"{m.input_limit.read_bytes_per_second / 1e6:.1f} MB/s read"
        )
    lines += [f"  warning {warning.code}: {warning.message}" for warning in record.warnings]
    print("\n".join(lines), file=sys.stderr)


def _ended_early(case: Case, steps: int) -> str:
    """Say so where fewer steps were enough."""
    return "" if steps == case.num_steps else f" (of {case.num_steps} at most: known closely enough)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
