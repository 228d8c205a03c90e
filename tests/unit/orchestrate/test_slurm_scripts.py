"""What is handed to Slurm: exact texts, because pyxis and apptainer cannot be run here."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
from pathlib import Path

import pytest

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.slurm.script import batch_script, make_arrays
from orchestrate.planning.plan import Job
from results.schema import Case, Data, Device, Origin

PROJECT = Path("/home/bench/tfbench")


def job(number: int, gpus: int = 0, seconds: float | None = None) -> Job:
    case = Case(model="x", num_gpus=max(gpus, 1), device=Device.GPU if gpus else Device.CPU)
    origin = Origin(run_id="run1", fleet="lab", host="slurm", launcher="slurm", repeat=number, image="ghcr.io/y/t:1")
    return Job(id=f"lab.slurm.x{gpus}.r{number}", case=case, origin=origin, max_seconds=seconds)


def text(jobs: list[Job], host: Host | None = None, **settings: object) -> str:
    queue = SlurmQueue.model_validate({"container": "none", "shared_folder": "/home/bench", **settings})
    host = host or Host(fleet="lab", name="slurm", docker=None, queue=queue)
    (array,) = make_arrays(jobs, 1)
    return batch_script(array, host, queue, PROJECT)


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_repeats_of_equal_resources_share_an_array_and_small_ones_come_first():
    arrays = make_arrays([job(1, 4), job(1, 1), job(2, 4), job(2, 1), *(job(n, 2) for n in range(1001))], 7)
    sizes = [(array.number, array.jobs[0].case.num_gpus, len(array.jobs)) for array in arrays]
    assert sizes == [(7, 1, 2), (8, 2, 1000), (9, 2, 1), (10, 4, 2)], "an array has at most a thousand tasks"


def test_a_job_asks_for_what_its_cases_need():
    script = text(
        [job(1, 2, 600.0), job(2, 2, 900.0)],
        partition="gpu",
        gres="gpu:a5000:4",
        account="physics",
        qos="low",
        constraint="ib&a5000",
        options=("--reservation=bench",),
        max_jobs=3,
    )
    assert options(script) == [
        "--job-name=tfbench-run1.lab",
        "--comment=tfbench:1",
        "--array=0-1%3",
        "--partition=gpu",
        "--account=physics",
        "--qos=low",
        "--constraint=ib&a5000",
        "--nodes=1",
        "--ntasks=1",
        "--gres=gpu:a5000:2",
        "--exclusive",
        "--mem=0",
        "--time=20",  # the longest of them, and five minutes to end by itself
        "--no-requeue",
        "--output=/dev/null",
        "--reservation=bench",
    ]
    assert "0) job=lab.slurm.x2.r1; set -- --model=x" in script
    assert "--max_seconds=900 ;;" in script


def test_limits_of_the_host_and_of_the_user_reach_slurm_and_the_benchmark():
    host = Host(fleet="lab", name="slurm", docker=None, cpus=2.5, memory_gb=4)
    script = text([job(1)], host, time_limit_minutes=10, exclusive=False, requeue=True)
    assert {"--cpus-per-task=3", "--mem=3815M", "--time=10", "--requeue"} <= set(options(script))
    assert "--exclusive" not in script
    assert "--max_seconds=540 ;;" in script, "it ends itself a minute before Slurm does"


@pytest.mark.parametrize("container", ["none", "docker", "pyxis", "apptainer"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_every_script_is_valid_for_sh_and_binds_gpus_or_hides_them(container: str, gpus: int):
    gres = {"gres": "gpu:4"} if gpus else {}
    script = text([job(1, gpus)], container=container, **gres)
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert ("export CUDA_VISIBLE_DEVICES=-1" in script) == (not gpus)
    assert 'export CUDA_VISIBLE_DEVICES="$(' in script or not gpus


VALUE = "=eth0,eth1 'x' $HOME"
"""Of a variable: what a shell, Apptainer's commas or Kubernetes' `$(…)` could change."""


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ("none", f"export NCCL_SOCKET_IFNAME={shlex.quote(VALUE)}"),
        ("pyxis", f"export NCCL_SOCKET_IFNAME={shlex.quote(VALUE)}"),
        ("apptainer", f"export APPTAINERENV_NCCL_SOCKET_IFNAME={shlex.quote(VALUE)}"),
        ("docker", f" {shlex.quote(f'--env=NCCL_SOCKET_IFNAME={VALUE}')} "),
    ],
)
def test_variables_of_the_hosts_file_reach_every_kind_of_benchmark(container: str, line: str):
    host = Host(fleet="lab", name="slurm", docker=None, environment={"NCCL_SOCKET_IFNAME": VALUE})
    script = text([job(1)], host, container=container)
    assert script.count("NCCL_SOCKET_IFNAME") == 1 and line in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def line_of(script: str, beginning: str) -> str:
    (line,) = [line for line in script.splitlines() if line.startswith(beginning)]
    return line


def test_the_line_for_pyxis():
    assert line_of(text([job(1, 1)], container="pyxis", gres="gpu:1"), "srun") == (
        'srun --ntasks=1 --container-image="$image" --container-readonly --no-container-mount-home '
        '--no-container-entrypoint --container-mounts="$folder/out:/out" --container-workdir=/opt/tfbench '
        'python3.11 -m tfbench "$@" --output=/out/record.json </dev/null >"$folder/output.log" 2>&1 &'
    )


def test_pyxis_gets_the_registry_in_enroots_words():
    script = text([job(1)], container="pyxis")
    command = f"image={shlex.quote('ghcr.io/y/t:1')}; {line_of(script, 'image=$(printf')}; echo $image"
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout == "ghcr.io#y/t:1\n"


def test_the_line_for_apptainer():
    assert line_of(text([job(1, 1)], container="apptainer", gres="gpu:1"), "apptainer") == (
        'apptainer exec --containall --no-home --no-privs --bind "$folder/out:/out" --pwd /opt/tfbench '
        '--nv --env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "docker://$image" python3.11 -m tfbench "$@" '
        '--output=/out/record.json </dev/null >"$folder/output.log" 2>&1 &'
    )
    assert "--nv" not in text([job(1)], container="apptainer")


@pytest.mark.parametrize(
    ("container", "beginning", "seen"),
    [
        ("none", "0) ", "--data_dir='/sets/image net'"),
        ("docker", "docker run ", "--mount=type=bind,source=/sets/image net,target=/data,readonly"),
        ("pyxis", "srun ", "--container-mounts=$folder/out:/out,/sets/image net:/data:ro"),
        ("apptainer", "apptainer ", "--bind=/sets/image net:/data:ro"),
    ],
)
def test_a_data_set_is_seen_by_repeats_that_read_it_alone(container: str, beginning: str, seen: str):
    queue = SlurmQueue.model_validate({"container": container, "shared_folder": "/home/bench"})
    host = Host(fleet="lab", name="slurm", docker=None, queue=queue, data_dir="/sets/image net")
    plain = job(1)
    reading = dataclasses.replace(plain, case=dataclasses.replace(plain.case, data=Data.TFRECORD))
    first, second = (batch_script(array, host, queue, PROJECT) for array in make_arrays([reading, plain], 1))
    words = " ".join(shlex.split(line_of(second, beginning).replace("--bind ", "--bind=")))
    assert seen.replace("'", "") in words
    assert f"--data_dir={'/sets/image net' if container == 'none' else '/data'}" in " ".join(
        shlex.split(line_of(second, "0) "))
    )
    assert "/sets" not in first and "/data" not in first


def run_script(tmp_path: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script as a node would, outside of any Slurm."""
    path = tmp_path / "batch.sh"
    path.write_text(script)
    slurm = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n9", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        ["sh", path], env={**slurm, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


