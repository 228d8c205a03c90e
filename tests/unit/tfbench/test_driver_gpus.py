"""GPUs keep the driver's indices when one is lost, MIG slices are themselves, and TensorFlow's order is CUDA's."""

import pytest

from tests.real.training.conftest import run_tfbench
from tests.support.fake_driver import FakeGPU, FakeMachine, build, eight_h100, gpu_uuid, run_python, slice_uuid
from tfbench.machine.driver_gpus import DriverGPU, bus_id_of, problems_of

READ = """
import dataclasses, json
from tfbench.machine.nvml import GPUs, as_recorded, read_driver
from tfbench.measuring.soft_warnings import gpu_warnings
from tfbench.peers.connections import Alone
driver = read_driver(by_cuda=True)
gpus = GPUs(8)
(sample, *_) = gpus.sample() or [None]
print(json.dumps({
    "gpus": [dataclasses.asdict(as_recorded(gpu)) for gpu in driver.gpus],
    "problems": driver.problems,
    "sample": None if sample is None else dataclasses.asdict(sample),
    "energy": gpus.energy_joules(),
    "limits": [gpu.power_limit_watts for gpu in gpus.at_start],
    "health": {warning.code: warning.message for warning in gpu_warnings(Alone(), gpus.warnings, gpus.at_start)},
}))
"""


@pytest.fixture(scope="session")
def h100s(tmp_path_factory):
    return build(eight_h100(), tmp_path_factory.mktemp("eight"))


def ask(driver, *arguments, code=("-c", READ), **variables):
    return run_python(driver, *code, *arguments, **variables)


def test_the_gpus_behind_a_lost_one_keep_their_indices(tmp_path):
    machine = FakeMachine(gpus=[gpu for gpu in eight_h100(lost=1).gpus if not gpu.mig])
    reported = ask(build(machine, tmp_path / "seven"))
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1, 2, 4, 5, 6]
    assert reported["gpus"][3]["uuid"] == f"GPU-{gpu_uuid(4)}"
    assert reported["problems"] == ["6 of 7 GPUs answer: GPU 3 is lost"], "without a handle it has no PCI id"
    assert reported["health"]["gpu_unusable"] == reported["problems"][0]
    gpus = [FakeGPU(bus_id="0000:18:00.0", uuid="y"), FakeGPU(bus_id="0000:3B:00.0", uuid="x", lost=2)]
    (said,) = ask(build(FakeMachine(gpus=gpus), tmp_path / "two"))["problems"]
    assert said == "1 of 2 GPUs answer: GPU 1 (0000:3B:00.0) is lost"


def test_the_kernels_list_names_the_pci_id_of_a_gpu_without_a_handle(tmp_path):
    driver = build(eight_h100(lost=1), tmp_path / "driver")
    for gpu in eight_h100().gpus:
        (tmp_path / "gpus" / gpu.bus_id.lower()).mkdir(parents=True)
    code = (
        "import json, pathlib, pynvml; from tfbench.machine.driver_gpus import *; pynvml.nvmlInit();"
        f"print(json.dumps(problems_of(read_driver_gpus(pathlib.Path({str(tmp_path / 'gpus')!r})))))"
    )
    assert ask(driver, code=("-c", code)) == ["7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost"]


def test_a_machine_offers_its_whole_gpus_and_names_what_it_excludes(h100s):
    reported = ask(h100s, code=("-m", "tfbench.probe"))
    assert [gpu["index"] for gpu in reported["gpus"]] == [0, 1, 2, 4, 5, 7]
    assert [state["index"] for state in reported["gpu_states"]] == [0, 1, 2, 4, 5, 7]
    assert reported["gpu_problems"] == [
        "7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost",
        "GPU 6 (0000:CB:00.0) is in MIG mode, and excluded next to whole GPUs",
    ]


def test_a_process_gets_the_first_slice_where_nothing_was_chosen(h100s):
    (gpu,) = ask(h100s, FAKE_CUDA_INIT="999")["gpus"]
    assert gpu == {
        "index": 6,
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "uuid": f"MIG-{slice_uuid(0)}",
        "compute_capability": "9.0",
        "memory_bytes": 9856 << 20,
        "power_limit_watts": None,
    }
    assert ask(h100s)["gpus"] == [gpu], "CUDA itself agrees"


