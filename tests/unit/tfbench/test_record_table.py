"""What `python -m tfbench` prints: a table for a person, the record as JSON for a program."""

import contextlib
import dataclasses
import os
import pty
import re
import subprocess
import sys

import pytest

import tfbench.__main__ as program
from results.runs.reading import from_json
from results.schema import Case, Device, DeviceResult, InputLimit, Latency, Mode, SoftWarning, Status, Telemetry
from results.schema.exit_codes import ExitCode
from results.schema.record_json import RecordError, to_json
from tests.support import PROJECT
from tests.support.patience import patience
from tests.unit.results.factory import make_case, make_environment, make_failure, make_record
from tfbench.failures import Failure
from tfbench.findings import record_table
from tfbench.flags import Options, Request

CASE = Case(model="resnet50", device=Device.GPU, batch_per_gpu=4, warmup_steps=1, num_steps=6)
RECORD = make_record(80.0, case=CASE, environment=make_environment(gpus=1, driver="550.54"))


def table(record=RECORD, telemetry=None, **changes) -> dict[str, str]:
    """Return the rows of a record's table by their label, each in one line."""
    measurement = dataclasses.replace(record.measurement, **changes) if changes else record.measurement
    text = record_table(dataclasses.replace(record, measurement=measurement, telemetry=telemetry))
    assert all(len(line) <= 80 for line in text.splitlines()), text
    rows = re.sub(r"\n {13}(?! *\w+ .*\d G)", " ", text).splitlines()
    return {row[:13].strip() or row.split()[0]: row[13:] for row in rows}


def test_a_table_has_what_was_measured_and_each_warning_or_reason():
    record = dataclasses.replace(RECORD, warnings=[SoftWarning(code="high_cv", message="words " * 20)])
    telemetry = Telemetry(host_memory_peak_bytes=2**30, power_mean_watts=120.0, energy_joules=36.0)
    shown = table(record, telemetry, flops_utilisation=0.17)
    assert shown["warning"] == "high_cv: " + ("words " * 20).strip()
    assert {"power", "utilisation", "memory"} <= shown.keys()
    assert not {"power", "utilisation", "memory", "reason", "warning", "settings"} & table().keys()
    several = table(make_record(9.0, case=dataclasses.replace(CASE, accumulate=3, num_gpus=2)))
    assert (several["settings"], several["batch"]) == ("accumulate 3", "4 per GPU, 24 in all")
    assert table(make_record(9.0, case=make_case(num_gpus=2)))["CPU"] == "Test CPU, 2 of 2 CPUs, 2 replicas"
    failed = table(make_failure("oom", "out of\nmemory", case=CASE))
    assert (failed["status"], failed["reason"], failed["GPU"]) == ("oom", "out of memory", "1 (unknown)")


def test_latency_and_the_bottleneck_are_named_where_they_were_measured():
    latency = Latency(p50_seconds=0.001, p95_seconds=0.002, p99_seconds=0.0035, step_seconds=[0.001])
    limit = InputLimit(
        synthetic_step_seconds=0.1, step_ratio=1.5, limit=1.1, limited=True, wait_share=0.3, read_bytes_per_second=2e6,
        files=3,
    )  # fmt: skip
    shown = table(latency=latency, input_limit=limit)
    assert shown["latency"] == "at batch 1: p50 1.00 ms, p95 2.00 ms, p99 3.50 ms"
    assert shown["input"] == "bottleneck: input; a step takes 1.50 × one with synthetic data, 2.0 MB/s"


def test_each_result_of_a_device_is_a_line():
    results = [
        DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic="fp32", value=2e9, size=8),
        DeviceResult(metric="memory_add", unit="B/s", reason="no GPU"),
    ]
    record = dataclasses.replace(
        make_record(80.0, case=Case(model="device", mode=Mode.DEVICE)), measurement=None, device_results=results
    )
    assert [line.split() for line in record_table(record).splitlines()[-2:]] == [
        ["matrix_product", "fp32", "2.00", "GFLOP/s", "(n", "=", "8)"],
        ["memory_add", "not", "measured:", "no", "GPU"],
    ]


