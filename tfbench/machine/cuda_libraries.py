"""NVIDIA's libraries: which of them TensorFlow opens, where it finds them, and which versions a process has loaded.

TensorFlow 2.21 searches for its libraries in folders next to itself, and that of `libcusolver.so.11` is not one of
them: after `pip install tensorflow[and-cuda]` it prints "Cannot dlopen some GPU libraries" and trains on the CPU. A
library that a process has already loaded is found by name, wherever it is. The version loaded is often not the one that
TensorFlow was built with: newer versions of cuDNN serve builds for older ones, and LD_LIBRARY_PATH or another package
may provide any of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfbench.machine.host import read_text

PRELOADED = ("libnvJitLink.so.*", "libcublasLt.so.*", "libcublas.so.*", "libcusparse.so.*", "libcusolver.so.*")
"""cuSOLVER, preceded by its own dependencies."""

FIRST_WITH_NCCL = (2, 18)
"""TensorFlow opens NCCL at run time from this version on; in older ones it is linked in."""

_VERSIONS: dict[str, dict[str, str | int]] = {
    "11": {"cudart": "11.0", "cublasLt": 11, "cublas": 11, "cufft": 10, "cusparse": 11, "cusolver": 11, "cudnn": 8},
    "12": {"cudart": 12, "cublasLt": 12, "cublas": 12, "cufft": 11, "cusparse": 12, "cusolver": 11},
}
"""Versions of CUDA's libraries by its major version; those of others are unknown."""


def package_folders() -> list[Path]:
    """Return the folders of NVIDIA's packages that hold libraries."""
    places = [Path(place) for place in (*sys.path, *site.getsitepackages()) if place]
    return sorted({folder for place in places for folder in place.glob("nvidia/*/lib") if folder.is_dir()})


def prepare_gpu_libraries() -> None:
    """Make TensorFlow and XLA use NVIDIA's packages; for processes that use GPUs, before they import TensorFlow."""
    preload(folders := package_folders())
    use_packaged_ptxas(folders)


def preload(folders: Iterable[Path]) -> list[str]:
    """Load the libraries that TensorFlow would not find; call before TensorFlow is imported.

    Args:
        folders: From `package_folders`; if empty, nothing is loaded.

    Returns:
        Names of the loaded libraries.
    """
    found = [path for pattern in PRELOADED for folder in folders for path in sorted(folder.glob(pattern))]
    for path in found:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return [path.name for path in found]


XLA_DATA_FLAG = "--xla_gpu_cuda_data_dir"


def use_packaged_ptxas(folders: Iterable[Path]) -> None:
    """Make XLA call the `ptxas` of NVIDIA's Python package; call before TensorFlow is imported.

    By default XLA searches PATH and /usr/local/cuda first, which may hold any version. A flag set by the user is kept.

    Args:
        folders: From `package_folders`.

    Source: `FindPtxAsExecutable` and `CandidateCudaRoots` in TensorFlow's `cuda_root_path` and `asm_compiler`.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    ptxas = packaged_ptxas(folders)
    if ptxas is not None and XLA_DATA_FLAG not in flags and not re.search(r"\s", str(ptxas)):
        os.environ["XLA_FLAGS"] = f"{flags} {XLA_DATA_FLAG}={ptxas.parents[1]}".strip()


def packaged_ptxas(folders: Iterable[Path]) -> Path | None:
    """Return the `ptxas` of NVIDIA's package; None: it is not installed."""
    candidates = (folder.parents[1] / "cuda_nvcc/bin/ptxas" for folder in folders)
    return next((path for path in candidates if path.is_file()), None)


