"""Software and hardware identity of a repeat."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from pathlib import Path

import tensorflow as tf

from results import __version__
from results.schema import Case, Device, Environment
from tfbench.devices import Threads
from tfbench.host import host_facts
from tfbench.versions import keras_version

_VARIABLES = re.compile(
    r"(TF_(CPU|XLA|ENABLE|DISABLE|USE|GPU|NUM|FORCE|CUDNN|CUBLAS|AUTOTUNE|DETERMINISTIC|LEGACY)\w*"
    r"|CUDA_(DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING|CACHE_DISABLE)|NVIDIA_TF32_OVERRIDE|NCCL_\w+"
    r"|XLA_FLAGS|KERAS_BACKEND|(OMP|KMP|ONEDNN|MALLOC)_\w+|LD_PRELOAD|GLIBC_TUNABLES)$"
)
"""Names of environment variables that change what is measured; not which GPUs are visible: a record has their UUIDs."""


def read_environment(case: Case, threads: Threads) -> Environment:
    """Describe this process and machine as they stand while the case is measured."""
    facts = host_facts()
    build = tf.sysconfig.get_build_info()
    return Environment(
        tfbench=__version__,
        python=facts.python,
        tensorflow=tf.__version__,
        keras=keras_version(),
        kernel=facts.kernel,
        operating_system=facts.operating_system,
        cpu=facts.cpu,
        cpu_count=facts.cpu_count,
        cpu_limit=facts.cpu_limit,
        memory_bytes=facts.memory_bytes,
        intra_op_threads=threads.intra_op,
        inter_op_threads=threads.inter_op,
        tf32_enabled=tf.config.experimental.tensor_float_32_execution_enabled(),
        cuda=_text(build.get("cuda_version")),
        cudnn=_text(build.get("cudnn_version")),
        nccl=_nccl_version(),
        driver=facts.driver,
        gpus=facts.gpus[: case.num_gpus] if case.device is Device.GPU else [],
        wheel_compute_capabilities=[str(name) for name in build.get("cuda_compute_capabilities", [])],
        variables={name: value[:500] for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)},
    )


def _text(value: object) -> str | None:
    return str(value) if value else None


def _nccl_version() -> str | None:
    """Return the version of the NCCL library that this process loaded; else of the package; None: no NCCL."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.rpartition(" ")[2]
        if "libnccl.so" in path:
            number = ctypes.c_int()
            if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number)) == 0:
                return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    for package in ("nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
