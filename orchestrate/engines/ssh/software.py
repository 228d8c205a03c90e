"""Software for benchmarks on a host without Docker: the runner, a Python, and the packages of an image variant.

On a host without a suitable Python, a POSIX sh script installs one with uv, without root. The script downloads the
official uv archive, pinned by its hash. uv is statically linked, runs on any Linux, and verifies its own downloads.
"""

from __future__ import annotations

import dataclasses
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
from pydantic import BaseModel, ConfigDict, StrictBool, StrictStr

from orchestrate.engines.invocation import MAX_CACHE_BYTES
from orchestrate.errors import LaunchFailed
from orchestrate.inventory.variants import Variant, parse_version, read_variants
from orchestrate.planning.facts import Image
from orchestrate.project import PROJECT, containers_folder
from orchestrate.text import file_name_part, plain_text
from results.schema import Status

REQUIREMENTS = containers_folder() / "requirements"
SCRIPT = Path(__file__).with_name("install_python.sh").read_text(encoding="utf-8")
RUNNER = ("tfbench", "results/__init__.py", "results/schema")

PYTHON_MEGABYTES = 250
"""Space for uv's archive and program (22 and 53 MB, removed at the end) and CPython (30 MB packed, 110 MB unpacked)."""

PYTHON_DOWNLOAD = f"downloads about 60 MB, needs {PYTHON_MEGABYTES} MB"

INSTALL_SECONDS = 300.0
"""Time limit for installing a Python: 60 MB at 0.2 MB/s. A host that drips must not hold a run for longer."""

PYTHON_VERSION = "3.11"
"""The version of the images, with which the locks were made."""

FITS = "import pip, sys; assert sys.version_info[:2] == (3, 11)"
"""Succeeds with a Python that can install and use the locked packages."""

PYTHON_FOLDER = "python"
"""Folder of the installed Python, below the agent's folder."""

CPU_WHEELS_MEGABYTES, CPU_INSTALLED_MEGABYTES = 335, 1600
"""Measured with the lock of `cpu`, including compiled Python files."""

CUDA_UNPACKED_RATIO = 2.0
"""Installed size of CUDA wheels relative to their download size; 1.83 in the images, which omit some files: see the
sizes in containers/README.md."""

CUDA_FOLDERS = (
    *("cublas", "cuda_cupti", "cuda_nvrtc", "cuda_runtime", "cudnn"),
    *("cufft", "cusolver", "cusparse", "nccl", "nvjitlink"),
)
"""Folders of `nvidia/` with libraries, not all of which TensorFlow 2.21 searches: see the Dockerfile."""


@dataclass(frozen=True, kw_only=True)
class HostSoftware:
    """How to start a benchmark on a host.

    Attributes:
        python: Path of the interpreter on the host.
        environment: Variables that it needs.
        toolchain: Folder with ptxas and libdevice for XLA; None: TensorFlow finds them.
    """

    python: str
    environment: Mapping[str, str]
    toolchain: str | None = None


class Hello(BaseModel):
    """What an agent reports about its host; only the types are checked.

    Attributes:
        root: Our folder on the host.
        python: Path of the interpreter for benchmarks, with which the agent runs.
        tensorflow: Whether it has TensorFlow.
        image: Description of the tfbench image that the host was started from, or None.
        runners: Digests of the installed runners.
        environments: Digests of the installed environments.
        machine: Its architecture, e.g. `x86_64`.
        libc: Its C library, e.g. `glibc 2.36`.
    """

    model_config = ConfigDict(frozen=True)
    root: StrictStr
    python: StrictStr
    tensorflow: StrictBool
    image: dict[str, Any] | None
    runners: frozenset[str]
    environments: set[str]
    free_bytes: int
    machine: StrictStr = ""
    libc: StrictStr


def pack_runner() -> tuple[str, bytes]:
    """Pack the runner: `tfbench/`, the contract and `pynvml`, about 0.1 MB.

    Returns:
        A digest, which is the name of its folder on hosts, and a compressed tar archive.
    """
    found = [file for name in RUNNER for file in (PROJECT / name, *(PROJECT / name).rglob("*"))]
    files = {file.relative_to(PROJECT).as_posix(): file for file in sorted(found) if file.suffix in (".py", ".toml")}
    files["pynvml.py"] = Path(pynvml.__file__)  # the probe queries the driver before any package is installed
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, file in files.items():
            content, member = file.read_bytes(), tarfile.TarInfo(name)  # without owner and time
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(buffer.getvalue()).hexdigest()[:16], gzip.compress(buffer.getvalue(), mtime=0)


