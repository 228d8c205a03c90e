"""Take out of installed packages what training does not need, and sort the rest into layers.

Runs while an image is built, as `python prune.py SITE LAYERS slim|full`; standard library only. Why each of these is
not needed, and how that was shown: containers/README.md.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NOT_NEEDED = (
    "bin",  # entry points: nothing is started by name
    "share",
    "clang",  # a C++ parser, a dependency of TensorFlow's that it never imports
    "tensorboard/webfiles.zip",  # the web page of TensorBoard
    "tensorboard_data_server",
    "tensorflow/include",  # headers, for building operations of one's own
    "nvidia/cusolver/lib/libcusolverMg*",  # solvers over several GPUs: TensorFlow asks for libcusolver alone
    "nvidia/cublas/lib/libnvblas*",  # replaces a processor's BLAS
    "nvidia/cufft/lib/libcufftw*",  # replaces FFTW
    "nvidia/cuda_nvrtc/lib/*.alt.so*",  # a second build of the same compiler
    # The CUDA C++ compiler. XLA compiles with LLVM and needs ptxas, nvlink, fatbinary and libdevice only.
    "nvidia/cuda_nvcc/nvvm/bin",
    "nvidia/cuda_nvcc/nvvm/lib64",
    "nvidia/cuda_nvcc/bin/nvcc*",
    "nvidia/cuda_nvcc/bin/cudafe++",
    # Hardware counters of Nsight; the profiler's own library, libcupti, stays.
    "nvidia/cuda_cupti/lib/libnvperf*",
    "nvidia/cuda_cupti/lib/libcheckpoint*",
    "nvidia/cuda_cupti/lib/libpcsamplingutil*",
)
"""Below site-packages, from its root."""

NOT_CALLED = (
    # cuDNN's recurrent networks, multi-head attention and CTC loss. No network here uses them: cuDNN opens these files
    # when such a function is first called.
    "nvidia/cudnn/lib/libcudnn_adv*",
)
"""Left out of slim images only: that cuDNN does without them has to be seen on a GPU."""

NOT_NEEDED_ANYWHERE = ("*.a", "*.h", "*.hpp", "*.inc", "*.pxd", "*.pyx", "*.pyi", "tests")
"""Static libraries, headers, type stubs and tests, wherever they lie."""

ONLY_OPENED = (
    "nvidia/cufft/lib/libcufft.so.*",
    "nvidia/cusolver/lib/libcusolver.so.*",
    "nvidia/cusparse/lib/libcusparse.so.*",
)
"""Libraries that TensorFlow opens by name before it accepts a GPU, and calls in FFTs, dense solvers and sparse algebra
only. What it does not find in them becomes an error of that call."""

EMPTY_LIBRARY = Path("/lib/x86_64-linux-gnu/libdl.so.2")
"""A library without functions of its own since glibc 2.34: what it had is in libc."""

WITH_SYMBOLS = ("tensorflow*/**/*.so", "tensorflow*/**/*.so.2")
"""TensorFlow's libraries come with names for a debugger, of every function that no other library can ask for: a quarter
of their bytes. The loader does not read them."""

CUDA_LAYER = "cuda"

USUAL_PLACE = Path("usr/local/cuda")
"""Where every TensorFlow looks for ptxas and libdevice (`CandidateCudaRoots`)."""

CUDA = "nvidia"
TENSORFLOW = ("tensorflow", "tensorflow_cpu")
"""Starts of names; a package that is neither belongs to the layer `common`."""

EPOCH_SECONDS = 0
"""Every file gets this time, so that equal files make equal layers whenever they were built."""

SITE = Path("opt/site")
"""Where packages lie in the image. A layer holds its folders too: Docker gives those that it makes itself the time of
the build."""


def main(site: Path, layers: Path, *, slim: bool) -> None:
    """Prune packages and sort them into layers.

    Args:
        site: Where they are installed; empty afterwards.
        layers: Folder, gets `common`, `tensorflow` and `cuda`, which hold what goes to the root of the image; what lies
            there already gets the time 0 too.
        slim: Also leave out libraries that are not called, put an empty one in place of those that are opened and never
            called, and take out the names that only a debugger reads, with binutils' `strip`.
    """
    for pattern in (*NOT_NEEDED, *(NOT_CALLED if slim else ())):
        for path in site.glob(pattern):
            _remove(path)
    for pattern in NOT_NEEDED_ANYWHERE:
        for path in sorted(site.rglob(pattern)):
            _remove(path)
    if slim:
        for pattern in ONLY_OPENED:
            for path in site.glob(pattern):
                shutil.copyfile(EMPTY_LIBRARY, path)
        for pattern in WITH_SYMBOLS:
            for path in sorted(site.glob(pattern)):
                subprocess.run(["strip", "--strip-unneeded", path], check=True)
    for name in ("common", "tensorflow", CUDA_LAYER):
        (layers / name / SITE).mkdir(parents=True)
    for path in sorted(site.iterdir()):
        path.rename(layers / _layer(path.name) / SITE / path.name)
    _link_cuda(layers / CUDA_LAYER)
    for folder, folders, files in os.walk(layers):
        for name in (*folders, *files):
            os.utime(Path(folder, name), (EPOCH_SECONDS, EPOCH_SECONDS), follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link_cuda(layer: Path) -> None:
    """Link XLA's compilers to where every TensorFlow looks; nothing to do without CUDA.

    The other places follow from where TensorFlow's library lies. TensorFlow 2.14 works that out from a text that may
    have no end (`dirname` of a `vector<char>` without its NUL), so whether it finds them there is chance.
    """
    compilers = SITE / CUDA / "cuda_nvcc"
    if (layer / compilers).is_dir():
        (layer / USUAL_PLACE).parent.mkdir(parents=True)
        (layer / USUAL_PLACE).symlink_to(Path("/") / compilers)


def _layer(name: str) -> str:
    """Name the layer of a package's folder, or of its `.dist-info`."""
    if name == CUDA or (name.startswith("nvidia_") and "_cu1" in name):
        return CUDA_LAYER
    return "tensorflow" if name.split("-")[0] in TENSORFLOW else "common"


if __name__ == "__main__":
    if sys.argv[3:] not in (["slim"], ["full"]):
        sys.exit(f"SLIM must be slim or full. Received: {' '.join(sys.argv[3:]) or 'nothing'}")
    main(Path(sys.argv[1]), Path(sys.argv[2]), slim=sys.argv[3] == "slim")
