"""For which GPUs a wheel has machine code and PTX: read from the fat binaries in its libraries, without CUDA's tools.

NVIDIA's compiler puts one fat binary for each source file into a section of a library. It holds an entry for each
architecture: an ELF file with machine code, or PTX.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from orchestrate.errors import UserError

SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
"""Where fat binaries stand in a library: linked as they are, and with relocatable device code."""

ELF64_LITTLE = b"\x7fELF\x02\x01"
_ELF_SECTIONS = struct.Struct("<40xQ10xHHH")
"""Of the file's header: offset of the section headers, size and number of them, and which one holds their names.
Source: System V ABI, ELF-64 object file format."""

_SECTION = struct.Struct("<I20xQQ24x")
"""Of a section's header: offset of its name, offset and size of its content."""

_FATBIN = struct.Struct("<IHHQ")
"""Of a fat binary's header: magic number, version, size of the header, size of all entries.
Source: `fatBinaryHeader` in `fatbinary.h` of CUDA."""

FATBIN_MAGIC = 0xBA55ED50

_ENTRY = struct.Struct("<HHIQ12xI")
"""Of an entry's header: kind, version, size of the header, size of the content, compute capability × 10.
Not documented; seen in the wheel nvidia-curand-cu12 10.3.10.19, where it gives the capabilities of CUDA 12.9."""

PTX, MACHINE_CODE = 1, 2


@dataclass
class FatBinaries:
    """What the fat binaries of a wheel hold.

    Attributes:
        count: How many there are: one for each source file with kernels.
        machine_code: In how many of them a compute capability has machine code, by capability, e.g. `8.6`.
        ptx: Likewise for PTX.
    """

    count: int = 0
    machine_code: Counter[str] = field(default_factory=Counter)
    ptx: Counter[str] = field(default_factory=Counter)


def inspect_wheel(path: Path) -> FatBinaries:
    """Count the architectures in all libraries of a wheel.

    Raises:
        UserError: It is no wheel.
    """
    found = FatBinaries()
    try:
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if ".so" in Path(name).name:
                    with wheel.open(name) as packed, tempfile.TemporaryFile() as library:
                        shutil.copyfileobj(packed, library, 1 << 20)
                        _inspect_library(library, found)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a wheel: {error}") from error
    return found


def _inspect_library(library: IO[bytes], found: FatBinaries) -> None:
    library.flush()
    if library.tell() < _ELF_SECTIONS.size:
        return
    with mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, end in _fat_sections(data):
            _inspect_section(data, start, min(end, len(data)), found)


def _fat_sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where the sections with fat binaries begin and end; nothing where it is no library of this kind."""
    if data[: len(ELF64_LITTLE)] != ELF64_LITTLE:
        return
    offset, size, count, names = _ELF_SECTIONS.unpack_from(data)
    if size < _SECTION.size or offset + size * count > len(data) or names >= count:
        return
    headers = [_SECTION.unpack_from(data, offset + number * size) for number in range(count)]
    _, names_at, _ = headers[names]
    for name_at, start, length in headers:
        name = data[names_at + name_at : names_at + name_at + 32].partition(b"\0")[0]
        if name in SECTIONS:
            yield start, start + length


def _inspect_section(data: mmap.mmap, start: int, end: int, found: FatBinaries) -> None:
    """Go from fat binary to fat binary; between them there are zeros."""
    magic = FATBIN_MAGIC.to_bytes(4, "little")
    while (at := data.find(magic, start, end)) >= 0:
        _, _, header, size = _FATBIN.unpack_from(data, at) if at + _FATBIN.size <= end else (0, 0, 0, 0)
        first, last = at + header, min(at + header + size, end)
        if header < _FATBIN.size or first >= last:
            start = at + len(magic)
            continue
        found.count += 1
        kinds = set(_entries(data, first, last))
        found.machine_code.update(name for kind, name in kinds if kind == MACHINE_CODE)
        found.ptx.update(name for kind, name in kinds if kind == PTX)
        start = last


def _entries(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield kind and compute capability of each entry of a fat binary."""
    while at + _ENTRY.size <= end:
        kind, _, header, size, capability = _ENTRY.unpack_from(data, at)
        if header < _ENTRY.size:
            return
        yield kind, f"{capability // 10}.{capability % 10}"
        at += header + size
