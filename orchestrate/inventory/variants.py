"""The table of container images, `containers/images.toml`; `planning.images` chooses from it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

from orchestrate.project import containers_folder
from orchestrate.text import shown
from orchestrate.yaml_files import did_you_mean

IMAGES_FILE = containers_folder() / "images.toml"

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A container image: a row of `images.toml`.

    Attributes:
        name: Of the row and of its lock file.
        why: Purpose.
        seen: Where it has been tested, in words: the GPUs on which it has trained, and the result on a CPU.
        keras: Version; None: that of the base image.
        cuda: CUDA version of its libraries; None without CUDA.
        sass: Compute capabilities with machine code in nearly all kernels.
        sass_some: Compute capabilities with machine code in some kernels.
        ptx: Compute capabilities with PTX, which the driver compiles for them and newer ones.
        native_driver: Oldest driver that can compile its PTX.
        minor_driver: Oldest driver that runs its machine code.
        newest: Highest compute capability known to work.
        glibc: Oldest C library for which there are wheels of all packages in its lock.
        wheels_megabytes: Size of the wheels in its lock; None: no lock.
        base: Base image that contains TensorFlow, to which the runner is added; None: built from packages.
        opt_in: Whether it is used only if named.
        verified: Whether it has been built and run.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    why: str
    tensorflow: str
    python: str
    glibc: str = "2.28"
    keras: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    sass: tuple[str, ...] = ()
    sass_some: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    native_driver: str | None = None
    minor_driver: str | None = None
    newest: str | None = None
    wheels_megabytes: int | None = None
    base: str | None = None
    opt_in: bool = False
    verified: bool = True
    seen: Mapping[Literal["gpu", "cpu"], str] = field(default_factory=dict, hash=False)


@cache
def read_variants(path: Path = IMAGES_FILE) -> dict[str, Variant]:
    """Read the table of images; return its rows by name.

    Raises:
        ValueError: Not a table of variants.
    """
    rows = tomllib.loads(path.read_text())["variants"].items()
    return TypeAdapter(dict[str, Variant]).validate_python({name: {**row, "name": name} for name, row in rows})


def unknown_variant(name: str) -> str:
    """Describe a variant name that is not in the table, and what to use instead."""
    return f"unknown variant {shown(name)}. {did_you_mean(name, list(read_variants()), 'Known variants')}"


def parse_version(text: str) -> Version:
    """Parse `550.127.05` as (550, 127, 5).

    Raises:
        ValueError: Not dot-separated numbers.
    """
    return tuple(int(part) for part in text.split("."))
