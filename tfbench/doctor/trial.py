"""Imports TensorFlow, lists its GPUs, computes and all-reduces: `python -m tfbench.doctor.trial` prints JSON lines.

Runs in a process of its own: an import can crash and a first kernel can hang; the lines printed before still count.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass, field

from tfbench.machine import cuda_libraries


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What TensorFlow could do here.

    Attributes:
        tensorflow: Version; None: it did not import.
        cuda: CUDA version that it was built with; None: a build for the CPU.
        capabilities: GPU architectures that it has code for.
        gpus: Names of the GPUs that it sees, in its order; None: they were not listed.
        missing: Libraries that it needs and that do not load, with the reason.
        right: Devices that multiplied two matrices correctly.
        wrong: Devices that did not.
        all_reduce: Whether the sum over all GPUs was right on each; None: not tried, see `all_reduce_reason`.
        all_reduce_reason: Why not, or what went wrong.
        versions: Of the NVIDIA libraries that were loaded.
        problem: How the trial failed, and in which stage; None: it did not.
    """

    tensorflow: str | None = None
    keras: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    capabilities: list[str] = field(default_factory=list)
    gpus: list[str] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    all_reduce: bool | None = None
    all_reduce_reason: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


def report(**reported: object) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(reported) + "\n")
    sys.stdout.flush()


def main(device: str) -> None:
    """Go through all stages.

    Args:
        device: `gpu` or `cpu`; or `image`, to print only the contents of an image, without a GPU, in one line:

            {"python": "3.11.2", "tensorflow": "2.21.0", "keras": "3.15.1", "cuda": "12.5.1", "cudnn": "9",
             "libraries": {"libcublas.so.12": null, "libcudnn.so.9": "cannot open shared object file"}, "user": 10001}

            A library is null if it loads by name: all of them do on a machine without a driver, which provides only
            `libcuda.so.1`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if device == "gpu":
        cuda_libraries.prepare_gpu_libraries()
    import tensorflow as tf

    from tfbench.keras_versions import build_info, keras_version
    from tfbench.roofline.peaks import product_check

    build = build_info()
    versions = {"tensorflow": tf.__version__, "keras": keras_version(), **build}
    names = cuda_libraries.opened_libraries(tf.__version__, build["cuda"], build["cudnn"]) if device != "cpu" else []
    if device == "image":
        libraries = cuda_libraries.load_by_name(names)
        report(python=platform.python_version(), **versions, libraries=libraries, user=os.getuid())
        return
    report(**versions)
    gpus = tf.config.list_physical_devices("GPU") if device == "gpu" else []
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    problems = cuda_libraries.load_by_name(names, cuda_libraries.package_folders())
    report(
        gpus=[tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus],
        missing={name: problem for name, problem in problems.items() if problem},
    )
    tf.config.experimental.enable_tensor_float_32_execution(False)
    devices = [f"GPU:{index}" for index in range(len(gpus))] or ["CPU:0"]
    right = [name for name in devices if product_check("fp32", name).passed]
    report(right=right, wrong=[name for name in devices if name not in right])
    reduced = all_reduces(devices if gpus else [])
    report(**reduced, versions=cuda_libraries.loaded_versions())


def all_reduces(devices: list[str]) -> dict[str, object]:
    """Sum over all devices, as a case of several replicas does; with fewer than two, nothing is tried."""
    if len(devices) < 2:
        return {"all_reduce": None, "all_reduce_reason": "one GPU" if devices else "no_gpu"}
    import tensorflow as tf

    from tfbench.roofline.transfers import all_reduce_check

    check = all_reduce_check(tf.distribute.MirroredStrategy(devices))
    return {"all_reduce": check.passed, "all_reduce_reason": None if check.passed else check.detail}


if __name__ == "__main__":
    main(sys.argv[1])
