from pathlib import Path

import pytest

from results.schema import Telemetry
from results.schema.health import GPUFacts
from tests.support.fake_driver import build, run_python, two_a4000
from tfbench.machine import telemetry
from tfbench.machine.nvml import HARDWARE_REASONS, Sample
from tfbench.machine.telemetry import cool_down

OBSERVE = """
import dataclasses, json, sys, time
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer, cool_gpus

gpus = GPUs(int(sys.argv[1]))
processes = gpus.other_processes()
cooling = cool_gpus(gpus, 0.0)
observer = Observer(gpus, period_seconds=0.002)
facts, gpus.facts = gpus.facts, None  # too long for the timed interval
observer.start()
give_up_at = time.monotonic() + 60
while len(gpus) and len(observer._samples[0]) < 100 and time.monotonic() < give_up_at:
    time.sleep(0.002)
gpus.facts = facts
telemetry = observer.stop(cooling)
gpus.close()
of_each = [(gpu.use, gpu.temperature_start_celsius) for gpu in observer.gpus]
print(json.dumps([{**dataclasses.asdict(telemetry), "other_processes": processes}, of_each]))
"""


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory):
    """Build the fake driver library; give what finds it."""
    return build(two_a4000(), tmp_path_factory.mktemp("nvml"))


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


def test_the_probe_describes_the_gpus_that_are_visible(fake_driver):
    facts = run(fake_driver, "", "-m", "tfbench.probe", CUDA_VISIBLE_DEVICES="GPU-1,0")
    assert (facts["driver"], facts["cuda_driver"]) == ("550.54.14", "12.4")
    assert [(gpu["index"], gpu["uuid"]) for gpu in facts["gpus"]] == [(1, "GPU-1"), (0, "GPU-0")]
    assert facts["gpus"][0] == {
        "index": 1,
        "name": "Fake A4000",
        "uuid": "GPU-1",
        "compute_capability": "8.6",
        "memory_bytes": 16000,
        "power_limit_watts": 140.0,
    }


def observed(*pairs, joules=None, seconds=4.0):
    """Return a GPU whose samples have these times and watts."""
    taken = [Sample(at=at, power_watts=watts) for at, watts in pairs]
    return telemetry.ObservedGPU(GPUFacts(index=0), taken, joules, seconds)


def test_power_is_integrated_by_trapezoids_over_most_of_the_interval():
    ramp = observed((0.0, 0.0), (1.0, 100.0), (4.0, 100.0))
    _, reduce = telemetry.FIELDS["energy_integrated_joules"]
    assert ramp.integrated_joules == pytest.approx(350.0)
    assert reduce([ramp.integrated_joules] * 2) == pytest.approx(700.0)
    assert observed((0.0, 100.0), (1.0, 100.0)).integrated_joules is None, "too little of it"
    assert observed((0.0, 100.0), seconds=0.0).integrated_joules is reduce([]) is None
    assert reduce([350.0, None]) is None, "one GPU reports none"


def test_shares_and_steady_temperature_follow_from_the_samples():
    hot = [Sample(at=t, reasons=0x40 if t > 2 else 0, temperature_celsius=60.0 + t) for t in range(6)]
    assert telemetry.reason_share(hot, 0x60) == 0.5
    braked = [Sample(at=0.0, reasons=reasons) for reasons in (0x48, 0x28, 0x8, 0x4, 0xC0)]
    assert telemetry.reason_share(braked, HARDWARE_REASONS) == 0.4, "heat sets the hardware's bit, too"
    assert telemetry.steady_celsius(hot) == 64.5
    worst = telemetry.reduced({"throttle_power_share": [0.0, 0.5], "pcie_width": [8, 16], "cooling_seconds": [1, 2]})
    assert worst == {"throttle_power_share": 0.5, "pcie_width": 8, "cooling_seconds": 2}


def test_cooling_waits_until_it_is_cold_enough_within_its_limit(monkeypatch):
    readings, slept = iter([[70.0, 40.0], [60.0, 40.0], [50.0, 40.0]]), []
    assert cool_down(lambda: next(readings), 50.0, 100.0, slept.append) == 2.0
    assert len(slept) == 2
    assert cool_down(lambda: [90.0], 50.0, 5.0, lambda _: None) == 5.0
    assert cool_down(list, 50.0, 5.0, lambda _: None) == 0.0, "a CPU reports no temperature"
    assert cool_down(lambda: [None, 51.0], 50.0, 5.0, lambda _: None) == 5.0
    monkeypatch.setattr(telemetry, "cool_down", lambda read, *limits: (read(), *limits))
    assert telemetry.cool_gpus(OneGPU([0]), 60.0) == telemetry.Cooling(([51.0], 50.0, 60.0), [51.0])


class OneGPU(list):
    """A GPU of 51 °C."""

    def temperatures_celsius(self):
        return [51.0]


def test_the_probe_reports_what_the_gpus_do_now(fake_driver):
    reported = run(fake_driver, "shared", "-m", "tfbench.probe")
    idle, busy = reported["gpu_states"]
    assert (idle["index"], idle["utilisation"], idle["processes"], idle["temperature_celsius"]) == (0, 0.0, 0, 60)
    assert (busy["index"], busy["utilisation"], busy["processes"], busy["memory_used_bytes"]) == (1, 0.87, 1, 2000)
    assert (busy["power_watts"], busy["power_limit_default_watts"]) == (120.0, 200.0)


def test_free_memory_is_that_of_the_cases_fullest_gpu(fake_driver, tmp_path):
    program = "from tfbench.machine.nvml import free_gpu_memory_bytes as free; print(free({}) or -1)"
    assert run(fake_driver, "", "-c", program.format(1)) == 15000, "another process may fill GPU 1"
    assert run(fake_driver, "", "-c", program := program.format(2)) == 14000
    assert run(fake_driver, "", "-c", program, CUDA_VISIBLE_DEVICES="0") == 15000
    if not Path("/proc/driver/nvidia/version").exists():
        assert run(tmp_path, "", "-c", program) == -1, "without a driver it is unknown"
