"""Batch scripts: one per job array, with a line for each repeat.

A repeat writes its output and record to its own folder, and atomically creates a file under `done/` at its end. That
file shows that it ended by itself, because Slurm forgets jobs.

A node starts a benchmark with its own Python, or in a container with pyxis or apptainer: each gives lines that prepare
it, and the command. All are tested on clusters of two nodes, pyxis and apptainer by opt-in tests (`make test-pyxis`,
`make test-apptainer`).

Images are pulled once per run, into the shared folder, before the benchmark's file size limit applies: an image has
larger files.
"""

from __future__ import annotations

import itertools
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrate.engines.invocation import DATA_PATH, NO_GPU, RECORD_PATH, benchmark_flags, max_seconds, mounted_folder
from orchestrate.engines.slurm.answers import MAX_ARRAY
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.images import image_name, pinned
from orchestrate.planning.plan import Job
from results.schema import Data, Device

GRACE_SECONDS = 300
"""Margin between a benchmark's own limit, at which it records the cause, and Slurm's."""

PULL_SECONDS = 1200
"""Share of Slurm's limit for pulling the image, before the benchmark's own time starts."""


def make_arrays(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group repeats into arrays of equal resources, smallest first, because those start earliest.

    Repeats of an array request as many nodes and GPUs on each, and their containers all mount the data set or none.
    """

    def resources(job: Job) -> tuple[int, int, bool]:
        return job.case.num_hosts, _gpus(job), job.case.data is Data.TFRECORD

    groups = [list(group) for _, group in itertools.groupby(sorted(jobs, key=resources), resources)]
    return [group[start : start + MAX_ARRAY] for group in groups for start in range(0, len(group), MAX_ARRAY)]


def _gpus(job: Job) -> int:
    """Return the GPUs of a repeat on each node."""
    return job.case.num_gpus if job.case.device is Device.GPU else 0


def job_name(run_id: str, host: Host) -> str:
    """Return the name of a run's jobs in the queue, and of its folder in the shared one."""
    return f"tfbench-{run_id}.{host.fleet}"


def batch_script(array: Sequence[Job], host: Host, queue: SlurmQueue, project: Path) -> str:
    """Return the batch script of an array, whose i-th task runs the i-th of its repeats.

    Args:
        array: At least one repeat.
        host: Settings of the fleet.
        queue: Settings of its queue.
        project: Folder of this tfbench, which nodes use if the queue sets no `project`.
    """
    first, gpus, nodes = array[0], _gpus(array[0]), array[0].case.num_hosts
    name, in_container = job_name(first.origin.run_id, host), queue.container != "none"
    seconds = max(_limit_seconds(job, host, queue) for job in array)
    tasks = []
    for index, job in enumerate(array):
        data = DATA_PATH if in_container else host.data_dir
        flags = shlex.join(benchmark_flags(job, host, data, _limit_seconds(job, host, queue)))
        named = pinned(job.origin.image or image_name(host.registry, job.origin.variant or "cpu"))
        image = f"; image={shlex.quote(named)}" if in_container else ""
        tasks.append(f"{index}) job={shlex.quote(job.id)}; set -- {flags}{image} ;;")
    if in_container:
        way = _with_pyxis if queue.container == "pyxis" else _with_apptainer
        prepare, start = way(queue.image_file, first, host, nodes, gpus)
    else:
        prepare, start = _with_python(queue, host, project, nodes)
    # An exclusive node has all its GPUs.
    visible = f'"$(printf %s "${{CUDA_VISIBLE_DEVICES:-}}" | cut -d , -f 1-{gpus})"' if gpus else NO_GPU
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {option}" for option in _options(array, name, host, queue, seconds)),
            f"root={shlex.quote(f'{queue.shared_folder}/{name}')}",
            'case "$SLURM_ARRAY_TASK_ID" in',
            *tasks,
            "*) exit 64 ;;",
            "esac",
            _BEGIN,
            f"export CUDA_VISIBLE_DEVICES={visible}",
            *_module_lines(queue),
            *(_WORKERS if nodes > 1 else []),
            *prepare,
            f'{start} </dev/null >"$folder/output.log" 2>&1 &',
            _END,
        ]
    )


