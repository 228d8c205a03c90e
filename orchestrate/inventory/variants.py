"""Chooses the container image of a host by its driver and GPU together.

The "CUDA Version" of `nvidia-smi` is not used, because compatibility libraries change it. The driver's version matters,
and whether TensorFlow's wheel has machine code for the GPU. If not, the driver must compile PTX, and must then be as
new as the CUDA toolkit that made the PTX: compatibility within a major CUDA version does not cover it.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from orchestrate.project import containers_folder
from orchestrate.text import shown
from orchestrate.yaml_files import did_you_mean
from results.schema import Status

IMAGES_FILE = containers_folder() / "images.toml"

Version = tuple[int, ...]


class Code(enum.StrEnum):
    """Origin of the kernels that a GPU runs."""

    MACHINE = "machine code"  # in the wheel, for this GPU or an older one of the same major architecture
    COMPILED = "compiled by the driver"  # all or some, from PTX, at the first start


@dataclass(frozen=True, kw_only=True)
class Tested:
    """Where an image has been tested, in words.

    Attributes:
        gpu: Names of GPUs on which it has trained, or None.
        cpu: Result on a CPU; None: not started.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    gpu: str | None = None
    cpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A container image: a row of `images.toml`.

    Attributes:
        name: Of the row and of its lock file.
        why: Purpose.
        seen: Where it has been tested.
        newest_python: Newest Python for which there are wheels of its TensorFlow.
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
    newest_python: str = "3.13"
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
    seen: Tested = Tested()

    def build_arguments(self, *, version: str, revision: str) -> dict[str, str]:
        """Return the arguments of `docker build` for this image.

        Args:
            version: Of tfbench.
            revision: Of its source.
        """
        arguments = {"VARIANT": self.name, "VERSION": version, "REVISION": revision}
        if self.base is not None:
            arguments["BASE"] = self.base
        if self.cuda is not None and self.minor_driver is not None:
            arguments |= {"CUDA": self.cuda, "MIN_DRIVER": self.minor_driver, "SM": ",".join(self.sass)}
        return arguments


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a variant fits a GPU, or the chosen variant.

    Attributes:
        variant: None: no image suits.
        status: `ok`, `unsupported` (never on this GPU), `driver_too_old` (this GPU needs a newer driver), `no_gpu`.
        code: Origin of the kernels; None: the GPU is not supported.
        partly: Whether the driver compiles only some kernels.
        native: Whether the driver is at least as new as the toolkit, without minor-version compatibility.
        needed_driver: Oldest suitable driver; None: there is none.
        reason: In words.
    """

    variant: Variant | None
    status: Status
    reason: str
    code: Code | None = None
    partly: bool = False
    native: bool = False
    needed_driver: str | None = None


def unknown_variant(name: str, known: Sequence[str]) -> str:
    """Describe a variant name that does not exist, and what to use instead.

    Args:
        name: As given.
        known: Names in the table.
    """
    return f"unknown variant {shown(name)}. {did_you_mean(name, list(known), 'Known variants')}"


def read_variants(path: Path = IMAGES_FILE) -> list[Variant]:
    """Read the table of images.

    Raises:
        ValueError: Not a table of variants.
    """
    rows = tomllib.loads(path.read_text())["variants"].items()
    return TypeAdapter(list[Variant]).validate_python([{**row, "name": name} for name, row in rows])


def choose_variant(driver_version: str | None, compute_capability: str | None, variants: Sequence[Variant]) -> Fit:
    """Choose the image for a host, and explain the choice.

    Machine code is preferred to code that the driver compiles, then the newest TensorFlow, so that hosts with different
    drivers use the same one if possible, then libraries that the driver supports natively.

    Args:
        driver_version: Of the NVIDIA driver, e.g. `550.127.05`; None: no driver.
        compute_capability: Of the host's GPUs, e.g. `8.6`; None: no GPU.
        variants: From `read_variants`; opt-in variants are ignored.
    """
    if driver_version is None or compute_capability is None:
        cpu = next((variant for variant in variants if variant.cuda is None and not variant.opt_in), None)
        what = "no NVIDIA driver" if driver_version is None else f"driver {driver_version}, but no GPU"
        offer = f"; {cpu.name} measures its CPU, in cases with device: cpu" if cpu else ""
        return Fit(variant=cpu, status=Status.NO_GPU, reason=f"{what}: cases for GPUs cannot run here{offer}")
    fits = [check_variant(variant, driver_version, compute_capability) for variant in candidates(variants)]
    if not fits:
        return Fit(variant=None, status=Status.UNSUPPORTED, reason="no image with CUDA is known")
    best = max(fits, key=lambda fit: rank([fit]))
    if best.status is Status.OK:
        return best
    waiting = [fit for fit in fits if fit.status is Status.DRIVER_TOO_OLD]
    if waiting:
        easiest = min(waiting, key=lambda fit: parse_version(fit.needed_driver or "0"))
        reason = f"driver {driver_version} is too old for compute capability {compute_capability} with every image. "
        return Fit(variant=None, status=Status.DRIVER_TOO_OLD, reason=f"{reason}Nearest is {easiest.reason}")
    named = [check_variant(variant, driver_version, compute_capability) for variant in variants if variant.opt_in]
    names = " or ".join(fit.variant.name for fit in named if fit.variant and fit.status is Status.OK)
    advice = f". To try {names}: run images build {names}, push it, and set variant: {names}" if names else ""
    return Fit(variant=None, status=Status.UNSUPPORTED, reason=best.reason + advice)


def candidates(variants: Sequence[Variant]) -> list[Variant]:
    """Return the CUDA variants that are not opt-in."""
    return [variant for variant in variants if variant.cuda is not None and not variant.opt_in]


def check_variant(variant: Variant, driver_version: str, compute_capability: str) -> Fit:
    """Return how a variant fits a GPU and its driver.

    Args:
        variant: One of `read_variants`.
        driver_version: e.g. `550.127.05`.
        compute_capability: e.g. `8.6`.
    """
    driver, gpu = parse_version(driver_version), parse_version(compute_capability)
    if variant.cuda is None or variant.native_driver is None or variant.minor_driver is None:
        return Fit(variant=variant, status=Status.UNSUPPORTED, reason=f"{variant.name} has no CUDA")
    code, why_code = _code(variant, gpu)
    if code is None:
        return Fit(variant=variant, status=Status.UNSUPPORTED, reason=f"{variant.name}: {why_code}")
    needed = variant.minor_driver if code is Code.MACHINE else variant.native_driver
    native = driver >= parse_version(variant.native_driver)
    if driver < parse_version(needed):
        return Fit(
            variant=variant,
            status=Status.DRIVER_TOO_OLD,
            reason=f"{variant.name}: {why_code}, which needs driver {needed} or newer, but this is {driver_version}",
            code=code,
            needed_driver=needed,
        )
    support = (
        f"driver {driver_version} supports CUDA {variant.cuda} natively (from {variant.native_driver})"
        if native
        else f"driver {driver_version} runs CUDA {variant.cuda} by minor-version compatibility (from {needed})"
    )
    return Fit(
        variant=variant,
        status=Status.OK,
        reason=f"{variant.name}: TensorFlow {variant.tensorflow}, {why_code}, {support}",
        code=code,
        partly=code is Code.COMPILED and _runs_some(variant, gpu),
        native=native,
        needed_driver=needed,
    )


def parse_version(text: str) -> Version:
    """Parse `550.127.05` as (550, 127, 5).

    Raises:
        ValueError: Not dot-separated numbers.
    """
    return tuple(int(part) for part in text.split("."))


def _code(variant: Variant, gpu: Version) -> tuple[Code | None, str]:
    """Return the origin of a GPU's kernels, with the reason in words."""
    shown = ".".join(map(str, gpu))
    if variant.newest is not None and gpu[0] > parse_version(variant.newest)[0]:
        return None, (
            f"no machine code for compute capability {shown}, and PTX that is compiled for it is known to fail "
            f"(newest that works: {variant.newest})"
        )
    # Machine code also runs on newer GPUs, but only of the same major architecture.
    runs = [sm for sm in variant.sass if parse_version(sm)[0] == gpu[0] and parse_version(sm) <= gpu]
    if runs:
        return Code.MACHINE, f"machine code of compute capability {max(runs, key=parse_version)} runs on {shown}"
    compiled = [ptx for ptx in variant.ptx if parse_version(ptx) <= gpu]
    if not compiled:
        return None, f"neither machine code nor PTX for compute capability {shown}"
    some = _runs_some(variant, gpu)
    how_much = (
        "machine code for some kernels only, the driver compiles" if some else "no machine code, the driver compiles"
    )
    what = "the others" if some else "all kernels"
    return Code.COMPILED, f"{how_much} {what} for compute capability {shown} at the first start"


def _runs_some(variant: Variant, gpu: Version) -> bool:
    """Return whether a variant has machine code for a GPU in some of its libraries."""
    return any(parse_version(sm)[0] == gpu[0] and parse_version(sm) <= gpu for sm in variant.sass_some)


def rank(fits: Sequence[Fit]) -> tuple[bool, bool, Version, bool, Version]:
    """Return the sort key of a variant, the best highest, from its fits to a host's GPUs."""
    variant, native = fits[0].variant, all(fit.native for fit in fits)
    cuda = parse_version((variant and variant.cuda) or "0")
    return (
        all(fit.status is Status.OK for fit in fits),
        all(fit.code is Code.MACHINE for fit in fits),
        parse_version(variant.tensorflow if variant else "0"),
        native,
        # The newest libraries with native support, otherwise those nearest to the driver.
        cuda if native else tuple(-part for part in cuda),
    )
