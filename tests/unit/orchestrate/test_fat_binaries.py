"""`images inspect-wheel` counts architectures in libraries, whatever else is in them."""

from __future__ import annotations

import argparse
import struct
import zipfile
from pathlib import Path

import pytest

from orchestrate.errors import UserError
from orchestrate.images.commands import images
from orchestrate.images.fat_binaries import FATBIN_MAGIC, inspect_wheel

PTX, CODE = 1, 2


def entry(kind: int, capability: int, size: int = 64) -> bytes:
    header = struct.pack("<HHIQ12xI32x", kind, 0x101, 64, size, capability)
    return header + b"\x50\xed\x55\xba" * (size // 4)  # content may hold what looks like the beginning of another


def fat_binary(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", FATBIN_MAGIC, 1, 16, len(content)) + content


def library(section: bytes, content: bytes) -> bytes:
    """Write an ELF file with one section and the names of sections."""
    names = b"\0" + section + b"\0.shstrtab\0"
    head = struct.Struct("<16sHHIQQQIHHHHHH")
    at = head.size + len(content) + len(names)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = head.pack(ident, 3, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 3, 2)
    one = struct.Struct("<IIQQQQIIQQ")
    sections = [
        one.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        one.pack(1, 1, 0, 0, head.size, len(content), 0, 0, 0, 0),
        one.pack(2 + len(section), 3, 0, 0, head.size + len(content), len(names), 0, 0, 0, 0),
    ]
    return header + content + names + b"".join(sections)


def wheel(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"tensorflow/{name.replace('_so', '.so.2')}", content)
    return path


def test_each_fat_binary_counts_once_for_each_architecture(tmp_path: Path):
    first = fat_binary(entry(CODE, 80), entry(CODE, 80), entry(CODE, 120), entry(PTX, 120, 128))
    second = fat_binary(entry(CODE, 80))
    found = inspect_wheel(
        wheel(
            tmp_path / "a.whl",
            cc_so=library(b".nv_fatbin", first + bytes(24) + second),
            other_so=library(b"__nv_relfatbin", fat_binary(entry(CODE, 90))),
            text_so=library(b".text", first),
            readme=first,
        )
    )
    assert found.count == 3
    assert dict(found.machine_code) == {"8.0": 2, "12.0": 1, "9.0": 1} and dict(found.ptx) == {"12.0": 1}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x02\x01" + b"\xff" * 100,
        library(b".nv_fatbin", struct.pack("<IHHQ", FATBIN_MAGIC, 1, 16, 1 << 60) + b"x" * 40)[:200],
        library(b".nv_fatbin", struct.pack("<IHHQ", FATBIN_MAGIC, 1, 0, 0)),
        library(b".nv_fatbin", FATBIN_MAGIC.to_bytes(4, "little")),
    ],
)
def test_damaged_libraries_are_passed_over(tmp_path: Path, content: bytes):
    assert inspect_wheel(wheel(tmp_path / "a.whl", cc_so=content)).machine_code == {}


def test_what_is_no_wheel_is_said_to_be_none(tmp_path: Path):
    (tmp_path / "x.whl").write_text("no")
    with pytest.raises(UserError, match="not a wheel"):
        inspect_wheel(tmp_path / "x.whl")


def test_the_command_shows_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = wheel(
        tmp_path / "a.whl",
        cc_so=library(b".nv_fatbin", fat_binary(entry(CODE, 80), entry(PTX, 90)) + fat_binary(entry(CODE, 80))),
    )
    assert images(argparse.Namespace(action="inspect-wheel", wheel=path)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a.whl: 2 fat binaries",
        "8.0: machine code in 2 (100%)",
        "9.0: PTX in 1 (50%)",
    ]
