"""One image for all hosts of a run: what is compared then differs in hardware and driver, and not in TensorFlow.

Each host has chosen the best image for itself. Where these differ, all get the newest one that suits every host: of the
whole run, else of each fleet. A host never gives up machine code for its GPU for that.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrate.inventory.hosts import Host, Place
from orchestrate.inventory.variants import Code, Fit, Variant, rank
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.images import compat_offer, fits_of, image_reference, wanted_images
from results.schema import Status


@dataclass(frozen=True)
class _Chooser:
    """A host that chooses its image by driver and GPU, and what it chose."""

    host: Host
    facts: Facts
    own: Image
    own_fits: tuple[Fit, ...]


def share_images(
    hosts: Sequence[Host], probed: Mapping[Place, Facts | str], variants: Sequence[Variant]
) -> dict[Place, Image]:
    """Return the images of those hosts that share one with others, without digests.

    Args:
        hosts: Of the run.
        probed: What each host reported, or why it could not be asked.
        variants: From `read_variants`.

    Returns:
        By host; hosts whose image is named, is their own affair, or is the same for all anyway are not in it.
    """
    asked = (_chooser(host, probed[host.place], variants) for host in hosts)
    choosers = [chooser for chooser in asked if chooser is not None]
    of_run = [chooser for chooser in choosers if chooser.host.image_for == "run"]
    shared = _share(of_run, "the run", variants)
    alone = of_run if shared is None else []
    fleets: dict[str, list[_Chooser]] = defaultdict(list)
    for chooser in (*alone, *(chooser for chooser in choosers if chooser.host.image_for == "fleet")):
        fleets[chooser.host.fleet].append(chooser)
    found = shared or {}
    for fleet, members in fleets.items():
        found |= _share(members, f"fleet {fleet}", variants) or {}
    for chooser in alone:
        image = found.get(chooser.host.place, chooser.own)
        found[chooser.host.place] = dataclasses.replace(
            image, reason=f"{image.reason}; no image suits all hosts of the run, so software differs between them"
        )
    return found


def fleets_variants(hosts: Sequence[Host], probed: Mapping[Place, Facts | str]) -> dict[Place, tuple[str, ...]]:
    """Return the variant of its fleet for each host that could not be asked, so that it measures with the same one.

    Args:
        hosts: Of the run.
        probed: What each host reported, with the images that it is going to start.
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
        if isinstance(probed[host.place], str) and host.fleet in known and _chooses(host) and host.image_for != "host"
    }


def _chooses(host: Host) -> bool:
    """Return whether a host's image follows from its driver and GPUs."""
    return host.image is None and not host.variants and host.wants_gpus and host.python is None


def _chooser(host: Host, facts: Facts | str, variants: Sequence[Variant]) -> _Chooser | None:
    """Describe the choice of a host; None: it has none, or nothing suits it."""
    if isinstance(facts, str) or not _chooses(host) or not facts.gpus or facts.driver is None or not facts.images:
        return None
    own, *others = wanted_images(host, facts, variants)
    chosen = next((variant for variant in variants if variant.name == own.variant), None)
    instance = facts.images[0].variant != own.variant and facts.images[0].status is Status.OK and host.ssh is not None
    if others or chosen is None or own.status is not Status.OK or instance:
        return None  # an instance of one of our images starts that image, whatever would be chosen
    return _Chooser(host, facts, own, fits_of(host, facts, chosen))


def _share(choosers: Sequence[_Chooser], whose: str, variants: Sequence[Variant]) -> dict[Place, Image] | None:
    """Give all these hosts one image; None: none suits all of them. Empty: they chose the same one by themselves."""
    if len({chooser.own.variant for chooser in choosers}) < 2:
        return {}
    candidates = [variant for variant in variants if variant.cuda is not None and not variant.opt_in]
    fitting = [(rank(fits), variant) for variant in candidates if (fits := _suits_all(choosers, variant))]
    if not fitting:
        return None
    _, best = max(fitting, key=lambda found: found[0])
    return {chooser.host.place: _image(chooser, best, whose, variants) for chooser in choosers}


def _suits_all(choosers: Sequence[_Chooser], variant: Variant) -> list[Fit]:
    """Return how a variant goes with the GPUs of all hosts; empty: one of them would fail or be slowed down."""
    found: list[Fit] = []
    for chooser in choosers:
        for fit, own in zip(fits_of(chooser.host, chooser.facts, variant), chooser.own_fits, strict=True):
            if fit.status is not Status.OK or _compiled(fit) > _compiled(own):
                return []
            found.append(fit)
    return found


def _compiled(fit: Fit) -> int:
    """Return how much a GPU's driver has to compile: 0 nothing, 1 some kernels, 2 all of them."""
    return 0 if fit.code is Code.MACHINE else 1 if fit.partly else 2


def _image(chooser: _Chooser, variant: Variant, whose: str, variants: Sequence[Variant]) -> Image:
    """Describe the shared image for one host, with the reason."""
    (first, *_), own = fits_of(chooser.host, chooser.facts, variant), chooser.own.variant
    offer = compat_offer(chooser.host, chooser.facts, variant, variants)
    alone = f" (this host alone: {own}; set variant: per-host for that)" if own != variant.name else ""
    return Image(
        variant=variant.name,
        reference=image_reference(chooser.host, variant.name),
        reason=f"{first.reason}; the newest image that suits every host of {whose}{alone}{offer}",
    )
