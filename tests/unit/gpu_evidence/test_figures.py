"""What is read from records, probes and profilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.schema import (
    Check,
    DeviceResult,
    Latency,
    Mode,
    Record,
    Status,
    Telemetry,
    Validity,
)
from results.schema.record_json import to_json
from tests.benchmarks.gpu_evidence.figures import read_figure
from tests.benchmarks.gpu_evidence.runner import Ended
from tests.benchmarks.gpu_evidence.steps import NoFigure
from tests.benchmarks.gpu_evidence.timeline import Event, gpu_events, sum_up
from tests.unit.results.factory import make_case, make_failure, make_record


def ended(folder: Path, record: Record | None = None, *, name: str = "run", log: str = "", **changes) -> Ended:
    """Return a run that left a record and a log."""
    files = folder / f"{name}.json", folder / f"{name}.log"
    files[1].write_text(log)
    if record is not None:
        files[0].write_text(to_json(record))
    values = {"name": name, "seconds": 12.0, "exit_code": 0, "record": files[0], "log": files[1], **changes}
    return Ended(**values)


def cause_of(reader: str, *runs: Ended) -> str:
    with pytest.raises(NoFigure) as error:
        read_figure(reader, runs)
    return f"{error.value.outcome}: {error.value.cause}"


def with_checks(record: Record, *checks: Check, status: Status = Status.OK) -> Record:
    values = {**vars(record), "validity": Validity(valid=status is Status.OK, checks=list(checks)), "status": status}
    if status is not Status.OK:
        values |= {"measurement": None, "cause": "a gate failed"}
    return Record(**values)


LOSS = Check(name="loss_finite_at_first", passed=True, detail="", value=7.0)
SAME = Check(name="update_equals_one_device", passed=True, detail="", value=0.011, limit=0.05)
OFF = Check(name="update_equals_one_device", passed=False, detail="too far", value=0.07, limit=0.05)
NO_USE = Check(name="replicas_equal", passed=None, detail="does not apply: one replica")


def test_throughput_power_and_clocks_come_from_the_record(tmp_path):
    telemetry = Telemetry(power_mean_watts=640.0, sm_clock_mean_mhz=1900.0, temperature_steady_celsius=61.0)
    record = make_record(250.0, telemetry=telemetry, warnings=("high_cv",))
    reading = read_figure("throughput", [ended(tmp_path, record, log="9999 images/s")])
    assert (reading.figures[0].value, reading.figures[0].unit) == (250.0, "images/s")
    assert reading.details["power_mean_watts"] == 640.0 and reading.details["sm_clock_mean_mhz"] == 1900.0
    assert "power_limit_watts" not in reading.details  # not offered
    assert reading.note == "high_cv"


def test_gates_that_passed_are_counted_without_those_that_do_not_apply(tmp_path):
    record = with_checks(make_record(), LOSS, SAME, NO_USE)
    figure = read_figure("gates", [ended(tmp_path, record)]).figures[0]
    assert (figure.value, figure.unit) == (2, "of 2 gates")


def test_a_failed_gate_is_a_figure_and_is_named(tmp_path):
    record = with_checks(make_record(), LOSS, OFF, status=Status.INVALID)
    run = ended(tmp_path, record, exit_code=3)
    counted, value = read_figure("gates", [run]), read_figure("update", [run])
    assert (counted.figures[0].value, counted.figures[0].unit) == (1, "of 2 gates")
    assert counted.note == "FAILED update_equals_one_device: too far"
    assert (value.figures[0].value, value.figures[0].limit) == (0.07, 0.05)
    assert value.note == "GATE FAILED: too far"


def test_what_ended_a_case_after_its_gates_is_not_hidden_by_them(tmp_path):
    record = with_checks(make_record(), LOSS, SAME, status=Status.OOM)
    run = ended(tmp_path, record, exit_code=3)
    assert cause_of("gates", run) == "failed: oom: a gate failed"
    assert read_figure("update", [run]).note == "then oom: a gate failed"


def test_a_record_without_a_measurement_gives_its_cause(tmp_path):
    no_gpu, oom = make_failure("no_gpu", "TensorFlow sees 0"), make_failure("oom", "16 GiB are full")
    hung = make_failure("timeout", "not finished after --max_seconds=115")
    assert cause_of("throughput", ended(tmp_path, no_gpu, exit_code=3)) == "no_gpu: no_gpu: TensorFlow sees 0"
    assert cause_of("throughput", ended(tmp_path, oom, exit_code=3)) == "failed: oom: 16 GiB are full"
    assert cause_of("gates", ended(tmp_path, hung, exit_code=3)) == "timeout: not finished after --max_seconds=115"


def test_a_run_without_a_record_gives_its_last_line(tmp_path):
    died = ended(tmp_path, exit_code=-11, log="loading\nSegmentation fault\n\n")
    assert cause_of("throughput", died) == "failed: exit code -11: Segmentation fault"
    assert cause_of("probe", ended(tmp_path, exit_code=None)) == "timeout: cut after 12 s"


def test_peaks_have_units_of_people_and_int8_comes_first(tmp_path):
    def peak(value=None, **changes):
        seconds = None if value is None else 1.0
        return DeviceResult(
            amount=value, seconds=seconds, p50_seconds=seconds, p95_seconds=seconds, value=value, **changes
        )

    results = [
        peak(4.8e13, metric="matrix_product", unit="FLOP/s", arithmetic="fp32", size=64),
        peak(9.9e14, metric="matrix_product", unit="OP/s", arithmetic="int8", size=64),
        peak(4.1e12, metric="memory_add", unit="B/s", size=64),
        peak(metric="matrix_product", unit="FLOP/s", arithmetic="fp64", reason="too slow"),
    ]
    case = make_case("device", mode=Mode.DEVICE, batch_norm="none")
    record = Record(**{**vars(make_record(case=case)), "measurement": None, "device_results": results})
    reading = read_figure("device", [ended(tmp_path, record)])
    assert [(figure.name, figure.value, figure.unit) for figure in reading.figures] == [
        ("matrix_product-int8", 990.0, "TOP/s"),
        ("matrix_product-fp32", 48.0, "TFLOP/s"),
        ("memory_add", 4100.0, "GB/s"),
    ]
    assert reading.details["not_measured"] == {"matrix_product-fp64": "too slow"}


def test_latency_is_in_milliseconds(tmp_path):
    record = make_record(case=make_case(mode=Mode.INFER))
    latency = Latency(p50_seconds=0.002, p95_seconds=0.003, p99_seconds=0.004, step_seconds=[0.002, 0.004])
    record = Record(
        **{**vars(record), "measurement": type(record.measurement)(**{**vars(record.measurement), "latency": latency})}
    )
    figure = read_figure("latency", [ended(tmp_path, record)]).figures[0]
    assert (figure.value, figure.unit) == (2.0, "ms")


def test_a_comparison_that_breaks_keeps_its_whole_pairs(tmp_path):
    rates = {"ours-1": 300.0, "peer-1": 200.0, "ours-2": 330.0}
    runs = [ended(tmp_path, make_record(rate), name=name) for name, rate in rates.items()]
    runs.append(ended(tmp_path, name="peer-2", exit_code=None))
    reading = read_figure("ratio", runs)
    assert reading.figures[0].value == pytest.approx(1.5)
    assert reading.note == "1 pair(s): 1.500 to 1.500; then peer-2: cut after 12 s"
    assert cause_of("ratio", runs[0], runs[3]) == "timeout: peer-2: cut after 12 s"


def test_what_a_peer_prints_counts_only_where_it_ended_well(tmp_path):
    ours = ended(tmp_path, make_record(100.0), name="ours-1")
    good = ended(tmp_path, name="peer-1", log="Step 1\ntotal images/sec: 50.00\n", reads_log=True)
    bad = ended(tmp_path, name="peer-2", log="total images/sec: 50.00\n", reads_log=True, exit_code=1)
    assert read_figure("ratio", [ours, good]).figures[0].value == pytest.approx(2.0)
    assert cause_of("ratio", ours, bad) == "failed: peer-2: exit code 1: total images/sec: 50.00"


def test_the_doctors_findings_are_counted_among_other_lines(tmp_path):
    log = 'loading {libraries}\n{"summary": "doubtful: 1 finding",\n "findings": [{"code": "power_cap"}]}\n'
    reading = read_figure("doctor", [ended(tmp_path, log=log, exit_code=3)])
    assert (reading.figures[0].value, reading.note) == (1, "doubtful: 1 finding")
    assert cause_of("doctor", ended(tmp_path, log="boom", exit_code=1)) == "failed: exit code 1: boom"


NSYS = """
[6/8] Executing 'cuda_gpu_kern_sum' stats report

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)                Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  ---------------------------
     60.5        605000000       1000  605000.0  605000.0         1         2          0.1  sm90_xmma_fprop_implicit_gemm
      7.5         75000000        500  150000.0  150000.0         1         2          0.1  void nchwToNhwcKernel<__half, 1>

