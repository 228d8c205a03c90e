"""Settings to make before a process uses its devices.

This module has those that precede the import of TensorFlow: Python's garbage collector, and variables without which a
GPU looks slower than it is. `devices` has those that follow it: threads, precision, and the case's strategy.
"""

from __future__ import annotations

import gc
import os

from results.schema import XLA, BatchNorm, Case, Device, Mode, Precision

THRESHOLDS = (50_000, 20, 20)
"""See `gc.set_threshold`; Python's own are 700, 10 and 10. Importing and tracing make many objects that stay."""


def collect_rarely() -> None:
    """Make garbage collection rare, and exempt all present objects, which live as long as the process."""
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()


HOST_THREADS_PER_GPU = 2
"""Threads per GPU: one starts kernels, one copies."""


TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""0: NVIDIA's libraries never round to TF32. Source: cuBLAS documentation, "Tensor Core Usage"."""


LAYOUT_OPTIMIZER = "TFBENCH_LAYOUT_OPTIMIZER"
"""0: TensorFlow keeps Keras's own layout, NHWC; its layout optimizer would turn tf32 training into NCHW.

For GPU validation (`switch.tf32-nhwc`), which decides whether this is faster.
"""


def gpu_settings(case: Case) -> dict[str, str]:
    """Return environment variables for a case; they must be set before TensorFlow is imported.

    * `TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT`: without it TensorFlow's `FusedBatchNorm` transposes every fp16
      activation from NHWC to NCHW and back, and Grappler does not fuse the following ReLU. With it cuDNN may overflow
      for extreme activations, which the validity checks would detect.
    * `TF_ENABLE_ONEDNN_OPTS=0`: with oneDNN, which TensorFlow enables on CPUs with AVX-512 VNNI or AMX, Grappler fuses
      the ReLU into neither or only one of the two directions of `FusedBatchNorm`, on GPUs, too.
    * `TF_GPU_THREAD_MODE`: separate threads start each GPU's kernels, instead of those that prepare the input.
    * `NVIDIA_TF32_OVERRIDE=0`: see `libraries_refuse_tf32`.

    All networks get the same ones, so that a fleet's table is of one environment. The stock variant,
    `--batch_norm=keras`, keeps TensorFlow's defaults.

    Args:
        case: What is measured.
    """
    if case.device is not Device.GPU or case.batch_norm is BatchNorm.KERAS:
        return {}
    settings = {
        "TF_GPU_THREAD_MODE": "gpu_private",
        "TF_GPU_THREAD_COUNT": str(HOST_THREADS_PER_GPU),
        "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": "1",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    if case.precision is Precision.FP32 and case.xla is XLA.OFF and case.mode is not Mode.DEVICE:
        settings[TF32_OVERRIDE] = "0"
    return settings


def process_settings(case: Case) -> dict[str, str]:
    """Return environment variables that TensorFlow and CUDA read when they start; those that the user has set stay."""
    order = "PCI_BUS_ID"  # the driver's, as everywhere else
    return {"TF_CPP_MIN_LOG_LEVEL": "1", "CUDA_DEVICE_ORDER": order, **gpu_settings(case)}


def libraries_refuse_tf32(case: Case) -> bool:
    """Return whether NVIDIA's libraries keep a case in fp32, so that TensorFlow's own switch for TF32 can stay on.

    With its switch off, TensorFlow excludes every cuDNN algorithm that may use tensor cores, even one that would then
    compute in fp32. On an H100, tf_cnn_benchmarks keeps these algorithms and trained ResNet50 1.23 times as fast. The
    variable has no effect on XLA's own kernels.

    Source: `disable_tensor_core` in TensorFlow's cuda_dnn.cc; measured, see docs/validation.md.
    """
    return TF32_OVERRIDE in gpu_settings(case) and os.environ.get(TF32_OVERRIDE) == "0"
