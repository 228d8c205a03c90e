"""How NVIDIA's libraries report their versions: for the record of a repeat, and for the doctor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

CUDNN_9 = 90_000
"""From 9.0.0 on cuDNN's number is major × 10,000 + minor × 100 + patch, before it was major × 1,000 + ….

Source: CUDNN_VERSION in NVIDIA's cudnn_version.h.
"""

NCCL_2_9 = 10_000
"""From 2.9 on NCCL's number is major × 10,000 + minor × 100 + patch, before it was major × 1,000 + ….

Source: NCCL_VERSION in NVIDIA's nccl.h.
"""

PROPERTIES = (0, 1, 2)
"""MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL. Source: `libraryPropertyType` in CUDA's library_types.h."""


def by_property(function: str) -> Callable[[ctypes.CDLL], str | None]:
    """Return what asks a library by its `…GetProperty`: `cublasGetVersion` would need a handle, and so GPU memory."""

    def version(library: ctypes.CDLL) -> str | None:
        ask = getattr(library, function)
        parts = [ctypes.c_int() for _ in PROPERTIES]
        if any(ask(kind, ctypes.byref(part)) for kind, part in zip(PROPERTIES, parts, strict=True)):
            return None
        return ".".join(str(part.value) for part in parts)

    return version


def cudnn_version(library: ctypes.CDLL) -> str | None:
    """Return e.g. `9.3.0`."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    return _of_number(number, 10_000 if number >= CUDNN_9 else 1_000)


def nccl_version(library: ctypes.CDLL) -> str | None:
    """Return e.g. `2.21.5`; None: the library refuses."""
    number = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    return _of_number(number.value, 10_000 if number.value >= NCCL_2_9 else 1_000)


def _of_number(number: int, major: int) -> str:
    return f"{number // major}.{number % major // 100}.{number % 100}"
