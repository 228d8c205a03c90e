"""Probe: does TensorFlow start, see the GPUs, convolve by cuDNN in fp16, and does XLA compile for them?"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 256
"""Of matrices and images: enough to make each library load."""


def main() -> int:
    """Try, and write what was seen; what fails is part of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    options = parser.parse_args()
    options.output.write_text(json.dumps(_seen(options.device)), encoding="utf-8")
    return 0


def _seen(device: str) -> dict[str, Any]:
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if device == "gpu":
        from tfbench.machine.cuda_libraries import prepare_gpu_libraries

        prepare_gpu_libraries()
    begin = time.perf_counter()
    import tensorflow as tf

    import_seconds = time.perf_counter() - begin
    gpus = tf.config.list_physical_devices("GPU")
    if device == "gpu" and not gpus:
        build = "" if tf.test.is_built_with_cuda() else "; this TensorFlow is a build without CUDA"
        return {"outcome": "no_gpu", "cause": f"the driver shows GPUs, TensorFlow {tf.__version__} sees none{build}"}
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    details: dict[str, Any] = {
        "tensorflow": tf.__version__,
        "build": {name: str(value) for name, value in tf.sysconfig.get_build_info().items()},
        "gpus": [tf.config.experimental.get_device_details(gpu) for gpu in gpus],
    }
    name = f"{device.upper()}:0"
    trials = {"matrix_product": _product(tf), "convolution_fp16": _convolution(tf), "xla_compile": _compiled(tf)}
    seconds, failed = {}, {}
    for trial, work in trials.items():
        begin = time.perf_counter()
        try:
            with tf.device(name):
                result = work()
            details[f"{trial}_result_on"] = result.backing_device
            float(tf.cast(result[0, 0] if result.shape.rank == 2 else result[0, 0, 0, 0], tf.float32).numpy())
            seconds[trial] = time.perf_counter() - begin
        except Exception as error:  # noqa: BLE001 (whatever fails is what was to be found out)
            failed[trial] = " ".join(str(error).split())[:500]
    if set(failed) - {"xla_compile"}:  # nothing can be measured; without XLA, all but its own steps can
        cause = "; ".join(f"{trial}: {message}" for trial, message in failed.items())
        return {"outcome": "failed", "cause": cause}
    details |= {f"{trial}_failed": message for trial, message in failed.items()}
    figures = [{"name": "tensorflow_sees", "value": len(gpus), "unit": "GPUs"}]
    figures += [{"name": f"first_{trial}", "value": value, "unit": "s"} for trial, value in seconds.items()]
    figures.append({"name": "import", "value": import_seconds, "unit": "s"})
    notes = [f"first {trial} {value:.1f} s" for trial, value in seconds.items()]
    note = ", ".join(notes + [f"{trial} FAILED: {message}" for trial, message in failed.items()])
    return {"figures": figures, "details": details, "note": f"import {import_seconds:.1f} s, {note}"}


def _product(tf: Any) -> Callable[[], Any]:
    return lambda: tf.linalg.matmul(tf.ones((SIZE, SIZE)), tf.ones((SIZE, SIZE)))


def _convolution(tf: Any) -> Callable[[], Any]:
    def convolve() -> Any:
        images, kernel = tf.ones((2, 32, 32, 8), tf.float16), tf.ones((3, 3, 8, 8), tf.float16)
        return tf.nn.conv2d(images, kernel, 1, "SAME")

    return convolve


def _compiled(tf: Any) -> Callable[[], Any]:
    @tf.function(jit_compile=True)
    def fused(values: Any) -> Any:
        return tf.nn.relu(tf.linalg.matmul(values, values) * 0.5 + 1.0)

    return lambda: fused(tf.ones((SIZE, SIZE)))


if __name__ == "__main__":
    sys.exit(main())
