"""What is submitted: one script for each job array, with a line for each repeat.

A repeat leaves its output and record in a folder of its own, and at its end a file under `done/`, whole or not at all:
that file, not Slurm's memory of a job, is what says that it ended by itself.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.container import DATA_PATH, NO_GPU, host_flags, job_container, repository
from orchestrate.launchers.slurm.templates import environment_lines, module_lines, run_lines
from orchestrate.planning.images import image_reference
from orchestrate.planning.plan import Job
from results.schema import Data, Device

MAX_ARRAY = 1000
"""Tasks of an array: Slurm's own limit is 1001 unless a site sets another."""

GRACE_SECONDS = 300
"""From a benchmark's own limit to Slurm's: it ends itself first, and writes why."""

PULL_SECONDS = 1200
"""What Slurm's limit allows for an image: a node may have to fetch it before the benchmark's own time begins."""


@dataclass(frozen=True, kw_only=True, order=True)
class Resources:
    """What Slurm is asked for; repeats that ask for the same share an array.

    Attributes:
        nodes: More than one: a training step over several hosts.
        gpus: Of one node.
        reads_data: Its container sees the data set.
    """

    nodes: int
    gpus: int
    reads_data: bool


@dataclass(frozen=True, kw_only=True)
class Array:
    """Repeats that are submitted together.

    Attributes:
        number: Of the array in its run, from 1; `comment` carries it to Slurm.
        jobs: Task i is the i-th.
    """

    number: int
    jobs: tuple[Job, ...]

    @property
    def comment(self) -> str:
        """How an array is recognised in the queue."""
        return f"tfbench:{self.number}"


def resources(job: Job) -> Resources:
    """Return what a repeat asks for."""
    return Resources(
        nodes=job.case.num_hosts,
        gpus=job.case.num_gpus if job.case.device is Device.GPU else 0,
        reads_data=job.case.data is Data.TFRECORD,
    )


def make_arrays(jobs: Sequence[Job], first_number: int) -> list[Array]:
    """Divide repeats into arrays of equal resources, small ones first: they start earliest."""
    groups: dict[Resources, list[Job]] = {}
    for job in jobs:
        groups.setdefault(resources(job), []).append(job)
    chunks = [
        tuple(groups[kind][start : start + MAX_ARRAY])
        for kind in sorted(groups)
        for start in range(0, len(groups[kind]), MAX_ARRAY)
    ]
    return [Array(number=number, jobs=chunk) for number, chunk in enumerate(chunks, start=first_number)]


def job_name(run_id: str, host: Host) -> str:
    """Name a run's jobs in the queue; also its folder in the shared one."""
    return f"tfbench-{run_id}.{host.fleet}"


def run_root(run_id: str, host: Host, queue: SlurmQueue) -> str:
    """Return the folder of a run that login host and nodes share."""
    return f"{queue.shared_folder}/{job_name(run_id, host)}"


def batch_script(array: Array, host: Host, queue: SlurmQueue, project: Path) -> str:
    """Write the script that `sbatch` is given.

    Args:
        array: Repeats of equal resources, at least one.
        host: Settings of the fleet.
        queue: Of that fleet.
        project: Where this tfbench is, for nodes that see it where `project` is not said.
    """
    first, asked = array.jobs[0], resources(array.jobs[0])
    seconds = max(_limit_seconds(job, host, queue) for job in array.jobs)
    options = _options(array, asked, host, queue, seconds)
    tasks = [
        f"{index}) job={shlex.quote(job.id)}; set -- {shlex.join(_arguments(job, host, queue))}"
        + (f"; image={shlex.quote(_image(job, host, queue))}" if queue.container != "none" else "")
        + " ;;"
        for index, job in enumerate(array.jobs)
    ]
    container = job_container(first, host, _image(first, host, queue)) if queue.container != "none" else None
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {option}" for option in options),
            f"root={shlex.quote(run_root(first.origin.run_id, host, queue))}",
            'case "$SLURM_ARRAY_TASK_ID" in',
            *tasks,
            "*) exit 64 ;;",
            "esac",
            _BEGIN.format(visible=_visible(asked.gpus)),
            *module_lines(queue),
            *environment_lines(queue, host.environment),
            *run_lines(queue, container, asked.nodes, asked.gpus, project),
            _END,
        ]
    )