def lock_of(variant: Variant) -> bytes:
    """Return the locked requirements of a variant.

    Raises:
        LaunchFailed: The variant's image consists of more than packages.
    """
    path = REQUIREMENTS / f"{variant.name}.txt"
    if variant.base is not None or not path.exists():
        raise LaunchFailed(
            f"variant {variant.name} is an image with more than packages in it, and this host has no engine to start "
            "one. Choose another variant, or use a host with Docker"
        )
    return path.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The locked packages of a variant for `PYTHON_VERSION`, with sizes from those of the locked wheels."""

    variant: Variant
    lock: bytes

    @property
    def digest(self) -> str:
        """The name of their folder, a digest of the lock."""
        return hashlib.sha256(self.lock).hexdigest()[:16]

    @property
    def needed(self) -> int:
        """Peak disk usage of the installation in megabytes: wheels are removed at its end."""
        download = self.variant.wheels_megabytes or 0
        cuda = max(0, download - CPU_WHEELS_MEGABYTES)
        return download + CPU_INSTALLED_MEGABYTES + round(cuda * CUDA_UNPACKED_RATIO)

    def size(self) -> str:
        """Return e.g. `downloads about 2.5 GB, needs 7.6 GB below ~/.tfbench while it installs`."""
        download, needed = gigabytes(self.variant.wheels_megabytes or 0), gigabytes(self.needed)
        return f"downloads about {download}, needs {needed} below ~/.tfbench while it installs"

    def refusal(self, free_bytes: int) -> str | None:
        """Return an error message if the disk is too small, or None."""
        if free_bytes >= self.needed * 1_000_000:
            return None
        return (
            f"installing the packages needs {gigabytes(self.needed)} below ~/.tfbench, and only "
            f"{gigabytes(free_bytes / 1e6)} are free. Free some, or rent the instance with a larger disk"
        )

    def software(self, root: str, runner: str, python: str) -> HostSoftware:
        """Describe them after their installation by `agent.install`.

        Args:
            root: Our folder on the host.
            runner: Folder of the runner.
            python: Path of the interpreter.
        """
        site = f"{root}/environments/{self.digest}/site"
        environment = _variables(root, runner, site, self.digest)
        return HostSoftware(python=python, environment=environment, toolchain=f"{site}/nvidia/cuda_nvcc")


def gigabytes(megabytes: float) -> str:
    """Format a size in megabytes, e.g. `335 MB`, `2.5 GB`."""
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


def packages_of(name: str | None, libc: str) -> Packages:
    """Return the packages of a variant.

    Args:
        name: Of the variant.
        libc: The host's C library, e.g. `glibc 2.36`.

    Raises:
        LaunchFailed: They cannot be installed there.
    """
    variant = read_variants().get(name or "")
    if variant is None:
        raise LaunchFailed(f"there is no variant {name!r} for a host without Docker")
    found = re.fullmatch(r"glibc ([0-9]{1,6}(?:\.[0-9]{1,6})*)", libc)
    if found is None or parse_version(found[1]) < parse_version(variant.glibc):
        raise LaunchFailed(
            f"its C library is {plain_text(libc, 50)}, and the packages of {variant.name} need glibc {variant.glibc} "
            "or newer. Rent the instance with a newer operating system, or set python: to an interpreter with a "
            "TensorFlow of your own"
        )
    return Packages(variant=variant, lock=lock_of(variant))


def _variables(root: str, runner: str, site: str, cache: str) -> dict[str, str]:
    """Return the variables that an image sets in its containers; see the Dockerfile."""
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


def image_software(root: str, image: Mapping[str, Any]) -> HostSoftware:
    """Describe an instance that was started from a tfbench image.

    Args:
        root: Our folder on the host.
        image: Content of its `image.json`.

    Raises:
        LaunchFailed: The content is incomplete.
    """
    if not all(isinstance(image.get(key), str) for key in ("variant", "version", "python", "runner", "site")):
        raise LaunchFailed(f"its image.json is not of a tfbench image: {plain_text(str(image), 200)}")
    cache = file_name_part(f"{image['version']}-{image['variant']}")
    variables = _variables(root, image["runner"], image["site"], cache)
    return HostSoftware(python=image["python"], environment=variables)


def image_of_instance(image: Mapping[str, Any], named: Sequence[str]) -> Image:
    """Return the image that an instance was started from.

    Args:
        image: Content of its `image.json`.
        named: Variants in hosts.yml; empty: any.
    """
    variant, version = (plain_text(str(image.get(key)), 60) for key in ("variant", "version"))
    reference = f"tfbench:{version}-{variant}"
    found = Image(variant=variant, reference=reference, reason="the instance's own image")
    if not named or variant in named:
        return found
    problem = f"the instance was started from {reference}, but hosts.yml sets variant {', '.join(named)}"
    remedy = "Start it from that image, or remove variant:"
    return dataclasses.replace(found, status=Status.UNSUPPORTED, reason=f"{problem}. {remedy}")


def install_script(root: str, mark: str) -> str:
    """Return the script that installs a Python below `root`; it prints lines of JSON after a mark, as the agent does.

    Args:
        root: Our folder on the host; `~` is expanded there.
        mark: Separates the answer from the output of login profiles.
    """
    needed = f"python={PYTHON_VERSION} megabytes={PYTHON_MEGABYTES}"
    return f"root={root} mark={mark} place={root}/{PYTHON_FOLDER} {needed}\n{SCRIPT}"