[7/8] Executing 'cuda_gpu_mem_time_sum' stats report

     99.0        605000000       1000  605000.0  605000.0         1         2          0.1  [CUDA memcpy Host-to-Device]
"""


def test_nsys_gives_the_share_of_kernels_that_turn_layouts(tmp_path):
    reading = read_figure("nsys", [ended(tmp_path, log=NSYS)])
    assert reading.figures[0].value == 7.5
    assert reading.details["largest_percent"] == {
        "sm90_xmma_fprop_implicit_gemm": 60.5,
        "void nchwToNhwcKernel<__half, 1>": 7.5,
    }


NCU = """==PROF== Profiling "a": 0%
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","a","gpu__time_duration.sum","ns","3,000"
"0","a","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","80.0"
"1","b","gpu__time_duration.sum","ns","1,000"
"1","b","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","40.0"
"""


def test_ncu_weighs_kernels_by_their_duration(tmp_path):
    assert read_figure("ncu", [ended(tmp_path, log=NCU)]).figures[0].value == pytest.approx(70.0)


def test_a_timeline_counts_overlapping_streams_once():
    events = [
        Event(name="conv", start=0.0, seconds=4.0),
        Event(name="ncclAllReduce", start=2.0, seconds=3.0),  # on another stream, one second alone
        Event(name="void nchwToNhwcKernel", start=6.0, seconds=1.0),
        Event(name="MemcpyD2H", start=9.0, seconds=1.0),
    ]
    timeline = sum_up(events)
    assert timeline.busy == pytest.approx(0.7) and timeline.longest_gap == pytest.approx(2.0)
    assert (timeline.kernels, timeline.copies) == (3, {"MemcpyD2H": 1})
    assert timeline.layout == pytest.approx(1 / 8)
    assert sum_up([]) is None


@pytest.mark.tensorflow
def test_events_are_those_of_the_first_gpus_streams():
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for name, line in (("/host:CPU", "Stream #1"), ("/device:GPU:0", "Stream #1"), ("/device:GPU:0", "Steps")):
        plane = next((plane for plane in space.planes if plane.name == name), None) or space.planes.add(name=name)
        plane.event_metadata[1].name = f"kernel of {name}"
        added = plane.lines.add(name=line, timestamp_ns=2_000_000_000)
        added.events.add(metadata_id=1, offset_ps=500_000_000_000, duration_ps=250_000_000_000)
    assert gpu_events(space) == [Event(name="kernel of /device:GPU:0", start=2.5, seconds=0.25)]
