"""The CUDA images, built for real where `TFBENCH_TEST_VARIANTS` names some: minutes and gigabytes for each.

TFBENCH_TEST_VARIANTS="cuda12.5 cuda12.9" make test ARGS=tests/real/engines/test_cuda_images.py
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.engines.containers import finished_container
from tests.support.engines.docker import Engines
from tests.support.engines.images import build_image

VARIANTS = os.environ.get("TFBENCH_TEST_VARIANTS", "").split()
OPENED_BY_NAME = ("libcudart", "libcublas", "libcublasLt", "libcufft", "libcusolver", "libcusparse", "libcudnn")
ASK_FOR_GPUS = """
cd /usr/local/cuda && ls bin/ptxas nvvm/libdevice/libdevice.10.bc
export LD_LIBRARY_PATH=/driver:$LD_LIBRARY_PATH
python3.11 -c 'import tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")), "GPU")'
"""


@pytest.mark.docker
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not VARIANTS, reason="TFBENCH_TEST_VARIANTS names no CUDA image: each takes minutes to build")
@pytest.mark.parametrize("variant", VARIANTS)
def test_with_a_driver_tensorflow_finds_all_libraries_and_compilers(
    engines: Engines, base_image: str, tmp_path: Path, variant: str
):
    tag = f"tfbench-test:{variant}"
    build_image(engines.first, base_image, variant, tag)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        source = Path(__file__).with_name("gpu_driver.c")
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", tmp_path / name, source]
        subprocess.run(command, check=True)
        (tmp_path / name).chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    volumes = {str(tmp_path): {"bind": "/driver", "mode": "ro"}}
    options = {"entrypoint": ["sh"], "volumes": volumes, "environment": {"TF_CPP_VMODULE": "dso_loader=3"}}
    with finished_container(engines.first.client, tag, ["-c", ASK_FOR_GPUS], **options) as container:
        output = container.logs().decode()
    failed = [line for line in output.splitlines() if "Could not load" in line]
    assert [line for line in failed if "libnvinfer" not in line] == [], "TensorRT serves inference"
    for name in OPENED_BY_NAME:
        assert f"Successfully opened dynamic library {name}.so" in output
    assert "bin/ptxas\nnvvm/libdevice/libdevice.10.bc\n" in output and "1 GPU" in output
