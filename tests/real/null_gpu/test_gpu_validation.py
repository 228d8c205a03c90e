"""GPU validation where GPUs do not compute: it ends after the doctor, with the cause."""

import json
import subprocess
import sys

import pytest

from studies.gpu_validation.steps import START, STEPS
from tests.support import PROJECT
from tests.support.null_gpu import environment, needs_null_gpu, only_on_demand

pytestmark = [pytest.mark.slow, needs_null_gpu, only_on_demand]


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