def _visible(gpus: int) -> str:
    """Leave a benchmark the GPUs that it asked for: a node that a job has for itself comes with all it has."""
    return (
        f'export CUDA_VISIBLE_DEVICES="$(printf %s "${{CUDA_VISIBLE_DEVICES:-}}" | cut -d , -f 1-{gpus})"'
        if gpus
        else f"export CUDA_VISIBLE_DEVICES={NO_GPU}"
    )


def _options(array: Array, asked: Resources, host: Host, queue: SlurmQueue, seconds: float) -> list[str]:
    """Return the requested resources as options of `sbatch`."""
    pull = 0 if queue.container == "none" or queue.image_file is not None else PULL_SECONDS
    minutes = queue.time_limit_minutes or (seconds + GRACE_SECONDS + pull) / 60
    named = {"partition": queue.partition, "account": queue.account, "qos": queue.qos, "constraint": queue.constraint}
    return [
        f"--job-name={job_name(array.jobs[0].origin.run_id, host)}",
        f"--comment={array.comment}",
        f"--array=0-{len(array.jobs) - 1}%{queue.max_jobs}",
        *(f"--{key}={value}" for key, value in named.items() if value is not None),
        f"--nodes={asked.nodes}",
        f"--ntasks={asked.nodes}",
        *queue.gpu_options(asked.gpus),
        *(["--exclusive"] if queue.exclusive else []),
        *([] if host.cpus is None else [f"--cpus-per-task={math.ceil(host.cpus)}"]),
        *_memory(host, queue),
        f"--time={math.ceil(minutes)}",
        "--requeue" if queue.requeue else "--no-requeue",
        "--output=/dev/null",
        *queue.options,
    ]


def _memory(host: Host, queue: SlurmQueue) -> list[str]:
    if host.memory_gb is not None:
        return [f"--mem={math.ceil(host.memory_gb * 1e9 / (1 << 20))}M"]
    return ["--mem=0"] if queue.exclusive else []  # 0: all that the node has


def _limit_seconds(job: Job, host: Host, queue: SlurmQueue) -> float:
    """Return a benchmark's own limit; where the user limits the job, it ends itself in time."""
    wanted = job.max_seconds or host.timeout_minutes * 60
    if queue.time_limit_minutes is None:
        return wanted
    return max(30.0, min(wanted, queue.time_limit_minutes * 60 - 60))


def _arguments(job: Job, host: Host, queue: SlurmQueue) -> list[str]:
    data = host_flags(job, host.data_dir if queue.container == "none" else DATA_PATH)
    return [*job.case.flags(), *data, f"--max_seconds={_limit_seconds(job, host, queue):g}"]


def _image(job: Job, host: Host, queue: SlurmQueue) -> str:
    """Return what a repeat starts: by digest where `hosts.yml` names one; only Docker takes a tag next to it."""
    reference = job.origin.image or image_reference(host, job.origin.variant or "cpu")
    _, at, digest = reference.partition("@")
    return f"{repository(reference)}@{digest}" if at and queue.container != "docker" else reference


_BEGIN = """\
umask 077
folder="$root/jobs/$job"
node="${{SLURMD_NODENAME:-$(hostname)}}"
digest=
leave() {{
    mine="$root/done/.$job.$SLURM_JOB_ID"
    printf 'code %s\\nnode %s\\nimage %s\\n' "$1" "$node" "$digest" >"$mine" && mv "$mine" "$root/done/$job"
    case "$1" in *[!0-9]*) exit 1 ;; esac
    exit "$1"
}}
finish() {{ :; }}
end() {{ kill -TERM "$child"; }}
if ! mkdir "$folder"; then
    # The name is the lock: only a job that Slurm itself started again may measure a second time.
    [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && rm -rf "$folder" "$root/done/$job" && mkdir "$folder" || exit 65
fi
{visible}"""

_END = """\
trap 'end' TERM
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
trap '' TERM
finish
leave "$code"
"""
