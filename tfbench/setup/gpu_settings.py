"""Settings of TensorFlow for GPUs that are off unless asked for, and without which a GPU looks slower than it is."""

from __future__ import annotations

from results.schema import BatchNorm, Case, Device

HOST_THREADS_PER_GPU = 2
"""One starts kernels, one copies."""


def gpu_settings(case: Case) -> dict[str, str]:
    """Return environment variables for a case; they must be set before TensorFlow is imported.

    * `TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT`: without it TensorFlow's `FusedBatchNorm` turns every fp16 activation
      from NHWC to NCHW and back, and Grappler fuses neither the ReLU nor the addition behind it. cuDNN may overflow for
      extreme activations with it, which the validity gates would see.
    * `TF_GPU_THREAD_MODE`: each GPU's kernels are started by threads of their own, not by those that prepare the input.

    * `TF_USE_CUBLASLT`, where the case asks for it: matrix products by cuBLASLt.

    tf_cnn_benchmarks sets the first two. The stock variant, `--batch_norm=keras`, is left as TensorFlow comes.

    Args:
        case: What is measured.
    """
    if case.device is not Device.GPU:
        return {}
    settings = {"TF_USE_CUBLASLT": "1"} if case.cublaslt else {}
    if case.batch_norm is not BatchNorm.KERAS:
        settings |= {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": str(HOST_THREADS_PER_GPU)}
    if case.batch_norm is BatchNorm.FUSED:
        settings["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"] = "1"
    return settings
