"""What is submitted: one script for each job array, with a line for each repeat.

A repeat leaves its output and record in a folder of its own, and at its end a file under `done/`, whole or not at all:
that file, not Slurm's memory of a job, shows that it ended by itself.

A node starts a benchmark with a Python of its own, or in a container by pyxis or apptainer. All are tested on real
clusters of two nodes, pyxis and apptainer by opt-in tests (`make test-pyxis`, `make test-apptainer`). Each leaves the
process id in `$child`; `finish` brings the record into `$folder`.

Limits are for benchmarks: images are fetched before, because one file of an image is larger than all that a benchmark
may write. pyxis and apptainer fetch an image once for a run, into the shared folder.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.container import (
    DATA_PATH,
    NO_GPU,
    RECORD_PATH,
    ContainerSpec,
    host_flags,
    job_container,
    repository,
)
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
    """Requested resources; repeats that request the same share an array.

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
    """Return the resources that a repeat requests."""
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
        + (f"; image={shlex.quote(_image(job, host))}" if queue.container != "none" else "")
        + " ;;"
        for index, job in enumerate(array.jobs)
    ]
    container = job_container(first, host, _image(first, host)) if queue.container != "none" else None
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
            *_module_lines(queue),
            *_environment_lines(queue, host),
            *_run_lines(queue, container, asked.nodes, asked.gpus, project),
            _END,
        ]
    )


def _visible(gpus: int) -> str:
    """Show a benchmark the GPUs that it requested: an exclusive node comes with all its GPUs."""
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
        "--no-requeue",
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


def _image(job: Job, host: Host) -> str:
    """Return what a repeat starts: by digest where `hosts.yml` names one."""
    reference = job.origin.image or image_reference(host, job.origin.variant or "cpu")
    _, at, digest = reference.partition("@")
    return f"{repository(reference)}@{digest}" if at else reference


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
mkdir "$folder" || exit 65  # the name is the lock
{visible}"""

_END = """\
trap 'kill -TERM "$child"' TERM
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
trap '' TERM
finish
leave "$code"
"""


# -- how a node starts a benchmark ---------------------------------------------------------------------------------

MAX_FILE_BLOCKS = (256 << 20) // 512
"""Of `ulimit -f`: nothing a benchmark writes may fill the shared folder."""

_LIMIT = f"ulimit -f {MAX_FILE_BLOCKS} || :"


def _environment_lines(queue: SlurmQueue, host: Host) -> list[str]:
    """Return the lines of a batch script that give a benchmark outside of containers the variables of `hosts.yml`.

    Containers get theirs inside: pyxis prefers those of the image, apptainer's `--env` divides a value at its commas.
    """
    if queue.container != "none":
        return []
    return [f"export {name}={shlex.quote(value)}" for name, value in host.environment.items()]


def _run_lines(queue: SlurmQueue, container: ContainerSpec | None, nodes: int, gpus: int, project: Path) -> list[str]:
    """Return the lines of a batch script that start a benchmark.

    Args:
        queue: Names the way.
        container: What it may do; None: no container. Name, image and flags are the script's variables.
        nodes: Of this job; more than one only without containers, and with pyxis.
        gpus: Of each of its nodes.
        project: Where this tfbench is, if the nodes see it too.
    """
    if container is None:
        return [_LIMIT, *(_python_lines(queue, project) if nodes == 1 else _ranks_lines(queue, project, nodes))]
    if queue.container == "pyxis":
        return _pyxis_lines(queue.image_file, container, nodes, gpus)
    return _apptainer_lines(queue.image_file, container, gpus)


def _module_lines(queue: SlurmQueue) -> list[str]:
    """Return the lines of a batch script that load modules; `sh` has `module` only after its own start-up file."""
    if not queue.modules:
        return []
    files = '"${MODULESHOME:-}/init/sh" "${LMOD_PKG:-}/init/sh" /etc/profile.d/modules.sh /etc/profile.d/lmod.sh'
    return [
        f"for file in {files}; do",
        '    ! command -v module >/dev/null && [ -r "$file" ] && . "$file"',
        "done",
        f'module load {shlex.join(queue.modules)} >"$folder/output.log" 2>&1 || leave modules',
    ]


def _python_lines(queue: SlurmQueue, project: Path) -> list[str]:
    folder, python = queue.project or str(project), queue.python or sys.executable
    return [
        f"cd {shlex.quote(folder)} || exit 66",
        f"PYTHONPATH={shlex.quote(folder)} PYTHONUNBUFFERED=1 {shlex.quote(python)} -m tfbench"
        ' "$@" --output="$folder/record.json" </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]


_RANK = (
    'export TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$WORKERS]}, '
    '\\"task\\": {\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}"; '
    '[ "$SLURM_PROCID" -eq 0 ] && out=$FOLDER/record.json || out=$FOLDER/rank-$SLURM_PROCID.json; '
)
"""Of a rank's own shell: who it is, and where it leaves its record; that of the repeat is of rank 0."""

_WORKERS = [
    "port=$((20000 + SLURM_JOB_ID % 10000)) WORKERS=",
    'for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
    '    address=$(scontrol --oneliner show node "$host" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
    """    WORKERS="$WORKERS${WORKERS:+, }\\"${address:-$host}:$port\\"" port=$((port + 2))""",
    "done",
    "export WORKERS",
    'node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d + -)',
]
"""Ports lie two apart: rank 0 uses the next one too."""


