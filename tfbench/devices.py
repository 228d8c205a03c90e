"""Threads, precision and strategy of a case, set before TensorFlow uses a device; software and hardware of a record."""

from __future__ import annotations

import gc
import math
import os
import re
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow import keras

from results.schema import XLA, Case, Communication, Device, Environment, Precision, Status
from results.schema.version import __version__
from tfbench.failures import CaseFailedError
from tfbench.keras_versions import Strategy, build_info, keras_version
from tfbench.machine.cuda_libraries import flags_of_the_user, loaded_versions, ptxas_version
from tfbench.machine.host import host_facts
from tfbench.settings import LAYOUT_OPTIMIZER, libraries_refuse_tf32

_POLICIES = {
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.FP16: "mixed_float16",
    Precision.BF16: "mixed_bfloat16",
}


def threads_for(cpu_limit: float) -> int:
    """Choose the number of threads for a number of CPUs: within an operation, and for operations in parallel.

    TensorFlow counts the CPUs of the affinity mask and ignores a container's quota: with a quota of one CPU, two
    threads are each paused half of the time, and every operation waits for the slower one.
    """
    return max(1, math.floor(cpu_limit + 0.01))


def configure(case: Case, threads: int) -> None:
    """Set threads, TF32, XLA and the dtype policy; call once, before any operation."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf32 = case.precision is Precision.TF32 or libraries_refuse_tf32(case)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    if os.environ.get(LAYOUT_OPTIMIZER) == "0":
        tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    if case.xla is XLA.AUTO:
        tf.config.optimizer.set_jit(True)
    keras.mixed_precision.set_global_policy(_POLICIES[case.precision])


def create_strategy(case: Case) -> Strategy:
    """Create the `MirroredStrategy` over the case's replicas; of several hosts the `MultiWorkerMirroredStrategy`.

    Also for one device, so that scaling compares like with like. Several hosts are those of `TF_CONFIG`; all of them
    are waited for.

    Raises:
        CaseFailedError: `no_gpu`, with the requested and the visible number; there is never a silent fallback to the
            CPU.
    """
    if case.device is Device.CPU:
        # Otherwise the reference, the peaks and operations without an explicit device would run on a GPU.
        tf.config.set_visible_devices([], "GPU")
        if case.num_hosts == 1:
            cpu = tf.config.list_physical_devices("CPU")[0]
            logical = [tf.config.LogicalDeviceConfiguration()] * case.num_gpus
            tf.config.set_logical_device_configuration(cpu, logical)
    else:
        used = tf.config.list_physical_devices("GPU")[: case.num_gpus]
        if len(used) < case.num_gpus:
            build = "" if tf.test.is_built_with_cuda() else "; this TensorFlow is a build without CUDA"
            seen = f"{case.num_gpus} GPU(s) were requested, TensorFlow sees {len(used)}{build}"
            remedy = "Check the driver (nvidia-smi) and that the container was given the GPUs"
            raise CaseFailedError(Status.NO_GPU, f"{seen}. {remedy}; --device=cpu trains on the CPU.")
        tf.config.set_visible_devices(used, "GPU")
        for gpu in used:
            tf.config.experimental.set_memory_growth(gpu, case.memory_growth)
    if case.num_hosts > 1:
        wish = tf.distribute.experimental.CommunicationImplementation[communication_of(case).upper()]
        options = tf.distribute.experimental.CommunicationOptions(implementation=wish)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return tf.distribute.MirroredStrategy([f"{case.device.upper()}:{index}" for index in range(case.num_gpus)])


def communication_of(case: Case) -> Communication:
    """Return the communication of a case; on GPUs, TensorFlow's default would be a ring over gRPC.

    Source: TensorFlow, core/common_runtime/collective_param_resolver_local.cc: NCCL is used only if the hint names it.
    """
    if case.device is Device.GPU and case.communication is Communication.AUTO:
        return Communication.NCCL
    return case.communication


def device_memory_peak_bytes(case: Case) -> int | None:
    """Return TensorFlow's peak memory on one of the GPUs since `forget_memory_peak`; None on a CPU."""
    if case.device is not Device.GPU:
        return None
    peaks = [tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(case.num_gpus)]
    return int(max(peaks))


def forget_memory_peak(case: Case) -> None:
    """Reset the memory peak: the validity checks hold a second set of gradients for the reference."""
    if case.device is Device.GPU:
        gc.collect()  # the reference's function keeps its constants alive
        for index in range(case.num_gpus):
            tf.config.experimental.reset_memory_stats(f"GPU:{index}")


def first_device(case: Case) -> str:
    """Return the name of the first device of a case."""
    return "GPU:0" if case.device is Device.GPU else "CPU:0"


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
    build = build_info()
    return Environment(
        **{name: facts[name] for name in same},
        tfbench=__version__,
        tensorflow=tf.__version__,
        keras=keras_version(),
        intra_op_threads=threads,
        inter_op_threads=threads,
        tf32_enabled=tf.config.experimental.tensor_float_32_execution_enabled() and not libraries_refuse_tf32(case),
        cuda=build["cuda"],
        cudnn=build["cudnn"] and f"built for {build['cudnn']}",
        gpus=facts["gpus"][: case.num_gpus] if case.device is Device.GPU else [],
        wheel_compute_capabilities=build["capabilities"],
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
    compat = libcuda if environment.driver not in (None, libcuda) else None
    return replace(environment, **found, cuda_compat=compat)
