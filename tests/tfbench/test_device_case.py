"""The micro-benchmarks of the devices: figures that follow from their parts, and gates that catch wrong results."""

from __future__ import annotations

import numpy as np
import pytest

from results.record_json import from_json
from results.schema import Mode, Status

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def quick(tensorflow, monkeypatch):
    from tfbench import peaks, transfers

    monkeypatch.setattr(peaks, "MATRIX_SIZES", (128, 256))
    monkeypatch.setattr(peaks, "MEASURE_SECONDS", 0.01)
    monkeypatch.setattr(peaks, "COPY_ELEMENTS", {"CPU": 2**18})
    monkeypatch.setattr(transfers, "ALL_REDUCE_BYTES", {"CPU": (2**12, 2**16)})


def test_the_program_names_what_a_cpu_has_and_why_it_lacks_the_rest(tfbench, tmp_path):
    output = tmp_path / "record.json"
    done = tfbench("--model=device", "--device=cpu", "--num_gpus=2", f"--output={output}")
    assert done.returncode == 0, done.stderr
    record = from_json(output.read_text())
    assert (record.status, record.case.mode, record.measurement) == (Status.OK, Mode.DEVICE, None)
    found = {(result.metric, result.arithmetic): result for result in record.device_results}
    for arithmetic in ("fp64", "fp32", "fp16", "bf16"):
        assert found["matrix_product", arithmetic].value > 1e8
    assert found["memory_add", None].value > 1e8
    assert found["all_reduce", None].devices == 2
    for name in (("matrix_product", "tf32"), ("memory_copy", None), ("host_to_device", None)):
        assert found[name].value is None and found[name].reason
    assert all(result.value != 0 for result in record.device_results)
    passed = {check.name for check in record.validity.checks if check.passed}
    assert {"product_fp64", "product_fp32", "all_reduce"} <= passed
    assert "not measured: " in done.stderr


def test_the_figure_of_utilisation_is_that_of_the_device_case(quick):
    from tfbench import peaks

    product = peaks.matrix_product("fp32", "CPU:0")
    assert product.value == pytest.approx(product.amount / product.seconds)
    assert product.amount == 2 * product.size**3
    assert product.seconds <= product.p50_seconds <= product.p95_seconds
    add = peaks.memory_add("CPU:0")
    assert add.amount == 3 * add.size


def test_what_a_library_refuses_has_a_reason_and_no_value(quick, monkeypatch):
    import tensorflow as tf

    from tfbench import device_case, peaks

    def refuse(*_, **__):
        raise tf.errors.UnimplementedError(None, None, "no such kernel")

    monkeypatch.setattr(peaks, "_product", refuse)
    result, check = device_case.product_of("int8", "CPU:0")
    assert result.value is None
    assert "no such kernel" in result.reason
    assert check.passed is None


def test_bus_bandwidth_is_that_of_nccl_tests(quick, two_replicas):
    from tfbench.transfers import all_reduce, bus_bytes

    assert [bus_bytes(1000, count) for count in (2, 4, 8)] == [1000.0, 1500.0, 1750.0]
    found = all_reduce(two_replicas)
    assert [result.size for result in found] == [2**12, 2**16]
    for result in found:
        assert result.value == pytest.approx(result.size * 2 * (2 - 1) / 2 / result.seconds)


def test_a_wrong_product_and_a_wrong_sum_are_caught(quick, two_replicas, monkeypatch):
    import tensorflow as tf

    from tfbench import peaks, transfers

    monkeypatch.setattr(peaks, "_product", lambda factor, *_: lambda: tf.matmul(factor, factor) * 1.001)
    check = peaks.product_check("fp32", "CPU:0")
    assert check.passed is False
    assert check.value == pytest.approx(1e-3, rel=0.1)
    assert transfers.all_reduce_check(two_replicas).passed
    monkeypatch.setattr(transfers, "sum_over_replicas", lambda *_: lambda: [tf.fill([9], 3.0), tf.fill([9], 2.0)])
    assert transfers.all_reduce_check(two_replicas).passed is False


def test_integers_multiply_exactly(quick):
    from tfbench.peaks import _factor, product_check

    assert product_check("int8", "CPU:0").value == 0.0
    assert np.abs(_factor(64, "int8", "CPU:0").numpy().astype(int)).max() > 100
