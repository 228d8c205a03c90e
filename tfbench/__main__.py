"""`python -m tfbench`: measure one case in this process and write its record."""

from __future__ import annotations

import ctypes
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
from tfbench.failures import Failure, hint_after, outcome_of
from tfbench.findings import Findings, print_record, record_table, try_output, utc_now, write_record
from tfbench.flags import FlagsError, Request, help_text, parse
from tfbench.machine.cuda_libraries import prepare_gpu_libraries
from tfbench.machine.nvml import read_driver
from tfbench.peers import Peers
from tfbench.settings import collect_rarely, process_settings
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
    output = request.options.output
    try:
        if output is not None:
            try_output(output)
    except (OSError, ValueError) as error:
        print(f"tfbench: --output={output} cannot be written: {error}", file=sys.stderr)
        return ExitCode.USAGE
    code = measure(request)
    if request.options.print_record:
        print_record(output)
    return code


def measure(request: Request) -> int:
    """Measure, and write a record even after a failure."""
    options, started_at = request.options, utc_now()

    def write_failure(failure: Failure) -> None:
        record = _record(request.case, started_at, failure, Findings())
        write_record(record, options.output, as_table=options.as_table)
        _print_summary(record, as_table=options.as_table)

    def work(say_written: Callable[[int], None]) -> int:
        writing = threading.Lock()  # one record, even if another host is lost at the last moment

        def end(failure: Failure) -> None:
            writing.acquire()
            write_failure(failure)
            say_written(ExitCode.SOME_FAILED)
            os._exit(ExitCode.SOME_FAILED)

        record = _measured(request, started_at, end)
        writing.acquire()
        if request.cluster.rank == 0 or record.status is not Status.OK:
            write_record(record, options.output, as_table=options.as_table)
        code = {Status.OK: ExitCode.OK, Status.ERROR: ExitCode.BUG}.get(record.status, ExitCode.SOME_FAILED)
        say_written(code)
        _print_summary(record, as_table=options.as_table)
        return code

    return supervise(work, options.max_seconds, write_failure, ExitCode.SOME_FAILED)


def _measured(request: Request, started_at: str, end: Callable[[Failure], None]) -> Record:
    """Measure, and return the record.

    Args:
        request: What to measure.
        started_at: UTC, ISO 8601.
        end: Called if another host of the case is lost; ends this process with a record.
    """
    for name, value in process_settings(request.case).items():
        os.environ.setdefault(name, value)  # the user's own stay
    findings = Findings()
    findings.phases.enter("starting")
    failure = _attempt(request, findings, end)
    findings.phases.enter("writing")
    return _record(request.case, started_at, failure, findings)


def _record(case: Case, started_at: str, failure: Failure | None, findings: Findings) -> Record:
    """Return the record of a repeat; one on simulated GPUs has always failed."""
    simulated = case.device is Device.GPU and has_simulated_gpus()
    if simulated:
        failure = failure or Failure(Status.INVALID, "")
        note = "the GPUs are simulated (the tests' null GPU): nothing was computed"
        failure = Failure(failure.status, f"{note}. {failure.cause}".removesuffix(". "))
    return Record(
        status=Status.OK if failure is None else failure.status,
        cause=None if failure is None else failure.cause,
        case=case,
        started_at=started_at,
        finished_at=utc_now(),
        environment=findings.environment,
        measurement=findings.measurement,
        telemetry=findings.telemetry,
        validity=Validity(valid=findings.valid, checks=findings.checks) if findings.checks else None,
        warnings=findings.warnings,
        device_results=findings.device_results,
        phases=findings.phases.ended(),
        device_observations=findings.gpus if case.deep_check else [],
        simulated=simulated,
    )


def has_simulated_gpus() -> bool:
    """Return whether CUDA's driver is the tests' null GPU, whose figures must never be taken for measurements."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "nullgpu_counts")
    except OSError:
        return False


def _attempt(request: Request, findings: Findings, end: Callable[[Failure], None]) -> Failure | None:
    """Measure into `findings`; return how it failed, or None."""
    case, peers = request.case, Peers(request.cluster, request.case.name, end)
    try:
        if case.device is Device.GPU:
            prepare_gpu_libraries()
        sys.modules.setdefault("pandas", cast(ModuleType, None))  # Keras would import it if installed: 0.3 s
        collect_rarely()
        from tfbench.repeat import run_repeat  # imports TensorFlow, which takes seconds and may fail

        collect_rarely()  # again, to exempt what was imported
        peers.connect()
        run_repeat(case, request.options, findings, peers)
    except Exception as error:  # noqa: BLE001 (a failure is data, too)
        peers.await_loss(error)
        failure = outcome_of(error, case.num_gpus)
        if case.device is Device.GPU and (problems := read_driver().reasons):
            failure = Failure(failure.status, f"{failure.cause} ({'; '.join(problems)})")
        peers.report_failure(failure)
        if failure.status is Status.ERROR:
            _keep_traceback(request.options.output)
        return failure
    return None


def _keep_traceback(output: Path | None) -> None:
    """Write the current exception's traceback next to the record, or to stderr if the record goes to stdout."""
    text = traceback.format_exc()
    if output is None:
        print(text, file=sys.stderr)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".traceback.txt").write_text(text, encoding="utf-8")


def _print_summary(record: Record, *, as_table: bool) -> None:
    """Print on stderr what stdout does not show: the figures, or why there are none; then what to do next."""
    failure = Failure(record.status, record.cause or "")
    lines = []
    if not as_table:
        is_ok = record.status is Status.OK
        lines.append(record_table(record).rstrip() if is_ok else f"tfbench: {failure.status}: {failure.cause}")
    if hint := hint_after(failure, on_gpu=record.case.device is Device.GPU):
        lines.append(f"tfbench: {hint}")
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with lasting_streams(BrokenPipeError):  # a full disk is an error
        sys.exit(main(sys.argv[1:]))
