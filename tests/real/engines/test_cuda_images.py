"""The CUDA images, built for real where `TFBENCH_TEST_VARIANTS` names some: minutes and gigabytes for each.

TFBENCH_TEST_VARIANTS="cuda12.5 cuda12.9" make test ARGS=tests/real/engines/test_cuda_images.py
"""

import os
import subprocess
from pathlib import Path

import pytest

from orchestrate.inventory.variants import read_variants
from results import schema
from results.runs import reading
from results.schema.networks import NETWORKS
from tests.support.engines import containers
from tests.support.engines.docker import Engines
from tests.support.engines.images import build_image

VARIANTS = os.environ.get("TFBENCH_TEST_VARIANTS", "").split()
pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not VARIANTS, reason="TFBENCH_TEST_VARIANTS names no CUDA image: each takes minutes to build"),
]

TRAINED = ("resnet50", "resnet152", "inception_v3", "googlenet")
PARAMETERS = {name: NETWORKS[name].parameters[schema.BatchNorm.FUSED] for name in TRAINED}
"""All weights of four networks, stated beside their code and the same in every image."""

OPENED_BY_NAME = ("libcudart", "libcublas", "libcublasLt", "libcufft", "libcusolver", "libcusparse", "libcudnn")

ASK_FOR_GPUS = """
import tensorflow as tf
print(len(tf.config.list_physical_devices("GPU")), "GPU")
"""

WHERE_XLA_LOOKS = """
import ctypes, pathlib, tensorflow as tf
class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("rest", ctypes.c_char * 16)]
class Texts(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p)]
names, function = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"), "_ZN3tsl18CandidateCudaRootsB5cxx11Ev"
libraries = [ctypes.CDLL(str(pathlib.Path(tf.__file__).with_name(name))) for name in names]
roots = Texts()
next(getattr(library, function) for library in libraries if hasattr(library, function))(ctypes.byref(roots))
cuda = pathlib.Path("/usr/local/cuda")
print(*[name for name in ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc") if (cuda / name).is_file()])
for address in range(roots.begin, roots.end, ctypes.sizeof(Text)):
    text = Text.from_address(address)
    print(ctypes.string_at(text.data, text.size).decode(errors="replace"))
"""
"""TensorFlow's own list, which it exports: a `std::vector<std::string>`, returned through a hidden first argument."""


@pytest.fixture(scope="module", params=VARIANTS)
def cuda_image(request: pytest.FixtureRequest, engines: Engines, base_image: str) -> str:
    tag = f"tfbench-test:{request.param}"
    build_image(engines.first, base_image, request.param, tag)
    return tag


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("gpu_driver.c")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, source], check=True)
        (folder / name).chmod(0o755)
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    return folder


def test_with_a_driver_tensorflow_opens_every_library_that_it_asks_for(engines, cuda_image: str, driver_folder: Path):
    with containers.finished_container(
        engines.first.client,
        cuda_image,
        ["-c", f"LD_LIBRARY_PATH=/driver:$LD_LIBRARY_PATH exec python3.11 -c '{ASK_FOR_GPUS}'"],
        entrypoint=["sh"],
        volumes={str(driver_folder): {"bind": "/driver", "mode": "ro"}},
        environment={"TF_CPP_VMODULE": "dso_loader=3"},
    ) as container:
        output = container.logs().decode()
    failed = [line for line in output.splitlines() if "Could not load" in line]
    assert [line for line in failed if "libnvinfer" not in line] == [], "TensorRT serves inference"
    for name in OPENED_BY_NAME:
        assert f"Successfully opened dynamic library {name}.so" in output
    assert "1 GPU" in output


def test_xla_finds_its_compilers_where_every_tensorflow_looks(engines: Engines, cuda_image: str):
    there, *looked = containers.output_of_python(engines.first.client, cuda_image, WHERE_XLA_LOOKS).splitlines()
    assert there.split() == ["bin/ptxas", "nvvm/libdevice/libdevice.10.bc"]
    assert "/usr/local/cuda" in looked


def test_the_same_record_comes_out_of_every_image(engines: Engines, cuda_image: str):
    variant = next(row for row in read_variants() if row.name == cuda_image.partition(":")[2])
    seen = {}
    for model in PARAMETERS:
        case = schema.Case(
            model=model, batch_per_gpu=1, device=schema.Device.CPU, image_size=96, warmup_steps=1, num_steps=2
        )
        command = [*case.flags(), f"--output={containers.RECORD_PATH}"]
        with containers.successful_container(engines.first.client, cuda_image, command) as container:
            record = reading.from_json(containers.read_file(container, containers.RECORD_PATH))
        assert record.case == case
        assert record.environment is not None and record.measurement is not None
        assert (record.environment.tensorflow, record.environment.keras) == (variant.tensorflow, variant.keras)
        seen[model] = record.measurement.parameters_total
    assert seen == PARAMETERS
