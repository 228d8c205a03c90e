"""The micro-benchmarks of the devices: figures that follow from their parts, and checks that catch wrong results."""

import dataclasses
import operator
from types import SimpleNamespace

import pytest

from results.runs.reading import from_json
from results.schema import BatchNorm, Case, Device, DeviceResult, Mode, Status
from results.schema.health import GPUFacts
from results.schema.networks import NETWORKS
from tests.real.training.forks import run_repeat
from tests.unit.results.factory import make_environment
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
from tfbench.flags import Options
from tfbench.machine import host
from tfbench.machine.nvml import GPUs
from tfbench.models import build

pytestmark = pytest.mark.tensorflow

PEAKS = {"MATRIX_SIZES": (128, 256), "MEASURE_SECONDS": 0.01, "COPY_ELEMENTS": {"CPU": 2**18}}
TRANSFERS = {"ALL_REDUCE_BYTES": {"CPU": (2**12, 2**16)}}
"""Sizes that take no time: the real ones take half a minute of two cores."""


@pytest.fixture
def quick(peaks, transfers, monkeypatch):
    for module, values in ((peaks, PEAKS), (transfers, TRANSFERS)):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


QUICK = f"""
from tfbench.roofline import peaks, transfers
vars(peaks).update({PEAKS})
vars(transfers).update({TRANSFERS})
"""
"""Gives a process these sizes."""


def test_the_program_names_what_a_cpu_has_and_why_it_lacks_the_rest(tmp_path):
    output = tmp_path / "record.json"
    done = run_repeat(tmp_path, "--model=device", "--device=cpu", "--num_gpus=2", f"--output={output}", planted=QUICK)
    assert done.returncode == 0, done.stderr
    record = from_json(output.read_text())
    assert (record.status, record.case.mode, record.measurement) == (Status.OK, Mode.DEVICE, None)
    found = {(result.metric, result.arithmetic): result for result in record.device_results}
    for arithmetic in ("fp64", "fp32", "fp16", "bf16"):
        assert found["matrix_product", arithmetic].value > 1e8
    assert found["memory_add", None].value > 1e8
    assert found["all_reduce", None].devices == 2
    for name in (("matrix_product", "tf32"), ("host_to_device", None)):
        assert found[name].value is None and found[name].reason
    assert all(result.value != 0 for result in record.device_results)
    passed = {check.name for check in record.validity.checks if check.passed}
    assert {"product_fp64", "product_fp32", "all_reduce"} <= passed
    assert found["all_reduce", None].chained > 1
    assert record.environment.cudnn is record.environment.cublas is record.environment.nccl is None
    assert "not measured: " in done.stderr


def test_the_figure_of_utilisation_is_that_of_the_device_case(quick, peaks):
    product = peaks.matrix_product("fp32", "CPU:0")
    assert product.value == pytest.approx(product.amount / product.seconds)
    assert product.amount == 2 * product.size**3
    assert product.seconds <= product.p50_seconds <= product.p95_seconds
    add = peaks.memory_add("CPU:0")
    assert add.amount == 3 * add.size


def test_what_was_computed_elsewhere_has_a_reason_and_no_value(quick, monkeypatch, tf, device_case):
    def elsewhere(factor, *_):
        @tf.function
        def multiply():
            with tf.device("CPU:0"):
                return tf.cast(tf.matmul(tf.cast(factor, tf.int32), tf.cast(factor, tf.int32)), tf.float32)

        return multiply

    monkeypatch.setattr("tfbench.roofline.peaks.product_call", elsewhere)
    result, check = device_case.product_of("fp32", "CPU:1")
    assert result.value is None and check.passed is None
    assert "TensorFlow computed on CPU:0 what was meant for CPU:1" in result.reason


def test_bus_bandwidth_is_that_of_nccl_tests(quick, two_replicas, transfers):
    assert [transfers.bus_bytes(1000, count) for count in (2, 4, 8)] == [1000.0, 1500.0, 1750.0]
    found = transfers.all_reduce(two_replicas)
    assert {result.chained for result in found} == {transfers.CHAINED}, "figures are of one all-reduce, not of a call"
    assert [result.size for result in found] == [2**12, 2**16]
    for result in found:
        assert result.value == pytest.approx(result.size * 2 * (2 - 1) / 2 / result.seconds)


@pytest.mark.parametrize(("kind", "times"), [("CPU", 2), ("GPU", 10)])
def test_the_bandwidth_between_hosts_is_of_one_all_reduce(two_replicas, monkeypatch, kind, times, ranks):
    calls, clock = [], iter((100.0, 108.0))
    monkeypatch.setattr(ranks, "sum_over_replicas", lambda *args: calls.append(args) or (lambda: []))
    monkeypatch.setattr(ranks, "device_kind", lambda _: kind)
    monkeypatch.setattr(ranks.time, "perf_counter", lambda: next(clock))
    assert ranks.bus_bytes_per_second(two_replicas, 2) == pytest.approx(4 * 2**24 / (8.0 / 2 / times))
    assert calls == [(two_replicas, 2**24, times)]


def others(theirs):
    return SimpleNamespace(gather=lambda what, value: [value, *theirs])


