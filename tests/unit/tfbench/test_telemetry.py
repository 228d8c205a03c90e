from dataclasses import replace
from pathlib import Path

import pytest

from results.schema import Telemetry
from results.schema.health import GPUFacts
from tests.support.fake_driver import build, run_python, two_a4000
from tfbench.machine import nvml, telemetry

OBSERVE = """
import dataclasses, json, sys, time
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer

gpus = GPUs(int(sys.argv[1]))
processes = gpus.other_processes()
observer = Observer(gpus, period_seconds=0.002)
observer.cool(0.0)
facts, gpus.facts = gpus.facts, None  # too long for the timed interval
observer.start()
give_up_at = time.monotonic() + 60
while len(gpus) and len(observer._samples[0]) < 100 and time.monotonic() < give_up_at:
    time.sleep(0.002)
gpus.facts = facts
telemetry = observer.stop()
gpus.close()
of_each = [(gpu.use, gpu.temperature_start_celsius) for gpu in observer.gpus]
print(json.dumps([{**dataclasses.asdict(telemetry), "other_processes": processes}, of_each]))
"""


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory):
    """Build the fake driver library; give what finds it."""
    return build(replace(two_a4000(), sources=("nvml", "cuda")), tmp_path_factory.mktemp("nvml"))


def run(fake_driver, scenario, *command, **variables):
    return run_python(fake_driver, *command, FAKE_NVML=scenario, **variables)


def observe(fake_driver, scenario, gpus=2):
    return Telemetry(**run(fake_driver, scenario, "-c", OBSERVE, str(gpus))[0])


def test_counters_and_samples_of_two_gpus_are_summed_up(fake_driver):
    summed_up, of_each = run(fake_driver, "", "-c", OBSERVE, "2")
    assert of_each == [["idle", 60.0], ["busy, 87% used, 0.0 GB taken", 61.0]], "before the benchmark"
    seen = Telemetry(**summed_up)
    assert seen.energy_joules == 100.0  # the counter of each goes up by 50 J from one reading to the next
    seconds = seen.energy_integrated_joules / 200.0  # sampled power is 200 W
    assert seen.power_mean_watts == pytest.approx(100.0 / seconds)
    assert seen.power_limit_watts == 280.0
    assert seen.energy_integrated_joules > 0
    assert seen.temperature_start_celsius == seen.temperature_steady_celsius == 61.0
    assert (seen.sm_clock_mean_mhz, seen.sm_clock_max_mhz) == (1200.0, 2100.0)
    assert seen.device_memory_used_peak_bytes == 2000
    assert (seen.pcie_generation, seen.pcie_width, seen.pcie_width_max) == (4, 8, 16)
    assert (seen.throttle_power_share, seen.throttle_thermal_share) == (0.0, 0.0)
    assert seen.other_processes == 0
    assert seen.ecc_enabled is None and seen.ecc_uncorrected_errors is None
    assert seen.samples >= 20


@pytest.mark.parametrize(
    ("scenario", "gpus", "expected"),
    [
        ("", 1, {"energy_joules": 50.0, "power_limit_watts": 140.0}),
        ("no_energy,lagging", 2, {"energy_joules": None, "power_mean_watts": pytest.approx(200.0)}),
        ("no_energy,no_instant", 2, {"power_mean_watts": pytest.approx(200.0)}),
        ("shared,ecc", 2, {"other_processes": 1, "ecc_enabled": True, "ecc_uncorrected_errors": 4}),
        # The driver goes away in the middle: no guesses, and the samples before.
        (
            "lost",
            2,
            {
                **dict.fromkeys(("energy_joules", "power_limit_watts", "sm_clock_max_mhz")),
                "temperature_steady_celsius": 61.0,
            },
        ),
    ],
)
def test_what_a_driver_does_not_report_is_null_and_the_rest_counts(fake_driver, scenario, gpus, expected):
    seen = observe(fake_driver, scenario, gpus)
    assert {name: getattr(seen, name) for name in expected} == expected
    assert seen.samples >= 20 and (scenario == "lost" or seen.energy_integrated_joules > 0)


def test_throttling_is_a_share_of_the_samples_of_the_worst_gpu(fake_driver):
    seen = observe(fake_driver, "throttled")
    assert seen.throttle_power_share == pytest.approx(0.5, abs=0.05)
    assert seen.throttle_thermal_share == seen.throttle_power_share
    assert seen.throttle_hardware_share == 0.0