def _options(array: Sequence[Job], name: str, host: Host, queue: SlurmQueue, seconds: float) -> list[str]:
    """Return the requested resources as options of `sbatch`."""
    pull = 0 if queue.container == "none" or queue.image_file is not None else PULL_SECONDS
    minutes = queue.time_limit_minutes or (seconds + GRACE_SECONDS + pull) / 60
    memory = "0" if queue.exclusive else None  # 0: all of the node's
    if host.memory_gb is not None:
        memory = f"{math.ceil(host.memory_gb * 1e9 / (1 << 20))}M"
    named = {"partition": queue.partition, "account": queue.account, "qos": queue.qos, "constraint": queue.constraint}
    return [
        f"--job-name={name}",
        f"--array=0-{len(array) - 1}%{queue.max_jobs}",
        *(f"--{key}={value}" for key, value in named.items() if value is not None),
        f"--nodes={array[0].case.num_hosts}",
        f"--ntasks={array[0].case.num_hosts}",
        *queue.gpu_options(_gpus(array[0])),
        *(["--exclusive"] if queue.exclusive else []),
        *([] if host.cpus is None else [f"--cpus-per-task={math.ceil(host.cpus)}"]),
        *([] if memory is None else [f"--mem={memory}"]),
        f"--time={math.ceil(minutes)}",
        "--no-requeue",
        "--output=/dev/null",
        *queue.options,
    ]


def _limit_seconds(job: Job, host: Host, queue: SlurmQueue) -> float:
    """Return a benchmark's own limit, which is below the user's limit of the job."""
    wanted = max_seconds(job, host)
    if queue.time_limit_minutes is None:
        return wanted
    return max(30.0, min(wanted, queue.time_limit_minutes * 60 - 60))


_BEGIN = """\
umask 077
folder="$root/jobs/$job"
node="${SLURMD_NODENAME:-$(hostname)}"
digest= scratch=
leave() {
    mine="$root/done/.$job.$SLURM_JOB_ID"
    printf 'code %s\\nnode %s\\nimage %s\\n' "$1" "$node" "$digest" >"$mine" && mv "$mine" "$root/done/$job"
    case "$1" in *[!0-9]*) exit 1 ;; esac
    exit "$1"
}
# Names are locks. That of the task remains, because slurmctld may start tasks again after it was killed.
mkdir "$root/done/.$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID" && mkdir "$folder" || exit 65"""

_END = """\
child=$!
trap 'kill -TERM "$child"' TERM
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
trap '' TERM
mv "$folder/out/record.json" "$folder/record.json" 2>/dev/null
[ -z "$scratch" ] || rm -rf "$scratch"
leave "$code"
"""


# -- how a node starts a benchmark ---------------------------------------------------------------------------------

MAX_FILE_BLOCKS = (256 << 20) // 512
"""For `ulimit -f`: a benchmark must not fill the shared folder."""

_LIMIT = f"ulimit -f {MAX_FILE_BLOCKS} || :"


def _module_lines(queue: SlurmQueue) -> list[str]:
    """Return the lines that load modules; `sh` defines `module` only after sourcing its init file."""
    if not queue.modules:
        return []
    files = '"${MODULESHOME:-}/init/sh" "${LMOD_PKG:-}/init/sh" /etc/profile.d/modules.sh /etc/profile.d/lmod.sh'
    return [
        f"for file in {files}; do",
        '    ! command -v module >/dev/null && [ -r "$file" ] && . "$file"',
        "done",
        f'module load {shlex.join(queue.modules)} >"$folder/output.log" 2>&1 || leave modules',
    ]


_RANK = (
    'export TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$WORKERS]}, '
    '\\"task\\": {\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}"; '
    '[ "$SLURM_PROCID" -eq 0 ] && out=$FOLDER/record.json || out=$FOLDER/rank-$SLURM_PROCID.json; '
)
"""Sets a rank's TF_CONFIG and the path of its record; the repeat's record is that of rank 0."""

_WORKERS = [
    "port=$((20000 + SLURM_JOB_ID % 10000)) WORKERS=",
    'for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
    '    address=$(scontrol --oneliner show node "$host" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
    """    WORKERS="$WORKERS${WORKERS:+, }\\"${address:-$host}:$port\\"" port=$((port + 2))""",
    "done",
    "export WORKERS",
    'node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d + -)',
]
"""Ports are two apart, because rank 0 uses the next one too."""


def _with_python(queue: SlurmQueue, host: Host, project: Path, nodes: int) -> tuple[list[str], str]:
    """Start a benchmark without container, or a rank of it on each of several nodes."""
    folder, python = queue.project or str(project), shlex.quote(queue.python or sys.executable)
    start = f'{python} -m tfbench "$@" --output="$folder/record.json"'
    if nodes > 1:
        rank = shlex.quote(f'{_RANK}exec {python} -m tfbench "$@" --output="$out"')
        start = f'srun --export=ALL {_on_each(nodes)} sh -c {rank} tfbench "$@"'
    prepare = [
        *(f"export {name}={shlex.quote(value)}" for name, value in host.environment.items()),
        _LIMIT,
        f"cd {shlex.quote(folder)} || exit 66",
        'export FOLDER="$folder"',
    ]
    return prepare, f"PYTHONPATH={shlex.quote(folder)} PYTHONUNBUFFERED=1 {start}"


