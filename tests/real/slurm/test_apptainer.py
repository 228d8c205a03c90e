"""A batch script with a real apptainer, as a user without rights (make test-apptainer)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.slurm.script import batch_script, make_arrays
from orchestrate.planning.plan import Job
from results.schema import Case, Device, Origin
from tests.conftest import CACHE
from tests.support.engines.apptainer import OneImage, make_root, run_as_user
from tests.support.engines.processes import find_program
from tests.support.engines.roots import roots_folder

pytestmark = pytest.mark.skipif(
    os.environ.get("TFBENCH_TEST_APPTAINER") != "1", reason="make test-apptainer builds a root of Debian sid first"
)

BENCHMARK = """\
#!/bin/sh
for word; do case $word in --output=*) out=${word#--output=} ;; esac; done
echo "home $HOME keras $KERAS_HOME gpus $CUDA_VISIBLE_DEVICES iface $NCCL_SOCKET_IFNAME in $PWD"
(dd if=/dev/zero of=/tmp/small bs=1M count=100) 2>/dev/null && echo "100 MiB in /tmp"
(dd if=/dev/zero of=/tmp/large bs=1M count=257) 2>/dev/null || echo "no file of 257 MiB"
rm -f /tmp/small /tmp/large
(echo x >/opt/tfbench/x) 2>/dev/null || echo "a root that is read-only"
while read -r name rest; do case $name in *:) echo "network $name" ;; esac; done </proc/net/dev
trap 'echo "{}" >"$out"; exit 75' TERM
case "$*" in *--model=slow*) echo waiting; while :; do sleep 1; done ;; esac
echo "{}" >"$out"
"""

SLURM = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n9", "CUDA_VISIBLE_DEVICES": "1,2"}


@pytest.fixture(scope="module")
def root() -> Path:
    """Give a root folder of Debian sid with apptainer."""
    assert os.geteuid() == 0 and find_program("debootstrap"), "it needs root and debootstrap"
    return make_root(roots_folder(CACHE / "roots"))


@pytest.fixture(scope="module")
def registry(root: Path) -> Iterator[OneImage]:
    """Give a registry with the image."""
    registry = OneImage(root, BENCHMARK)
    yield registry
    registry.close()


def script(folder: Path, image: str, model: str, number: int) -> tuple[str, Job]:
    """Write the batch script of a repeat."""
    origin = Origin(run_id="r", fleet="f", host="slurm", launcher="slurm", repeat=number, image=image)
    job = Job(id=f"f.slurm.{model}.r{number}", case=Case(model=model, device=Device.CPU), origin=origin)
    queue = SlurmQueue.model_validate({"container": "apptainer", "shared_folder": str(folder)})
    host = Host(fleet="f", name="slurm", docker=None, queue=queue, environment={"NCCL_SOCKET_IFNAME": "=eth0,eth1"})
    (array,) = make_arrays([job], 1)
    for name in ("jobs", "done"):
        (folder / "tfbench-r.f" / name).mkdir(parents=True, exist_ok=True)
    return batch_script(array, host, queue, folder), job


def start(root: Path, folder: Path, text: str) -> subprocess.Popen[str]:
    """Run a batch script as Slurm would on a node."""
    (folder / "batch.sh").write_text(text)
    return run_as_user(root, folder, ["sh", str(folder / "batch.sh")], {**SLURM, "APPTAINER_NOHTTPS": "1"})


def test_an_image_is_fetched_once_without_limits_and_a_benchmark_runs_within_them(
    root: Path, registry: OneImage, tmp_path: Path
):
    image = f"{registry.repository}:1@{registry.digest}"
    for number in (1, 2):
        text, job = script(tmp_path, image, "fast", number)
        ended = start(root, tmp_path, text)
        said, _ = ended.communicate(timeout=300)
        folder = tmp_path / "tfbench-r.f" / "jobs" / job.id
        log = folder / "output.log"
        assert ended.returncode == 0, said + (log.read_text() if log.exists() else "")
        lines = log.read_text().splitlines()
        assert "home /tmp keras /tmp/keras gpus -1 iface =eth0,eth1 in /opt/tfbench" in lines
        assert {"100 MiB in /tmp", "no file of 257 MiB", "a root that is read-only"} <= set(lines)
        assert [line for line in lines if line.startswith("network")] == ["network lo:"]
        assert (folder / "record.json").read_text() == "{}\n"
        done = (tmp_path / "tfbench-r.f" / "done" / job.id).read_text()
        assert done == f"code 0\nnode n9\nimage {registry.repository}@{registry.digest}\n"
    assert registry.pulls <= 2, "the second repeat starts the file that the first one brought"
    assert [path.suffix for path in (tmp_path / "tfbench-r.f" / "images").glob("*.sif*")].count(".sif") == 1


def test_a_benchmark_that_slurm_ends_leaves_its_record(root: Path, registry: OneImage, tmp_path: Path):
    text, job = script(tmp_path, f"{registry.repository}:1", "slow", 1)
    running = start(root, tmp_path, text)
    log = tmp_path / "tfbench-r.f" / "jobs" / job.id / "output.log"
    try:
        wait_until(lambda: running.poll() is not None or (log.exists() and "waiting" in log.read_text()))
        (shell,) = [int(pid) for pid in pids(str(tmp_path / "batch.sh"))]
        os.kill(shell, signal.SIGTERM)
        running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 75
    assert (log.parent / "record.json").read_text() == "{}\n"
    assert not list(log.parent.glob("tfbench.*"))


def test_an_image_that_is_not_there_is_named_in_the_log(root: Path, registry: OneImage, tmp_path: Path):
    text, job = script(tmp_path, registry.repository.replace("/bench/", ":1/") + ":1", "fast", 1)
    ended = start(root, tmp_path, text)
    ended.communicate(timeout=120)
    assert (tmp_path / "tfbench-r.f" / "done" / job.id).read_text().startswith("code pull\n")
    assert "FATAL" in (tmp_path / "tfbench-r.f" / "jobs" / job.id / "output.log").read_text()


def pids(word: str) -> Iterator[str]:
    """Yield the processes whose shell runs a file."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sh", word.encode()]:
            yield path.parent.name


def wait_until(holds: object, seconds: float = 300.0) -> None:
    """Wait for a condition."""
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)
