"""What the machine and this version offer, asked without TensorFlow."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.gpu_evidence.runner import ROOT
from tests.benchmarks.gpu_evidence.steps import Machine, Step
from tests.benchmarks.tf_cnn_benchmarks import find_folder

SECONDS_TO_ANSWER = 60.0
"""For `nvidia-smi`, which takes many seconds without persistence mode, and for an interpreter on a cold disk."""

MEASURES = ("tfbench", "results")
"""What decides a figure: the digest of these files is the version where there is no git."""


class NotUsable(Exception):
    """Nothing can run here; the message says why and what to do."""


@dataclass(frozen=True)
class DriverGPU:
    """A GPU as the driver shows it; `memory_gib` is None for a slice, whose size it lists elsewhere."""

    name: str
    memory_gib: float | None


def driver_gpus() -> list[DriverGPU]:
    """Return the GPUs that the driver shows, CUDA_VISIBLE_DEVICES leaves visible, and one process can use.

    GPUs that are cut into slices (MIG) are not whole GPUs: a process can use one slice, and only without whole GPUs.
    """
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.rsplit(",", 2) for line in done.stdout.splitlines() if line.count(",") >= 2]
    whole = [DriverGPU(name.strip(), _gib(memory)) for name, memory, mig in rows if mig.strip() != "Enabled"]
    gpus = whole or [DriverGPU(f"{name.strip()} (MIG slice)", None) for name, *_ in rows[:1]]
    if done.returncode != 0:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    return gpus[: len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])]


def _gib(mib: str) -> float | None:
    try:
        return float(mib) / 1024
    except ValueError:
        return None


def known_flags(python: str) -> frozenset[str]:
    """Return the flags of `python -m tfbench`, without dashes; booleans without `no`.

    Raises:
        NotUsable: The interpreter cannot even print them.
    """
    try:
        done = subprocess.run(
            [python, "-m", "tfbench", "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotUsable(f"--python={python}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NotUsable(f"`{python} -m tfbench --help` failed: {last}. --python names an interpreter with TensorFlow")
    return frozenset(re.findall(r"^  (?:-\w,)?--(?:\[no\])?(\w+):", done.stdout, re.MULTILINE))


def look_around(steps: Iterable[Step], gpus: list[DriverGPU], python: str, peer: Path | None) -> Machine:
    """Return what decides which steps can run.

    Args:
        steps: Whose programs are looked for.
        gpus: Of the driver.
        python: Interpreter of the benchmarks.
        peer: A checkout that holds tf_cnn_benchmarks, or its folder; None: not given.

    Raises:
        NotUsable: The interpreter does not work, or the checkout lacks the program.
    """
    folder = find_folder(peer) if peer else None
    if peer is not None and folder is None:
        raise NotUsable(f"--peer={peer} holds no tf_cnn_benchmarks.py. Example: --peer=benchmarks, a clone of "
                        "https://github.com/tensorflow/benchmarks")  # fmt: skip
    programs = {step.program for step in steps if step.program}
    modules = {run.command[run.command.index("-m") + 1] for step in steps for run in step.runs if "-m" in run.command}
    return Machine(
        gpus=len(gpus),
        memory_gib=min((gpu.memory_gib for gpu in gpus if gpu.memory_gib), default=None),
        why_no_gpu="the driver shows no GPU (nvidia-smi)",
        flags=known_flags(python),
        programs=frozenset(program for program in programs if shutil.which(program)),
        modules=frozenset(module for module in modules if _is_there(module)),
        peer=folder,
    )


def _is_there(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def version() -> str:
    """Return what was measured: git's commit where it knows one, and a digest of the files that measure."""
    digest = hashlib.sha256()
    for package in MEASURES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
        commit = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    return f"{commit or 'no git'} (source {digest.hexdigest()[:12]})"