def local_script(tmp_path: Path, body: str, repeat: Job | None = None) -> str:
    """Write a batch script whose Python is a shell script."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    for name in ("jobs", "done"):
        (tmp_path / "tfbench-run1.lab" / name).mkdir(parents=True, exist_ok=True)
    return text([repeat or job(1)], shared_folder=str(tmp_path), python=str(python), project=str(tmp_path))


def test_a_batch_script_leaves_output_record_and_last_words(tmp_path: Path):
    body = 'for word; do case $word in --output=*) echo "{}" >"${word#--output=}" ;; esac; done; echo hello; exit 3'
    ended = run_script(tmp_path, local_script(tmp_path, body))
    root, name = tmp_path / "tfbench-run1.lab", job(1).id
    assert ended.returncode == 3, "the job's state says what the benchmark said"
    assert (root / "jobs" / name / "output.log").read_text() == "hello\n"
    assert (root / "jobs" / name / "record.json").read_text() == "{}\n"
    assert (root / "done" / name).read_text() == "code 3\nnode n9\nimage \n"


def test_a_repeat_is_measured_once_unless_slurm_itself_starts_it_again(tmp_path: Path):
    script = local_script(tmp_path, "echo once >>count")
    count = tmp_path / "count"
    assert run_script(tmp_path, script).returncode == 0
    assert run_script(tmp_path, script).returncode == 65, "the folder is the lock"
    assert run_script(tmp_path, script, SLURM_RESTART_COUNT="1").returncode == 0
    assert count.read_text().count("once") == 2


def test_gpus_beyond_those_that_were_asked_for_are_hidden(tmp_path: Path):
    repeat = dataclasses.replace(job(1, 2))
    script = local_script(tmp_path, "echo $CUDA_VISIBLE_DEVICES", repeat)
    run_script(tmp_path, script, CUDA_VISIBLE_DEVICES="4,5,6,7")
    log = tmp_path / "tfbench-run1.lab" / "jobs" / repeat.id / "output.log"
    assert log.read_text() == "4,5\n"
