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

from tfbench.machine.library_versions import by_property, cudnn_version, nccl_version

MAPS = Path("/proc/self/maps")
"""Files that this process has mapped, one line per part: the path is the sixth field."""


_LIBCUDA = re.compile(r"libcuda\.so\.(\d{3,}(?:\.\d+)+)")
"""Drivers have at least three digits before the first point; WSL's library is `libcuda.so.1.1`, no driver's version."""


@dataclass(frozen=True, kw_only=True)
class LoadedVersions:
    """e.g. `9.3.0`; None: this process has not loaded the library.

    Attributes:
        libcuda: The CUDA driver library, as its file is named: `libcuda.so.570.172.08`. It is of the driver's version,
            unless NVIDIA's compatibility package provides another one.
    """

    libcuda: str | None = None
    cudnn: str | None = None
    cublas: str | None = None
    nccl: str | None = None


def loaded_versions(maps: Path = MAPS) -> LoadedVersions:
    """Ask the libraries that this process has loaded; loads none itself. Of a build for CPUs there are none."""
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in _lines(maps) if line.count("/"))
    return LoadedVersions(
        libcuda=next((found[1] for path in paths if (found := _LIBCUDA.fullmatch(Path(path).name))), None),
        cudnn=_ask(paths, "libcudnn.so", cudnn_version),
        cublas=_ask(paths, "libcublas.so", by_property("cublasGetProperty")),
        nccl=_ask(paths, "libnccl.so", nccl_version),
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
