"""What `python -m tfbench` prints of a record."""

import dataclasses
import re

import pytest

import tfbench.__main__ as program
from results.runs.reading import from_json
from results.schema import Case, Device, DeviceResult, InputLimit, Latency, Mode, Status
from results.schema.exit_codes import ExitCode
from results.schema.record_json import RecordError, to_json
from tests.unit.results.factory import make_record
from tfbench.__main__ import summary
from tfbench.flags import Request
from tfbench.outcomes.outcome import Failure

CASE = Case(model="resnet50", device=Device.CPU, batch_per_gpu=4, warmup_steps=1, num_steps=10)


def with_measurement(record, **changes):
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, **changes))


def test_the_throughput_comes_first_then_steps_and_their_spread():
    record = with_measurement(make_record(80.0, case=CASE), num_steps=60, step_cv=0.02)
    lines = summary(record).splitlines()
    assert lines[0] == f"{CASE.name}: 80.0 images/s"
    assert lines[1].startswith("  60 steps of 1 x 4 images in ")
    assert ", CV 2.0%)" in lines[2]
    gpt2 = with_measurement(make_record(9.0, case=dataclasses.replace(CASE, accumulate=3)), sequence_length=1024)
    assert "\n  10 steps of 3 batches of 1 x 4 sequences of 1,024 tokens in " in summary(gpt2)


def test_latency_and_the_bottleneck_are_named_where_they_were_measured():
    latency = Latency(p50_seconds=0.001, p95_seconds=0.002, p99_seconds=0.0035, step_seconds=[0.001])
    limit = InputLimit(
        synthetic_step_seconds=0.1, step_ratio=1.5, limit=1.1, limited=True, wait_share=0.3, read_bytes_per_second=2e6,
        files=3,
    )  # fmt: skip
    lines = summary(with_measurement(make_record(80.0, case=CASE), latency=latency, input_limit=limit)).splitlines()
    assert lines[-2:] == [
        "  latency at batch 1: p50 1.00 ms, p95 2.00 ms, p99 3.50 ms",
        "  bottleneck: the input; a step takes 1.50 times one with synthetic data, 2.0 MB/s read",
    ]
    assert "bottleneck" not in summary(make_record(80.0, case=CASE))


def test_each_result_of_a_device_is_a_line():
    results = [
        DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic="fp32", value=2e9, size=8),
        DeviceResult(metric="memory_add", unit="B/s", reason="no GPU"),
    ]
    record = dataclasses.replace(
        make_record(80.0, case=Case(model="device", mode=Mode.DEVICE)), measurement=None, device_results=results
    )
    assert summary(record).splitlines() == [
        "matrix_product fp32            2.00 GFLOP/s  (n = 8)",
        "memory_add               not measured: no GPU",
    ]


def test_simulated_gpus_never_give_a_measurement(monkeypatch):
    monkeypatch.setattr(program, "has_simulated_gpus", lambda: True)
    monkeypatch.setattr(program, "_attempt", lambda *_: None)
    monkeypatch.setattr(program, "_prepare_environment", lambda _: None)
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
    assert program.measure(Request(case=Case(model="resnet50"), output=output)) == ExitCode.SOME_FAILED
    record = from_json(output.read_bytes())
    assert (record.status, record.simulated) == (Status.TIMEOUT, True)
    assert re.fullmatch("the GPUs are simulated .*: nothing was computed. not finished", record.cause or "")
