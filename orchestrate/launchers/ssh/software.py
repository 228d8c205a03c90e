"""What a host without Docker runs benchmarks with: the runner, a Python, and the packages of an image variant.

A host that has no Python that fits gets one with uv, by a script of POSIX sh, without root. uv comes as the archive
that its authors publish, pinned by its hash. It is linked statically and starts on any Linux, and checks what it
downloads against hashes of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from pydantic import BaseModel, ConfigDict, FiniteFloat, StrictStr, ValidationError

from orchestrate.errors import LaunchFailed
from orchestrate.inventory.variants import Variant
from orchestrate.launchers.container import MAX_CACHE_BYTES
from orchestrate.planning.facts import Image
from orchestrate.project import PROJECT, containers_folder
from orchestrate.text import file_name_part, plain_text, whole_number
from results.schema import Status

REQUIREMENTS = containers_folder() / "requirements"
SCRIPT = Path(__file__).with_name("bring_python.sh").read_text(encoding="utf-8")
RUNNER = ("tfbench", "results/__init__.py", "results/schema")

FITTING = ((3, 11), (3, 14))
"""Versions of Python that the runner and the locks are made for: from the first on, below the second."""

BROUGHT_MEGABYTES = 250
"""uv's archive and program, 22 and 53 MB, are removed at the end; CPython is 30 MB packed and 110 MB unpacked."""

BROUGHT = f"downloads about 60 MB, needs {BROUGHT_MEGABYTES} MB"

BRING_SECONDS = 900.0
"""Longest duration: a download shows nothing until it is complete."""

BROUGHT_PYTHON = "3.11"
"""That the locks were made with; see `FITTING`."""

PYTHON_FOLDER = "python"
"""Of the Python that was brought, below the agent's folder."""

CPU_WHEELS_MEGABYTES, CPU_INSTALLED_MEGABYTES = 335, 1600
"""Measured with the lock of `cpu`, with compiled Python files."""

CUDA_UNPACKED_RATIO = 2.0
"""Megabytes on the disk for each megabyte of CUDA wheels; 1.83 in the images, which leave some files out: see the sizes
in containers/README.md."""

CUDA_FOLDERS = (
    *("cublas", "cuda_cupti", "cuda_nvrtc", "cuda_runtime", "cudnn"),
    *("cufft", "cusolver", "cusparse", "nccl", "nvjitlink"),
)
"""Folders of `nvidia/` with libraries; TensorFlow 2.21 does not search all of them: see the Dockerfile."""


@dataclass(frozen=True, kw_only=True)
class HostSoftware:
    """How to start a benchmark on a host.

    Attributes:
        python: Path of the interpreter on the host.
        environment: Variables that it needs.
        toolchain: Folder with ptxas and libdevice, for XLA; None: where TensorFlow finds them by itself.
    """

    python: str
    environment: Mapping[str, str]
    toolchain: str | None = None


class Hello(BaseModel):
    """What a host has, as its agent reports; only the types are checked.

    Attributes:
        root: Our folder there.
        pythons: Interpreters: path, version, whether they have pip, version of TensorFlow.
        image: Description of the image that the host was started from; None: it is none of ours.
        runners: Digests of the runners there; likewise of the environments.
        now: Its clock, in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True)
    root: StrictStr
    pythons: tuple[dict[str, Any], ...]
    image: dict[str, Any] | None
    runners: frozenset[str]
    environments: frozenset[str]
    free_bytes: int
    now: FiniteFloat


def read_hello(answer: Mapping[str, Any]) -> Hello:
    """Read an agent's answer; nothing in it is trusted.

    Raises:
        ValueError: It is none.
    """
    try:
        hello = Hello.model_validate(answer)
    except (ValidationError, RecursionError) as error:
        raise ValueError("not our agent's answer") from error
    return hello.model_copy(update={"pythons": tuple(python for python in hello.pythons if "path" in python)})


def pack_runner() -> tuple[str, bytes]:
    """Pack what measures: `tfbench/`, the contract, and NVIDIA's Python module for its driver, some 0.1 MB.

    Returns:
        A digest, which names the folder that it is unpacked into, and a compressed tar file.
    """
    files = dict(sorted(_runner_files(PROJECT)))
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return digest.hexdigest()[:16], gzip.compress(buffer.getvalue(), mtime=0)


def _runner_files(project: Path) -> list[tuple[str, bytes]]:
    found = []
    for name in RUNNER:
        path = project / name
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            found.append((file.relative_to(project).as_posix(), file.read_bytes()))
    # The probe reads the driver before any package is installed over there.
    found.append(("pynvml.py", Path(pynvml.__file__).read_bytes()))
    return found


def fitting_python(pythons: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Choose the interpreter that the locks were made with, or else another one that fits; None: there is none.

    One without pip is none: it cannot install what it needs.
    """
    fitting = [python for python in pythons if FITTING[0] <= _version(python) < FITTING[1] and python.get("pip")]
    return min(fitting, key=_version, default=None)


def _version(python: Mapping[str, Any]) -> tuple[int, ...]:
    parts = str(python.get("version", "")).split(".")[:2]
    return tuple(number for part in parts if (number := whole_number(part)) is not None) or (0,)


