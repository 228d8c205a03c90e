"""How a node runs a benchmark: a Python of its own, or a container by one of three programs.

All are tested on real clusters of two nodes, pyxis and apptainer by opt-in tests (`make test-pyxis`, `make
test-apptainer`). Each leaves the process id in `$child`; `end` ends it, `finish` brings
the record into `$folder`.

Limits are for benchmarks: images are fetched before, because one file of an image is larger than all that a benchmark
may write. pyxis and apptainer fetch an image once for a run, into the shared folder.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.container import DATA_PATH, JOB_LABEL, RECORD_PATH, RUN_LABEL, ContainerSpec

MAX_FILE_BLOCKS = (256 << 20) // 512
"""Of `ulimit -f`: nothing a benchmark writes may fill the shared folder."""

_LIMIT = f"ulimit -f {MAX_FILE_BLOCKS} || :"

STOP_SECONDS = 20
"""How long a container may take to end; Slurm kills what is left after 30 seconds (KillWait)."""


def environment_lines(queue: SlurmQueue, environment: Mapping[str, str]) -> list[str]:
    """Return the lines of a batch script that give a benchmark outside of containers the variables of `hosts.yml`.

    Containers get theirs inside: pyxis prefers those of the image, apptainer's `--env` divides a value at its commas.
    """
    if queue.container != "none":
        return []
    return [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]


def run_lines(queue: SlurmQueue, container: ContainerSpec | None, nodes: int, gpus: int, project: Path) -> list[str]:
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
    if queue.container == "docker":
        return [_LIMIT, *_docker_lines(container, gpus)]
    if queue.container == "pyxis":
        return _pyxis_lines(queue.image_file, container, nodes, gpus)
    return _apptainer_lines(queue.image_file, container, gpus)


def module_lines(queue: SlurmQueue) -> list[str]:
    """Return the lines of a batch script that load modules; `sh` knows `module` only after its own start-up file."""
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


_UUIDS = """\
# Slurm counts GPUs within the job, Docker on the machine: both know the UUIDs.
gpus=$(nvidia-smi -i "$CUDA_VISIBLE_DEVICES" --query-gpu=uuid --format=csv,noheader | paste -s -d , -)
[ -n "$gpus" ] || gpus=$CUDA_VISIBLE_DEVICES"""


def _docker_lines(container: ContainerSpec, gpus: int) -> list[str]:
    given = ["--gpus", r"""'"device='"$gpus"'","capabilities=compute,utility"'"""] if gpus else []
    command = [
        *map(shlex.quote, docker_flags(container)),
        *given,
        "--name",
        '"$name"',
        f'--label "{JOB_LABEL}=$job"',
        '"$image"',
        '"$@"',
    ]
    run = container.labels[RUN_LABEL]
    return [
        *([_UUIDS] if gpus else []),
        f'name="tfbench-{run}-$job"',
        '[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || docker rm --force --volumes "$name" >/dev/null 2>&1',
        'docker image inspect "$image" >/dev/null 2>&1 ||'
        ' docker pull --quiet "$image" >"$folder/output.log" 2>&1 || leave pull',
        f'end() {{ docker stop --time {STOP_SECONDS} "$name" >/dev/null; }}',
        "finish() {",
        f'    docker cp "$name:{RECORD_PATH}" "$folder/record.json" >/dev/null 2>&1',
        "    digest=$(docker image inspect --format '{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}'"
        ' "$image")',
        '    [ "$(docker inspect --format \'{{.State.OOMKilled}}\' "$name")" != true ] || code=oom',
        '    docker rm --force --volumes "$name" >/dev/null',
        "}",
        f'docker run {" ".join(command)} --output={RECORD_PATH} </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]


def docker_flags(container: ContainerSpec) -> list[str]:
    """Return the command line with the same permissions (none) that the Docker launcher sets through the API."""
    flags = ["--read-only", f"--tmpfs=/tmp:rw,nosuid,nodev,size={container.tmp_bytes},mode=1777", "--cap-drop=ALL"]
    flags += ["--security-opt=no-new-privileges:true", "--network=none", "--init"]
    flags += [f"--shm-size={container.shm_bytes}", f"--pids-limit={container.max_processes}"]
    flags += [f"--ulimit={name}={value}:{value}" for name, value in container.limits.items()]
    flags += ["--log-driver=json-file", *(f"--log-opt={key}={value}" for key, value in container.log_limit.items())]
    flags += [f"--env={key}={value}" for key, value in container.environment.items()]
    flags.append(f"--label={RUN_LABEL}={container.labels[RUN_LABEL]}")
    if container.data_dir is not None:  # unlike --volume it fails where the folder is not there
        flags.append(f"--mount=type=bind,source={container.data_dir},target={DATA_PATH},readonly")
    if container.cpus is not None:
        flags.append(f"--cpus={container.cpus:g}")
    if container.memory_bytes is not None:
        flags += [f"--memory={container.memory_bytes}", f"--memory-swap={container.memory_bytes}"]
    return flags


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
    """Return what starts a benchmark within pyxis or apptainer: its limit, its variables, and what is the user's else.

    A step of Slurm's sets CUDA_VISIBLE_DEVICES anew, and HOME would be a folder that the container lacks.
    """
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in container.environment.items())
    begin = f'ulimit -f {MAX_FILE_BLOCKS}; export HOME=/tmp CUDA_VISIBLE_DEVICES="$1" {variables}; shift; '
    run = 'exec python3.11 -m tfbench "$@" --output='
    script = f'{begin}{_RANK}{run}"$out"' if nodes > 1 else f"{begin}{run}{RECORD_PATH}"
    return f'sh -c {shlex.quote(script)} tfbench "$CUDA_VISIBLE_DEVICES" "$@" </dev/null >"$folder/output.log" 2>&1 &'
