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
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import Variant, Version, parse_version
from orchestrate.planning.facts import Facts, Image
from results.schema import Device, Status
from results.schema.version import __version__

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


def with_named_digest(image: Image) -> Image:
    """Move the digest of a reference to the image's field; a tag is resolved by the first node of a queue."""
    digest = image.reference.partition("@")[2]
    return dataclasses.replace(image, digest=digest) if digest else image


# -- one host ------------------------------------------------------------------------------------------------------


def wanted_images(host: Host, facts: Facts, variants: Sequence[Variant]) -> list[Image]:
    """Return the images of a host, each with the reason, or why it cannot be started.

    Args:
        host: May set a custom image, or one or more variants.
        facts: Facts of the host.
        variants: From `read_variants`.
    """
    if (problem := unsupported_architecture(host, facts)) is not None:
        reference = image_name(host.registry, "cpu")
        return [Image(variant=None, reference=reference, reason="", status=Status.UNSUPPORTED, problem=problem)]
    known = {variant.name: variant for variant in variants}
    named = [_judge_named(host, facts, image, known.get(image.variant or "")) for image in named_images(host)]
    return named or [_chosen(host, facts, variants)]


def named_images(host: Host) -> tuple[Image, ...]:
    """Return the images that `hosts.yml` sets for a host."""
    if host.image is not None:
        return (Image(variant=None, reference=host.image, reason="named in hosts.yml"),)
    return tuple(
        Image(variant=name, reference=image_name(host.registry, name), reason="named in hosts.yml")
        for name in host.variants
    )


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
    if host.image is not None:
        return host.image
    return image_name(host.registry, host.variants[0] if host.variants else "cpu")


def _judge_named(host: Host, facts: Facts, image: Image, variant: Variant | None) -> Image:
    """Check a variant from `hosts.yml` against driver and GPUs; a custom image is not checked."""
    if variant is None or variant.cuda is None or facts.driver is None:
        return image
    fits = fits_of(host, facts, variant)
    for fit in fits:
        if fit.status is not Status.OK:
            return dataclasses.replace(image, status=fit.status, problem=fit.reason)
    return dataclasses.replace(image, reason="; ".join([image.reason, *(fit.reason for fit in fits[:1])]))


def _chosen(host: Host, facts: Facts, variants: Sequence[Variant]) -> Image:
    """Choose a variant that suits all used GPUs of a host."""
    if host.device is Device.CPU or not facts.gpus:
        return Image(variant="cpu", reference=image_name(host.registry, "cpu"), reason="trains on the processor")
    capabilities: list[str | None] = [*used_capabilities(host, facts)] or [None]
    choices = [choose_variant(facts.driver, gpu, variants) for gpu in capabilities]
    for choice in choices:
        if choice.status is not Status.OK:
            reference = image_name(host.registry, choice.variant.name if choice.variant else "none")
            reason = "chosen by driver and compute capability"
            return Image(variant=None, reference=reference, reason=reason, status=choice.status, problem=choice.reason)
    fits = max((fits_of(host, facts, variant) for variant in candidates(variants)), key=rank)
    if rank(fits)[0] and fits[0].variant is not None:
        name = fits[0].variant.name
        return Image(variant=name, reference=image_name(host.registry, name), reason=fits[0].reason)
    names = ", ".join(sorted(choice.variant.name for choice in choices if choice.variant is not None))
    problem = f"its GPUs need different images ({names}). Write the host twice, with gpus: and variant:"
    return Image(variant=None, reference="", reason="mixed GPUs", status=Status.UNSUPPORTED, problem=problem)


def fits_of(host: Host, facts: Facts, variant: Variant) -> list[Fit]:
    """Return how a variant suits each compute capability of the used GPUs of a host."""
    return [check_variant(variant, facts.driver or "0", gpu) for gpu in used_capabilities(host, facts)]


def used_capabilities(host: Host, facts: Facts) -> list[str]:
    """Return the compute capabilities of the used GPUs, lowest first."""
    used = [gpu for gpu in facts.gpus if host.gpus is None or gpu.index in host.gpus] or facts.gpus
    return sorted({gpu.compute_capability for gpu in used if gpu.compute_capability}, key=parse_version)


# -- one variant on one kind of GPU ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a variant fits a GPU, or the chosen variant.

    Attributes:
        variant: None: no image suits.
        status: `ok`, `unsupported` (never on this GPU), `driver_too_old` (this GPU needs a newer driver), `no_gpu`.
        compiled: How many kernels the driver compiles at the first start: 0 none, 1 some, 2 all.
        native: Whether the driver is at least as new as the toolkit, without minor-version compatibility.
        needed_driver: Oldest suitable driver; None: there is none.
        reason: In words.
    """

    variant: Variant | None
    status: Status
    reason: str
    compiled: int = 2
    native: bool = False
    needed_driver: str | None = None


def choose_variant(driver_version: str | None, compute_capability: str | None, variants: Sequence[Variant]) -> Fit:
    """Choose the image for a kind of GPU, and explain the choice.

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
    all_fits = [check_variant(one, driver_version, compute_capability) for one in variants if one.cuda is not None]
    fits = [fit for fit in all_fits if fit.variant and not fit.variant.opt_in]
    if not fits:
        return Fit(variant=None, status=Status.UNSUPPORTED, reason="no image with CUDA is known")
    best = max(fits, key=lambda fit: rank([fit]))
    if best.status is Status.OK:
        return best
    if waiting := [fit for fit in fits if fit.status is Status.DRIVER_TOO_OLD]:
        easiest = min(waiting, key=lambda fit: parse_version(fit.needed_driver or "0"))
        reason = f"driver {driver_version} is too old for compute capability {compute_capability} with every image. "
        return Fit(variant=None, status=Status.DRIVER_TOO_OLD, reason=f"{reason}Nearest is {easiest.reason}")
    names = " or ".join(fit.variant.name for fit in all_fits if fit.variant and fit.status is Status.OK)
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
    compiled, why = _compiled(variant, compute_capability)
    if variant.native_driver is None or variant.minor_driver is None or compiled is None:
        return Fit(variant=variant, status=Status.UNSUPPORTED, reason=f"{variant.name}: {why}")
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


