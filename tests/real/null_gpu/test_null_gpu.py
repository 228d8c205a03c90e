"""Steps of TensorFlow's CUDA build on GPUs that compute nothing: what they ask of a GPU, and when."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from pathlib import Path

import pytest

from results.runs.reading import from_json
from results.schema import Status
from tests.support.null_gpu import PYTHON, REPOSITORY, environment

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not PYTHON.exists(), reason="`make test-null-gpu` installs TensorFlow's CUDA wheel (6 GB)"),
]

STEPS = 40
GRADIENTS_BYTES = 4 * 25_557_032
"""Of ResNet50's trained weights, float32; fused batch normalisation has no fewer."""


PACKS, LARGEST_LIST_OF_TENSORS = 4, 1024
"""To split a pack of gradients, TensorFlow sends a list of the tensors' addresses to the GPU, in bytes."""


def tfbench(output, *flags, program=("-m", "tfbench"), **settings):
    command = [PYTHON, *program, f"--output={output}", "--model=resnet50", "--nopeaks", "--notelemetry", *flags]
    subprocess.run(command, cwd=REPOSITORY, env=environment(**settings), check=False, timeout=300, capture_output=True)
    return from_json(Path(output).read_bytes())


@pytest.fixture(
    scope="module", params=[("fp32", 1), ("fp16", 1), ("fp32", 2), ("fp16", 2)], ids=lambda p: f"{p[0]}-{p[1]}"
)
def counted(request, tmp_path_factory):
    """Return what timed steps of ResNet50 asked for, the calls in their order, and the replicas."""
    precision, gpus = request.param
    folder = tmp_path_factory.mktemp("counts")
    count = Path(__file__).with_name("count.py")
    flags = (f"--precision={precision}", f"--num_gpus={gpus}", "--batch_size=32", f"--num_steps={STEPS}")
    settings = {"NULLGPU_KERNEL_US": 60, "NULLGPU_LOG": folder / "log"}
    tfbench(folder / "record.json", *flags, program=(str(count), str(folder / "counts.json")), **settings)
    calls = json.loads((folder / "counts.json").read_text())
    return calls, calls_between_marks(folder), gpus


def calls_between_marks(folder):
    """Return what all threads logged while steps were timed and their losses read: thread, call and bytes."""
    (log,) = [path for path in folder.glob("log.*") if "MARK:BEGIN" in path.read_text()]
    lines = [line.split()[1:4] for line in log.read_text().splitlines() if line.count(" ") == 4]  # the last is cut off
    (begin,) = [index for index, (_, call, _) in enumerate(lines) if call == "MARK:BEGIN"]
    (end,) = [index for index, (_, call, _) in enumerate(lines) if call == "MARK:END"]
    return [(thread, call, int(size)) for thread, call, size in lines[begin : end + 1]]


def test_steps_do_not_come_out_in_pairs(counted):
    seconds, _, gpus = counted[0]["step_seconds"], *counted[1:]
    limit = 0.25 if gpus == 1 else 0.6  # two cores also serve the clocks of two GPUs
    assert statistics.stdev(seconds) / statistics.fmean(seconds) < limit


def until_the_last_launch(lines):
    last = max(index for index, (_, call, _) in enumerate(lines) if call == "launch")
    return lines[:last]


def test_a_step_copies_no_data_between_host_and_gpu(counted):
    found = [(call, size) for _, call, size in until_the_last_launch(counted[1]) if re.match(r"copy\.(h2d|d2h)", call)]
    assert [call for call, size in found if call != "copy.h2d.pinned" or size > LARGEST_LIST_OF_TENSORS] == []
    assert len(found) <= STEPS * counted[2] * PACKS
    after = {name: count for name, (count, _) in counted[0]["calls"].items() if name.startswith("copy.d2h")}
    assert sum(after.values()) == STEPS * counted[2], f"the losses, after the interval: {after}"


def test_the_thread_that_dispatches_waits_for_no_gpu(counted):
    thread = counted[1][0][0]
    calls = [call for its, call, _ in until_the_last_launch(counted[1]) if its == thread]
    assert [call for call in calls if "Synchronize" in call] == []


def test_the_gradients_are_all_that_is_reduced(counted):
    reduced = counted[0]["calls"].get("ncclAllReduce", [0, 0])[1]
    wanted = GRADIENTS_BYTES * STEPS * counted[2] if counted[2] > 1 else 0
    assert reduced == pytest.approx(wanted, rel=0.01)


def test_a_gpu_that_computes_nothing_is_invalid_and_its_record_simulated(tmp_path):
    record = tfbench(tmp_path / "record.json", "--batch_size=8", "--num_steps=5")
    assert record.status is Status.INVALID and "loss_of_an_untrained_network" in (record.cause or "")
    assert record.simulated


def test_memory_that_does_not_suffice_is_oom_with_the_size_asked_for(tmp_path):
    record = tfbench(tmp_path / "record.json", "--batch_size=256", NULLGPU_MEMORY_MIB=8192)
    assert record.status is Status.OOM and re.search(r"shape ?\[256,\d+", record.cause or "")
