"""`python -m tfbench` on GPUs that compute nothing: what its records say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from results.runs.reading import from_json
from results.schema import Status
from studies.gpu_validation.steps import START, STEPS
from tests.support import PROJECT
from tests.support.null_gpu import environment, needs_null_gpu, only_on_demand
from tests.support.patience import patience

pytestmark = [pytest.mark.slow, needs_null_gpu]


SHORT = ("--batch_size=8", "--num_steps=5", "--warmup_steps=1", "--max_warmup_steps=1")


def tfbench(output, *flags, program=("-m", "tfbench"), **settings):
    command = [sys.executable, *program, f"--output={output}", "--model=resnet50", "--nopeaks", *flags]
    subprocess.run(
        command, cwd=PROJECT, env=environment(**settings), check=False, timeout=patience(600), capture_output=True
    )
    return from_json(Path(output).read_bytes())


def test_a_gpu_that_computes_nothing_is_invalid_and_its_record_simulated(tmp_path):
    record = tfbench(tmp_path / "record.json", *SHORT)
    assert record.status is Status.INVALID and "loss_of_an_untrained_network" in (record.cause or "")
    assert record.simulated and (record.cause or "").startswith("the GPUs are simulated")
    environment = record.environment
    assert environment and not environment.tf32_enabled and environment.variables["NVIDIA_TF32_OVERRIDE"] == "0"


def test_memory_that_does_not_suffice_is_oom_with_the_size_asked_for(tmp_path):
    record = tfbench(tmp_path / "record.json", "--batch_size=256", NULLGPU_MEMORY_MIB=8192)
    assert record.status is Status.OOM and re.search(r"shape ?\[256,\d+", record.cause or "")


UNCHECKED = """
import sys, tfbench.repeat
from tests.real.training.small import shrink
from tfbench.__main__ import main
shrink("resnet50")
tfbench.repeat.require = lambda *_: None
sys.exit(main(sys.argv[1:]))
"""
"""`python -m tfbench` that goes on although nothing is computed, with a small ResNet50."""


def test_a_throttled_gpu_of_two_has_its_warning_in_the_record(tmp_path):
    settings = {"FAKE_NVML": "throttled", "NULLGPU_KERNEL_US": 1500}
    record = tfbench(tmp_path / "record.json", *SHORT, "--num_gpus=2", program=("-c", UNCHECKED), **settings)
    found = {warning.code: warning.message for warning in record.warnings}
    assert record.simulated and {"throttled_power", "throttled_thermal"} <= found.keys()
    assert found["throttled_thermal"].startswith("GPU 1 (0000:02:00.0): held back by heat in ")


@only_on_demand
def test_one_slow_gpu_of_four_is_named_in_the_record(tmp_path):
    flags = ("--model=alexnet", "--mode=infer", "--num_gpus=4", "--peaks")
    settings = {"NULLGPU_DEVICES": 4, "NULLGPU_KERNEL_US": 2000, "NULLGPU_SLOW": "2:2"}
    record = tfbench(tmp_path / "record.json", *SHORT, *flags, program=("-c", UNCHECKED), **settings)
    (found,) = [warning.message for warning in record.warnings if warning.code == "slow_gpu"]
    assert re.match(
        r"GPU 2 \(0000:03:00\.0\): [45]\d% below the median of the case's GPUs in matrix products \(", found
    )


@only_on_demand
@pytest.mark.parametrize(
    ("fault", "gpus", "status", "cause"),
    [
        ("lost", 1, Status.ERROR, r"CUDA_ERROR_UNKNOWN.*The GPU failed: sudo dmesg \| grep -i xid"),
        ("stuck", 1, Status.TIMEOUT, r"max_seconds=120, while \w+: stderr shows where it waited"),
        ("nccl_stuck", 2, Status.TIMEOUT, r"max_seconds=120, while \w+: stderr shows where it waited"),
    ],
)
def test_a_gpu_that_fails_has_its_status_cause_and_remedy(tmp_path, fault, gpus, status, cause):
    flags = ("--model=alexnet", "--batch_size=4", f"--num_gpus={gpus}", "--max_seconds=120", "--notelemetry")
    record = tfbench(tmp_path / "record.json", *flags, NULLGPU_FAULT=fault, NULLGPU_FAULT_AFTER=30)
    assert record.status is status and re.search(cause, record.cause or "", re.DOTALL)
    assert record.simulated


@only_on_demand
@pytest.mark.parametrize(
    ("fault", "cause"), [("", "product on GPU:0, GPU:1 was wrong"), ("lost", "CUDA_ERROR_UNKNOWN")]
)
def test_where_a_gpu_does_not_compute_the_doctor_is_the_last_step(tmp_path, fault, cause):
    command = [sys.executable, "-m", "studies.gpu_validation", f"--out={tmp_path}"]
    subprocess.run(command, cwd=PROJECT, env=environment(NULLGPU_FAULT=fault), check=True, capture_output=True)
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("results/*.json")}
    assert len(results) == len(STEPS)
    doctor = results.pop(START[0])
    assert doctor["outcome"] == "failed" and cause in doctor["cause"]
    assert {(other["outcome"], other["cause"]) for other in results.values()} == {
        ("no_gpu", f"step {START[0]}: {doctor['cause']}")
    }
