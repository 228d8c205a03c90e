"""The NVIDIA GPUs of a machine by the driver's indices, and those that a process may use, by CUDA.

A GPU that does not answer keeps its index, as in `nvidia-smi -L`, and so do the GPUs after it. A GPU in MIG mode is
used through its *slices*. Call `nvmlInit` before any function here.

TensorFlow's physical device `GPU:i` is the CUDA driver's device i, without those that it excludes as display GPUs. But
TensorFlow does not show its UUID or bus id without creating the device (`get_device_details` has only name and compute
capability; `list_local_devices` takes all of the memory). The CUDA driver reports both, with CUDA_VISIBLE_DEVICES,
CUDA_DEVICE_ORDER, MIG and lost GPUs taken into account: no other match is safe.

Source: TensorFlow, core/common_runtime/gpu/gpu_device.cc: `ListPhysicalDevices`, `GetValidDeviceIds` and
`GetMinGPUMultiprocessorCount`; NVIDIA MIG User Guide, "Device Enumeration".
"""

from __future__ import annotations

import ctypes
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pynvml

from results.schema.health import GPUFacts, GPUSlice

T = TypeVar("T")

Handle = Any
"""NVML's handle of a device."""

_NOT_OFFERED = (pynvml.NVMLError, getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError))
"""Errors of a query; for one that an old driver lacks, the package raises an error of its own."""

_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST: "is lost", pynvml.NVML_ERROR_RESET_REQUIRED: "needs a reset"}

_MEMORY_EIGHTHS = 8
"""Denominator of a slice's share of the GPU's memory, by which it is named."""

_MIN_MULTIPROCESSORS = 8
"""Minimum number of multiprocessors that TensorFlow accepts, unless all GPUs have fewer."""

_MULTIPROCESSOR_COUNT = 16
"""Source: CUDA Driver API, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""


@dataclass(frozen=True, kw_only=True)
class CUDADevice:
    """One device of the CUDA driver, a whole GPU or a MIG slice of one.

    Attributes:
        uuid: 32 hexadecimal digits, without `GPU-` or `MIG-`; of a slice its own.
        bus_id: `0000:3B:00.0`; of a slice its GPU's.
        name: e.g. `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    """

    uuid: str
    bus_id: str
    name: str
    multiprocessors: int


@dataclass(frozen=True, kw_only=True)
class DriverGPU:
    """A GPU of the machine, or a slice of one in MIG mode: a compute instance.

    Attributes:
        facts: What identifies it, or why it cannot be used. Of a slice, `uuid` is its own, `MIG-…` as the driver prints
            it, and `name` is CUDA's, `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
        handle: NVML's, for memory and processes; None: it does not answer.
        gpu_handle: That of the whole GPU: NVML has no power, clocks or temperature of a slice.
        parts: Slices of a whole GPU.
        is_slice: Whether it is a slice.
    """

    facts: GPUFacts
    handle: Handle | None = None
    gpu_handle: Handle | None = None
    parts: tuple[DriverGPU, ...] = ()
    is_slice: bool = False


def offered(query: Callable[..., T], *arguments: object) -> T | None:
    """Return the answer of an NVML query; None if this GPU or driver does not support it."""
    try:
        return query(*arguments)
    except _NOT_OFFERED:
        return None


def read_driver_gpus() -> list[DriverGPU]:
    """List all GPUs of the driver, including those that do not answer."""
    return [_read_driver_gpu(index) for index in range(offered(pynvml.nvmlDeviceGetCount) or 0)]


def problems_of(gpus: Sequence[DriverGPU]) -> list[str]:
    """Describe GPUs that no process can use: `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`; empty: none."""
    silent = [f"{gpu.facts.label} {gpu.facts.problem}" for gpu in gpus if gpu.facts.problem is not None]
    found = [f"{len(gpus) - len(silent)} of {len(gpus)} GPUs answer: {', '.join(silent)}"] if silent else []
    empty = [gpu.facts.label for gpu in gpus if gpu.facts.mig and not gpu.parts]
    return found + [f"{label} is in MIG mode without slices" for label in empty]


def visible_devices(gpus: Sequence[DriverGPU], *, by_cuda: bool) -> tuple[list[DriverGPU], str | None]:
    """Return the GPUs and slices that a process may use, in its order, and why CUDA does not start.

    Args:
        gpus: All of the machine.
        by_cuda: Ask CUDA, for a process that uses them. Otherwise CUDA is asked only if CUDA_VISIBLE_DEVICES chooses
            some; without it, a process gets the whole GPUs, or a slice if there are none, never both.
    """
    answering = [gpu for gpu in gpus if gpu.facts.problem is None]
    usable = [device for gpu in answering for device in (gpu.parts if gpu.facts.mig else (gpu,))]
    if by_cuda or "CUDA_VISIBLE_DEVICES" in os.environ:
        devices, problem = ask_cuda()
        return [match for device in devices if (match := _match(usable, device))], problem
    return [device for device in usable if not device.is_slice] or usable[:1], None


def ask_cuda() -> tuple[list[CUDADevice], str | None]:
    """Initialise the CUDA driver in this process and list its devices; creates no context and takes no memory.

    CUDA reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER at the first call in a process; by default, the order is the
    driver's here.

    Returns:
        The devices that TensorFlow uses, in its order: it excludes small GPUs next to larger ones. And why there are
        none: no libcuda, or the error of `cuInit`.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return [], str(error)
    count = ctypes.c_int()
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(count),))):
        if (code := getattr(library, name)(*arguments)) != 0:
            text = ctypes.c_char_p()
            library.cuGetErrorName(code, ctypes.byref(text))
            return [], f"{name} failed with {(text.value or b'CUresult').decode()} ({code})"
    devices = [_describe(library, ordinal) for ordinal in range(count.value)]
    wished = os.environ.get("TF_MIN_GPU_MULTIPROCESSOR_COUNT", "")
    most = max((device.multiprocessors for device in devices), default=0)
    least = int(wished) if wished.isdigit() else min(_MIN_MULTIPROCESSORS, most)
    return [device for device in devices if device.multiprocessors >= least], None


