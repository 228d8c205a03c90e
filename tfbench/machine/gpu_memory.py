"""Free memory of this process's GPUs: the difference between a full GPU and a broken library."""

from __future__ import annotations

import pynvml

from tfbench.machine.boards import offered, read_boards, visible_devices


def free_gpu_memory_bytes() -> int | None:
    """Return the free memory of the fullest GPU that this process sees, as the driver reports it; None: unknown.

    TensorFlow's allocator gives nothing back while its process lives, so this is also what was free when an operation
    failed.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        devices = visible_devices(read_boards())
        memories = [offered(pynvml.nvmlDeviceGetMemoryInfo, device.handle) for device in devices]
    finally:
        offered(pynvml.nvmlShutdown)
    return min((int(memory.free) for memory in memories if memory is not None), default=None)
