"""What a driver says of GPUs, one of which may be lost or in slices: which they are, in which order, and what they do."""

from dataclasses import replace
from pathlib import Path

import pytest

from results.schema import Telemetry
from results.schema.health import GPUFacts
from tests.real.training.conftest import run_tfbench
from tests.support.fake_driver import (
    FakeGPU,
    FakeMachine,
    build,
    eight_h100,
    gpu_uuid,
    run_python,
    slice_uuid,
    two_a4000,
)
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


@pytest.mark.slow
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
        ("throttled", 2, {"throttle_thermal_share": pytest.approx(0.5, abs=0.05), "throttle_hardware_share": 0.0}),
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
@pytest.mark.slow
def test_what_a_driver_does_not_report_is_null_and_the_rest_counts(fake_driver, scenario, gpus, expected):
    seen = observe(fake_driver, scenario, gpus)
    assert {name: getattr(seen, name) for name in expected} == expected
    assert seen.samples >= 20 and (scenario == "lost" or seen.energy_integrated_joules > 0)


@pytest.mark.slow
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


@pytest.mark.slow
def test_free_memory_is_that_of_the_cases_fullest_gpu(fake_driver, tmp_path):
    program = "from tfbench.machine.nvml import free_gpu_memory_bytes as free; print(free({}) or -1)"
    assert run(fake_driver, "", "-c", program.format(1)) == 15000, "another process may fill GPU 1"
    assert run(fake_driver, "", "-c", program := program.format(2)) == 14000
    assert run(fake_driver, "", "-c", program, FAKE_CUDA_ORDER="0") == 15000
    if not Path("/proc/driver/nvidia/version").exists():
        assert run(tmp_path, "", "-c", program) == -1, "without a driver it is unknown"


READ = """
import dataclasses, json, os
from tfbench.machine.nvml import ENERGY_JOULES, GPUs, as_recorded, read_driver
from tfbench.measuring.soft_warnings import gpu_warnings
from tfbench.peers import Peers
driver = read_driver(by_cuda=True)
gpus = GPUs(8)
print(json.dumps({
    "gpus": [dataclasses.asdict(as_recorded(gpu)) for gpu in driver.gpus],
    "order": os.environ["CUDA_DEVICE_ORDER"],
    "problems": driver.gpu_problems,
    "samples": [dataclasses.asdict(gpu) for _, gpu in gpus.sample()],
    "energy": gpus.read(ENERGY_JOULES),
    "limits": [gpu.power_limit_watts for gpu in gpus.at_start],
    "health": {warning.code: warning.message for warning in gpu_warnings(Peers(), gpus.warnings, gpus.at_start)},
}))
"""
PROBE = ("-m", "tfbench.probe")


@pytest.fixture(scope="session")
def h100s(tmp_path_factory):
    return build(eight_h100(), tmp_path_factory.mktemp("eight"))


def ask(driver, *code, **variables):
    return run_python(driver, *(code or ("-c", READ)), **variables)


@pytest.mark.slow
def test_the_gpus_behind_a_lost_one_keep_their_indices(tmp_path):
    machine = FakeMachine(gpus=[gpu for gpu in eight_h100(lost=1).gpus if not gpu.mig])
    reported = ask(build(machine, tmp_path / "seven"))
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1, 2, 4, 5, 6]
    assert reported["gpus"][3]["uuid"] == f"GPU-{gpu_uuid(4)}"
    assert reported["problems"] == ["6 of 7 GPUs answer: GPU 3 is lost"], "without a handle it has no PCI id"
    assert reported["health"]["gpu_unusable"] == reported["problems"][0]


@pytest.mark.slow
def test_a_machine_offers_its_whole_gpus_and_names_what_it_excludes(h100s):
    reported = ask(h100s, *PROBE)
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1, 2, 4, 5, 7]
    assert [state["index"] for state in reported["gpu_states"]] == [0, 1, 2, 4, 5, 7]
    assert reported["gpu_problems"] == [
        "7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost",
        "GPU 6 (0000:CB:00.0) is in MIG mode, and excluded next to whole GPUs",
    ]


