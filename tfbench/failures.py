"""Maps an exception to a status that a user can act on, and its cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

from results.schema import Status
from tfbench.machine.nvml import free_gpu_memory_bytes

MAX_CAUSE_LENGTH = 1500
"""Maximum length of a cause; TensorFlow's messages can contain a whole graph."""


class CaseFailedError(Exception):
    """A case cannot be measured, for a known reason.

    Attributes:
        status: The record's status.
    """

    def __init__(self, status: Status, cause: str) -> None:
        super().__init__(cause)
        self.status = status


@dataclass(frozen=True)
class Failure:
    """How a repeat failed.

    Attributes:
        status: Never `ok`.
        cause: In words.
    """

    status: Status
    cause: str


DOCTOR = "python -m tfbench.doctor"
"""Checks whether driver, libraries and GPUs are in order."""

_MEMORY = re.compile(
    r"^\w*MemoryError: |RESOURCE_EXHAUSTED|ResourceExhausted|\bOOM\b|[Oo]ut of memory|OUT_OF_MEMORY"
    r"|failed to allocate memory|Dst tensor is not initialized|_ALLOC(?:ATION)?_FAILED"
    r"|cuSolverDN call failed with status =2\b"
)
"""Messages of TensorFlow, XLA, the driver and NVIDIA's libraries when memory is full.

Source: PrepareCopy in TensorFlow's gpu_util.cc (a copy's target was not allocated); the status codes of cuBLAS, cuDNN,
cuFFT, cuSOLVER and cuSPARSE in NVIDIA's documentation, each "usually caused by a cudaMalloc failure".
"""

_PERHAPS_MEMORY = re.compile(
    r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR"
    r"|failed to create cublas handle|without BLAS support|Blas x?GEMM launch failed"
    r"|Could not create cudnn handle|DNN library (?:is not found|initialization failed)"
    r"|Failed to get convolution algorithm|No algorithm worked!"
    r"|Failed to create cuSolverDN instance|cuSolverDN call failed with status =1\b|unhandled cuda error"
)
"""Messages of a library that could not allocate memory, or is broken: they are the same.

Source: for memory, issues 9489, 24828, 36510, 48041 and 60713 of tensorflow/tensorflow. NCCL also prints "unhandled
cuda error" on a GPU for which it has no kernels.
"""

NEARLY_FULL_BYTES = 2**30
"""Free GPU memory below which handles of cuBLAS and cuDNN and a communicator of NCCL may not fit."""

_GPU_FAILED = re.compile(
    r"CUDA_ERROR_(?:UNKNOWN|LAUNCH_FAILED|LAUNCH_TIMEOUT|ILLEGAL_ADDRESS|ECC_UNCORRECTABLE|HARDWARE_STACK_ERROR"
    r"|CONTAINED|DEVICE_UNAVAILABLE)|unspecified launch failure|an illegal memory access was encountered"
)
"""Messages of a driver that has given up a GPU: every later call of the process fails.

Source: CUresult in the CUDA driver's documentation.
"""

