"""Which images a host starts, by fact and before anything is pulled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import (
    Choice,
    Fit,
    Variant,
    check_variant,
    choose_variant,
    parse_version,
)
from orchestrate.planning.facts import Facts, Image
from results.schema import GPU, Device, Status
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
        "TensorFlow's CUDA packages exist for nothing else. To use an image of your own, set image:"
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
    fits = fits_of(host, facts, variant)
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
            return _impossible(host, choice, compat_offer(host, facts, None, variants))
    for choice in choices:
        if choice.variant is not None and all(fit.status is Status.OK for fit in fits_of(host, facts, choice.variant)):
            name, offer = choice.variant.name, compat_offer(host, facts, choice.variant, variants)
            return Image(variant=name, reference=image_reference(host, name), reason=choice.reason + offer)
    names = ", ".join(sorted(choice.variant.name for choice in choices if choice.variant is not None))
    problem = f"its GPUs need different images ({names}). Write the host twice, with gpus: and variant:"
    return Image(variant=None, reference="", reason="mixed GPUs", status=Status.UNSUPPORTED, problem=problem)


def _impossible(host: Host, choice: Choice, offer: str) -> Image:
    name = choice.variant.name if choice.variant else "none"
    return Image(
        variant=None,
        reference=image_reference(host, name),
        reason="chosen by driver and compute capability",
        status=choice.status,
        problem=choice.reason + offer,
    )


def compat_offer(host: Host, facts: Facts, chosen: Variant | None, variants: Sequence[Variant]) -> str:
    """Name a variant with NVIDIA's compatibility package that gives a host a newer TensorFlow; empty: there is none.

    It is offered in words and never chosen: it is another CUDA driver than the host's, and users should know that.

    Args:
        host: Has an engine or a queue; an `ssh:` host starts no image.
        facts: Driver and GPUs as the host reported them.
        chosen: What it starts otherwise; None: nothing can be started.
        variants: From `read_variants`.
    """
    newest = parse_version(chosen.tensorflow) if chosen is not None else ()
    for variant in variants:
        if variant.compat is None or parse_version(variant.tensorflow) <= newest or host.ssh is not None:
            continue
        fits = fits_of(host, facts, variant)
        if fits and all(fit.status is Status.OK for fit in fits):
            return (
                f". {variant.name} would run TensorFlow {variant.tensorflow} here, by NVIDIA's CUDA "
                f"{variant.compat.cuda} compatibility package for data-centre GPUs. To try it: run images build "
                f"{variant.name}, push it, and set variant: {variant.name}"
            )
    return ""


def fits_of(host: Host, facts: Facts, variant: Variant) -> tuple[Fit, ...]:
    """Return how a variant goes with each compute capability of a host's GPUs that are used."""
    names = [gpu.name for gpu in _used_gpus(host, facts)]
    driver = facts.driver or "0"
    return tuple(check_variant(variant, driver, capability, names) for capability in used_capabilities(host, facts))


def used_capabilities(host: Host, facts: Facts) -> list[str]:
    """Return the compute capabilities of the GPUs that are used, lowest first."""
    known = {gpu.compute_capability for gpu in _used_gpus(host, facts) if gpu.compute_capability}
    return sorted(known, key=parse_version)


def _used_gpus(host: Host, facts: Facts) -> list[GPU]:
    return [gpu for gpu in facts.gpus if host.gpus is None or gpu.index in host.gpus] or list(facts.gpus)
