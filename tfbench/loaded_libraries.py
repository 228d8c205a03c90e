"""Versions of NVIDIA's libraries that this process has loaded, as these libraries report them.

They are often not those that TensorFlow was built with: later versions of cuDNN serve builds for earlier ones, and
LD_LIBRARY_PATH or another package may provide any of them. TensorFlow opens a library when it first needs it, so ask
after the first step.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAPS = Path("/proc/self/maps")
"""Files that this process has mapped, one line per part: the path is the sixth field."""

CUDNN_9 = 90_000
"""From 9.0.0 on cuDNN's number is major × 10,000 + minor × 100 + patch, before it was major × 1,000 + ….

Source: CUDNN_VERSION in NVIDIA's cudnn_version.h.
"""

CUBLAS_PROPERTIES = (0, 1, 2)
"""MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL. Source: `libraryPropertyType` in CUDA's library_types.h."""


@dataclass(frozen=True, kw_only=True)
class LoadedVersions:
    """e.g. `9.3.0`; None: this process has not loaded the library."""

    cudnn: str | None = None
    cublas: str | None = None
    nccl: str | None = None


def loaded_versions(maps: Path = MAPS) -> LoadedVersions:
    """Ask the libraries that this process has loaded; loads none itself. Of a build for CPUs there are none."""
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in _lines(maps) if line.count("/"))
    return LoadedVersions(
        cudnn=_ask(paths, "libcudnn.so", _cudnn),
        cublas=_ask(paths, "libcublas.so", _cublas),
        nccl=_ask(paths, "libnccl.so", _nccl),
    )


def _lines(maps: Path) -> list[str]:
    return maps.read_text(encoding="utf-8", errors="replace").splitlines()


def _ask(paths: dict[str, None], name: str, version: Callable[[ctypes.CDLL], str | None]) -> str | None:
    """Ask the first of the files that is `name` with or without a number."""
    pattern = re.compile(rf"{re.escape(name)}(\.\d+)*")
    for path in paths:
        if pattern.fullmatch(Path(path).name):
            try:
                return version(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
            except (OSError, AttributeError):
                continue  # mapped but not loaded, or an empty stand-in
    return None


def _cudnn(library: ctypes.CDLL) -> str | None:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    major = 10_000 if number >= CUDNN_9 else 1_000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _cublas(library: ctypes.CDLL) -> str | None:
    """`cublasGetVersion` would need a handle, which takes memory of the GPU."""
    numbers = []
    for kind in CUBLAS_PROPERTIES:
        number = ctypes.c_int()
        if library.cublasGetProperty(kind, ctypes.byref(number)) != 0:
            return None
        numbers.append(str(number.value))
    return ".".join(numbers)


def _nccl(library: ctypes.CDLL) -> str | None:
    """Since 2.9 the number is major × 10,000 + minor × 100 + patch: NCCL_VERSION in nccl.h."""
    number = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    return f"{number.value // 10_000}.{number.value // 100 % 100}.{number.value % 100}"
