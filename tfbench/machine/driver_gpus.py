"""The NVIDIA GPUs of a machine by the driver's indices, and those that this process may use.

A GPU that does not answer keeps its index, as in `nvidia-smi -L`, and so do the GPUs after it. A GPU in MIG mode is
used through its *slices*. CUDA determines what this process may use (`tfbench.machine.cuda_devices`); without CUDA,
CUDA_VISIBLE_DEVICES does, by CUDA's rules. Call `nvmlInit` before any function here.

Source: CUDA C Programming Guide, "CUDA Environment Variables"; NVIDIA MIG User Guide, "Device Enumeration".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from tfbench.machine.cuda_devices import CUDADevice

T = TypeVar("T")

Handle = Any
"""NVML's handle of a device."""

_NOT_OFFERED = (pynvml.NVMLError, getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError))
"""Errors of a query; for one that an old driver lacks, the package raises an error of its own."""

_LOST = {pynvml.NVML_ERROR_GPU_IS_LOST: "is lost", pynvml.NVML_ERROR_RESET_REQUIRED: "needs a reset"}

_MEMORY_EIGHTHS = 8
"""Denominator of a slice's share of the GPU's memory, by which it is named."""


@dataclass(frozen=True, kw_only=True)
class DriverGPU:
    """A GPU of the machine, or a slice of one in MIG mode: a compute instance.

    Attributes:
        index: The driver's own, as `nvidia-smi` shows it; of a slice its GPU's.
        handle: NVML's, for memory and processes; None: it does not answer.
        gpu_handle: That of the whole GPU: NVML has no power, clocks or temperature of a slice.
        bus_id: `0000:3B:00.0`; None: unknown.
        uuid: Of a slice its own, `MIG-…` as the driver prints it, in either form.
        name: CUDA's, `NVIDIA H100 80GB HBM3 MIG 1g.10gb` for a slice.
        problem: Why it cannot be used: `is lost`; None: it answers.
        mig: Whether MIG mode is on; None: not supported.
        slices: Of a whole GPU; empty without MIG.
        is_slice: Whether it is a slice.
        profile: Of a slice, e.g. `1g.10gb`, or `1c.3g.40gb` for a part of an instance.
        old_name: Of a slice: `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    """

    index: int
    handle: Handle | None
    gpu_handle: Handle | None = None
    bus_id: str | None = None
    uuid: str | None = None
    name: str | None = None
    problem: str | None = None
    mig: bool | None = None
    slices: tuple[DriverGPU, ...] = ()
    is_slice: bool = False
    profile: str | None = None
    old_name: str | None = None

    @property
    def label(self) -> str:
        """Return its name in messages: `GPU 3 (0000:3B:00.0)`."""
        return f"GPU {self.index}" + (f" ({self.bus_id})" if self.bus_id else "")


def offered(query: Callable[..., T], *arguments: object) -> T | None:
    """Return the answer of an NVML query; None if this GPU or driver does not support it."""
    try:
        return query(*arguments)
    except _NOT_OFFERED:
        return None


def read_driver_gpus(proc: Path = Path("/proc/driver/nvidia/gpus")) -> list[DriverGPU]:
    """List all GPUs of the driver, including those that do not answer.

    Args:
        proc: Folder in which the kernel driver lists the bus ids of its GPUs: a lost GPU does not report its own.
    """
    gpus = [_read_driver_gpu(index) for index in range(offered(pynvml.nvmlDeviceGetCount) or 0)]
    silent = [gpu.index for gpu in gpus if gpu.problem is not None and gpu.bus_id is None]
    answered = {gpu.bus_id for gpu in gpus}
    listed = sorted(path.name.upper() for path in proc.glob("*")) if silent else []
    # NVML numbers GPUs by bus id, so the remaining ids belong to the silent GPUs, in order.
    left = [bus_id for bus_id in listed if bus_id not in answered]
    if len(left) == len(silent):
        names = dict(zip(silent, left, strict=True))
        gpus = [replace(gpu, bus_id=names[gpu.index]) if gpu.index in names else gpu for gpu in gpus]
    return gpus


def problems_of(gpus: Sequence[DriverGPU]) -> list[str]:
    """Describe GPUs that no process can use: `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`; empty: none."""
    silent = [f"{gpu.label} {gpu.problem}" for gpu in gpus if gpu.problem is not None]
    found = []
    if silent:
        found.append(f"{len(gpus) - len(silent)} of {len(gpus)} GPUs answer: {', '.join(silent)}")
    found += [f"{gpu.label} is in MIG mode without slices" for gpu in gpus if gpu.mig and not gpu.slices]
    return found


def visible_devices(gpus: Sequence[DriverGPU], by_cuda: Sequence[CUDADevice] | None = None) -> list[DriverGPU]:
    """Return the GPUs and slices that this process may use, in CUDA's order.

    Args:
        gpus: All of the machine.
        by_cuda: As listed by the CUDA driver; None: unknown, so CUDA_VISIBLE_DEVICES decides.
    """
    if by_cuda is not None:
        return [match for device in by_cuda if (match := _match(gpus, device))]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    answering = [gpu for gpu in gpus if gpu.problem is None]
    devices = list(_all_of(answering) if chosen is None else _chosen(answering, chosen))
    # A process gets either one slice or whole GPUs.
    return [device for device in devices if device.is_slice][:1] or devices


