"""Every limit that docs/method.md states is where it says: a value just inside has no finding, one just outside has.

`python -m studies.mutants` moves each limit in turn and shows which of these rows notices.
"""

import json
import math
import resource
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from results.schema import XLA, BatchNorm, Case, Device, Precision, Status, Telemetry
from results.schema.health import GPUFacts, Moment, health_warnings
from tests.support import PROJECT
from tests.unit.results.factory import make_environment, make_measurement
from tests.unit.tfbench.test_doctor import changed
from tests.unit.tfbench.test_telemetry import HotGPUs
from tfbench import failures as outcome
from tfbench.doctor.checks import judge
from tfbench.machine import host, telemetry
from tfbench.machine.host import vector_bits
from tfbench.measuring import timing
from tfbench.measuring.soft_warnings import soft_warnings
from tfbench.settings import gpu_settings

GIB, GB = 1 << 30, 1_000_000_000
GPU, CPU = Case(model="resnet50"), Case(model="resnet50", device=Device.CPU)
STEADY = replace(make_measurement(GPU, 100.0), warmup_settled=True, step_seconds=[0.1] * 30)


def warned(code, case=GPU, telemetry=None, **measurement):
    """Return whether a measurement has a warning."""
    environment = make_environment(tf32_observed=False)
    found = soft_warnings(case, environment, replace(STEADY, **measurement), Telemetry(**telemetry or {}))
    return code in [warning.code for warning in found]


def unhealthy(code, moment=Moment.TIMING, **facts):
    """Return None without a warning, else whether it rejects the GPU."""
    found = [warning.rejects for warning in health_warnings(GPUFacts(index=0, **facts), moment) if warning.code == code]
    return found[0] if found else None


def advised(code, **facts):
    """Return whether the doctor has a finding about a machine with two GPUs."""
    return code in [finding.code for finding in judge(changed(machine=facts))]


def settled_after(means, floor=10, figure="steps"):
    """Return the steps of a warm-up whose windows have these mean step times."""
    left = iter(means)

    def take(_step, count, _report):
        return SimpleNamespace(step_seconds=[0.0] * count, seconds=next(left) * count, losses=[1.0] * count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "take_steps", take)
        return getattr(timing.warm_up(lambda: None, floor, 50, lambda *_: None), figure)


def integrated(share):
    """Return the mean power of 10 s at 100 W of which samples span a share."""
    watts = GPUFacts(index=0, power_watts=100.0)
    return telemetry.mean_watts([(0.0, watts), (10.0 * share, watts)], 10.0)


def cooled(celsius):
    """Return for how long a GPU of this temperature is waited for, of at most 3 s."""
    slept = []
    telemetry.Observer(HotGPUs([celsius])).cool(3.0, slept.append)
    return sum(slept)


