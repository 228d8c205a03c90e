"""Which of NVIDIA's libraries load here: `python -m tfbench.doctor.libraries` prints it as JSON.

A process of its own, because loading a damaged library can crash, and because what has been loaded cannot be let go.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tfbench.machine.cuda_libraries import (
    by_property,
    cudnn_version,
    find_ptxas,
    nccl_version,
    package_folders,
    packaged_toolkit,
    ptxas_version,
    use_packaged_ptxas,
)
from tfbench.machine.nvml import cuda_version


@dataclass(frozen=True, kw_only=True)
class CUDALibrary:
    """One of NVIDIA's libraries.

    Attributes:
        name: As NVIDIA writes it: `cuDNN`.
        file: `libcudnn.so.9`; None: not found.
        path: Where it was loaded from.
        version: As it says itself; None: it does not.
        problem: Why it did not load; None: it is fine.
    """

    name: str
    file: str | None = None
    path: str | None = None
    version: str | None = None
    problem: str | None = None


def _numbers(library: ctypes.CDLL, function: str, count: int = 1) -> list[int] | None:
    """Call a function that writes its numbers to pointers; None where it reports an error."""
    numbers = [ctypes.c_int() for _ in range(count)]
    return None if getattr(library, function)(*map(ctypes.byref, numbers)) else [number.value for number in numbers]


def _cudart(library: ctypes.CDLL) -> str | None:
    found = _numbers(library, "cudaRuntimeGetVersion")
    return cuda_version(found[0] if found else None)


def _cupti(library: ctypes.CDLL) -> str | None:
    found = _numbers(library, "cuptiGetVersion")
    return f"API {found[0]}" if found else None


def _cublaslt(library: ctypes.CDLL) -> str:
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    number = library.cublasLtGetVersion()
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _nvjitlink(library: ctypes.CDLL) -> str | None:
    found = _numbers(library, "nvJitLinkVersion", 2)
    return f"{found[0]}.{found[1]}" if found else None


LIBRARIES: tuple[tuple[str, str, Callable[[ctypes.CDLL], str | None]], ...] = (
    ("CUDA runtime", "libcudart", _cudart),
    ("nvJitLink", "libnvJitLink", _nvjitlink),  # before cuSPARSE and cuSOLVER, which need it
    ("cuBLASLt", "libcublasLt", _cublaslt),
    ("cuBLAS", "libcublas", by_property("cublasGetProperty")),
    ("cuDNN", "libcudnn", cudnn_version),
    ("NCCL", "libnccl", nccl_version),
    ("cuFFT", "libcufft", by_property("cufftGetProperty")),
    ("cuSPARSE", "libcusparse", by_property("cusparseGetProperty")),
    ("cuSOLVER", "libcusolver", by_property("cusolverGetProperty")),
    ("CUPTI", "libcupti", _cupti),
)
"""In the order in which they need each other."""

SONAMES = ("13", "12", "11.0", "11", "10", "9", "8", "2")
"""What may follow `.so.`, newest first; each library has one or two of them."""


def read_libraries(folders: Iterable[Path]) -> list[CUDALibrary]:
    """Load each library as TensorFlow would find it: by name, else from NVIDIA's Python packages.

    Args:
        folders: Of NVIDIA's Python packages.
    """
    places = list(folders)
    return [*(_read(name, stem, version, places) for name, stem, version in LIBRARIES), _ptxas()]


def _read(name: str, stem: str, version: Callable[[ctypes.CDLL], str | None], folders: list[Path]) -> CUDALibrary:
    files = [f"{stem}.so.{number}" for number in SONAMES]
    in_packages = [str(path) for folder in folders for path in sorted(folder.glob(f"{stem}.so.*"))]
    problem = None
    for file in [*files, *in_packages]:
        try:
            library = ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            if "cannot open shared object file" not in str(error) or not str(error).startswith(file):
                problem = f"{file}: {error}"  # it is there, and broken
            continue
        path = _path_of(Path(file).name)
        try:
            return CUDALibrary(name=name, file=Path(file).name, path=path, version=version(library))
        except AttributeError:
            return CUDALibrary(name=name, file=Path(file).name, path=path, problem="it has no functions")
    return CUDALibrary(name=name, problem=problem or "not found")


def _path_of(file: str) -> str | None:
    """Return where this process has a library from."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.partition("/")[2]
        if re.search(rf"/{re.escape(file)}(\.[\d.]+)?$", f"/{path}"):
            return f"/{path}"
    return None


def _ptxas() -> CUDALibrary:
    """Describe the assembler that XLA calls here, as `python -m tfbench` sets it up."""
    found = find_ptxas()
    if found is None:
        return CUDALibrary(name="ptxas", problem="not found")
    packaged = packaged_toolkit(package_folders())
    other = packaged is not None and not Path(found).samefile(packaged / "bin/ptxas")
    version = ptxas_version(found)
    problem = "that does not run" if version is None else f"in place of {packaged}/bin/ptxas" if other else None
    return CUDALibrary(name="ptxas", file="ptxas", path=found, version=version, problem=problem)


if __name__ == "__main__":
    use_packaged_ptxas(package_folders())
    for item in read_libraries(package_folders()):
        sys.stdout.write(json.dumps(dataclasses.asdict(item)) + "\n")
        sys.stdout.flush()
