"""GPUs keep the driver's indices when one is lost, MIG slices are themselves, and TensorFlow's order is CUDA's."""

import pytest

from results.schema.health import GPUFacts
from tests.real.training.conftest import run_tfbench
from tests.support.fake_driver import FakeGPU, FakeMachine, build, eight_h100, gpu_uuid, run_python, slice_uuid
from tfbench.machine.driver_gpus import DriverGPU, bus_id_of, problems_of

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


def test_the_gpus_behind_a_lost_one_keep_their_indices(tmp_path):
    machine = FakeMachine(gpus=[gpu for gpu in eight_h100(lost=1).gpus if not gpu.mig])
    reported = ask(build(machine, tmp_path / "seven"))
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1, 2, 4, 5, 6]
    assert reported["gpus"][3]["uuid"] == f"GPU-{gpu_uuid(4)}"
    assert reported["problems"] == ["6 of 7 GPUs answer: GPU 3 is lost"], "without a handle it has no PCI id"
    assert reported["health"]["gpu_unusable"] == reported["problems"][0]


def test_a_machine_offers_its_whole_gpus_and_names_what_it_excludes(h100s):
    reported = ask(h100s, *PROBE)
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1, 2, 4, 5, 7]
    assert [state["index"] for state in reported["gpu_states"]] == [0, 1, 2, 4, 5, 7]
    assert reported["gpu_problems"] == [
        "7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost",
        "GPU 6 (0000:CB:00.0) is in MIG mode, and excluded next to whole GPUs",
    ]


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


def test_a_machine_of_slices_alone_offers_the_first(tmp_path):
    machine = FakeMachine(gpus=[gpu for gpu in eight_h100().gpus if gpu.mig])
    reported = ask(build(machine, tmp_path), *PROBE)
    assert [gpu["uuid"] for gpu in reported["gpus"]] == [f"MIG-{slice_uuid(0)}"]


def test_what_cuda_visible_devices_chooses_is_cudas_answer_to_a_probe_too(h100s):
    reported = ask(h100s, *PROBE, CUDA_VISIBLE_DEVICES="whatever", FAKE_CUDA_ORDER="7,6/1")
    assert [(gpu["index"], gpu["name"].rpartition(" ")[2]) for gpu in reported["gpus"]] == [(7, "HBM3"), (6, "3g.40gb")]
    reported = ask(h100s, *PROBE, CUDA_VISIBLE_DEVICES="1,2", FAKE_CUDA_INIT="802")
    assert reported["gpus"] == []
    problem = "CUDA does not start (cuInit failed with CUDA_ERROR_SYSTEM_NOT_READY (802))"
    assert reported["gpu_problems"] == ["7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost", problem]


def test_cudas_own_order_is_that_of_the_case(h100s):
    reported = ask(h100s, FAKE_CUDA_ORDER="7,0,4")
    assert [gpu["index"] for gpu in reported["gpus"]] == [7, 0, 4]
    assert reported["order"] == "PCI_BUS_ID", "so that a number means the same GPU as to the driver"
    assert len(reported["energy"]) == 3 and None not in reported["energy"]
    reported = ask(h100s, FAKE_CUDA_ORDER="6/1")
    assert [gpu["name"] for gpu in reported["gpus"]] == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb"]


def test_a_display_gpu_that_tensorflow_excludes_is_excluded_here(tmp_path):
    display = FakeGPU(bus_id="0000:01:00.0", uuid=gpu_uuid(0), name="NVIDIA T400", multiprocessors=6)
    driver = build(FakeMachine(gpus=[display, FakeGPU(bus_id="0000:18:00.0", uuid=gpu_uuid(1))]), tmp_path)
    assert [gpu["index"] for gpu in ask(driver)["gpus"]] == [1]
    assert [gpu["index"] for gpu in ask(driver, TF_MIN_GPU_MULTIPROCESSOR_COUNT="4")["gpus"]] == [0, 1]


def test_a_gpu_is_named_by_its_pci_id_as_cuda_writes_it():
    gpu = DriverGPU(facts=GPUFacts(index=2, bus_id="0000:3A:00.0", mig=True))
    assert problems_of([gpu]) == ["GPU 2 (0000:3A:00.0) is in MIG mode without slices"]
    assert bus_id_of(b"00000000:3b:00.0") == bus_id_of("0000:3B:00.0") == "0000:3B:00.0"
    assert bus_id_of("00010000:3B:00.0") == "00010000:3B:00.0", "a domain that needs eight digits keeps them"


@pytest.mark.tensorflow
def test_a_repeat_that_needs_the_lost_gpu_says_so_and_points_to_the_doctor(h100s):
    done = run_tfbench("--model=resnet50", "--device=gpu", "--num_gpus=8", LD_LIBRARY_PATH=str(h100s))
    assert done.returncode == 3
    assert "8 GPU(s) were requested, TensorFlow sees 0" in done.stderr
    assert "(7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost; GPU 6" in done.stderr
    assert "python -m tfbench.doctor" in done.stderr