MEASURED = f"""
import sys, types
from results.runs.reading import from_json
from tfbench.__main__ import main
record = from_json({to_json(RECORD)!r})
def run_repeat(case, options, findings, peers):
    findings.environment, findings.measurement = record.environment, record.measurement
    findings.checks += record.validity.checks
sys.modules["tfbench.repeat"] = types.SimpleNamespace(run_repeat=run_repeat)
sys.exit(main(sys.argv[1:]))
"""
"""`python -m tfbench`, whose GPU always takes the same time."""


def is_table(text: str) -> bool:
    return text.startswith("status       ok\n") and "\nsamples/s    80.0 images/s\n" in text


@pytest.mark.parametrize(
    ("terminal", "flags", "as_table", "to_file"),
    [
        (True, (), True, False),
        (False, (), False, False),
        (True, ("--format=json",), False, False),
        (False, ("--format=table",), True, True),
        (True, (), False, True),
    ],
)
@pytest.mark.slow
def test_a_terminal_gets_a_table_and_a_program_or_file_the_record(tmp_path, terminal, flags, as_table, to_file):
    shown, stdout = pty.openpty() if terminal else os.pipe()
    path = tmp_path / "record.json"
    flags = ("--model=resnet50", "--device=cpu", "--batch_size=4", "--warmup_steps=1", "--num_steps=6", *flags)
    command = [sys.executable, "-c", MEASURED, *flags, *([f"--output={path}"] if to_file else [])]
    with subprocess.Popen(command, cwd=PROJECT, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        os.close(stdout)
        printed = b""
        with contextlib.suppress(OSError):  # Linux: a terminal that its last writer has closed
            while chunk := os.read(shown, 65536):
                printed += chunk
        os.close(shown)
        _, errors = process.communicate(timeout=patience(120))
    assert process.returncode == ExitCode.OK, errors
    output = printed.decode().replace("\r\n", "\n")
    assert is_table(output) == as_table
    assert as_table or is_table(errors[errors.index("status ") :]), "a person reads it on stderr"
    if to_file or not as_table:
        assert from_json(path.read_text() if to_file else output).status is Status.OK


def test_the_documented_output_is_that_of_a_committed_record():
    path = PROJECT / "results/reference/measured/h100-container-2026-11-28/runs/first/records"
    record = from_json((path / "container.docker-h100.resnet50-fp16-b64-1gpu-w10s50-min10s.r1.json").read_text())
    assert f"```\n{record_table(record)}```" in (PROJECT / "docs" / "measuring.md").read_text(encoding="utf-8")


def test_simulated_gpus_never_give_a_measurement(monkeypatch):
    monkeypatch.setattr(program, "has_simulated_gpus", lambda: True)
    monkeypatch.setattr(program, "_attempt", lambda *_: None)
    monkeypatch.setattr(program, "process_settings", lambda _: {})
    record = program._measured(Request(case=Case(model="resnet50")), "2026-11-24T09:00:00+00:00", lambda _: None)
    assert (record.status, record.simulated) == (Status.INVALID, True) and "simulated" in (record.cause or "")
    with pytest.raises(RecordError, match="status is ok, but its GPUs are simulated"):
        from_json(to_json(dataclasses.replace(make_record(100.0), simulated=True)))


def test_simulated_gpus_are_named_also_where_the_process_was_ended(monkeypatch, tmp_path):
    def ended(work, max_seconds, on_end, exit_code):
        on_end(Failure(Status.TIMEOUT, "not finished"))
        return exit_code

    monkeypatch.setattr(program, "has_simulated_gpus", lambda: True)
    monkeypatch.setattr(program, "supervise", ended)
    output = tmp_path / "record.json"
    assert program.measure(Request(case=Case(model="resnet50"), options=Options(output=output))) == ExitCode.SOME_FAILED
    record = from_json(output.read_bytes())
    assert (record.status, record.simulated) == (Status.TIMEOUT, True)
    assert re.fullmatch("the GPUs are simulated .*: nothing was computed. not finished", record.cause or "")
