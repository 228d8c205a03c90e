"""What must be set before a process uses its devices.

This module is for what comes before TensorFlow is imported: Python's garbage collector, and the variables without
which a GPU looks slower than it is. `devices` is for what comes after: threads, precision, and the case's strategy.
"""

from __future__ import annotations

import gc

from results.schema import BatchNorm, Case, Device

THRESHOLDS = (50_000, 20, 20)
"""See `gc.set_threshold`; Python's own are 700, 10 and 10. Importing and tracing make many objects that stay."""


def collect_rarely() -> None:
    """Let the collector come rarely, and pass over all that is there now, which stays."""
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()


HOST_THREADS_PER_GPU = 2
"""One starts kernels, one copies."""


def gpu_settings(case: Case) -> dict[str, str]:
    """Return environment variables for a case; they must be set before TensorFlow is imported.

    * `TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT`: without it TensorFlow's `FusedBatchNorm` turns every fp16 activation
      from NHWC to NCHW and back, and Grappler does not fuse the ReLU behind it. (An addition between the two is never
      fused.) cuDNN may overflow for extreme activations with it, which the validity checks would see.
    * `TF_GPU_THREAD_MODE`: each GPU's kernels are started by threads of their own, not by those that prepare the input.

    tf_cnn_benchmarks sets both. The stock variant, `--batch_norm=keras`, is left as TensorFlow comes.

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
