"""Software and hardware identity of a repeat."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import tensorflow as tf

from results.schema import Case, Device, Environment
from results.schema.version import __version__
from tfbench.keras_versions import keras_version
from tfbench.machine.cuda_libraries import flags_of_the_user, loaded_versions, ptxas_version
from tfbench.machine.host import host_facts
from tfbench.settings import libraries_refuse_tf32

_VARIABLES = re.compile(
    r"(TF_(CPU|XLA|ENABLE|DISABLE|USE|GPU|NUM|FORCE|CUDNN|CUBLAS|AUTOTUNE|DETERMINISTIC|LEGACY)\w*"
    r"|CUDA_(DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING|CACHE_DISABLE)|NVIDIA_TF32_OVERRIDE|NCCL_(?!VERSION$)\w+"
    r"|TFBENCH_LAYOUT_OPTIMIZER|XLA_FLAGS|(OMP|KMP|ONEDNN|MALLOC)_\w+|LD_PRELOAD|GLIBC_TUNABLES)$"
)
"""Environment variables that change what is measured, other than those that select GPUs (records have their UUIDs).
NCCL_VERSION only names a package of NVIDIA's images."""


def read_environment(case: Case, threads: int) -> Environment:
    """Describe the software and hardware of this process.

    Call before libraries are loaded: `with_loaded_libraries` adds their versions.
    """
    facts = host_facts(by_cuda=case.device is Device.GPU)
    same = ("python", "kernel", "operating_system", "cpu", "cpu_count", "cpu_limit", "memory_bytes", "driver")
    build = tf.sysconfig.get_build_info()
    return Environment(
        **{name: facts[name] for name in same},
        tfbench=__version__,
        tensorflow=tf.__version__,
        keras=keras_version(),
        intra_op_threads=threads,
        inter_op_threads=threads,
        tf32_enabled=tf.config.experimental.tensor_float_32_execution_enabled() and not libraries_refuse_tf32(case),
        cuda=str(build["cuda_version"]) if build.get("cuda_version") else None,
        cudnn=f"built for {build['cudnn_version']}" if build.get("cudnn_version") else None,
        gpus=facts["gpus"][: case.num_gpus] if case.device is Device.GPU else [],
        wheel_compute_capabilities=[str(name) for name in build.get("cuda_compute_capabilities", [])],
        variables=_variables(),
        ptxas=ptxas_version() if case.device is Device.GPU else None,
    )


def _variables() -> dict[str, str]:
    found = {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)}
    if "XLA_FLAGS" in found:
        found["XLA_FLAGS"] = flags_of_the_user(found["XLA_FLAGS"])
    return {name: value[:500] for name, value in found.items() if value or name != "XLA_FLAGS"}


def with_loaded_libraries(environment: Environment) -> Environment:
    """Add the versions of cuDNN, cuBLAS and NCCL that this process has loaded; call after the first step.

    A library that is not loaded keeps its entry: NCCL is loaded by the first all-reduce on GPUs. Also adds the version
    of the CUDA driver library if it is not the driver's own.
    """
    found: dict[str, Any] = loaded_versions()
    libcuda = found.pop("libcuda", None)
    return replace(
        environment,
        **found,
        cuda_compat=libcuda if environment.driver not in (None, libcuda) else None,
    )