def status_with_free(free_bytes):
    """Return the status of a library's failure with this much free GPU memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "free_gpu_memory_bytes", lambda _: free_bytes)
        return outcome.outcome_of(RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")).status


IDLE = {"persistence": True, "processes": 0}

LIMITS = [
    # Timing.
    ("warm-up: windows agree within 1 %", lambda x: settled_after([1.0, x, x]), {1.0099: 10, 1.0101: 15}),
    ("warm-up: a window is 5 steps, the floor is --warmup_steps", lambda x: settled_after([1.0] * 10, floor=x), {10: 10, 15: 15}),
    ("warm-up: its step time is that of the last window", lambda x: settled_after([1.0, x, x], figure="step_seconds"), {2.0: 2.0}),
    ("warm-up: ends at its ceiling, unsettled", lambda x: settled_after([1.0, x] * 5, figure="settled"), {1.0: True, 2.0: False}),
    ("warm-up: takes all steps up to its ceiling", lambda x: settled_after([1.0, x] * 5), {2.0: 50}),
    ("warm-up: at most 5 × --warmup_steps; fewer than two windows are not compared", timing.default_ceiling, {9: 9, 10: 50}),
    ("host_bound: a quarter of the step", lambda x: warned("host_bound", step_p50_seconds=0.004, lead_p50_seconds=x), {0.00101: False, 0.00099: True}),
    ("host_bound: 2 ms", lambda x: warned("host_bound", step_p50_seconds=0.1, lead_p50_seconds=x), {0.00201: False, 0.00199: True}),
    ("high_cv: 2 % on a GPU", lambda x: warned("high_cv", step_cv=x), {0.02: False, 0.0201: True}),
    ("high_cv: 10 % on a CPU", lambda x: warned("high_cv", CPU, step_cv=x), {0.1: False, 0.101: True}),
    ("drift: 2 % on a GPU", lambda x: warned("drift", step_drift=x), {0.0199: False, -0.0201: True}),
    ("drift: 5 % on a CPU", lambda x: warned("drift", CPU, step_drift=x), {0.0499: False, 0.0501: True}),
    # Roofline and telemetry.
    ("above_peak: 95 % of the peak", lambda x: warned("above_peak", flops_utilisation=x), {0.95: False, 0.951: True}),
    ("above_bandwidth", lambda x: warned("above_bandwidth", bandwidth_bound_samples_per_second=x), {100.0: False, 99.9: True}),
    ("energy_differs: 10 %", lambda x: warned("energy_differs", telemetry={"energy_joules": 100.0, "energy_integrated_joules": x}), {109.9: False, 110.1: True, 89.9: True}),
    ("cpu_shared: 5 %", lambda x: warned("cpu_shared", CPU, {"other_cpu_share": x}), {0.05: False, 0.0501: True}),
    ("sampled power: 90 % of the interval", integrated, {0.89: None, 0.91: pytest.approx(100.0)}),
    ("cooling: 50 °C", cooled, {50.0: 0.0, 50.1: 3.0}),
    # How a repeat ends.
    ("oom: less than 1 GiB free", status_with_free, {GIB: Status.ERROR, GIB - 1: Status.OOM}),
    # Health of a GPU: None, a warning (False), or rejected (True).
    ("throttled_power: 5 % of the readings", lambda x: unhealthy("throttled_power", throttle_power_share=x), {0.05: None, 0.051: False}),
    ("throttled_thermal: 5 % of the readings, rejected above 50 %", lambda x: unhealthy("throttled_thermal", throttle_thermal_share=x), {0.05: None, 0.051: False, 0.5: False}),
    ("throttled_hardware: rejected above 50 %", lambda x: unhealthy("throttled_hardware", throttle_hardware_share=x), {0.5: False, 0.501: True}),
    ("slow_gpu: 10 % below the median", lambda x: unhealthy("slow_gpu", product_teraflops_per_second=x, product_median_teraflops_per_second=100.0), {90.1: None, 89.9: False}),
    ("power_cap: 98 % of the default", lambda x: unhealthy("power_cap", power_limit_watts=x, power_limit_default_watts=100.0), {98.1: None, 97.9: False}),
    ("hot_start: 50 °C", lambda x: unhealthy("hot_start", temperature_start_celsius=x), {50.0: None, 50.1: False}),
    ("hot: 65 °C without work", lambda x: unhealthy("hot", Moment.IDLE, temperature_celsius=x, **IDLE), {65.0: None, 65.1: False}),
    ("gpu_shared: used 5 % of the time", lambda x: unhealthy("gpu_shared", utilisation=x, **IDLE), {0.05: None, 0.051: False}),
    ("gpu_shared: 1 GiB taken", lambda x: unhealthy("gpu_shared", memory_used_bytes=x, **IDLE), {GIB: None, GIB + 1: False}),
    ("pcie_width: a quarter of the lanes is rejected", lambda x: unhealthy("pcie_width", Moment.LOAD, pcie_width=x, pcie_width_max=16), {8: False, 4: True}),
    ("a reading that is not a number is not healthy", lambda x: unhealthy("throttled_thermal", throttle_thermal_share=x), {math.nan: True}),
    # The doctor, on a machine with two GPUs.
    ("few_cpus: 3 per GPU", lambda x: advised("few_cpus", cpu_limit=x), {6.0: False, 5.9: True}),
    ("cpu_shared: 5 %", lambda x: advised("cpu_shared", other_cpu_share=x), {0.05: False, 0.0501: True}),
    ("little_memory: 4 GB", lambda x: advised("little_memory", memory_available_bytes=x), {4 * GB: False, 4 * GB - 1: True}),
    ("disk_full: 2 GB", lambda x: advised("disk_full", disk_free_bytes=x), {2 * GB: False, 2 * GB - 1: True}),
    ("little_shm: 1 GiB", lambda x: advised("little_shm", shm_bytes=x), {GIB: False, GIB - 1: True}),
    # Figures with a unit, and settings of a process.
    ("vector instructions", vector_bits, {"sse4_2 avx2 avx512f": 512, "sse4_2 avx2": 256, "sse4_2": None}),
    ("a GPU's kernels have two threads of their own", gpu_settings(GPU).get, {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"}),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "decide", "expected"), LIMITS, ids=[row[0] for row in LIMITS])
def test_a_limit_is_where_it_is_stated(limit, decide, expected):
    assert {value: decide(value) for value in expected} == expected, limit


VALIDITY = {
    "UPDATE_LIMITS": (5e-3, 2e-2, 5e-2, 2e-1),
    "LOSS_LIMITS": (1e-4, 5e-3, 5e-3, 2e-2),
    "OUTPUT_LIMITS": (1e-4, 5e-3, 1e-2, 5e-2),
}
"""In fp32, tf32, fp16 and bf16."""


@pytest.mark.tensorflow
@pytest.mark.parametrize("table", VALIDITY)
def test_a_check_has_the_limit_of_its_precision(table):
    from tfbench import inference
    from tfbench.measuring import validity

    stated = {**vars(validity), **vars(inference)}[table]
    for precision, most in zip(("fp32", "tf32", "fp16", "bf16"), VALIDITY[table], strict=True):
        limit = stated[Precision(precision)]
        checks = [validity.within("x", most * factor, limit, "") for factor in (0.999, 1.001)]
        assert [check.passed for check in checks] == [True, False], precision
    assert [validity.xla_factor(replace(GPU, xla=xla)) for xla in XLA] == [1.0, 10.0, 10.0]


def test_the_rate_of_a_cpu_is_operations_per_second(monkeypatch):
    clock = iter([0.0, 0.0, 4.0, 4.0])  # the beginning, one product, no second one, the end
    monkeypatch.setattr(host, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(host, "os", SimpleNamespace(environ={}))
    monkeypatch.setattr(host, "cpu_limit", lambda: 1.0)
    monkeypatch.setattr(host, "loop_seconds", lambda: 1.0)
    assert host.processor_speed()["cpu_flops_per_second"] == 2 * host.ROWS**3 / 4.0


@pytest.mark.tensorflow
def test_a_first_loss_may_differ_by_a_factor_of_four():
    from tfbench.measuring import validity

    passed = [validity.untrained_loss_check(7.0 * factor, 7.0).passed for factor in (1 / 4.01, 1 / 3.99, 3.99, 4.01)]
    assert passed == [False, True, True, False]


PEAK = """
import json, resource
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer
observer = Observer(GPUs(0))
observer.start()
held = bytearray(300_000_000)
print(json.dumps(observer.stop().host_memory_peak_bytes))
"""


@pytest.mark.slow
def test_peak_memory_of_the_host_is_in_bytes():
    done = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True
    )
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert 300_000_000 <= json.loads(done.stdout) <= most


def test_the_stock_variant_keeps_tensorflows_settings():
    assert gpu_settings(replace(GPU, batch_norm=BatchNorm.KERAS)) == {}
