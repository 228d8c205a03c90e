"""What a host without Docker runs benchmarks with: the runner, a Python, and the packages of an image variant."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.errors import LaunchFailed
from orchestrate.inventory.variants import Variant
from orchestrate.launchers.container import MAX_CACHE_BYTES
from orchestrate.planning.facts import Image
from orchestrate.text import file_name_part, plain_text
from results.schema import Status

PROJECT = Path(__file__).parents[3]
REQUIREMENTS = PROJECT / "orchestrate" / "containers" / "requirements"
RUNNER = ("tfbench", "results/__init__.py", "results/schema")

FITTING = ((3, 11), (3, 14))
"""Versions of Python that the runner and the locks are made for: from the first on, below the second."""

CUDA_FOLDERS = (
    "cublas",
    "cuda_cupti",
    "cuda_nvrtc",
    "cuda_runtime",
    "cudnn",
    "cufft",
    "cusolver",
    "cusparse",
    "nccl",
    "nvjitlink",
)
"""Folders of `nvidia/` with libraries; TensorFlow 2.21 does not search all of them: see the Dockerfile."""


@dataclass(frozen=True, kw_only=True)
class Software:
    """How to start a benchmark on a host.

    Attributes:
        python: Path of the interpreter on the host.
        environment: Variables that it needs.
    """

    python: str
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Files to be unpacked on a host.

    Attributes:
        digest: Names the folder that they are unpacked into.
        content: A compressed tar file.
    """

    digest: str
    content: bytes


def pack_runner(project: Path = PROJECT) -> Archive:
    """Pack what measures: `tfbench/`, the contract, and NVIDIA's Python module for its driver, some 0.1 MB."""
    files = dict(sorted(_runner_files(project)))
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return Archive(digest=digest.hexdigest()[:16], content=gzip.compress(buffer.getvalue(), mtime=0))


def _runner_files(project: Path) -> list[tuple[str, bytes]]:
    found = []
    for name in RUNNER:
        path = project / name
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            found.append((file.relative_to(project).as_posix(), file.read_bytes()))
    spec = importlib.util.find_spec("pynvml")  # the probe reads the driver before any package is installed over there
    if spec is not None and spec.origin is not None:
        found.append(("pynvml.py", Path(spec.origin).read_bytes()))
    return found


def fitting_python(pythons: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Choose the interpreter that the locks were made with, or else another one that fits; None: there is none."""
    fitting = [python for python in pythons if FITTING[0] <= _version(python) < FITTING[1]]
    return min(fitting, key=_version, default=None)


def _version(python: Mapping[str, Any]) -> tuple[int, ...]:
    parts = str(python.get("version", "")).split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit()) or (0,)


def lock_of(variant: Variant) -> bytes:
    """Return the locked requirements of a variant.

    Raises:
        LaunchFailed: It is an image that is not built of packages.
    """
    path = REQUIREMENTS / f"{variant.row}.txt"
    if variant.base is not None or not path.exists():
        raise LaunchFailed(
            f"variant {variant.name} is an image ({variant.base}), and this host has no engine to start one. "
            "Name another variant, or use a host with Docker"
        )
    return path.read_bytes()


def environment_digest(lock: bytes, python: str) -> str:
    """Name the folder of an environment: by its lock and the version of Python that its packages are for."""
    return hashlib.sha256(lock + b"\0" + python.encode()).hexdigest()[:16]


def locked_software(root: str, runner: str, python: Mapping[str, Any], digest: str) -> Software:
    """Describe the use of an environment made by `agent.install`.

    Args:
        root: Our folder on the host.
        runner: Folder of the runner.
        python: Interpreter, as the agent described it.
        digest: See `environment_digest`.
    """
    site = f"{root}/environments/{digest}/site"
    return Software(python=str(python["path"]), environment=_variables(root, runner, site, digest))


def _variables(root: str, runner: str, site: str, cache: str) -> dict[str, str]:
    """Return what an image's own variables say where a container is started from it; see the Dockerfile."""
    libraries = [f"{site}/nvidia/{name}/lib" for name in CUDA_FOLDERS]
    return {
        "PYTHONPATH": f"{runner}:{site}",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": ":".join([*libraries, "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]),
        "CUDA_MODULE_LOADING": "LAZY",
        "CUDA_CACHE_PATH": f"{root}/cuda-cache/{cache}",
        "CUDA_CACHE_MAXSIZE": str(MAX_CACHE_BYTES),
    }


def own_software(runner: str, python: Mapping[str, Any]) -> Software:
    """Describe the use of an interpreter that hosts.yml names, with the TensorFlow that it has.

    Raises:
        LaunchFailed: It has none.
    """
    path, version = python["path"], python.get("tensorflow")
    if not isinstance(version, str):
        raise LaunchFailed(f"python: {path} has no TensorFlow. Install it there, or remove python: from hosts.yml")
    return Software(python=str(path), environment={"PYTHONPATH": runner})


def image_software(root: str, image: Mapping[str, Any]) -> Software:
    """Describe the use of an instance that was started from an image of ours: as it is.

    Args:
        root: Our folder on the host.
        image: What its `image.json` says.

    Raises:
        LaunchFailed: It does not say what is needed.
    """
    if not all(isinstance(image.get(key), str) for key in ("variant", "version", "python", "runner", "site")):
        raise LaunchFailed(f"its image.json is not of a tfbench image: {plain_text(str(image), 200)}")
    cache = file_name_part(f"{image['version']}-{image['variant']}")
    return Software(python=image["python"], environment=_variables(root, image["runner"], image["site"], cache))


def image_of_instance(image: Mapping[str, Any], named: Sequence[str]) -> Image:
    """Describe the image that an instance was started from, as the plan knows images.

    Args:
        image: What its `image.json` says.
        named: Variants of hosts.yml; empty: any.
    """
    variant, version = (plain_text(str(image.get(key)), 60) for key in ("variant", "version"))
    reference = f"tfbench:{version}-{variant}"
    if named and variant not in named:
        problem = f"the instance was started from {reference}, and hosts.yml asks for variant {', '.join(named)}"
        return Image(
            variant=variant,
            reference=reference,
            reason="the instance's own image",
            status=Status.UNSUPPORTED,
            problem=f"{problem}. Start it from that image, or remove variant:",
        )
    return Image(variant=variant, reference=reference, reason="the instance's own image")