def test_a_cpu_case_observes_no_gpu_although_there_are_some(fake_driver):
    seen = observe(fake_driver, "", gpus=0)
    gpu_fields = {name: value for name, value in vars(seen).items() if not name.startswith(("host", "other_cpu"))}
    assert set(gpu_fields.values()) == {None}


def test_the_probe_describes_the_gpus_that_are_visible_and_what_they_do(fake_driver):
    facts = run(fake_driver, "shared", "-m", "tfbench.probe", CUDA_VISIBLE_DEVICES="1,0", FAKE_CUDA_ORDER="1,0")
    assert (facts["driver"], facts["cuda_driver"]) == ("550.54.14", "12.4")
    assert [(gpu["index"], gpu["uuid"]) for gpu in facts["gpus"]] == [(1, "GPU-1"), (0, "GPU-0")]
    constant = {"name": "Fake A4000", "compute_capability": "8.6", "memory_bytes": 16000, "power_limit_watts": 140.0}
    assert facts["gpus"][0] == {"index": 1, "uuid": "GPU-1", **constant}
    names = ("utilisation", "processes", "memory_used_bytes", "temperature_celsius", "power_watts")
    busy, idle = ([state[name] for name in names] for state in facts["gpu_states"])
    assert (busy, idle) == ([0.87, 1, 2000, 61, 120.0], [0.0, 0, 1000, 60, 80.0])
    assert facts["gpu_states"][0]["power_limit_default_watts"] == 200.0


def test_power_is_integrated_by_trapezoids():
    ramp = [(at, GPUFacts(index=0, power_watts=watts)) for at, watts in ((0.0, 0.0), (1.0, 100.0), (4.0, 100.0))]
    assert telemetry.mean_watts(ramp, 4.0) == pytest.approx(350.0 / 4)
    assert telemetry.mean_watts(ramp[:1], 0.0) is None is telemetry.mean_watts([], 0.0)


def test_several_gpus_or_hosts_have_the_total_or_the_worst_of_each_figure():
    first = Telemetry(energy_joules=1.0, throttle_power_share=0.0, pcie_width=8, cooling_seconds=1.0, ecc_enabled=True)
    second = Telemetry(energy_joules=2.0, throttle_power_share=0.5, pcie_width=16, cooling_seconds=2.0, samples=3)
    both = telemetry.combined([first, second])
    assert (both.energy_joules, both.throttle_power_share, both.pcie_width, both.cooling_seconds) == (3.0, 0.5, 8, 2.0)
    assert (both.ecc_enabled, both.samples, telemetry.combined([]).energy_joules) == (None, 3, None)
    assert telemetry.combined([first, first]).ecc_enabled is True


def test_heat_explains_a_hardware_slowdown():
    shares = [tuple(nvml._throttling(bits).values()) for bits in (0x48, 0x28, 0x8, 0x4, 0xC0, None)]
    assert shares == [(0, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 1, 1), (None, None, None)]


class HotGPUs:
    """GPUs with these temperatures, one list per reading; the last one stays."""

    def __init__(self, *readings):
        self.readings = [*readings]

    def __len__(self):
        return len(self.readings[0])

    def read(self, _):
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


@pytest.mark.parametrize(
    ("readings", "most", "waited"),
    [
        ([[70.0, 40.0], [60.0, 40.0], [50.0, 40.0]], 100.0, 2.0),
        ([[None, 51.0]], 5.0, 5.0),
        ([[None]], 5.0, 0.0),  # none reports a temperature
        ([[]], 5.0, 0.0),  # a case on the CPU
    ],
)
def test_cooling_waits_until_it_is_cold_enough_within_its_limit(readings, most, waited):
    slept = []
    telemetry.Observer(HotGPUs(*readings)).cool(most, slept.append)
    assert sum(slept) == waited


def test_free_memory_is_that_of_the_cases_fullest_gpu(fake_driver, tmp_path):
    program = "from tfbench.machine.nvml import free_gpu_memory_bytes as free; print(free({}) or -1)"
    assert run(fake_driver, "", "-c", program.format(1)) == 15000, "another process may fill GPU 1"
    assert run(fake_driver, "", "-c", program := program.format(2)) == 14000
    assert run(fake_driver, "", "-c", program, FAKE_CUDA_ORDER="0") == 15000
    if not Path("/proc/driver/nvidia/version").exists():
        assert run(tmp_path, "", "-c", program) == -1, "without a driver it is unknown"
