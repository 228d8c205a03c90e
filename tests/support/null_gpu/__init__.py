"""A null GPU: TensorFlow's CUDA wheel runs on it, but nothing is computed.

One library replaces CUDA's driver and runtime, cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE, NCCL and NVML, with two RTX
A4000 by default. Kernels, library calls and large copies within a GPU are counted and dropped; other copies are made;
streams have clocks. Placement, order, counts, memory and host time are real; results are not. `core.c` has memory, clocks
and counts; `driver.c` and `runtime.c` CUDA; `libraries.c` the other libraries. Functions without effect return 0
(`names.S`, generated here).

`environment()` builds it for TensorFlow's CUDA wheel, which `python -m tests.support.null_gpu` installs in `.cache`
(1.8 GB), without NVIDIA's libraries and before other packages on the path. Settings are environment variables:
NULLGPU_DEVICES, NULLGPU_MEMORY_MIB, NULLGPU_NAME, NULLGPU_KERNEL_US (time of each kernel), NULLGPU_SLOW=2:1.5 (GPU 2
takes 1.5 times as long), NULLGPU_QUEUE (kernels that a stream can hold, as about 1,000 in a driver; 0: no
limit; from `nullgpu_reset` on), NULLGPU_COPY_GBS (0: copies take no time), NULLGPU_NO_PEER, NULLGPU_LOG=PREFIX (a line per
call). NULLGPU_FAULT is lost (each call fails), stuck (no kernel ends) or nccl_stuck, after NULLGPU_FAULT_AFTER kernels.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support import PROJECT

HERE = Path(__file__).parent
FOLDER = PROJECT / ".cache" / "null-gpu"
SITE = FOLDER / "site"
"""TensorFlow's CUDA wheel, before the CPU's on the path."""

HEADERS = FOLDER / "headers" / "nvidia"
"""NVIDIA's packages, not on the path so that their libraries are not loaded."""

LOCK = PROJECT / "containers" / "requirements" / "cuda12.9.txt"

SOURCES = ("core.c", "driver.c", "runtime.c", "libraries.c")
NAMES = (
    *("libcuda.so.1", "libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libcufft.so.11"),
    *("libcusolver.so.11", "libcusparse.so.12", "libnccl.so.2", "libnvidia-ml.so.1"),
)

MENTIONED = "(cu[A-Z]|cuda[A-Z]|__cuda[A-Z]|cublas|cudnn[A-Z]|cufft|cusolver|cusparse|nccl[A-Z]|nvml[A-Z]|cupti[A-Z])[A-Za-z0-9_]+"
TAKES_STREAM = re.compile(r"^(cublas|cudnn|cusolver|cusparse|cufft)\w*[sS]etStream(_v2)?$")
CREATES = re.compile(
    r"^(cublas|cudnn|cusolver\w*|cusparse|cufft)(Lt)?\w*Create|^cu(GraphAdd\w+|GraphClone|GraphConditionalHandleCreate|UserObjectCreate)$"
)
COMPUTES = re.compile(
    r"^cudnn(?!Get|Set|Create|Destroy).*(Forward|Backward|Execute|AddTensor|TransformTensor|OpTensor|ReduceTensor|ScaleTensor)"
    r"|^cublas(?!Get|Set|Create|Destroy|Lt|Xt)[A-Z]|^cusolver(?!.*(Get|Set|Create|Destroy|bufferSize))|^cufftExec"
)

needs_null_gpu = pytest.mark.skipif(
    not SITE.exists() and "CI" not in os.environ,
    reason="python -m tests.support.null_gpu installs TensorFlow's CUDA wheel",
)

only_on_demand = pytest.mark.skipif(
    "TFBENCH_TEST_NULL_GPU" not in os.environ, reason="make test-null-gpu tests faults of GPUs"
)


