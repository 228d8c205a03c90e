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


def test_every_kind_of_step_was_seen(steps):
    assert set(steps) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_variables_and_outputs_lie_on_the_replicas(steps, kind):
    devices = ["CPU:1", "CPU:2"][: int(kind.split("-")[1])]
    assert steps[kind]["outputs"] == devices
    assert steps[kind]["variables"] == devices


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_copies_nothing_between_devices(steps, kind):
    assert steps[kind]["copies"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_variable_of_a_step_is_int32(steps, kind):
    assert steps[kind]["int32_variables"] == [], "TensorFlow has no GPU kernel for those"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("train-2")])
def test_gradients_of_a_small_network_travel_in_one_all_reduce_per_replica_and_step(steps, kind):
    assert steps[kind]["all_reduces"] == 2
