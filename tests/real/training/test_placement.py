"""Nothing of a step lies on, or is copied to, a device that is none of its replicas: the host would have to wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

REPOSITORY = Path(__file__).parents[3]

KINDS = (
    *(
        f"{mode}-{replicas}-{precision}"
        for mode in ("train", "infer")
        for replicas in (1, 2)
        for precision in ("fp32", "fp16")
    ),
    *(f"train-2-fp16-{change}" for change in ("accumulate", "xla")),
    *(f"resnet50-2-{precision}" for precision in ("fp32", "fp16")),
    "bert-2-fp16",
)


@pytest.fixture(scope="module")
def steps():
    """Run every kind of step in a process whose `CPU:1` and `CPU:2` stand for GPUs."""
    command = [sys.executable, "-m", "tests.real.training.placement"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_stays_on_its_replicas_and_copies_nothing(steps, kind):
    seen, devices = steps[kind], ["CPU:1", "CPU:2"][: int(kind.split("-")[1])]
    assert seen["outputs"] == seen["variables"] == devices
    assert seen["copies"] == []
    assert seen["int32_variables"] == [], "TensorFlow has no GPU kernel for those"
    if kind.startswith("train-2"):
        assert seen["all_reduces"] == 2, "gradients of a small network travel in one per replica"
