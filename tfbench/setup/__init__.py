"""Settings to make before a process uses its devices.

This module has those that precede the import of TensorFlow: Python's garbage collector, and variables without which a
GPU looks slower than it is. `devices` has those that follow it: threads, precision, and the case's strategy.
"""

from __future__ import annotations

import gc

from results.schema import BatchNorm, Case, Device

THRESHOLDS = (50_000, 20, 20)
"""See `gc.set_threshold`; Python's own are 700, 10 and 10. Importing and tracing make many objects that stay."""


def collect_rarely() -> None:
    """Make garbage collection rare, and exempt all present objects, which live as long as the process."""
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()


HOST_THREADS_PER_GPU = 2
"""Threads per GPU: one starts kernels, one copies."""


def gpu_settings(case: Case) -> dict[str, str]:
    """Return environment variables for a case; they must be set before TensorFlow is imported.

    * `TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT`: without it TensorFlow's `FusedBatchNorm` transposes every fp16
      activation from NHWC to NCHW and back, and Grappler does not fuse the following ReLU. (An addition between the two
      is never fused.) With it cuDNN may overflow for extreme activations, which the validity checks would detect.
    * `TF_GPU_THREAD_MODE`: separate threads start each GPU's kernels, instead of those that prepare the input.

    tf_cnn_benchmarks sets both. The stock variant, `--batch_norm=keras`, keeps TensorFlow's defaults.

    Args:
        case: What is measured.
    """
    if case.device is not Device.GPU:
        return {}
    settings: dict[str, str] = {}
    if case.batch_norm is not BatchNorm.KERAS:
        settings |= {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": str(HOST_THREADS_PER_GPU)}
    if case.batch_norm is BatchNorm.FUSED:
        settings["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"] = "1"
    return settings
