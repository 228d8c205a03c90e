"""How a node runs a benchmark: a Python of its own, or a container by one of three programs.

Only `none` and `docker` were run on a real cluster; the lines for pyxis and apptainer follow their documentation.
Each leaves the process id in `$child`; `end` ends it, `finish` brings the record into `$folder`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.container import DATA_PATH, JOB_LABEL, RECORD_PATH, RUN_LABEL, ContainerSpec

STOP_SECONDS = 20
"""How long a container may take to end; Slurm kills what is left after 30 seconds (KillWait)."""


def environment_lines(queue: SlurmQueue, environment: Mapping[str, str]) -> list[str]:
    """Return the lines of a batch script that give a benchmark the variables of `hosts.yml`.

    `srun` hands the script's own on, to all ranks and to pyxis's containers. Apptainer takes those of its own prefix
    into a container that is closed to all others; its `--env` would divide a value at its commas. Docker has flags.
    """
    prefix = {"none": "", "pyxis": "", "apptainer": "APPTAINERENV_"}.get(queue.container)
    if prefix is None:
        return []
    return [f"export {prefix}{name}={shlex.quote(value)}" for name, value in environment.items()]


def run_lines(queue: SlurmQueue, container: ContainerSpec | None, nodes: int, gpus: int, project: Path) -> list[str]:
    """Return the lines of a batch script that start a benchmark.

    Args:
        queue: Names the way.
        container: What it may do; None: no container. Name, image and flags are the script's variables.
        nodes: Of this job; more than one only without containers.
        gpus: Of each of its nodes.
        project: Where this tfbench is, if the nodes see it too.
    """
    if container is None:
        return _python_lines(queue, project) if nodes == 1 else _ranks_lines(queue, project, nodes)
    return {"docker": _docker_lines, "pyxis": _pyxis_lines, "apptainer": _apptainer_lines}[queue.container](
        container, gpus
    )


def _python_lines(queue: SlurmQueue, project: Path) -> list[str]:
    folder, python = queue.project or str(project), queue.python or sys.executable
    return [
        f"cd {shlex.quote(folder)} || exit 66",
        f"PYTHONPATH={shlex.quote(folder)} PYTHONUNBUFFERED=1 {shlex.quote(python)} -m tfbench"
        ' "$@" --output="$folder/record.json" </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]


def _ranks_lines(queue: SlurmQueue, project: Path, nodes: int) -> list[str]:
    """Start a rank on each node; the record is that of rank 0. Ports lie two apart: rank 0 uses the next one too."""
    folder, python = queue.project or str(project), queue.python or sys.executable
    rank = (
        'export TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$WORKERS]}, '
        '\\"task\\": {\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}"; '
        '[ "$SLURM_PROCID" -eq 0 ] && out=$FOLDER/record.json || out=$FOLDER/rank-$SLURM_PROCID.json; '
        f'exec {shlex.quote(python)} -m tfbench "$@" --output="$out"'
    )
    return [
        f"cd {shlex.quote(folder)} || exit 66",
        "port=$((20000 + SLURM_JOB_ID % 10000)) WORKERS=",
        'for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
        '    address=$(scontrol --oneliner show node "$host" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
        """    WORKERS="$WORKERS${WORKERS:+, }\\"${address:-$host}:$port\\"" port=$((port + 2))""",
        "done",
        'export WORKERS FOLDER="$folder"',
        'node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d + -)',
        f"PYTHONPATH={shlex.quote(folder)} PYTHONUNBUFFERED=1 srun --nodes={nodes} --ntasks={nodes}"
        " --ntasks-per-node=1 --kill-on-bad-exit=0"
        f' sh -c {shlex.quote(rank)} tfbench "$@" </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]


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


def _pyxis_lines(container: ContainerSpec, _gpus: int) -> list[str]:
    data = f",{shlex.quote(container.data_dir)}:{DATA_PATH}:ro" if container.data_dir else ""
    return [
        # enroot separates the registry from the rest by `#`
        'image=$(printf %s "$image" | sed "s|^\\([^/]*[.:][^/]*\\)/|\\1#|")',
        'mkdir "$folder/out"',
        'finish() { mv "$folder/out/record.json" "$folder/record.json" 2>/dev/null; }',
        'srun --ntasks=1 --container-image="$image" --container-readonly --no-container-mount-home'
        ' --no-container-entrypoint --container-mounts="$folder/out:/out"'
        f"{data} --container-workdir=/opt/tfbench"
        f' python3.11 -m tfbench "$@" --output={RECORD_PATH} </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]


def _apptainer_lines(container: ContainerSpec, gpus: int) -> list[str]:
    data = f" --bind {shlex.quote(container.data_dir)}:{DATA_PATH}:ro" if container.data_dir else ""
    visible = ' --nv --env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"' if gpus else ""
    return [
        'mkdir "$folder/out"',
        'finish() { mv "$folder/out/record.json" "$folder/record.json" 2>/dev/null; }',
        f'apptainer exec --containall --no-home --no-privs --bind "$folder/out:/out"{data} --pwd /opt/tfbench{visible}'
        f' "docker://$image" python3.11 -m tfbench "$@" --output={RECORD_PATH}'
        ' </dev/null >"$folder/output.log" 2>&1 &',
        "child=$!",
    ]
