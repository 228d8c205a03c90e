"""Describe the contents of an image, without a GPU: `python -m tfbench.verify` prints one JSON object.

    {"python": "3.11.2", "tensorflow": "2.21.0", "keras": "3.15.1", "cuda": "12.5.1", "cudnn": "9",
     "libraries": {"libcublas.so.12": null, "libcudnn.so.9": "cannot open shared object file"}, "user": 10001}

A library's value is null if it loads by name, else the loader's message. All of them load on a machine without a
driver, which provides only `libcuda.so.1`.
"""

from __future__ import annotations

import json
import os
import platform
import sys

from tfbench.machine.cuda_libraries import load_by_name, opened_libraries


def main() -> int:
    """Print the contents; return exit code 1 if a library does not load."""
    import tensorflow as tf

    from tfbench.keras_versions import keras_version

    build = tf.sysconfig.get_build_info()
    cuda, cudnn = (str(build[key]) if build.get(key) else None for key in ("cuda_version", "cudnn_version"))
    libraries = load_by_name(opened_libraries(tf.__version__, cuda, cudnn))
    reported = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras_version(),
        "cuda": cuda,
        "cudnn": cudnn,
        "libraries": libraries,
        "user": os.getuid(),
    }
    sys.stdout.write(json.dumps(reported) + "\n")
    return int(any(libraries.values()))


if __name__ == "__main__":
    sys.exit(main())