def test_hosts_with_other_gpus_are_refused(tensorflow, ranks):
    chief = make_environment(2, "A4000")
    same = {name: getattr(chief, name) for name in ranks.SAME_SOFTWARE} | {"GPUs": "A4000, A4000"}
    ranks.check_software(others([same]), chief)
    with pytest.raises(CaseFailedError, match="rank 2 has GPUs A4000, A5000 instead of A4000, A4000: ") as caught:
        ranks.check_software(others([same, same | {"GPUs": "A4000, A5000"}]), chief)
    assert caught.value.status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("own", "theirs", "median"),
    [([80.0, 98.0], [], 98.0), ([80.0], [[98.0], []], 98.0), ([80.0, None], [[98.0]], None), ([98.0], [], None)],
)
def test_a_gpu_is_compared_with_the_faster_of_two_on_any_host(
    tensorflow, monkeypatch, own, theirs, median, device_case
):
    rates = [DeviceResult(metric="sustained_product", unit="", value=rate and rate * 1e12) for rate in own]
    monkeypatch.setattr(device_case, "sustained_products", lambda *_: rates)
    case = Case(model="resnet50", num_gpus=len(own), num_hosts=1 + len(theirs))
    gpus = device_case.with_product_rates(case, [GPUFacts(index=i, place=i) for i in range(len(own))], others(theirs))
    assert {gpu.product_median_teraflops_per_second for gpu in gpus} == {median}


@pytest.mark.parametrize("operation", ["matmul", "nn.conv2d"])
def test_a_product_or_convolution_that_rounds_as_tf32_is_seen(tensorflow, monkeypatch, operation, tf, peaks):
    def of_ten_bits(tensor):
        return tf.cast(tf.cast(tensor, tf.float16), tf.float32)  # whose mantissa is as long as TF32's

    compute = operator.attrgetter(operation)(tf)
    assert peaks.tf32_observed("CPU:0") is False
    rounding = lambda a, b, *more: compute(of_ten_bits(a), of_ten_bits(b), *more)  # noqa: E731
    monkeypatch.setattr(f"tensorflow.{operation}", rounding)
    assert peaks.tf32_observed("CPU:0") is peaks.tf32_observed("CPU:1") is True


def test_a_wrong_product_and_a_wrong_sum_are_caught(quick, two_replicas, monkeypatch, tf, peaks, transfers):
    monkeypatch.setattr(peaks, "product_call", lambda factor, *_: lambda: tf.matmul(factor, factor) * 1.001)
    check = peaks.product_check("fp32", "CPU:0")
    assert check.passed is False
    assert check.value == pytest.approx(1e-3, rel=0.1)
    assert transfers.all_reduce_check(two_replicas).passed
    monkeypatch.setattr(transfers, "sum_over_replicas", lambda *_: lambda: [tf.fill([9], 3.0), tf.fill([9], 2.0)])
    assert transfers.all_reduce_check(two_replicas).passed is False


def test_a_deep_check_measures_each_device_all_under_load_and_the_host(quick, monkeypatch, one_replica, device_case):
    monkeypatch.setattr(device_case, "LOAD_SECONDS", 0.1)
    monkeypatch.setattr(device_case, "ALONE_SECONDS", 0.05)
    monkeypatch.setattr(device_case, "SUSTAINED_SIZES", {"CPU": 128})
    monkeypatch.setattr(host, "LOOPS", 1)
    case = Case(model="device", mode=Mode.DEVICE, device=Device.CPU, deep_check=True)
    findings = Findings()
    device_case.measure_devices(case, one_replica, findings, Options(), GPUs(0))
    metrics = [result.metric for result in findings.device_results]
    assert metrics[:4] == ["sustained_product", "memory_add", "sustained_product", "python_loop"]
    assert all(result.value > 0 for result in findings.device_results)
    assert [check.name for check in findings.checks] == ["product_of_device_0"]
    assert findings.gpus == []
    right = device_case.peaks.product_check
    monkeypatch.setattr(
        device_case.peaks, "product_check", lambda *_: dataclasses.replace(right("fp32", "CPU:0"), passed=False)
    )
    failed = Findings()
    with pytest.raises(CaseFailedError, match="product_of_device_0"):
        device_case.measure_devices(case, one_replica, failed, Options(), GPUs(0))
    assert len(failed.device_results) == len(metrics), "what was measured is kept"


@pytest.mark.parametrize(
    ("rates", "best", "measured"),
    [
        ([100.0, 1.0], 100.0, 1),
        ([10.0, 100.0, 1.0], 100.0, 2),
        ([10.0, 30.0, 20.0, 100.0], 30.0, 3),  # the warning names the others
        ([None, 100.0], 0.0, 1),
    ],
)
def test_a_peak_that_the_network_has_passed_is_measured_again(tensorflow, rates, best, measured, limits):
    left = list(rates)
    assert limits.credible_peak(lambda: left.pop(0), needed=50.0) == best
    assert len(rates) - len(left) == measured


@pytest.fixture(scope="module")
def googlenet(tensorflow):
    none = BatchNorm.NONE
    strategy = tensorflow.distribute.MirroredStrategy(["CPU:0"])
    case = Case(model="googlenet", batch_norm=none, device=Device.CPU, batch_per_gpu=2)
    return case, build(NETWORKS["googlenet"], none, 224, strategy), 2, 20.0


@pytest.mark.parametrize(
    ("known", "rates", "peak"),
    [
        (None, (1e9, 1e12), 1e12),  # the network has passed the first
        ((5e11, 5e11), (), 5e11),
        ((1e9, 5e11), (1e12,), 1e12),
        ((5e11, 1e9), (1e12,), 1e12),
    ],
)
def test_a_known_limit_is_taken_unless_the_network_has_passed_it(googlenet, monkeypatch, known, rates, peak, limits):
    for name in ("matrix_product", "memory_add"):
        results = iter([DeviceResult(metric="planted", unit="", value=rate) for rate in rates])
        monkeypatch.setattr(limits, name, lambda *_, results=results: next(results))
    fields = limits.limit_fields(*googlenet, measure_peaks=True, known=known)
    assert fields["peak_flops_per_second"] == fields["peak_bytes_per_second"] == peak
    assert fields["flops_utilisation"] == pytest.approx(20 * 9.26e9 / peak, rel=0.02)
    assert fields.get("peaks_reused", False) is (rates == ())
