"""Chooses the images of hosts from their facts, before anything is pulled, and names them.

The driver's version decides, and whether TensorFlow's wheel has machine code for the GPU. If not, the driver must
compile PTX, and must then be as new as the CUDA toolkit that made the PTX: compatibility within a major CUDA version
does not cover it. The "CUDA Version" of `nvidia-smi` is not used, because compatibility libraries change it.

Hosts should differ in hardware and driver, not in TensorFlow. First, each host gets the best image for itself. If these
differ, all get the newest one that suits every host of the run, or else of each fleet, unless a host would lose machine
code for its GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import Variant, Version, parse_version, read_variants
from orchestrate.planning.facts import Facts, Image
from results.schema import Device, Status
from results.schema.version import __version__
from results.table.comparable import grouped

ARCHITECTURE = "amd64"
"""Architecture of all our images, as named by image registries."""


# -- names of images -----------------------------------------------------------------------------------------------


def image_name(registry: str | None, variant: str) -> str:
    """Return the name of a variant's image: `REGISTRY/tfbench:VERSION-VARIANT`."""
    prefix = f"{registry.rstrip('/')}/" if registry else ""
    return f"{prefix}tfbench:{__version__}-{variant}"


def repository(reference: str) -> str:
    """Return an image reference without tag and digest."""
    name = reference.partition("@")[0]
    head, colon, tail = name.rpartition(":")
    return head if colon and "/" not in tail else name


def registry_of(reference: str) -> str:
    """Return the registry of an image reference, e.g. `ghcr.io`."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def pinned(reference: str, digest: str | None = None) -> str:
    """Return the image to start, by its digest if known, because tags move; `reference` may contain it."""
    digest = digest or reference.partition("@")[2]
    return f"{repository(reference)}@{digest}" if digest else reference


# -- one host ------------------------------------------------------------------------------------------------------


def wanted_images(host: Host, facts: Facts) -> tuple[Image, ...]:
    """Return the images of a host, each with the reason, or why it cannot be started.

    Args:
        host: May set a custom image, or one or more variants.
        facts: Facts of the host.
    """
    if (problem := unsupported_architecture(host, facts)) is not None:
        return (_image(host, None, problem, Status.UNSUPPORTED),)
    gpus = kinds_of_gpus(host, facts)
    if named := named_images(host):
        return tuple(_judge_named(image, gpus) for image in named)
    if host.device is Device.CPU or not facts.gpus:
        return (_image(host, "cpu", "trains on the processor"),)
    if not gpus:
        problem = "no NVIDIA driver with a GPU: cases for GPUs cannot run here. To measure its CPU, set device: cpu"
        return (_image(host, None, problem, Status.NO_GPU),)
    choice = choose_variant(gpus)
    return (_image(host, choice.variant.name if choice.suits else None, choice.reason, choice.status),)


def _image(host: Host, variant: str | None, reason: str, status: Status = Status.OK) -> Image:
    return Image(variant=variant, reference=image_name(host.registry, variant or "none"), reason=reason, status=status)


def named_images(host: Host) -> tuple[Image, ...]:
    """Return the images that `hosts.yml` sets for a host; a tag is resolved later."""
    why = "named in hosts.yml"
    if host.image is not None:
        digest = host.image.partition("@")[2] or None
        return (Image(variant=None, reference=host.image, reason=why, digest=digest),)
    return tuple(_image(host, name, why) for name in host.variant)


def unsupported_architecture(host: Host, facts: Facts) -> str | None:
    """Return why a host's architecture cannot run our images; None: it can, or has a custom image."""
    if facts.architecture in (None, ARCHITECTURE) or host.image is not None:
        return None
    own = "an image of your own, set image:" if host.ssh is None else "a TensorFlow of your own, set python:"
    return (
        f"its processor is {facts.architecture} (as in GH200 and Grace), and these images are for "
        f"{ARCHITECTURE}: TensorFlow's CUDA packages exist for nothing else. To use {own}"
    )


def probe_reference(host: Host) -> str:
    """Return the image for probing a host: one that it starts anyway, or else the smallest."""
    return host.image or image_name(host.registry, next(iter(host.variant), "cpu"))


def _judge_named(image: Image, gpus: Sequence[KindOfGPU]) -> Image:
    """Check a variant from `hosts.yml` against driver and GPUs; a custom image is not checked."""
    variant = read_variants().get(image.variant or "")
    if variant is None or variant.cuda is None or not gpus:
        return image
    fit = _worst(check_variant(variant, gpu) for gpu in gpus)
    reason = f"{image.reason}; {fit.reason}" if fit.suits else fit.reason
    return dataclasses.replace(image, status=fit.status, reason=reason)


