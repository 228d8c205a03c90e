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


LIBRARIES: tuple[tuple[str, str, Callable[[ctypes.CDLL], str | None] | None], ...] = (
    ("CUDA runtime", "libcudart", None),
    ("nvJitLink", "libnvJitLink", None),  # before cuSPARSE and cuSOLVER, which need it
    ("cuBLASLt", "libcublasLt", None),
    ("cuBLAS", "libcublas", by_property("cublasGetProperty")),
    ("cuDNN", "libcudnn", cudnn_version),
    ("NCCL", "libnccl", nccl_version),
    ("cuFFT", "libcufft", by_property("cufftGetProperty")),
    ("cuSPARSE", "libcusparse", by_property("cusparseGetProperty")),
    ("cuSOLVER", "libcusolver", by_property("cusolverGetProperty")),
    ("CUPTI", "libcupti", None),
)
"""Name, start of the file and what asks for the version, in the order in which they need each other."""

SONAMES = ("13", "12", "11.0", "11", "10", "9", "8", "2")
"""What may follow `.so.`, newest first; each library has one or two of them."""


def read_libraries(folders: Iterable[Path]) -> list[CUDALibrary]:
    """Load each library as TensorFlow would find it: by name, else from NVIDIA's Python packages.

    Args:
        folders: Of NVIDIA's Python packages.
    """
    places = list(folders)
    return [*(_read(name, stem, version, places) for name, stem, version in LIBRARIES), _ptxas()]


def _read(
    name: str, stem: str, version: Callable[[ctypes.CDLL], str | None] | None, folders: list[Path]
) -> CUDALibrary:
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
            return CUDALibrary(name=name, file=Path(file).name, path=path, version=version and version(library))
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