def lock_of(variant: Variant) -> bytes:
    """Return the locked requirements of a variant.

    Raises:
        LaunchFailed: It is an image that is not built of packages.
    """
    path = REQUIREMENTS / f"{variant.name}.txt"
    if variant.base is not None or not path.exists():
        raise LaunchFailed(
            f"variant {variant.name} is an image with more than packages in it, and this host has no engine to start "
            "one. Name another variant, or use a host with Docker"
        )
    return path.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an installation takes, in megabytes; estimates, from the sizes of the locked wheels.

    Attributes:
        download: From the package index.
        needed: On the disk, while it is installed: wheels are removed when all are unpacked.
    """

    download: int
    needed: int

    def words(self) -> str:
        """Announce it: `downloads about 2.5 GB, needs 7.6 GB below ~/.tfbench while it installs`."""
        download, needed = gigabytes(self.download), gigabytes(self.needed)
        return f"downloads about {download}, needs {needed} below ~/.tfbench while it installs"

    def refusal(self, free_bytes: int) -> str | None:
        """Report that the disk is too small, with both figures; None: it is not."""
        if free_bytes >= self.needed * 1_000_000:
            return None
        return (
            f"installing the packages needs {gigabytes(self.needed)} below ~/.tfbench, and only "
            f"{gigabytes(free_bytes / 1e6)} are free. Free some, or rent the instance with a larger disk"
        )


def setup_of(variant: Variant) -> Setup:
    """Estimate what installing a variant with a lock takes."""
    download = variant.wheels_megabytes or 0
    cuda = max(0, download - CPU_WHEELS_MEGABYTES)
    return Setup(download=download, needed=download + CPU_INSTALLED_MEGABYTES + round(cuda * CUDA_UNPACKED_RATIO))


def gigabytes(megabytes: float) -> str:
    """Write a size with as many digits as matter: `335 MB`, `2.5 GB`."""
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


def environment_digest(lock: bytes, python: str) -> str:
    """Name the folder of an environment: by its lock and the version of Python that its packages are for."""
    return hashlib.sha256(lock + b"\0" + python.encode()).hexdigest()[:16]


def locked_software(root: str, runner: str, python: Mapping[str, Any], digest: str) -> HostSoftware:
    """Describe the use of an environment made by `agent.install`.

    Args:
        root: Our folder on the host.
        runner: Folder of the runner.
        python: Interpreter, as the agent described it.
        digest: See `environment_digest`.
    """
    site = f"{root}/environments/{digest}/site"
    return HostSoftware(
        python=str(python["path"]),
        environment=_variables(root, runner, site, digest),
        toolchain=f"{site}/nvidia/cuda_nvcc",
    )


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


def own_software(runner: str, python: Mapping[str, Any]) -> HostSoftware:
    """Describe the use of an interpreter that hosts.yml names, with the TensorFlow that it has.

    Raises:
        LaunchFailed: It has none.
    """
    path, version = python["path"], python.get("tensorflow")
    if not isinstance(version, str):
        raise LaunchFailed(f"python: {path} has no TensorFlow. Install it there, or remove python: from hosts.yml")
    return HostSoftware(python=str(path), environment={"PYTHONPATH": runner})


def image_software(root: str, image: Mapping[str, Any]) -> HostSoftware:
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
    variables = _variables(root, image["runner"], image["site"], cache)
    return HostSoftware(python=image["python"], environment=variables)


def image_of_instance(image: Mapping[str, Any], named: Sequence[str]) -> Image:
    """Describe the image that an instance was started from, as the plan lists images.

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


@dataclass(frozen=True, kw_only=True)
class Download:
    """A `.tar.gz` with one program that is wanted.

    Attributes:
        program: Its path in the archive.
    """

    url: str
    sha256: str
    program: str


UV = Download(
    url="https://github.com/astral-sh/uv/releases/download/0.11.12/uv-x86_64-unknown-linux-musl.tar.gz",
    sha256="591a7557f5ba7e51565f338dd4c50cebc12820ec2ebb8403a4304685f8d53ab9",
    program="uv-x86_64-unknown-linux-musl/uv",
)
"""uv 0.11.12 for x86_64. Source of the hash: astral-sh/setup-uv on GitHub, src/download/checksum/known-checksums.ts."""


def bring_script(root: str, mark: str, archive: Download = UV) -> str:
    """Write the script that puts a Python below `root`; its answer is lines of JSON after a mark, as an agent's.

    Args:
        root: Our folder on the host; `~` is expanded there.
        mark: Sets the answer apart from what login profiles print.
        archive: uv's.
    """
    values = {
        "@ROOT@": root,
        "@MARK@": mark,
        "@PLACE@": PYTHON_FOLDER,
        "@PYTHON@": BROUGHT_PYTHON,
        "@URL@": archive.url,
        "@SHA256@": archive.sha256,
        "@PROGRAM@": archive.program,
        "@NEEDED_KB@": str(BROUGHT_MEGABYTES * 1000),
    }
    return re.sub("|".join(values), lambda found: values[found[0]], SCRIPT)
