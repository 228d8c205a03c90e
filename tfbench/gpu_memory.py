"""Free memory of this process's GPUs: the difference between a full GPU and a broken library."""

from __future__ import annotations

import pynvml

from tfbench.nvml import offered, visible_handles


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
        memories = [offered(pynvml.nvmlDeviceGetMemoryInfo, handle) for handle in visible_handles()]
    finally:
        offered(pynvml.nvmlShutdown)
    return min((int(memory.free) for memory in memories if memory is not None), default=None)
