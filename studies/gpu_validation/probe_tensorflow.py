"""Probes whether TensorFlow starts and finds the GPUs, cuDNN convolves in fp16, and XLA compiles."""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

SIZE = 256
"""Rows of matrices, large enough to load each library."""

VARIABLES = ("TF_", "CUDA_", "NCCL_", "NVIDIA_", "XLA_", "OMP_", "KERAS_")
"""Prefixes of environment variables that may change a figure."""


def main() -> int:
    """Print the findings, including failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    print(json.dumps(seen(parser.parse_args().device)))  # noqa: T201
    return 0


def seen(device: str) -> dict[str, Any]:
    """Return the probe's document."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if device == "gpu":
        from tfbench.machine.cuda_libraries import prepare_gpu_libraries

        prepare_gpu_libraries()
    begin = time.perf_counter()
    import tensorflow as tf

    figures: dict[str, Any] = {"import": (time.perf_counter() - begin, "s")}
    gpus = tf.config.list_physical_devices("GPU")
    if device == "gpu" and not gpus:
        build = "" if tf.test.is_built_with_cuda() else "; this TensorFlow is a build without CUDA"
        return {"outcome": "no_gpu", "cause": f"the driver shows GPUs, TensorFlow {tf.__version__} sees none{build}"}
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)

    def product() -> Any:
        return tf.linalg.matmul(tf.ones((SIZE, SIZE)), tf.ones((SIZE, SIZE)))

    def convolution() -> Any:
        images, kernel = tf.ones((2, 32, 32, 8), tf.float16), tf.ones((3, 3, 8, 8), tf.float16)
        return tf.nn.conv2d(images, kernel, 1, "SAME")

    failed = {}
    trials = {"product": product, "convolution_fp16": convolution, "xla": tf.function(product, jit_compile=True)}
    for name, work in trials.items():
        begin = time.perf_counter()
        try:
            with tf.device(f"{device.upper()}:0"):
                tf.reduce_sum(tf.cast(work(), tf.float32)).numpy()
            figures[f"first_{name}"] = (time.perf_counter() - begin, "s")
        except Exception as error:  # noqa: BLE001 (any failure is a finding)
            failed[name] = " ".join(str(error).split())[:500]
    if set(failed) - {"xla"}:  # without XLA, only its own steps cannot be measured
        return {"outcome": "failed", "cause": "; ".join(f"{name}: {message}" for name, message in failed.items())}
    packages = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    details = {
        "tensorflow": tf.__version__,
        "build": {name: str(value) for name, value in tf.sysconfig.get_build_info().items()},
        "gpus": [tf.config.experimental.get_device_details(gpu) for gpu in gpus],
        "packages": packages,
        "variables": {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
    }
    notes = [f"{name} {seconds:.1f} s" for name, (seconds, _) in figures.items()]
    notes += [f"{name} FAILED: {message}" for name, message in failed.items()]
    return {"figures": figures | {"gpus": (len(gpus), "GPUs")}, "details": details, "note": ", ".join(notes)}


if __name__ == "__main__":
    sys.exit(main())
