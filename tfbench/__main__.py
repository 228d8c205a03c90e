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

from results.schema import Case, Device, Record, Status, Validity
from results.schema.exit_codes import ExitCode
from results.schema.streams import lasting_streams
from tfbench.failures import Failure, doctor_hint, outcome_of
from tfbench.findings import Findings, print_record, try_output, utc_now, write_record
from tfbench.flags import FlagsError, Request, help_text, parse
from tfbench.machine.cuda_libraries import prepare_gpu_libraries
from tfbench.machine.nvml import read_driver
from tfbench.peers.connections import Alone, Peers, may_be_a_peers
from tfbench.record_table import record_table
from tfbench.settings import collect_rarely, gpu_settings
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
        record = Record(
            status=outcome.status,
            cause=outcome.cause,
            case=request.case,
            started_at=started_at,
            finished_at=utc_now(),
            simulated=simulated,
        )
        write_record(record, request.output, as_table=request.as_table)
        _print_summary(record, request)

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
            write_record(record, request.output, as_table=request.as_table)
        code = {Status.OK: ExitCode.OK, Status.ERROR: ExitCode.BUG}.get(record.status, ExitCode.SOME_FAILED)
        say_written(code)
        _print_summary(record, request)
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


def _print_summary(record: Record, request: Request) -> None:
    """Print on stderr what stdout does not show: the figures, or why there are none; then what to do next."""
    if record.status is Status.OK:
        lines = [] if request.as_table else [record_table(record).rstrip()]
    else:
        failure = Failure(record.status, record.cause or "")
        hint = doctor_hint(failure, on_gpu=record.case.device is Device.GPU)
        lines = [] if request.as_table else [f"tfbench: {failure.status}: {failure.cause}"]
        lines += [f"tfbench: {hint}"] if hint else []
    if record.status is Status.OOM:
        lines.append("tfbench: use a smaller --batch_size; --accumulate=N adds up N batches before an update")
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with lasting_streams(BrokenPipeError):  # a full disk is an error
        sys.exit(main(sys.argv[1:]))
