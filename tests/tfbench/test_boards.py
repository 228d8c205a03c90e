"""GPUs keep the driver's indices when one is lost, MIG slices are themselves, and TensorFlow's order is CUDA's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from tests.fake_driver import FakeGPU, FakeMachine, build, eight_h100, gpu_uuid, slice_uuid
from tests.tfbench.conftest import REPOSITORY
from tfbench.boards import Board, bus_id_of, problems_of

READ = """
import dataclasses, json, sys
from tfbench.nvml import GPUs, read_driver
driver = read_driver(by_cuda="cuda" in sys.argv)
gpus = GPUs(8)
(sample, *_) = gpus.sample() or [None]
print(json.dumps({
    "gpus": [dataclasses.asdict(gpu) for gpu in driver.gpus],
    "problems": driver.problems,
    "warnings": {warning.code: warning.message for warning in gpus.warnings},
    "sample": None if sample is None else dataclasses.asdict(sample),
    "energy": gpus.energy_joules(),
    "limits": gpus.power_limits_watts(),
}))
"""


@pytest.fixture(scope="session")
def h100s(tmp_path_factory):
    return build(eight_h100(), tmp_path_factory.mktemp("eight"))


def ask(driver, *arguments, code=("-c", READ), **variables):
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, *code, *arguments],
        cwd=REPOSITORY,
        env={**inherited, "LD_LIBRARY_PATH": str(driver), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def without_mig(machine):
    gpus = [gpu for gpu in machine.gpus if not gpu.mig]
    return FakeMachine(gpus=gpus)


def test_the_gpus_behind_a_lost_one_keep_their_indices(tmp_path):
    told = ask(build(without_mig(eight_h100()), tmp_path))
    assert [gpu["index"] for gpu in told["gpus"]] == [0, 1, 2, 4, 5, 6]
    assert told["gpus"][3]["uuid"] == f"GPU-{gpu_uuid(4)}"
    assert told["problems"] == ["6 of 7 GPUs answer: GPU 3 is lost"], "a GPU without a handle has no PCI id to ask for"
    assert told["warnings"] == {"gpu_unusable": told["problems"][0]}


def test_a_lost_gpu_whose_handle_still_opens_is_named_by_its_pci_id(tmp_path):
    machine = FakeMachine(
        gpus=[FakeGPU(bus_id="0000:18:00.0", uuid=uuid.uuid4()), FakeGPU(bus_id="0000:3B:00.0", uuid="x", lost=2)]
    )
    assert ask(build(machine, tmp_path))["problems"] == ["1 of 2 GPUs answer: GPU 1 (0000:3B:00.0) is lost"]


def test_the_kernels_list_names_the_pci_id_of_a_gpu_without_a_handle(h100s, tmp_path):
    for gpu in eight_h100().gpus:
        (tmp_path / gpu.bus_id.lower()).mkdir()
    code = (
        "import json, pathlib, pynvml; from tfbench.boards import *; pynvml.nvmlInit();"
        f"print(json.dumps(problems_of(read_boards(pathlib.Path({str(tmp_path)!r})))))"
    )
    assert ask(h100s, code=("-c", code)) == ["7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost"]


def test_where_cuda_says_nothing_a_machine_with_mig_gives_a_process_its_first_slice(h100s):
    (gpu,) = ask(h100s)["gpus"]
    assert gpu == {
        "index": 6,
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "uuid": f"MIG-{slice_uuid(0)}",
        "compute_capability": "9.0",
        "memory_bytes": 9856 << 20,
        "power_limit_watts": None,
    }


@pytest.mark.parametrize(
    ("entry", "profile", "memory_mib"),
    [
        (f"MIG-{slice_uuid(1)}", "3g.40gb", 40320),
        (f"MIG-{slice_uuid(1)},MIG-{slice_uuid(0)}", "3g.40gb", 40320),
        (f"MIG-GPU-{gpu_uuid(6)}/2/0", "3g.40gb", 40320),
        (f"MIG-GPU-{gpu_uuid(6)}/3/0", "1c.2g.20gb", 20096),
        (f"GPU-{gpu_uuid(6)}", "1g.10gb", 9856),
        ("5", "1g.10gb", 9856),  # CUDA counts the GPUs that answer: the sixth of them is GPU 6
    ],
)
def test_an_entry_of_cuda_visible_devices_finds_its_slice(h100s, entry, profile, memory_mib):
    (gpu,) = ask(h100s, code=("-m", "tfbench.probe"), CUDA_VISIBLE_DEVICES=entry)["gpus"]
    assert (gpu["index"], gpu["name"]) == (6, f"NVIDIA H100 80GB HBM3 MIG {profile}")
    assert gpu["memory_bytes"] == memory_mib << 20


def test_an_unknown_or_ambiguous_entry_ends_the_list_as_it_does_for_cuda(h100s):
    def indices(entry):
        found = ask(h100s, code=("-m", "tfbench.probe"), CUDA_VISIBLE_DEVICES=entry)["gpus"]
        return [gpu["index"] for gpu in found]

    assert indices(f"GPU-{gpu_uuid(4)},1,99,0") == [4, 1]
    assert indices("GPU-8932f937") == [], "all of them begin like this"
    assert indices("MIG-nothing") == []


def test_power_and_energy_of_a_slice_are_left_out_with_the_reason(h100s):
    told = ask(h100s)
    assert (told["sample"]["power_watts"], told["energy"], told["limits"]) == (None, [None], [None])
    assert told["sample"]["temperature_celsius"] == 34, "the slices share a chip"
    assert (
        "MIG 1g.10gb is a slice of GPU 6: power and energy are measured for the whole board only"
        in (told["warnings"]["mig_slice"])
    )


def test_cudas_own_order_counts_above_the_variable(h100s):
    told = ask(h100s, "cuda", FAKE_CUDA_ORDER="7,0,4", CUDA_VISIBLE_DEVICES="1")
    assert [gpu["index"] for gpu in told["gpus"]] == [7, 0, 4]
    assert len(told["energy"]) == 3 and None not in told["energy"]
    told = ask(h100s, "cuda", FAKE_CUDA_ORDER="6/1")
    assert [gpu["name"] for gpu in told["gpus"]] == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb"]


def test_where_cuda_cannot_start_the_variable_counts(h100s):
    told = ask(h100s, "cuda", FAKE_CUDA_INIT="802", CUDA_VISIBLE_DEVICES="1,2")
    assert [gpu["index"] for gpu in told["gpus"]] == [1, 2]


def test_mig_mode_without_slices_is_a_problem(tmp_path):
    board = Board(index=2, handle=1, bus_id="0000:3A:00.0", mig=True)
    assert problems_of([board]) == ["GPU 2 (0000:3A:00.0) is in MIG mode without slices"]


def test_nvmls_long_pci_domain_is_written_as_cuda_does():
    assert bus_id_of(b"00000000:3b:00.0") == bus_id_of("0000:3B:00.0") == "0000:3B:00.0"
    assert bus_id_of("00010000:3B:00.0") == "00010000:3B:00.0", "a domain that needs eight digits keeps them"


def test_a_repeat_that_needs_the_lost_gpu_says_so_and_points_to_the_doctor(h100s, tfbench):
    done = tfbench("--model=resnet50", "--device=gpu", "--num_gpus=8", LD_LIBRARY_PATH=str(h100s))
    assert done.returncode == 3
    assert "8 GPU(s) were asked for, TensorFlow sees 0" in done.stderr
    assert "(7 of 8 GPUs answer: GPU 3 is lost)" in done.stderr
    assert "python -m tfbench.doctor" in done.stderr