def install() -> None:
    """Install TensorFlow's CUDA wheel and CUDA's headers, with the versions of the newest image."""
    locked = dict(re.findall(r"^([\w-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    headers = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12")
    for folder, packages in ((HEADERS.parent, headers), (SITE, ("tensorflow",))):  # the largest last: it marks the end
        pip_install(folder, [f"{name}=={locked[name]}" for name in packages])


def pip_install(folder: Path, packages: Sequence[str]) -> None:
    """Install packages without dependencies into a folder, which is created atomically."""
    unfinished = folder.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", unfinished]
    subprocess.run([*pip, *packages], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def environment(**settings: object) -> dict[str, str]:
    """Return the environment of a process with null GPUs; builds the library once per version of its sources."""
    variables = {name: str(value) for name, value in settings.items()}
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(_built()),
        "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={HEADERS / 'cuda_nvcc'}",
        "PYTHONPATH": f"{SITE}:{PROJECT}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **variables,
    }


def _built() -> Path:
    digest = hashlib.sha256()
    nvml = HERE.parent / "fake_driver" / "nvml.c"
    for path in (nvml, *sorted(HERE.iterdir())):
        digest.update(path.read_bytes() if path.is_file() else b"")
    folder = FOLDER / digest.hexdigest()[:16]
    with FileLock(FOLDER / "build.lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".tmp")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _build(unfinished, nvml)
            unfinished.rename(folder)
    return folder


def _build(folder: Path, nvml: Path) -> None:
    (folder / "names.S").write_text(_weak_functions(), encoding="ascii")
    fake = ["-DTABLE=\"nvml_table.h\"", f"-I{HERE}", f"-I{nvml.parent}", "-c", "-o", folder / "nvml.o", nvml]  # fmt: skip
    subprocess.run(["gcc", "-O2", "-fPIC", *fake], check=True)
    headers = [f"-I{HEADERS / package / 'include'}" for package in ("cuda_runtime", "cuda_nvcc")]
    sources = [*(HERE / name for name in SOURCES), folder / "nvml.o", folder / "names.S"]
    options = ["-O2", "-std=gnu17", "-shared", "-fPIC", "-fno-semantic-interposition", "-Wno-deprecated-declarations"]
    linking = ["-Wl,-Bsymbolic", "-o", folder / "libnullgpu.so", *sources, "-lpthread", "-ldl"]
    subprocess.run(["gcc", *options, *headers, *linking], check=True)
    for name in NAMES:
        (folder / name).symlink_to("libnullgpu.so")


def _weak_functions() -> str:
    """Return, in assembly, a weak function for each name of CUDA that TensorFlow's libraries mention."""
    libraries = [SITE / "tensorflow" / name for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")]
    # Python's `re` takes ten times as long as grep for these 1.3 GB.
    search = ["grep", "-z", "--line-regexp", "--text", "--no-filename", "--extended-regexp", MENTIONED, *libraries]
    found = subprocess.run(search, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    names = sorted({*found.stdout.split("\0")} - {""})
    lines = ["\t.text"]
    for index, name in enumerate(names):
        kind = 4 if TAKES_STREAM.match(name) else 1 if CREATES.match(name) else 3 if COMPUTES.match(name) else 0
        lines += [f"\t.weak {name}", f"\t.type {name},@function", f"{name}:", "\tmovq %rsi,%rdx", "\tmovq %rdi,%rsi"]
        lines += [f"\tmovl ${index},%edi", f"\tleaq .Ln{index}(%rip),%rcx", f"\tmovl ${kind},%r8d"]
        lines += ["\tjmp nullgpu_default", f"\t.size {name},.-{name}"]
    lines += ["nullgpu_default:", "\tsubq $8,%rsp", "\tcall nullgpu_note@PLT", "\taddq $8,%rsp", "\txorl %eax,%eax"]
    lines += ["\tret", "\t.section .rodata"]
    lines += [f'.Ln{index}: .string "{name}"' for index, name in enumerate(names)]
    return "\n".join([*lines, '\t.section .note.GNU-stack,"",@progbits', ""])