def offered_devices(gpus: Sequence[DriverGPU]) -> list[DriverGPU]:
    """Return the GPUs and slices that this machine offers, for processes that are assigned devices by UUID.

    Without CUDA_VISIBLE_DEVICES these are the whole GPUs, or the first slice if there are none: CUDA does not give a
    process whole GPUs together with a slice.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return visible_devices(gpus)
    devices = list(_all_of([gpu for gpu in gpus if gpu.problem is None]))
    return [device for device in devices if not device.is_slice] or devices[:1]


def _match(gpus: Sequence[DriverGPU], device: CUDADevice) -> DriverGPU | None:
    """Find the GPU or slice of a CUDA device by its UUID, else by its PCI bus id."""
    devices = list(_all_of([gpu for gpu in gpus if gpu.problem is None]))
    same = [one for one in devices if one.uuid is not None and _digits(one.uuid) == device.uuid]
    # A driver that names slices `MIG-GPU-…/1/0` returns only the UUID or bus id of the GPU.
    same += [one for one in devices if device.bus_id is not None and one.bus_id == device.bus_id]
    return same[0] if same else None


def _digits(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").replace("-", "")


def _all_of(gpus: Sequence[DriverGPU]) -> Iterator[DriverGPU]:
    """Yield GPUs, and instead of one in MIG mode its slices."""
    for gpu in gpus:
        yield from gpu.slices if gpu.mig else (gpu,)


def _chosen(gpus: Sequence[DriverGPU], chosen: str) -> Iterator[DriverGPU]:
    """Yield the devices of CUDA_VISIBLE_DEVICES; like CUDA, stop at the first unknown entry."""
    for entry in (text.strip() for text in chosen.split(",")):
        found = _by_entry(gpus, entry)
        if found is None:
            return
        yield found


def _by_entry(gpus: Sequence[DriverGPU], entry: str) -> DriverGPU | None:
    if re.fullmatch(r"\d+", entry):  # CUDA numbers only the GPUs that answer
        chosen = gpus[int(entry) : int(entry) + 1]
        return next(_all_of(chosen), None)
    if entry.startswith("MIG-"):
        slices = [part for gpu in gpus for part in gpu.slices]
        return next((one for one in slices if entry == one.old_name or (one.uuid or "").startswith(entry)), None)
    if entry.startswith("GPU-"):
        named = [gpu for gpu in gpus if (gpu.uuid or "").startswith(entry)]
        return next(_all_of(named), None) if len(named) == 1 else None  # an ambiguous abbreviation is unknown
    return None


def _read_driver_gpu(index: int) -> DriverGPU:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return DriverGPU(index=index, handle=None, problem=_LOST.get(error.value, f"cannot be opened ({error})"))
    pci = offered(pynvml.nvmlDeviceGetPciInfo, handle)
    bus_id = None if pci is None else bus_id_of(pci.busId)
    gpu = DriverGPU(index=index, handle=handle, gpu_handle=handle, bus_id=bus_id)
    try:
        total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError as error:
        if error.value in _LOST:  # some drivers still return the handle of a GPU that fell off the bus
            return DriverGPU(index=index, handle=None, bus_id=bus_id, problem=_LOST[error.value])
        total = 0
    mode = offered(pynvml.nvmlDeviceGetMigMode, handle)
    gpu = replace(
        gpu,
        uuid=offered(pynvml.nvmlDeviceGetUUID, handle),
        name=offered(pynvml.nvmlDeviceGetName, handle) or "unknown",
        mig=None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )
    return replace(gpu, slices=tuple(_slices(gpu, total))) if gpu.mig else gpu


def bus_id_of(text: bytes | str) -> str:
    """Return a PCI bus id with four digits of domain, as CUDA and the kernel write it; NVML writes eight."""
    name = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    return re.sub(r"^0000(?=[0-9A-F]{4}:)", "", name.upper())


def _slices(gpu: DriverGPU, gpu_bytes: int) -> Iterator[DriverGPU]:
    for index in range(offered(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0):
        handle = offered(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, index)
        if handle is None:
            continue  # not every index holds a slice
        profile = _profile(handle, gpu_bytes)
        instances = (pynvml.nvmlDeviceGetGpuInstanceId, pynvml.nvmlDeviceGetComputeInstanceId)
        yield replace(
            gpu,
            handle=handle,
            uuid=offered(pynvml.nvmlDeviceGetUUID, handle),
            name=f"{gpu.name} MIG {profile or 'slice'}",
            is_slice=True,
            profile=profile,
            old_name="/".join([f"MIG-{gpu.uuid}", *(str(offered(query, handle)) for query in instances)]),
        )


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
