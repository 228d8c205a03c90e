"""Is a GPU healthy: every rule of the one table, at the moments at which it is evaluated."""

import pytest

from results.schema.health import RULES, GPUFacts, GPUSlice, Moment, grouped_warnings, health_warnings

WARNING, REJECT = False, True
IDLE, TIMING, LOAD = Moment
WARNED, REJECTED = (dict.fromkeys(Moment, rejects) for rejects in (WARNING, REJECT))
FREE = {"memory_used_bytes": 400_000_000, "utilisation": 0.0, "processes": 0}
COOL = {"temperature_celsius": 41.0, "temperature_start_celsius": 41.0}
CLOCKS = {"application_clock_mhz": 1980.0, "application_clock_default_mhz": 1980.0}
FULL = {"power_limit_watts": 700.0, "power_limit_default_watts": 700.0, "pcie_width": 16, "pcie_width_max": 16}
HEALTHY = GPUFacts(
    index=0, bus_id="0000:18:00.0", persistence=True, compute_mode="default", **FREE, **COOL, **CLOCKS, **FULL
)
SLOWER = {"product_median_teraflops_per_second": 24.0}
CASES = [
    ({"problem": "is lost"}, "gpu_unusable", WARNED, "is lost"),
    ({"mig": True, "slices": [GPUSlice(profile="1g.10gb")]}, "mig_slice", {IDLE: WARNING, TIMING: WARNING}, "1g.10gb"),
    ({"virtual": True, "licensed": False}, "vgpu", {IDLE: WARNING, TIMING: WARNING}, "is a vGPU, unlicensed"),
    ({"row_remap_failed": True}, "row_remap_failed", REJECTED, "a faulty row"),
    ({"row_remap_pending": True}, "row_remap_pending", WARNED, "next reset"),
    ({"ecc_uncorrected_errors": 2}, "ecc_errors", REJECTED, "2 uncorrected"),
    ({"compute_mode": "prohibited"}, "compute_mode", {IDLE: WARNING}, "prohibited"),
    ({"compute_mode": "exclusive process"}, None, {}, "one process is enough"),
    ({"power_limit_watts": 680.0}, "power_cap", WARNED, "680 W (default 700 W)"),
    ({"power_limit_watts": 690.0}, None, {}, "within 2 %"),
    ({"application_clock_mhz": 1200}, "application_clocks", {IDLE: WARNING, LOAD: WARNING}, "1200 MHz (default 1980"),
    ({"throttle_power_share": 0.5}, "throttled_power", {TIMING: WARNING}, "limit in 50% of the readings, 41 °C"),
    ({"throttle_thermal_share": 0.4}, "throttled_thermal", WARNED, "held back by heat"),
    ({"throttle_hardware_share": 0.6}, "throttled_hardware", REJECTED, "power brake"),
    ({"throttle_thermal_share": 0.05}, None, {}, "a few readings"),
    (SLOWER | {"product_teraflops_per_second": 12.0}, "slow_gpu", {TIMING: WARNING}, "50% below the median"),
    (SLOWER | {"product_teraflops_per_second": 21.9}, None, {}, "within 10 %"),
    ({"temperature_celsius": 78.0}, "hot", {IDLE: WARNING}, "78 °C without work"),
    ({"temperature_start_celsius": 65.0}, "hot_start", {TIMING: WARNING}, "65 °C when warm-up began"),
    ({"processes": 2}, "gpu_shared", {IDLE: WARNING, TIMING: WARNING}, "2 processes"),
    ({"memory_used_bytes": 12 << 30}, "gpu_shared", {IDLE: WARNING, TIMING: WARNING}, "12.9 GB taken"),
    ({"utilisation": 0.9, "temperature_celsius": 78.0}, "gpu_shared", {IDLE: WARNING, TIMING: WARNING}, "90% used"),
    ({"utilisation": 0.99, "persistence": False}, "persistence_off", {IDLE: WARNING}, "persistence mode is off"),
    ({"pcie_width": 8}, "pcie_width", {IDLE: WARNING, LOAD: WARNING}, "PCIe ×8 of ×16"),
    ({"pcie_width": 4}, "pcie_width", {IDLE: REJECT, LOAD: REJECT}, "PCIe ×4 of ×16"),
    ({"persistence": False}, "persistence_off", {IDLE: WARNING}, "persistence mode is off"),
]


@pytest.mark.parametrize(("changes", "code", "rejects", "seen"), CASES)
def test_a_fault_is_found_by_its_one_rule(changes, code, rejects, seen):
    gpu = GPUFacts(**vars(HEALTHY) | changes)
    for moment in Moment:
        found = health_warnings(gpu, moment)
        assert [(warning.code, warning.rejects) for warning in found] == (
            [(code, rejects[moment])] if moment in rejects else []
        )
        assert all(seen in warning.seen for warning in found)


def test_a_healthy_gpu_and_one_of_which_nothing_is_known_have_no_warning():
    for moment in Moment:
        assert health_warnings(HEALTHY, moment) == health_warnings(GPUFacts(index=0), moment) == []


def test_every_rule_has_a_case_here():
    assert RULES.keys() == {code for _, code, *_ in CASES if code}


def test_what_several_gpus_share_comes_once():
    gpus = [GPUFacts(index=index, persistence=False, bus_id="0000:18:00.0") for index in range(3)]
    (names, warning), (other, capped) = grouped_warnings(
        [*gpus, GPUFacts(index=3, power_limit_watts=400.0, power_limit_default_watts=700.0)], Moment.IDLE
    )
    assert (names, warning.fix) == ("GPUs 0, 1, 2", "sudo nvidia-smi -pm 1")
    assert (other, capped.fix) == ("GPU 3", "sudo nvidia-smi -i 3 -pl 700")
