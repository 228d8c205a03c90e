"""Chooses the images of hosts from their facts, before anything is pulled.

Hosts should differ in hardware and driver, not in TensorFlow. First, each host gets the best image for itself. If these
differ, all get the newest one that suits every host of the run, or else of each fleet, unless a host would lose machine
code for its GPU.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import (
    Code,
    Fit,
    Variant,
    candidates,
    check_variant,
    choose_variant,
    parse_version,
    rank,
)
from orchestrate.planning.facts import Facts, Image
from results.schema import Device, Status
from results.schema.version import __version__

ARCHITECTURE = "amd64"
"""Architecture of all our images, as named by image registries."""


def wanted_images(host: Host, facts: Facts, variants: Sequence[Variant]) -> list[Image]:
    """Return the images of a host, each with the reason, or why it cannot be started.

    Args:
        host: May set a custom image, or one or more variants.
        facts: Facts of the host.
        variants: From `read_variants`.
    """
    if (problem := unsupported_architecture(host, facts)) is not None:
        reference = image_reference(host, "cpu")
        return [Image(variant=None, reference=reference, reason="", status=Status.UNSUPPORTED, problem=problem)]
    known = {variant.name: variant for variant in variants}
    named = [_judge_named(host, facts, image, known) for image in named_images(host)]
    return named or [_chosen(host, facts, variants)]


def named_images(host: Host) -> tuple[Image, ...]:
    """Return the images that `hosts.yml` sets for a host."""
    if host.image is not None:
        return (Image(variant=None, reference=host.image, reason="named in hosts.yml"),)
    return tuple(
        Image(variant=name, reference=image_reference(host, name), reason="named in hosts.yml")
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
    return image_reference(host, host.variants[0] if host.variants else "cpu")


def image_reference(host: Host, variant: str) -> str:
    """Return the reference of a variant's image on a host."""
    prefix = f"{host.registry.rstrip('/')}/" if host.registry else ""
    return f"{prefix}tfbench:{__version__}-{variant}"


def _judge_named(host: Host, facts: Facts, image: Image, known: Mapping[str, Variant]) -> Image:
    """Check a variant from `hosts.yml` against driver and GPUs; a custom image is not checked."""
    variant = known.get(image.variant or "")
    if variant is None or variant.cuda is None or not facts.gpus or facts.driver is None:
        return image
    fits = fits_of(host, facts, variant)
    worst = next((fit for fit in fits if fit.status is not Status.OK), None)
    if worst is not None:
        return dataclasses.replace(image, status=worst.status, problem=worst.reason)
    if not fits:  # the driver reports no compute capability
        return image
    return dataclasses.replace(image, reason=f"{image.reason}; {fits[0].reason}")


def _chosen(host: Host, facts: Facts, variants: Sequence[Variant]) -> Image:
    """Choose a variant that suits all used GPUs of a host."""
    if host.device is Device.CPU or not facts.gpus:
        return Image(variant="cpu", reference=image_reference(host, "cpu"), reason="trains on the processor")
    capabilities: list[str | None] = [*used_capabilities(host, facts)] or [None]
    choices = [choose_variant(facts.driver, capability, variants) for capability in capabilities]
    for choice in choices:
        if choice.status is not Status.OK:
            reference = image_reference(host, choice.variant.name if choice.variant else "none")
            reason = "chosen by driver and compute capability"
            return Image(variant=None, reference=reference, reason=reason, status=choice.status, problem=choice.reason)
    fits = max((fits_of(host, facts, variant) for variant in candidates(variants)), key=rank)
    if rank(fits)[0] and fits[0].variant is not None:
        name = fits[0].variant.name
        return Image(variant=name, reference=image_reference(host, name), reason=fits[0].reason)
    names = ", ".join(sorted(choice.variant.name for choice in choices if choice.variant is not None))
    problem = f"its GPUs need different images ({names}). Write the host twice, with gpus: and variant:"
    return Image(variant=None, reference="", reason="mixed GPUs", status=Status.UNSUPPORTED, problem=problem)


def fits_of(host: Host, facts: Facts, variant: Variant) -> tuple[Fit, ...]:
    """Return how a variant suits each compute capability of the used GPUs of a host."""
    driver = facts.driver or "0"
    return tuple(check_variant(variant, driver, capability) for capability in used_capabilities(host, facts))


def used_capabilities(host: Host, facts: Facts) -> list[str]:
    """Return the compute capabilities of the used GPUs, lowest first."""
    used = [gpu for gpu in facts.gpus if host.gpus is None or gpu.index in host.gpus] or facts.gpus
    return sorted({gpu.compute_capability for gpu in used if gpu.compute_capability}, key=parse_version)


@dataclass(frozen=True)
class _Chooser:
    """A host whose image is chosen by driver and GPU, and the best image for it alone."""

    host: Host
    facts: Facts
    own: Image
    own_fits: tuple[Fit, ...]


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
    known = {fleet: tuple(names) for fleet, names in of_fleet.items() if len(names) == 1}
    return {
        host.place: known[host.fleet]
        for host in hosts
        if isinstance(probed[host.place], str) and host.fleet in known and _chooses(host)
    }


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
    fitting = [fits for variant in candidates(variants) if (fits := _suits_all(choosers, variant))]
    best = max(fitting, key=rank)[0].variant if fitting else None
    return None if best is None else {chooser.host.place: _shared_image(chooser, best, whose) for chooser in choosers}


def _suits_all(choosers: Sequence[_Chooser], variant: Variant) -> list[Fit]:
    """Return how a variant suits the GPUs of all hosts; empty: one of them would fail or need more compilation."""
    pairs = [
        pair
        for chooser in choosers
        for pair in zip(fits_of(chooser.host, chooser.facts, variant), chooser.own_fits, strict=True)
    ]
    if any(fit.status is not Status.OK or _compiled(fit) > _compiled(own) for fit, own in pairs):
        return []
    return [fit for fit, _ in pairs]


def _compiled(fit: Fit) -> int:
    """Return how many kernels a GPU's driver has to compile: 0 none, 1 some, 2 all."""
    return 0 if fit.code is Code.MACHINE else 1 if fit.partly else 2


def _shared_image(chooser: _Chooser, variant: Variant, whose: str) -> Image:
    """Return the shared image for one host, with the reason."""
    (first, *_), own = fits_of(chooser.host, chooser.facts, variant), chooser.own.variant
    alone = f" (this host alone: {own})" if own != variant.name else ""
    return Image(
        variant=variant.name,
        reference=image_reference(chooser.host, variant.name),
        reason=f"{first.reason}; the newest image that suits every host of {whose}{alone}",
    )