# -- one variant on kinds of GPUs ------------------------------------------------------------------------------------

KindOfGPU = tuple[str, str]
"""Version of the NVIDIA driver, e.g. `550.127.05`, and compute capability, e.g. `8.6`."""


def kinds_of_gpus(host: Host, facts: Facts) -> list[KindOfGPU]:
    """Return the kinds of the used GPUs, that of the lowest compute capability first; empty without a driver."""
    used = [gpu for gpu in facts.gpus if host.gpus is None or gpu.index in host.gpus] or facts.gpus
    capabilities = sorted({gpu.compute_capability for gpu in used if gpu.compute_capability}, key=parse_version)
    return [(facts.driver, capability) for capability in capabilities if facts.driver is not None]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a variant fits a kind of GPU.

    Attributes:
        gpu: The kind of GPU.
        status: `ok`, `unsupported` (never on this GPU), `driver_too_old` (this GPU needs a newer driver).
        compiled: How many kernels the driver compiles at the first start: 0 none, 1 some, 2 all.
        native: Whether the driver is at least as new as the toolkit, without minor-version compatibility.
        needed_driver: Oldest suitable driver.
        reason: In words.
    """

    variant: Variant
    gpu: KindOfGPU
    status: Status
    reason: str
    compiled: int = 2
    native: bool = False
    needed_driver: str = "0"

    @property
    def suits(self) -> bool:
        """Whether the GPU can use it."""
        return self.status is Status.OK


def _worst(fits: Iterable[Fit]) -> Fit:
    """Return the first of these that does not suit, or else the first."""
    return min(fits, key=lambda fit: fit.suits)


def choose_variant(gpus: Sequence[KindOfGPU]) -> Fit:
    """Choose the image for the GPUs of a host: how it fits the first of them, or why no image suits one of them."""
    choice = _worst(best_fits(gpus))
    if choice.suits:
        return choice
    driver, capability = choice.gpu
    fits = [check_variant(variant, choice.gpu) for variant in read_variants().values()]
    if waiting := [fit for fit in fits if fit.status is Status.DRIVER_TOO_OLD and not fit.variant.opt_in]:
        easiest = min(waiting, key=lambda fit: parse_version(fit.needed_driver))
        reason = f"driver {driver} is too old for compute capability {capability} with every image. "
        return dataclasses.replace(easiest, reason=f"{reason}Nearest is {easiest.reason}")
    names = " or ".join(fit.variant.name for fit in fits if fit.suits)
    advice = f". To try {names}: run images build {names}, push it, and set variant: {names}" if names else ""
    return dataclasses.replace(choice, reason=choice.reason + advice)


def best_fits(gpus: Sequence[KindOfGPU]) -> list[Fit]:
    """Return how the best variant fits each kind of GPU, possibly of several hosts; opt-in variants are ignored.

    Machine code is preferred to code that the driver compiles, then the newest TensorFlow, so that hosts with different
    drivers use the same one if possible, then libraries that all drivers support natively: the newest of them,
    otherwise those nearest to the drivers.
    """

    def rank(fits: list[Fit]) -> tuple[bool, int, Version, bool, Version]:
        variant = fits[0].variant
        is_native, cuda = all(fit.native for fit in fits), parse_version(variant.cuda or "0")
        return (
            all(fit.suits for fit in fits),
            -sum(fit.compiled for fit in fits),
            parse_version(variant.tensorflow),
            is_native,
            cuda if is_native else tuple(-part for part in cuda),
        )

    variants = [variant for variant in read_variants().values() if variant.cuda is not None and not variant.opt_in]
    return max(([check_variant(variant, gpu) for gpu in gpus] for variant in variants), key=rank)


def check_variant(variant: Variant, gpu: KindOfGPU) -> Fit:
    """Return how a variant fits a kind of GPU."""
    driver_version, compute_capability = gpu
    compiled, why = _compiled(variant, compute_capability)
    if variant.native_driver is None or variant.minor_driver is None or compiled is None:
        return Fit(variant=variant, gpu=gpu, status=Status.UNSUPPORTED, reason=f"{variant.name}: {why}")
    driver, needed = parse_version(driver_version), variant.native_driver if compiled else variant.minor_driver
    native = driver >= parse_version(variant.native_driver)
    status, framework = Status.OK, f"TensorFlow {variant.tensorflow}, "
    if driver < parse_version(needed):
        status, framework = Status.DRIVER_TOO_OLD, ""
        support = f"which needs driver {needed} or newer, but this is {driver_version}"
    elif native:
        support = f"driver {driver_version} supports CUDA {variant.cuda} natively (from {variant.native_driver})"
    else:
        support = f"driver {driver_version} runs CUDA {variant.cuda} by minor-version compatibility (from {needed})"
    return Fit(
        variant=variant,
        gpu=gpu,
        status=status,
        reason=f"{variant.name}: {framework}{why}, {support}",
        compiled=compiled,
        native=native,
        needed_driver=needed,
    )


def _compiled(variant: Variant, compute_capability: str) -> tuple[int | None, str]:
    """Return how many kernels a GPU's driver has to compile, as in `Fit`, and why; None: it cannot run them."""
    gpu, at_start = parse_version(compute_capability), f"for compute capability {compute_capability} at the first start"
    if variant.cuda is None:
        return None, "has no CUDA"
    if variant.newest is not None and gpu[0] > parse_version(variant.newest)[0]:
        return None, (
            f"no machine code for compute capability {compute_capability}, and PTX that is compiled for it is known to "
            f"fail (newest that works: {variant.newest})"
        )
    if runs := _running(variant.sass, gpu):
        return 0, f"machine code of compute capability {runs[-1]} runs on {compute_capability}"
    if not any(parse_version(ptx) <= gpu for ptx in variant.ptx):
        return None, f"neither machine code nor PTX for compute capability {compute_capability}"
    if _running(variant.sass_some, gpu):
        return 1, f"machine code for some kernels only, the driver compiles the others {at_start}"
    return 2, f"no machine code, the driver compiles all kernels {at_start}"