def flags_of_the_user(flags: str) -> str:
    """Return XLA_FLAGS without the path of `ptxas`, which does not change what is measured."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(f"{XLA_DATA_FLAG}="))


def ptxas_version() -> str | None:
    """Return the version of the `ptxas` that XLA calls in this process, e.g. `12.5.82`; None: there is none."""
    named = re.findall(rf"{XLA_DATA_FLAG}=(\S+)", os.environ.get("XLA_FLAGS", ""))
    packaged = packaged_ptxas(package_folders())
    candidates = [f"{folder}/bin/ptxas" for folder in named]
    candidates += [shutil.which("ptxas") or "", "/usr/local/cuda/bin/ptxas", str(packaged or "")]
    ptxas = next((path for path in candidates if Path(path).is_file()), None)
    if ptxas is None:
        return None
    try:
        done = subprocess.run([ptxas, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    release = re.search(r"release [\d.]+, V([\d.]+)", done.stdout)
    return release[1] if release else None


def opened_libraries(tensorflow: str, cuda: str | None, cudnn: str | None) -> list[str]:
    """Return the names of the libraries that a build of TensorFlow opens before it accepts a GPU.

    Args:
        tensorflow: Its version, e.g. `2.21.0`.
        cuda: CUDA version that it was built with, e.g. `12.5.1`; None for a CPU build.
        cudnn: Major cuDNN version, e.g. `9`.

    Source: the names in TensorFlow's `dso_loader`, the sonames of NVIDIA's wheels.
    """
    if cuda is None:
        return []
    versions = _VERSIONS.get(cuda.partition(".")[0], {})
    if cudnn is not None:
        versions = {**versions, "cudnn": cudnn.partition(".")[0]}
    names = [f"lib{name}.so.{version}" for name, version in versions.items()]
    if tuple(map(int, tensorflow.split(".")[:2])) >= FIRST_WITH_NCCL:
        names.append("libnccl.so.2")
    return names


def load_by_name(names: Iterable[str], folders: Sequence[Path] = ()) -> dict[str, str | None]:
    """Load libraries by name alone, as TensorFlow does.

    Args:
        names: e.g. `libcudnn.so.9`.
        folders: Searched for those that are not found by name.

    Returns:
        By name: None if it was loaded, else why not.
    """
    problems: dict[str, str | None] = {}
    for name in names:
        for file in (name, *(str(folder / name) for folder in folders if (folder / name).exists())):
            try:
                ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
                problems[name] = None
                break
            except OSError as error:
                problems[name] = str(error)
    return problems


NCCL_2_9 = 10_000
"""NCCL's number is major × 10,000 + minor × 100 + patch from 2.9 on, which any TensorFlow that opens NCCL has.

Source: NCCL_VERSION in NVIDIA's nccl.h.
"""

PROPERTIES = (0, 1, 2)
"""MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL. Source: `libraryPropertyType` in CUDA's library_types.h."""


def library_version(library: ctypes.CDLL, function: str) -> str | None:
    """Return e.g. `9.3.0`; None: the library returned an error.

    By `…GetProperty`, because `cublasGetVersion` needs a handle, which takes GPU memory; NCCL has one number.
    """
    ask, parts = getattr(library, function), [ctypes.c_int() for _ in PROPERTIES]
    if function == "ncclGetVersion":
        failed, number = ask(ctypes.byref(parts[0])), parts[0].value
        numbers = [number // NCCL_2_9, number % NCCL_2_9 // 100, number % 100]
    else:
        failed = any(ask(kind, ctypes.byref(part)) for kind, part in zip(PROPERTIES, parts, strict=True))
        numbers = [part.value for part in parts]
    return None if failed else ".".join(map(str, numbers))


MAPS = Path("/proc/self/maps")
"""The files that this process has mapped, a line per mapping; the path is the sixth field."""


_LIBCUDA = re.compile(r"libcuda\.so\.(\d{3,}(?:\.\d+)+)")
"""Driver versions have at least three digits before the first point; WSL's `libcuda.so.1.1` is not one."""


_ASKED = {"cudnn": "cudnnGetProperty", "cublas": "cublasGetProperty", "nccl": "ncclGetVersion"}
"""By library, the function that returns its version."""


def loaded_versions(maps: Path = MAPS) -> dict[str, str]:
    """Query the libraries that this process has loaded, without loading any; a CPU build has none.

    Returns:
        Versions, e.g. `9.3.0`, of `cudnn`, `cublas` and `nccl`, if loaded. `libcuda` is that of the CUDA driver
        library, from its file name: `libcuda.so.570.172.08`. It is the driver's, unless NVIDIA's compatibility package
        replaces it.
    """
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in read_text(maps).splitlines() if line.count("/"))
    versions = {"libcuda": next((found[1] for path in paths if (found := _LIBCUDA.fullmatch(Path(path).name))), None)}
    for name, function in _ASKED.items():
        for path in paths:
            if re.fullmatch(rf"lib{name}\.so(\.\d+)*", Path(path).name):
                with contextlib.suppress(OSError, AttributeError):  # mapped but not loaded, or an empty fake
                    versions[name] = library_version(ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY), function)
                    break
    return {name: version for name, version in versions.items() if version is not None}