def test_a_machine_of_slices_alone_offers_the_first(tmp_path):
    machine = FakeMachine(gpus=[gpu for gpu in eight_h100().gpus if gpu.mig])
    reported = ask(build(machine, tmp_path), code=("-m", "tfbench.probe"))
    assert [gpu["uuid"] for gpu in reported["gpus"]] == [f"MIG-{slice_uuid(0)}"]
    (state,) = reported["gpu_states"]
    assert (state["memory_used_bytes"], state["power_watts"], state["power_limit_default_watts"]) == (0, None, None)


VISIBLE = """
import dataclasses, json, os, sys
from tfbench.machine.nvml import read_driver
found = {}
for entry in sys.argv[1:]:
    os.environ["CUDA_VISIBLE_DEVICES"] = entry
    found[entry] = [[gpu.index, gpu.name.rpartition(" ")[2], gpu.memory_bytes >> 20] for gpu in read_driver().gpus]
print(json.dumps(found))
"""


def test_an_entry_of_cuda_visible_devices_means_what_it_means_to_cuda(h100s):
    large, small = [6, "3g.40gb", 40320], [6, "1g.10gb", 9856]
    whole = {4: [4, "HBM3", 81559], 1: [1, "HBM3", 81559]}
    entries = {
        f"MIG-{slice_uuid(1)}": [large],
        f"MIG-{slice_uuid(1)},MIG-{slice_uuid(0)}": [large],  # one slice only for a process
        f"MIG-GPU-{gpu_uuid(6)}/2/0": [large],
        f"MIG-GPU-{gpu_uuid(6)}/3/0": [[6, "1c.2g.20gb", 20096]],
        f"GPU-{gpu_uuid(6)}": [small],
        "5": [small],  # CUDA counts the GPUs that answer: the sixth of them is GPU 6
        f"GPU-{gpu_uuid(4)},1,99,0": [whole[4], whole[1]],  # an unknown one ends the list
        "GPU-8932f937": [],  # all of them begin like this
        **{entry: [] for entry in ("MIG-nothing", "-1", "")},
    }
    assert ask(h100s, *entries, code=("-c", VISIBLE)) == entries


def test_a_slice_has_no_power_or_energy_and_the_reason_is_named(h100s):
    reported = ask(h100s)
    assert (reported["sample"]["power_watts"], reported["energy"], reported["limits"]) == (None, [None], [None])
    assert reported["sample"]["temperature_celsius"] == 34, "the slices share a chip"
    assert reported["health"]["mig_slice"].startswith("GPU 6 (0000:CB:00.0): MIG mode is on, slices: 1g.10gb: ")
    assert "power and energy are known of the whole GPU only" in reported["health"]["mig_slice"]


def test_cudas_own_order_counts_above_the_variable(h100s):
    reported = ask(h100s, FAKE_CUDA_ORDER="7,0,4", CUDA_VISIBLE_DEVICES="1")
    assert [gpu["index"] for gpu in reported["gpus"]] == [7, 0, 4]
    assert len(reported["energy"]) == 3 and None not in reported["energy"]
    reported = ask(h100s, FAKE_CUDA_ORDER="6/1")
    assert [gpu["name"] for gpu in reported["gpus"]] == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb"]


def test_a_display_gpu_that_tensorflow_excludes_is_excluded_here(tmp_path):
    display = FakeGPU(bus_id="0000:01:00.0", uuid=gpu_uuid(0), name="NVIDIA T400", multiprocessors=6)
    driver = build(FakeMachine(gpus=[display, FakeGPU(bus_id="0000:18:00.0", uuid=gpu_uuid(1))]), tmp_path)
    assert [gpu["index"] for gpu in ask(driver)["gpus"]] == [1]
    assert [gpu["index"] for gpu in ask(driver, TF_MIN_GPU_MULTIPROCESSOR_COUNT="4")["gpus"]] == [0, 1]


def test_where_cuda_cannot_start_the_variable_counts(h100s):
    reported = ask(h100s, FAKE_CUDA_INIT="802", CUDA_VISIBLE_DEVICES="1,2")
    assert [gpu["index"] for gpu in reported["gpus"]] == [1, 2]


def test_a_gpu_is_named_by_its_pci_id_as_cuda_writes_it():
    gpu = DriverGPU(index=2, handle=1, bus_id="0000:3A:00.0", mig=True)
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
