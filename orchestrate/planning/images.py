"""Which images a host starts, by fact and before anything is pulled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import (
    Choice,
    Variant,
    check_variant,
    choose_variant,
    parse_version,
)
from orchestrate.planning.facts import Facts, Image
from results.schema import Device, Status
from results.schema.version import __version__

ARCHITECTURE = "amd64"
"""Of every image that is built here, in the words of image registries."""


def wanted_images(host: Host, facts: Facts, variants: Sequence[Variant]) -> list[Image]:
    """Say which images a host starts, each with the reason, or why it cannot.

    Args:
        host: May name an image of the user's own, or one or more variants.
        facts: Driver and GPUs as the host reported them.
        variants: From `read_variants`.
    """
    if (problem := foreign_architecture(host, facts)) is not None:
        reference = image_reference(host, "cpu")
        return [Image(variant=None, reference=reference, reason="", status=Status.UNSUPPORTED, problem=problem)]
    known = {variant.name: variant for variant in variants}
    named = [_judge_named(host, facts, image, known) for image in named_images(host)]
    return named or [_chosen(host, facts, variants)]


def named_images(host: Host) -> tuple[Image, ...]:
    """Return what `hosts.yml` names, for a host that could not be asked."""
    if host.image is not None:
        return (Image(variant=None, reference=host.image, reason="named in hosts.yml"),)
    return tuple(
        Image(variant=name, reference=image_reference(host, name), reason="named in hosts.yml")
        for name in host.variants
    )


def foreign_architecture(host: Host, facts: Facts) -> str | None:
    """Say why a machine with another processor cannot run our images; None: it can, or the user's own is named."""
    if facts.architecture in (None, ARCHITECTURE) or host.image is not None:
        return None
    return (
        f"its processor is {facts.architecture} (as in GH200 and Grace), and these images are for {ARCHITECTURE}: "
        "TensorFlow's CUDA packages exist for nothing else. Name an image of your own with image:"
    )


def probe_reference(host: Host) -> str:
    """Name the image in which a host's driver is asked: one that the host starts anyway, else the smallest."""
    if host.image is not None:
        return host.image
    return image_reference(host, host.variants[0] if host.variants else "cpu")


def image_reference(host: Host, variant: str) -> str:
    """Name the image of a variant on a host."""
    prefix = f"{host.registry.rstrip('/')}/" if host.registry else ""
    return f"{prefix}tfbench:{__version__}-{variant}"


def _judge_named(host: Host, facts: Facts, image: Image, known: Mapping[str, Variant]) -> Image:
    """Check a variant that the user named against driver and GPUs; an image of the user's own is not judged."""
    variant = known.get(image.variant or "")
    if variant is None or variant.cuda is None or not facts.gpus or facts.driver is None:
        return image
    fits = [check_variant(variant, facts.driver, capability) for capability in used_capabilities(host, facts)]
    worst = next((fit for fit in fits if fit.status is not Status.OK), None)
    if worst is not None:
        return dataclasses.replace(image, status=worst.status, problem=worst.reason)
    if not fits:  # the driver reports no compute capability
        return image
    return dataclasses.replace(image, reason=f"{image.reason}; {fits[0].reason}")


def _chosen(host: Host, facts: Facts, variants: Sequence[Variant]) -> Image:
    """Choose one variant that suits all GPUs of the host that are used."""
    if host.device is Device.CPU or not facts.gpus:
        return Image(variant="cpu", reference=image_reference(host, "cpu"), reason="trains on the processor")
    capabilities = used_capabilities(host, facts)
    choices = [choose_variant(facts.driver, capability, variants) for capability in capabilities]
    for choice in choices:
        if choice.variant is None or choice.status is not Status.OK:
            return _impossible(host, choice)
    for choice in choices:
        if choice.variant is not None and facts.driver is not None:
            fits = [check_variant(choice.variant, facts.driver, capability) for capability in capabilities]
            if all(fit.status is Status.OK for fit in fits):
                name = choice.variant.name
                return Image(variant=name, reference=image_reference(host, name), reason=choice.reason)
    names = ", ".join(sorted(choice.variant.name for choice in choices if choice.variant is not None))
    problem = f"its GPUs need different images ({names}). Write the host twice, with gpus: and variant:"
    return Image(variant=None, reference="", reason="mixed GPUs", status=Status.UNSUPPORTED, problem=problem)


def _impossible(host: Host, choice: Choice) -> Image:
    name = choice.variant.name if choice.variant else "none"
    return Image(
        variant=None,
        reference=image_reference(host, name),
        reason="chosen by driver and compute capability",
        status=choice.status,
        problem=choice.reason,
    )


def used_capabilities(host: Host, facts: Facts) -> list[str]:
    """Return the compute capabilities of the GPUs that are used, lowest first."""
    used = [gpu for gpu in facts.gpus if host.gpus is None or gpu.index in host.gpus] or list(facts.gpus)
    return sorted({gpu.compute_capability for gpu in used if gpu.compute_capability}, key=parse_version)
