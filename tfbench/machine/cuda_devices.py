"""The CUDA driver's devices for this process, which TensorFlow numbers 0, 1, 2 …, by UUID and PCI bus id.

TensorFlow's physical device `GPU:i` is the CUDA driver's device i, without those that it excludes as display GPUs. But
TensorFlow does not show its UUID or bus id without creating the device (`get_device_details` has only name and compute
capability; `list_local_devices` takes all of the memory). The CUDA driver reports both, with CUDA_VISIBLE_DEVICES,
CUDA_DEVICE_ORDER, MIG and lost GPUs taken into account: no other match is safe.

Source: TensorFlow, core/common_runtime/gpu/gpu_device.cc: `ListPhysicalDevices`, `GetValidDeviceIds` and
`GetMinGPUMultiprocessorCount`.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from dataclasses import dataclass

CUDA_ERRORS = {
    3: "CUDA_ERROR_NOT_INITIALIZED",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    999: "CUDA_ERROR_UNKNOWN",
}
"""Error codes of `cuInit`. Source: CUDA Driver API, CUresult."""

_MIN_MULTIPROCESSORS = 8
"""Minimum number of multiprocessors that TensorFlow accepts, unless all GPUs have fewer."""

_MULTIPROCESSOR_COUNT = 16
"""Source: CUDA Driver API, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""

_BUS_ID_BYTES = 32
_NAME_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class CUDADevice:
    """One device of the CUDA driver, a whole GPU or a MIG slice of one.

    Attributes:
        uuid: 32 hexadecimal digits, without `GPU-` or `MIG-`; of a slice its own.
        bus_id: `0000:3B:00.0`; of a slice its GPU's.
        name: e.g. `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
        multiprocessors: None: the driver does not report them.
    """

    uuid: str
    bus_id: str | None
    name: str
    multiprocessors: int | None


def ask_cuda() -> tuple[list[CUDADevice], str | None]:
    """Initialise the CUDA driver in this process and list its devices; creates no context and takes no memory.

    CUDA reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER at the first call in a process.

    Returns:
        The devices that TensorFlow uses, in its order; and why there are none: no libcuda, or the error of `cuInit`.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return [], str(error)
    count = ctypes.c_int()
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(count),))):
        if (code := getattr(library, name)(*arguments)) != 0:
            return [], f"{name} failed with {CUDA_ERRORS.get(code, 'CUresult')} ({code})"
    return _large_enough([_describe(library, ordinal) for ordinal in range(count.value)]), None


def _large_enough(devices: list[CUDADevice]) -> list[CUDADevice]:
    """Exclude small GPUs next to larger ones, as TensorFlow does."""
    counts = [device.multiprocessors for device in devices if device.multiprocessors is not None]
    wished = os.environ.get("TF_MIN_GPU_MULTIPROCESSOR_COUNT", "")
    least = int(wished) if wished.isdigit() else min(_MIN_MULTIPROCESSORS, max(counts, default=0))
    return [device for device in devices if device.multiprocessors is None or device.multiprocessors >= least]


def _describe(library: ctypes.CDLL, ordinal: int) -> CUDADevice:
    device = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    identity = (ctypes.c_ubyte * 16)()
    # CUDA before 11.4 has no _v2; the older function returns the GPU of a slice.
    for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
        if hasattr(library, name):
            getattr(library, name)(ctypes.byref(identity), device)
            break
    bus = ctypes.create_string_buffer(_BUS_ID_BYTES)
    has_bus = library.cuDeviceGetPCIBusId(bus, len(bus), device) == 0
    text = ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGetName(text, len(text), device)
    multiprocessors = ctypes.c_int()
    counted = library.cuDeviceGetAttribute(ctypes.byref(multiprocessors), _MULTIPROCESSOR_COUNT, device) == 0
    return CUDADevice(
        uuid=uuid.UUID(bytes=bytes(identity)).hex,
        bus_id=bus.value.decode("ascii", "replace").upper() if has_bus else None,
        name=text.value.decode("utf-8", "replace"),
        multiprocessors=multiprocessors.value if counted else None,
    )