def rank(fits: Sequence[Fit]) -> tuple[bool, bool, Version, bool, Version]:
    """Return the sort key of a variant, the best highest, from its fits to a host's GPUs."""
    variant, native = fits[0].variant, all(fit.native for fit in fits)
    cuda = parse_version((variant and variant.cuda) or "0")
    return (
        all(fit.status is Status.OK for fit in fits),
        all(fit.compiled == 0 for fit in fits),
        parse_version(variant.tensorflow if variant else "0"),
        native,
        # The newest libraries with native support, otherwise those nearest to the driver.
        cuda if native else tuple(-part for part in cuda),
    )


# -- one image for several hosts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chooser:
    """A host whose image is chosen by driver and GPU, and the best image for it alone."""

    host: Host
    facts: Facts
    own: Image
    own_fits: Sequence[Fit]


def share_images(
    hosts: Sequence[Host], probed: Mapping[HostPlace, Facts | str], variants: Sequence[Variant]
) -> dict[HostPlace, Image]:
    """Return the images of hosts that share one with others, without digests.

    Args:
        hosts: Of the run.
        probed: Facts of each host, or why the probe failed.
        variants: From `read_variants`.

    Returns:
        By host; hosts with a named image, or if all have the same anyway, are excluded.
    """
    choosers = [one for host in hosts if (one := _chooser(host, probed[host.place], variants)) is not None]
    shared = _share(choosers, "the run", variants)
    if shared is not None:
        return shared
    found = {chooser.host.place: chooser.own for chooser in choosers}
    for fleet in {chooser.host.fleet for chooser in choosers}:
        found |= _share([one for one in choosers if one.host.fleet == fleet], f"fleet {fleet}", variants) or {}
    why = "no image suits all hosts of the run, so software differs between them"
    return {place: dataclasses.replace(image, reason=f"{image.reason}; {why}") for place, image in found.items()}


def fleets_variants(hosts: Sequence[Host], probed: Mapping[HostPlace, Facts | str]) -> dict[HostPlace, tuple[str, ...]]:
    """Return the variant of the fleet for each host whose probe failed, so that it uses the same one.

    Args:
        hosts: Of the run.
        probed: Facts of each host, including its images, or why the probe failed.
    """
    of_fleet: dict[str, set[str]] = defaultdict(set)
    for host in hosts:
        facts = probed[host.place]
        if isinstance(facts, Facts) and facts.gpus and _chooses(host):
            of_fleet[host.fleet] |= {image.variant for image in facts.images if image.variant is not None}
    silent = [host for host in hosts if isinstance(probed[host.place], str) and _chooses(host)]
    return {host.place: tuple(names) for host in silent if len(names := of_fleet[host.fleet]) == 1}


def _chooses(host: Host) -> bool:
    """Return whether a host's image is chosen by its driver and GPUs."""
    return host.image is None and not host.variants and host.wants_gpus and host.python is None


def _chooser(host: Host, facts: Facts | str, variants: Sequence[Variant]) -> _Chooser | None:
    """Return the choice of a host; None: it has none, or no image suits it."""
    if isinstance(facts, str) or not _chooses(host) or not facts.gpus or facts.driver is None or not facts.images:
        return None
    own, *others = wanted_images(host, facts, variants)
    chosen = next((variant for variant in variants if variant.name == own.variant), None)
    instance = facts.images[0].variant != own.variant and facts.images[0].status is Status.OK and host.ssh is not None
    if others or chosen is None or own.status is not Status.OK or instance:
        return None  # an instance started from one of our images uses that one
    return _Chooser(host, facts, own, fits_of(host, facts, chosen))


def _share(choosers: Sequence[_Chooser], whose: str, variants: Sequence[Variant]) -> dict[HostPlace, Image] | None:
    """Return a shared image for all these hosts; None: none suits all. Empty: they have the same one anyway."""
    if len({chooser.own.variant for chooser in choosers}) < 2:
        return {}
    suiting: list[list[Fit]] = []
    for variant in candidates(variants):
        fits = [fit for chooser in choosers for fit in fits_of(chooser.host, chooser.facts, variant)]
        alone = [fit for chooser in choosers for fit in chooser.own_fits]
        # None of the hosts may fail, or compile more than with its own image.
        if all(fit.status is Status.OK and fit.compiled <= own.compiled for fit, own in zip(fits, alone, strict=True)):
            suiting.append(fits)
    if not suiting or (best := max(suiting, key=rank)[0].variant) is None:
        return None
    return {chooser.host.place: _shared_image(chooser, best, whose) for chooser in choosers}


def _shared_image(chooser: _Chooser, variant: Variant, whose: str) -> Image:
    """Return the shared image for one host, with the reason."""
    first, own = fits_of(chooser.host, chooser.facts, variant)[0], chooser.own.variant
    alone = f" (this host alone: {own})" if own != variant.name else ""
    return Image(
        variant=variant.name,
        reference=image_name(chooser.host.registry, variant.name),
        reason=f"{first.reason}; the newest image that suits every host of {whose}{alone}",
    )
