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
from tfbench import failures as outcome
from tfbench.doctor.checks import judge
from tfbench.machine.host import vector_bits
from tfbench.machine.telemetry import cool_gpus, mean_watts
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
    return mean_watts([(0.0, watts), (10.0 * share, watts)], 10.0)


def cooled(celsius):
    """Return for how long a GPU of this temperature is waited for, of at most 3 s."""
    return cool_gpus(SimpleNamespace(read=lambda _: [celsius]), 3.0, lambda _: None).seconds


def status_with_free(free_bytes):
    """Return the status of a library's failure with this much free GPU memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "free_gpu_memory_bytes", lambda _: free_bytes)
        return outcome.outcome_of(RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")).status


ENERGY = {"energy_joules": 100.0}
SLOWEST = {"product_median_teraflops_per_second": 100.0}
IDLE = {"persistence": True, "processes": 0}
CAP = {"power_limit_default_watts": 100.0}

LIMITS = [
    # Timing.
    ("warm-up: windows agree within 1 %", lambda: settled_after([1.0, 1.0099]), 10),
    ("warm-up: windows agree within 1 %", lambda: settled_after([1.0, 1.0101, 1.0101]), 15),
    ("warm-up: a window is 5 steps, the floor is --warmup_steps", lambda: settled_after([1.0] * 10, floor=15), 15),
    ("warm-up: its step time is that of the last window", lambda: settled_after([1.0, 2.0, 2.0], figure="step_seconds"), 2.0),
    ("warm-up: at most 5 × --warmup_steps", lambda: timing.default_ceiling(10), 50),
    ("warm-up: fewer than two windows are not compared", lambda: timing.default_ceiling(9), 9),
    ("host_bound: a quarter of the step", lambda: warned("host_bound", step_p50_seconds=0.004, lead_p50_seconds=0.00101), False),
    ("host_bound: a quarter of the step", lambda: warned("host_bound", step_p50_seconds=0.004, lead_p50_seconds=0.00099), True),
    ("host_bound: 2 ms", lambda: warned("host_bound", step_p50_seconds=0.1, lead_p50_seconds=0.00201), False),
    ("host_bound: 2 ms", lambda: warned("host_bound", step_p50_seconds=0.1, lead_p50_seconds=0.00199), True),
    ("high_cv: 2 % on a GPU", lambda: warned("high_cv", step_cv=0.02), False),
    ("high_cv: 2 % on a GPU", lambda: warned("high_cv", step_cv=0.0201), True),
    ("high_cv: 10 % on a CPU", lambda: warned("high_cv", CPU, step_cv=0.1), False),
    ("high_cv: 10 % on a CPU", lambda: warned("high_cv", CPU, step_cv=0.101), True),
    ("drift: 2 % on a GPU", lambda: warned("drift", step_drift=0.0199), False),
    ("drift: 2 % on a GPU", lambda: warned("drift", step_drift=-0.0201), True),
    ("drift: 5 % on a CPU", lambda: warned("drift", CPU, step_drift=0.0499), False),
    ("drift: 5 % on a CPU", lambda: warned("drift", CPU, step_drift=0.0501), True),
    # Roofline and telemetry.
    ("above_peak: 95 % of the peak", lambda: warned("above_peak", flops_utilisation=0.95), False),
    ("above_peak: 95 % of the peak", lambda: warned("above_peak", flops_utilisation=0.951), True),
    ("above_bandwidth", lambda: warned("above_bandwidth", bandwidth_bound_samples_per_second=100.0), False),
    ("above_bandwidth", lambda: warned("above_bandwidth", bandwidth_bound_samples_per_second=99.9), True),
    ("energy_differs: 10 %", lambda: warned("energy_differs", telemetry=ENERGY | {"energy_integrated_joules": 109.9}), False),
    ("energy_differs: 10 %", lambda: warned("energy_differs", telemetry=ENERGY | {"energy_integrated_joules": 110.1}), True),
    ("energy_differs: 10 %", lambda: warned("energy_differs", telemetry=ENERGY | {"energy_integrated_joules": 89.9}), True),
    ("cpu_shared: 5 %", lambda: warned("cpu_shared", CPU, {"other_cpu_share": 0.05}), False),
    ("cpu_shared: 5 %", lambda: warned("cpu_shared", CPU, {"other_cpu_share": 0.0501}), True),
    ("sampled power: 90 % of the interval", lambda: integrated(0.89), None),
    ("sampled power: 90 % of the interval", lambda: integrated(0.91), pytest.approx(100.0)),
    ("cooling: 50 °C", lambda: cooled(50.0), 0.0),
    ("cooling: 50 °C", lambda: cooled(50.1), 3.0),
    # How a repeat ends.
    ("oom: less than 1 GiB free", lambda: status_with_free(GIB), Status.ERROR),
    ("oom: less than 1 GiB free", lambda: status_with_free(GIB - 1), Status.OOM),
    # Health of a GPU: None, a warning (False), or rejected (True).
    ("throttled: 5 % of the readings", lambda: unhealthy("throttled_power", throttle_power_share=0.05), None),
    ("throttled: 5 % of the readings", lambda: unhealthy("throttled_power", throttle_power_share=0.051), False),
    ("throttled: 5 % of the readings", lambda: unhealthy("throttled_thermal", throttle_thermal_share=0.05), None),
    ("throttled: 5 % of the readings", lambda: unhealthy("throttled_thermal", throttle_thermal_share=0.051), False),
    ("throttled: rejected above 50 %", lambda: unhealthy("throttled_thermal", throttle_thermal_share=0.5), False),
    ("throttled: rejected above 50 %", lambda: unhealthy("throttled_hardware", throttle_hardware_share=0.501), True),
    ("slow_gpu: 10 % below the median", lambda: unhealthy("slow_gpu", product_teraflops_per_second=90.1, **SLOWEST), None),
    ("slow_gpu: 10 % below the median", lambda: unhealthy("slow_gpu", product_teraflops_per_second=89.9, **SLOWEST), False),
    ("power_cap: 98 % of the default", lambda: unhealthy("power_cap", power_limit_watts=98.1, **CAP), None),
    ("power_cap: 98 % of the default", lambda: unhealthy("power_cap", power_limit_watts=97.9, **CAP), False),
    ("hot_start: 50 °C", lambda: unhealthy("hot_start", temperature_start_celsius=50.0), None),
    ("hot_start: 50 °C", lambda: unhealthy("hot_start", temperature_start_celsius=50.1), False),
    ("hot: 65 °C without work", lambda: unhealthy("hot", Moment.IDLE, temperature_celsius=65.0, **IDLE), None),
    ("hot: 65 °C without work", lambda: unhealthy("hot", Moment.IDLE, temperature_celsius=65.1, **IDLE), False),
    ("gpu_shared: used 5 % of the time", lambda: unhealthy("gpu_shared", utilisation=0.05, **IDLE), None),
    ("gpu_shared: used 5 % of the time", lambda: unhealthy("gpu_shared", utilisation=0.051, **IDLE), False),
    ("gpu_shared: 1 GiB taken", lambda: unhealthy("gpu_shared", memory_used_bytes=GIB, **IDLE), None),
    ("gpu_shared: 1 GiB taken", lambda: unhealthy("gpu_shared", memory_used_bytes=GIB + 1, **IDLE), False),
    ("pcie_width: a quarter of the lanes is rejected", lambda: unhealthy("pcie_width", Moment.LOAD, pcie_width=8, pcie_width_max=16), False),
    ("pcie_width: a quarter of the lanes is rejected", lambda: unhealthy("pcie_width", Moment.LOAD, pcie_width=4, pcie_width_max=16), True),
    ("a reading that is not a number is not healthy", lambda: unhealthy("throttled_thermal", throttle_thermal_share=math.nan), True),
    # The doctor, on a machine with two GPUs.
    ("few_cpus: 3 per GPU", lambda: advised("few_cpus", cpu_limit=6.0), False),
    ("few_cpus: 3 per GPU", lambda: advised("few_cpus", cpu_limit=5.9), True),
    ("cpu_shared: 5 %", lambda: advised("cpu_shared", other_cpu_share=0.05), False),
    ("cpu_shared: 5 %", lambda: advised("cpu_shared", other_cpu_share=0.0501), True),
    ("little_memory: 4 GB", lambda: advised("little_memory", memory_available_bytes=4 * GB), False),
    ("little_memory: 4 GB", lambda: advised("little_memory", memory_available_bytes=4 * GB - 1), True),
    ("disk_full: 2 GB", lambda: advised("disk_full", disk_free_bytes=2 * GB), False),
    ("disk_full: 2 GB", lambda: advised("disk_full", disk_free_bytes=2 * GB - 1), True),
    ("little_shm: 1 GiB", lambda: advised("little_shm", shm_bytes=GIB), False),
    ("little_shm: 1 GiB", lambda: advised("little_shm", shm_bytes=GIB - 1), True),
    # Figures with a unit, and settings of a process.
    ("AVX-512 is 512 bits wide", lambda: vector_bits("sse4_2 avx2 avx512f"), 512),
    ("AVX2 is 256 bits wide", lambda: vector_bits("sse4_2 avx2"), 256),
    ("a GPU's kernels have threads of their own", lambda: gpu_settings(GPU)["TF_GPU_THREAD_MODE"], "gpu_private"),
    ("two threads per GPU", lambda: gpu_settings(GPU)["TF_GPU_THREAD_COUNT"], "2"),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "decide", "expected"), LIMITS)
def test_a_limit_is_where_it_is_stated(limit, decide, expected):
    assert decide() == expected, limit


VALIDITY = [
    *((f"update, {p}: {limit}", "UPDATE_LIMITS", p, limit) for p, limit in
      {"fp32": 5e-3, "tf32": 2e-2, "fp16": 5e-2, "bf16": 2e-1}.items()),
    *((f"loss, {p}: {limit}", "LOSS_LIMITS", p, limit) for p, limit in
      {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2}.items()),
    *((f"outputs, {p}: {limit}", "OUTPUT_LIMITS", p, limit) for p, limit in
      {"fp32": 1e-4, "tf32": 5e-3, "fp16": 1e-2, "bf16": 5e-2}.items()),
]  # fmt: skip


@pytest.mark.tensorflow
@pytest.mark.parametrize(("limit", "table", "precision", "most"), VALIDITY)
def test_a_check_has_the_limit_of_its_precision(limit, table, precision, most):
    from tfbench import inference
    from tfbench.measuring import validity

    stated = {**vars(validity), **vars(inference)}[table][Precision(precision)]
    assert validity.within("x", most * 0.999, stated, "").passed, limit
    assert validity.within("x", most * 1.001, stated, "").passed is False, limit
    assert [validity.xla_factor(replace(GPU, xla=xla)) for xla in XLA] == [1.0, 10.0, 10.0]


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


def test_peak_memory_of_the_host_is_in_bytes():
    done = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True
    )
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert 300_000_000 <= json.loads(done.stdout) <= most


def test_the_stock_variant_keeps_tensorflows_settings():
    assert gpu_settings(replace(GPU, batch_norm=BatchNorm.KERAS)) == {}