def _running(capabilities: Iterable[str], gpu: Version) -> list[str]:
    """Return whose machine code runs on a GPU: that of older ones of the same major architecture; newest last."""
    runs = [one for one in capabilities if parse_version(one)[0] == gpu[0] and parse_version(one) <= gpu]
    return sorted(runs, key=parse_version)


# -- one image for several hosts -------------------------------------------------------------------------------------


SUITED: tuple[Callable[[Host], str], ...] = (
    lambda _: "every host of the run",
    lambda host: f"every host of fleet {host.fleet}; none suits all hosts of the run, so software differs between them",
    lambda host: f"{host.key}; none suits all hosts of its fleet, so software differs between them",
)
"""Which hosts share an image, in the order in which that is tried."""


def share_images(hosts: Sequence[Host], probed: Mapping[HostPlace, Facts | str]) -> dict[HostPlace, Image]:
    """Return the images of hosts that share one with others, without digests.

    Args:
        hosts: Of the run.
        probed: Facts of each host, or why the probe failed.

    Returns:
        By host; hosts with a named image, or if all have the same anyway, are excluded.
    """
    images: dict[HostPlace, Image] = {}
    choices = [(host, fits) for host in hosts if (fits := _best_alone(host, probed[host.place]))]
    if len({fits[0].variant for _, fits in choices}) < 2:
        return images
    for suited in SUITED:
        groups = grouped((suited(host), (host, fits)) for host, fits in choices if host.place not in images)
        for whom, group in groups.items():
            alone = [fit for _, fits in group for fit in fits]
            shared = best_fits([fit.gpu for fit in alone])
            # None of the hosts may fail, or compile more than with its own image.
            if all(fit.suits and fit.compiled <= own.compiled for fit, own in zip(shared, alone, strict=True)):
                best = shared[0].variant
                for host, (own, *_) in group:
                    only = f" (this host alone: {own.variant.name})" if own.variant != best else ""
                    reason = f"{check_variant(best, own.gpu).reason}; the newest image that suits {whom}{only}"
                    images[host.place] = _image(host, best.name, reason)
    return images


def _best_alone(host: Host, facts: Facts | str) -> list[Fit]:
    """Return how the best image fits a host; none: no image suits it, or it is an instance of another one."""
    if isinstance(facts, str) or not is_chosen(host) or not facts.images:
        return []
    gpus = kinds_of_gpus(host, facts)
    fits = best_fits(gpus) if gpus else []
    return fits if fits and fits[0].variant.name == facts.images[0].variant else []


def is_chosen(host: Host) -> bool:
    """Return whether a host's image is chosen by its driver and GPUs."""
    return host.image is None and not host.variant and host.wants_gpus and host.python is None