@pytest.mark.slow
def test_a_process_gets_the_first_slice_where_nothing_was_chosen(h100s):
    reported = ask(h100s)
    (gpu,), (sample,) = reported["gpus"], reported["samples"]
    assert (gpu["index"], gpu["name"]) == (6, "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert (gpu["uuid"], gpu["memory_bytes"]) == (f"MIG-{slice_uuid(0)}", 9856 << 20)
    assert (gpu["power_limit_watts"], reported["limits"]) == (None, [None])
    assert (sample["power_watts"], reported["energy"]) == (None, [None])
    assert sample["temperature_celsius"] == 34, "the slices share a chip"
    assert reported["health"]["mig_slice"].startswith("GPU 6 (0000:CB:00.0): MIG mode is on, slices: 1g.10gb: ")
    assert "power and energy are known of the whole GPU only" in reported["health"]["mig_slice"]


@pytest.mark.slow
def test_what_cuda_visible_devices_chooses_is_cudas_answer_to_a_probe_too(h100s):
    reported = ask(h100s, *PROBE, CUDA_VISIBLE_DEVICES="whatever", FAKE_CUDA_ORDER="7,6/1")
    assert [(gpu["index"], gpu["name"].rpartition(" ")[2]) for gpu in reported["gpus"]] == [(7, "HBM3"), (6, "3g.40gb")]
    reported = ask(h100s, *PROBE, CUDA_VISIBLE_DEVICES="1,2", FAKE_CUDA_INIT="802")
    assert reported["gpus"] == []
    problem = "CUDA does not start (cuInit failed with CUDA_ERROR_SYSTEM_NOT_READY (802))"
    assert reported["gpu_problems"] == ["7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost", problem]


@pytest.mark.slow
def test_cudas_own_order_is_that_of_the_case(h100s):
    reported = ask(h100s, FAKE_CUDA_ORDER="7,0,4")
    assert [gpu["index"] for gpu in reported["gpus"]] == [7, 0, 4]
    assert reported["order"] == "PCI_BUS_ID", "so that a number means the same GPU as to the driver"
    assert len(reported["energy"]) == 3 and None not in reported["energy"]
    reported = ask(h100s, FAKE_CUDA_ORDER="6/1")
    assert [gpu["name"] for gpu in reported["gpus"]] == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb"]


@pytest.mark.slow
def test_a_display_gpu_that_tensorflow_excludes_is_excluded_here(tmp_path):
    display = FakeGPU(bus_id="0000:01:00.0", uuid=gpu_uuid(0), name="NVIDIA T400", multiprocessors=7)
    smallest = FakeGPU(bus_id="0000:18:00.0", uuid=gpu_uuid(1), multiprocessors=8)
    driver = build(
        FakeMachine(
            gpus=[display, smallest, replace(smallest, bus_id="0000:3B:00.0", uuid=gpu_uuid(2), multiprocessors=132)]
        ),
        tmp_path,
    )
    assert [gpu["index"] for gpu in ask(driver)["gpus"]] == [1, 2]
    assert [gpu["index"] for gpu in ask(driver, TF_MIN_GPU_MULTIPROCESSOR_COUNT="4")["gpus"]] == [0, 1, 2]


@pytest.mark.tensorflow
def test_a_repeat_that_needs_the_lost_gpu_says_so_and_points_to_the_doctor(h100s):
    done = run_tfbench("--model=resnet50", "--device=gpu", "--num_gpus=8", LD_LIBRARY_PATH=str(h100s))
    assert done.returncode == 3
    assert "8 GPU(s) were requested, TensorFlow sees 0" in done.stderr
    assert "(7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost; GPU 6" in done.stderr
    assert "python -m tfbench.doctor" in done.stderr