def _describe(library: ctypes.CDLL, ordinal: int) -> CUDADevice:
    device, multiprocessors = ctypes.c_int(), ctypes.c_int()
    identity, bus_id, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32), ctypes.create_string_buffer(128)
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    # CUDA before 11.4 has no _v2; the older function returns the GPU of a slice.
    (getattr(library, "cuDeviceGetUuid_v2", None) or library.cuDeviceGetUuid)(ctypes.byref(identity), device)
    library.cuDeviceGetPCIBusId(bus_id, len(bus_id), device)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceGetAttribute(ctypes.byref(multiprocessors), _MULTIPROCESSOR_COUNT, device)
    return CUDADevice(
        uuid=uuid.UUID(bytes=bytes(identity)).hex,
        bus_id=bus_id.value.decode("ascii", "replace").upper(),
        name=name.value.decode("utf-8", "replace"),
        multiprocessors=multiprocessors.value,
    )


def _match(devices: Sequence[DriverGPU], wanted: CUDADevice) -> DriverGPU | None:
    """Find the GPU or slice of a CUDA device by its UUID, else by its bus id: old drivers report no UUID of a slice."""
    same = [one for one in devices if re.sub(r"^(GPU|MIG)-|-", "", one.facts.uuid or "") == wanted.uuid]
    return next(iter([*same, *(one for one in devices if one.facts.bus_id == wanted.bus_id)]), None)


def _read_driver_gpu(index: int) -> DriverGPU:
    handle, bus_id, total = None, None, 0
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        bus_id = bus_id_of(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError as error:
        problem = _LOST.get(error.value)  # some drivers still return the handle of a GPU that fell off the bus
        if handle is None or problem is not None:
            problem = problem or f"cannot be opened ({error})"
            return DriverGPU(facts=GPUFacts(index=index, bus_id=bus_id, problem=problem))
    mode = offered(pynvml.nvmlDeviceGetMigMode, handle)
    facts = GPUFacts(
        index=index,
        bus_id=bus_id,
        uuid=offered(pynvml.nvmlDeviceGetUUID, handle),
        name=offered(pynvml.nvmlDeviceGetName, handle) or "unknown",
        mig=None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )
    parts = tuple(_slices(facts, handle, total)) if facts.mig else ()
    facts = replace(facts, slices=[part.facts.slices[0] for part in parts])
    return DriverGPU(facts=facts, handle=handle, gpu_handle=handle, parts=parts)


def bus_id_of(text: bytes | str) -> str:
    """Return a PCI bus id with four digits of domain, as CUDA and the kernel write it; NVML writes eight."""
    name = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    return re.sub(r"^0000(?=[0-9A-F]{4}:)", "", name.upper())


def _slices(gpu: GPUFacts, gpu_handle: Handle, gpu_bytes: int) -> Iterator[DriverGPU]:
    for index in range(offered(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu_handle) or 0):
        handle = offered(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu_handle, index)
        if handle is None:
            continue  # not every index holds a slice
        identity, profile = offered(pynvml.nvmlDeviceGetUUID, handle), _profile(handle, gpu_bytes)
        memory = offered(pynvml.nvmlDeviceGetMemoryInfo, handle)
        part = GPUSlice(uuid=identity, profile=profile, memory_bytes=None if memory is None else int(memory.total))
        facts = replace(gpu, uuid=identity, name=f"{gpu.name} MIG {profile or 'slice'}", slices=[part])
        yield DriverGPU(facts=facts, handle=handle, gpu_handle=gpu_handle, is_slice=True)


def _profile(handle: Handle, gpu_bytes: int) -> str | None:
    """Name a slice as `nvidia-smi -L` does: compute slices, and gigabytes as a share of the GPU in eighths."""
    attributes = offered(pynvml.nvmlDeviceGetAttributes, handle)
    if attributes is None or gpu_bytes == 0:
        return None
    gibibyte = 1 << 30
    eighths = -(-attributes.memorySizeMB * (1 << 20) * _MEMORY_EIGHTHS // gpu_bytes)
    gigabytes = round(eighths / _MEMORY_EIGHTHS * -(-gpu_bytes // gibibyte))
    whole = f"{attributes.gpuInstanceSliceCount}g.{gigabytes}gb"
    part = attributes.computeInstanceSliceCount
    return whole if part == attributes.gpuInstanceSliceCount else f"{part}c.{whole}"
