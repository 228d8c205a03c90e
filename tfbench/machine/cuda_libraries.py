"""CUDA libraries of NVIDIA's Python packages: which TensorFlow opens, and how it is made to find them.

TensorFlow 2.21 looks for its libraries in folders beside itself, and that of `libcusolver.so.11` is not among them:
`pip install tensorflow[and-cuda]` then says "Cannot dlopen some GPU libraries" and trains on the CPU. What a process
has loaded already is found by name, wherever it lies.
"""

from __future__ import annotations

import ctypes
import site
import sys
from collections.abc import Iterable
from pathlib import Path

PRELOADED = ("libnvJitLink.so.*", "libcublasLt.so.*", "libcublas.so.*", "libcusparse.so.*", "libcusolver.so.*")
"""cuSOLVER, after all that it needs itself."""

FIRST_WITH_NCCL = (2, 18)
"""From this TensorFlow on NCCL is opened at run time; before, it is linked in."""

_OPENED: dict[str, tuple[str, ...]] = {
    "11": (
        "libcudart.so.11.0",
        "libcublasLt.so.11",
        "libcublas.so.11",
        "libcufft.so.10",
        "libcusparse.so.11",
        "libcusolver.so.11",
        "libcudnn.so.8",
    ),
    "12": (
        "libcudart.so.12",
        "libcublasLt.so.12",
        "libcublas.so.12",
        "libcufft.so.11",
        "libcusparse.so.12",
        "libcusolver.so.11",
    ),
}

_A_FUNCTION_OF = {"libcufft": "cufftCreate", "libcusolver": "cusolverDnCreate", "libcusparse": "cusparseCreate"}
"""Of each library that an image may hold as an empty stand-in, one that the real library has in every version."""


def package_folders() -> list[Path]:
    """Return the folders of NVIDIA's packages that hold libraries."""
    places = [Path(place) for place in (*sys.path, *site.getsitepackages()) if place]
    return sorted({folder for place in places for folder in place.glob("nvidia/*/lib") if folder.is_dir()})


def preload(folders: Iterable[Path]) -> list[str]:
    """Load what TensorFlow would not find by itself; call before TensorFlow is imported.

    Args:
        folders: From `package_folders`; without NVIDIA's packages there are none, and nothing happens.

    Returns:
        The names of what was loaded.
    """
    found = [path for pattern in PRELOADED for folder in folders for path in sorted(folder.glob(pattern))]
    for path in found:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return [path.name for path in found]


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
    names = list(_OPENED[cuda.partition(".")[0]])
    if cudnn is not None and not any(name.startswith("libcudnn") for name in names):
        names.append(f"libcudnn.so.{cudnn.partition('.')[0]}")
    if tuple(map(int, tensorflow.split(".")[:2])) >= FIRST_WITH_NCCL:
        names.append("libnccl.so.2")
    return names


def load_by_name(names: Iterable[str]) -> dict[str, str | None]:
    """Load libraries by name alone, as TensorFlow does.

    Returns:
        By name: None when it was loaded, else why not.
    """
    problems: dict[str, str | None] = {}
    for name in names:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            problems[name] = None
        except OSError as error:
            problems[name] = str(error)
    return problems


def stand_ins() -> list[str]:
    """Return the names of the libraries that are here as empty stand-ins: they load, and have no functions.

    Images that are built with `SLIM=slim` (containers/README.md) hold some; elsewhere there are none.
    """
    names = sorted({name for opened in _OPENED.values() for name in opened if name.partition(".")[0] in _A_FUNCTION_OF})
    found = []
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue  # not here at all, so not a stand-in
        if not hasattr(library, _A_FUNCTION_OF[name.partition(".")[0]]):
            found.append(name)
    return found


def about_stand_ins() -> str:
    """Return what a cause adds where a library's function may have been missing; empty where no library is empty."""
    names = stand_ins()
    return f". Empty in this image: {', '.join(names)}; SLIM=full builds it with NVIDIA's own" if names else ""