def _ranks_lines(queue: SlurmQueue, project: Path, nodes: int) -> list[str]:
    """Start a rank on each node."""
    folder, python = queue.project or str(project), queue.python or sys.executable
    rank = f'{_RANK}exec {shlex.quote(python)} -m tfbench "$@" --output="$out"'
    return [
        f"cd {shlex.quote(folder)} || exit 66",
        *_WORKERS,
        'export FOLDER="$folder"',
        f"PYTHONPATH={shlex.quote(folder)} PYTHONUNBUFFERED=1 srun {_on_each(nodes)}"
        f' sh -c {shlex.quote(rank)} tfbench "$@" </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]


def _on_each(nodes: int) -> str:
    return f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0"


def _pyxis_lines(image_file: str | None, container: ContainerSpec, nodes: int, gpus: int) -> list[str]:
    data = f",{shlex.quote(container.data_dir)}:{DATA_PATH}:ro" if container.data_dir else ""
    # enroot's hook gives GPUs to containers that name some, and Slurm's cgroup leaves them those of the job. A name of
    # fewer would be read in an order that need not be Slurm's.
    # Source: enroot, conf/hooks/98-nvidia.sh.
    visible = "all" if gpus else "void"
    return [
        *_image_lines(
            image_file,
            "sqsh",
            # enroot separates the registry from the rest by `#`
            'image=$(printf %s "$image" | sed "s|^\\([^/]*[.:][^/]*\\)/|\\1#|")\n'
            '        found=$(enroot digest "docker://$image" 2>/dev/null) && echo "$found" >"$file.digest"\n'
            '        enroot import --output "$part" "docker://$image"',
        ),
        *(_WORKERS if nodes > 1 else []),
        f"export NVIDIA_VISIBLE_DEVICES={visible} FOLDER=/out",
        _LIMIT,  # of the output: enroot unpacks the image under the limits of slurmd
        f"srun {_on_each(nodes) if nodes > 1 else '--ntasks=1'} --propagate=NONE"
        ' --container-image="$file" --container-readonly --no-container-mount-home'
        ' --no-container-entrypoint --container-mounts="$folder/out:/out"'
        f"{data} --container-workdir=/opt/tfbench {_inside(container, nodes)}",
        "child=$!",
    ]


def _apptainer_lines(image_file: str | None, container: ContainerSpec, gpus: int) -> list[str]:
    data = f" --bind {shlex.quote(container.data_dir)}:{DATA_PATH}:ro" if container.data_dir else ""
    return [
        *_image_lines(image_file, "sif", 'apptainer pull "$part" "docker://$image"'),
        # A closed container's /tmp is 64 MiB of memory, unless a folder holds it.
        # Source: apptainer's admin guide, "sessiondir max size".
        'for place in "${TMPDIR:-/tmp}" /tmp "$folder"; do',
        '    scratch=$(mktemp -d "$place/tfbench.XXXXXX" 2>/dev/null) && break',
        "done",
        'finish() { mv "$folder/out/record.json" "$folder/record.json" 2>/dev/null; rm -rf "$scratch"; }',
        # Sites may forbid network namespaces, as apptainer's admin guide advises: there it keeps the node's network.
        'network="--net --network=none"; unshare --user --net true 2>/dev/null || network=',
        'apptainer exec --containall --no-home --no-privs $network --workdir "$scratch" --bind "$folder/out:/out"'
        f'{data} --pwd /opt/tfbench{" --nv" if gpus else ""} "$file" {_inside(container, 1)}',
        "child=$!",
    ]


def _image_lines(image_file: str | None, suffix: str, pull: str) -> list[str]:
    """Return the lines that bring the image once for a run, and make `$file` its file, `$digest` what it is.

    A folder without locks lets several nodes fetch it at a time; a file gets its name when it is whole.

    Args:
        image_file: Where nodes have it already; None: it comes from a registry.
        suffix: Of the file's name.
        pull: Commands that make the file `$part`.
    """
    finish = 'finish() { mv "$folder/out/record.json" "$folder/record.json" 2>/dev/null; }'
    if image_file is not None:
        missing = '{ echo "there is no image file $file on this node" >"$folder/output.log"; leave pull; }'
        return ['mkdir -p "$folder/out"', f"file={image_file}", finish, f'[ -r "$file" ] || {missing}']
    return [
        f"""\
mkdir -p "$root/images" "$folder/out"
file="$root/images/$(printf %s "$image" | sha256sum | cut -c 1-32).{suffix}"
{finish}
if ! (
    flock 9 || :
    ls "$root/images" >/dev/null  # an NFS client looks at the folder itself, not at what it remembers
    if [ ! -f "$file" ]; then
        part="$file.$SLURM_JOB_ID"
        rm -f "$part"
        {pull} && mv "$part" "$file" || {{ rm -f "$part"; exit 1; }}
    fi
) 9>"$file.lock" >"$folder/pull.log" 2>&1; then
    mv "$folder/pull.log" "$folder/output.log"
    leave pull
fi
digest=$image
[ ! -f "$file.digest" ] || digest=$(cat "$file.digest")"""
    ]


def _inside(container: ContainerSpec, nodes: int) -> str:
    """Return the command that starts a benchmark within pyxis or apptainer, with its limit and variables.

    A step of Slurm's sets CUDA_VISIBLE_DEVICES anew, and HOME would be a folder that the container lacks.
    """
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in container.environment.items())
    begin = f'ulimit -f {MAX_FILE_BLOCKS}; export HOME=/tmp CUDA_VISIBLE_DEVICES="$1" {variables}; shift; '
    run = 'exec python3.11 -m tfbench "$@" --output='
    script = f'{begin}{_RANK}{run}"$out"' if nodes > 1 else f"{begin}{run}{RECORD_PATH}"
    return f'sh -c {shlex.quote(script)} tfbench "$CUDA_VISIBLE_DEVICES" "$@" </dev/null >"$folder/output.log" 2>&1 &'