def _on_each(nodes: int) -> str:
    return f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0"


def _with_pyxis(image_file: str | None, job: Job, host: Host, nodes: int, gpus: int) -> tuple[list[str], str]:
    """Start a benchmark in a container, or a rank of it on each of several nodes."""
    data = f",{shlex.quote(folder)}:{DATA_PATH}:ro" if (folder := mounted_folder(job, host)) else ""
    # enroot's hook needs a list of GPUs, and Slurm's cgroup limits `all` to those of the job. Indices might be
    # interpreted in an order other than Slurm's.
    # Source: enroot, conf/hooks/98-nvidia.sh.
    visible = "all" if gpus else "void"
    prepare = [
        *_image_lines(
            image_file,
            "sqsh",
            # enroot separates the registry with `#`
            'image=$(printf %s "$image" | sed "s|^\\([^/]*[.:][^/]*\\)/|\\1#|")\n'
            '        found=$(enroot digest "docker://$image" 2>/dev/null) && echo "$found" >"$file.digest"\n'
            '        enroot import --output "$part" "docker://$image"',
        ),
        f"export NVIDIA_VISIBLE_DEVICES={visible} FOLDER=/out",
        _LIMIT,  # for the output; enroot unpacks the image under slurmd's limits
    ]
    return prepare, (
        f"srun --export=ALL {_on_each(nodes) if nodes > 1 else '--ntasks=1'} --propagate=NONE"
        ' --container-image="$file" --container-readonly --no-container-mount-home'
        ' --no-container-entrypoint --container-mounts="$folder/out:/out"'
        f"{data} --container-workdir=/opt/tfbench {_inside(host, nodes)}"
    )


def _with_apptainer(image_file: str | None, job: Job, host: Host, nodes: int, gpus: int) -> tuple[list[str], str]:
    """Start a benchmark in a container on one node."""
    data = f" --bind {shlex.quote(folder)}:{DATA_PATH}:ro" if (folder := mounted_folder(job, host)) else ""
    prepare = [
        *_image_lines(image_file, "sif", 'apptainer pull "$part" "docker://$image"'),
        # With --containall, /tmp is 64 MiB of memory unless --workdir is set.
        # Source: apptainer's admin guide, "sessiondir max size".
        'for place in "${TMPDIR:-/tmp}" /tmp "$folder"; do',
        '    scratch=$(mktemp -d "$place/tfbench.XXXXXX" 2>/dev/null) && break',
        "done",
        # Sites may forbid network namespaces, as apptainer's admin guide advises: then use the node's network.
        'network="--net --network=none"; unshare --user --net true 2>/dev/null || network=',
    ]
    return prepare, (
        'apptainer exec --containall --no-home --no-privs $network --workdir "$scratch" --bind "$folder/out:/out"'
        f'{data} --pwd /opt/tfbench{" --nv" if gpus else ""} "$file" {_inside(host, nodes)}'
    )


def _image_lines(image_file: str | None, suffix: str, pull: str) -> list[str]:
    """Return the lines that pull the image once per run, and set `$file` and `$digest`.

    On a file system without locks, several nodes may pull it at a time; the file is renamed when complete.

    Args:
        image_file: Path of an existing image file on the nodes; None: pull from a registry.
        suffix: Of the file's name.
        pull: Commands that write the file `$part`.
    """
    if image_file is not None:
        missing = '{ echo "there is no image file $file on this node" >"$folder/output.log"; leave pull; }'
        return ['mkdir -p "$folder/out"', f"file={image_file}", f'[ -r "$file" ] || {missing}']
    return [
        f"""\
mkdir -p "$root/images" "$folder/out"
file="$root/images/$(printf %s "$image" | sha256sum | cut -c 1-32).{suffix}"
if ! (
    flock 9 || :
    ls "$root/images" >/dev/null  # makes an NFS client refresh its cache of the folder
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


def _inside(host: Host, nodes: int) -> str:
    """Return the command that starts a benchmark in a container, with its limit and variables.

    It restores CUDA_VISIBLE_DEVICES, which a Slurm step resets, and sets HOME to a folder that exists in the container.
    """
    given = {"PYTHONUNBUFFERED": "1", **host.environment}
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())
    begin = f'ulimit -f {MAX_FILE_BLOCKS}; export HOME=/tmp CUDA_VISIBLE_DEVICES="$1" {variables}; shift; '
    run = 'exec python3.11 -m tfbench "$@" --output='
    script = f'{begin}{_RANK}{run}"$out"' if nodes > 1 else f"{begin}{run}{RECORD_PATH}"
    return f'sh -c {shlex.quote(script)} tfbench "$CUDA_VISIBLE_DEVICES" "$@"'