_KNOWN = (
    (Status.DRIVER_TOO_OLD, r"driver version is insufficient|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (Status.OOM, _MEMORY),
    (None, _PERHAPS_MEMORY),
    (
        Status.BAD_INPUT,
        r"^DataLossError|Invalid JPEG|jpeg::Uncompress|Could not parse example|corrupted record|truncated record",
    ),
    (
        Status.UNSUPPORTED,
        r"^UnimplementedError|not built with CUDA kernel binaries compatible|no kernel image is available"
        r"|does not support target sm_|UNIMPLEMENTED|Trying to access resource .* located in device"
        r"|not compilable|No registered '\w+' OpKernel",
    ),
)
"""Messages of TensorFlow, XLA, cuDNN and the driver, after the exception's name; the first match wins. None: perhaps
memory."""


def outcome_of(error: BaseException, num_gpus: int = 1) -> Failure:
    """Return the status of an exception of a case on `num_gpus` GPUs, `error` if it is unexpected."""
    if isinstance(error, CaseFailedError):
        return Failure(error.status, str(error))
    text = f"{type(error).__name__}: {error}"
    cause = _shorten(text)
    for status, pattern in _KNOWN:
        if re.search(pattern, text):
            return _perhaps_memory(cause, free_gpu_memory_bytes(num_gpus)) if status is None else Failure(status, cause)
    if _GPU_FAILED.search(text):
        cause += ". The GPU failed: sudo dmesg | grep -i xid shows why. Reset it (nvidia-smi --gpu-reset) or reboot"
    return Failure(Status.ERROR, cause)


def _perhaps_memory(cause: str, free_bytes: int | None) -> Failure:
    """Attribute a library's failure to memory or not, by the GPUs' free memory.

    Args:
        cause: The error.
        free_bytes: Of the case's fullest GPU; None: unknown, and memory is the most frequent reason.
    """
    if free_bytes is None:
        note = f"Most often GPU memory is full; a broken driver or library gives the same error: run {DOCTOR}"
        return Failure(Status.OOM, f"{cause}. {note}")
    free = f"{free_bytes / 2**20:,.0f} MiB free"
    if free_bytes < NEARLY_FULL_BYTES:
        return Failure(Status.OOM, f"{cause}. GPU memory was full ({free}), and the library found none for itself")
    return Failure(
        Status.ERROR, f"{cause}. GPU memory was not full ({free}): check the driver and libraries with {DOCTOR}"
    )


def outcome_of_crash(signal_name: str, printed: str) -> Failure:
    """Derive from its output why a process crashed in native code.

    Args:
        signal_name: e.g. `SIGABRT`.
        printed: The end of its stderr.
    """
    crashed = f"the process crashed in native code ({signal_name})"
    if words := _last_line(_MEMORY, printed):
        return Failure(Status.OOM, f"{crashed} after: {words}")
    if words := _last_line(_PERHAPS_MEMORY, printed):  # its memory is free again, so how full it was is unknown
        return _perhaps_memory(f"{crashed} after: {words}", None)
    return Failure(Status.ERROR, f"{crashed}; stderr shows where, and what came before")


def hint_after(outcome: Failure, *, on_gpu: bool) -> str | None:
    """Return what to try after a failure, such as the doctor if the machine may be its cause, else None.

    Args:
        outcome: How a repeat ended.
        on_gpu: Whether the case needs GPUs.
    """
    if outcome.status is Status.OOM:
        return "use a smaller --batch_size; --accumulate=N adds up N batches before an update"
    machines = outcome.status in (Status.NO_GPU, Status.DRIVER_TOO_OLD, Status.ERROR)
    if on_gpu and machines and DOCTOR not in outcome.cause:
        return f"{DOCTOR} checks this machine's driver, libraries and GPUs"
    return None


def _last_line(pattern: re.Pattern[str], printed: str) -> str | None:
    """Return the last line that matches, without TensorFlow's prefix; None: none does."""
    found = [line for line in printed.splitlines() if pattern.search(line) and "not a failure" not in line]
    return _shorten(re.sub(r"^\S+ [\d:.]+ +\d+ \S+\] ", "", found[-1])) if found else None


def _shorten(text: str) -> str:
    """Shorten a message, and remove the traces of graph nodes that TensorFlow appends.

    An error, while tracing or running a graph, begins with a stack of code lines; the message itself comes last.
    """
    if "in user code:" in text:
        *_, text = re.split(r"\n {4}(?=\w+: )", text)
        text = re.sub(r"Exception encountered when calling (\S+)\.\s+(.+)", r"\2 (in \1)", text, count=1)
        text = re.sub(r"\x1b\[\d*m", "", text)
    kind, of_graph, trace = text.partition("Graph execution error:")
    if of_graph:
        own = [line for line in trace.splitlines() if line and not re.match(r"\s|Detected at node", line)]
        text = kind + "\n".join(own or [of_graph])
    text = re.split(r"\n\s*\n|\nHint: |\n\t? *\[\[|Detected at node| \[Op:\w+\]", text, maxsplit=1)[0].strip()
    return text if len(text) <= MAX_CAUSE_LENGTH else text[: MAX_CAUSE_LENGTH - 1] + "…"
