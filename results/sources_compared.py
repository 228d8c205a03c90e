"""Claims against published measurements: of the same card, of other cards, and of the same networks."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from results.claims import Claim, read_claims
from results.findings import Finding, Severity
from results.reference import published, published_path
from results.series import expected_log_speed, grouped

FACTOR = 2.5
"""Claims of one card, network, precision and GPU count that differ by more contradict each other.

Frameworks and compilers explain less: published ResNet50 figures of one A100 differ by 1.38 between frameworks, and
XLA restores up to 2.0 on eight GPUs.
"""

OTHER_CARDS_FACTOR = 4.0
"""Likewise of other cards, scaled by specification; that adds a factor of 1.3 at most, and rare networks run badly."""

FEWEST_CARDS = 2
"""Cards that a network's speed, or its ratio to another network, must be known from."""

SWAP_MARGIN = 0.2
"""Natural logarithm by which a ratio of two networks may be beyond all published ones."""


def source_findings(claims: Sequence[Claim], reference: Sequence[Claim] | None = None) -> list[Finding]:
    """Find claims that are far from every believed measurement.

    Args:
        claims: Those to judge.
        reference: Those to believe; None for the published ones that come with tfbench. A table of which the reference
            holds a copy is judged by the rest of it.
    """
    believed = list(believed_claims() if reference is None else reference)
    training = [claim for claim in claims if claim.mode == "train" and claim.image_size is None]
    same, judged = _same_card(claims, believed)
    other = [claim for claim in training if id(claim) not in judged]
    return [*same, *_other_cards(other, believed), *_swapped(training, believed)]


@functools.cache
def believed_claims() -> tuple[Claim, ...]:
    """Return the published measurements that come with tfbench, without those that are marked suspect."""
    suspect = {number for number, row in enumerate(published()) if row["suspect"]}
    return tuple(claim for claim in read_claims(published_path()) if claim.row not in suspect)


def _same_card(claims: Sequence[Claim], believed: Sequence[Claim]) -> tuple[list[Finding], set[int]]:
    """Return findings, and which claims have a measurement of their own card and case."""
    measured = grouped(believed, _case)
    found, judged = [], set()
    for claim in claims:
        known = [other.rate for other in measured.get(_case(claim), [])]
        if not claim.gpu or not known or claim.image_size is not None:
            continue
        judged.add(id(claim))
        if not min(known) / FACTOR <= claim.rate <= max(known) * FACTOR:
            message = (
                f"{claim.name} on {claim.gpu}: {claim.rate:g}, published measurements say {min(known):g} to "
                f"{max(known):g}: more than {FACTOR} times apart"
            )
            found.append(Finding("sources_contradict", Severity.SUSPECT, (claim.row,), message))
    return found, judged


def _case(claim: Claim) -> tuple[object, ...]:
    """Return what two sources must share; ResNet50 v1 and v1.5 differ by 6 % in work, far less than the factor."""
    return claim.gpu, _base(claim.model), claim.precision, claim.count, claim.mode


def _base(model: str) -> str:
    return model.removesuffix("_v1.5")


def _other_cards(claims: Sequence[Claim], believed: Sequence[Claim]) -> list[Finding]:
    """Find throughputs per GPU above what any card has shown, scaled to this card by specification."""
    measured: dict[tuple[str, bool], list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    for claim in believed:
        if claim.count == 1 and (speed := expected_log_speed(claim)) is not None:
            measured[_kind(claim)].append((claim.gpus, math.log(claim.rate) - speed))
    found = _beyond_every_card(claims, believed)
    for claim in claims:
        known, expected = measured.get(_kind(claim), []), expected_log_speed(claim)
        if expected is None or len({gpus for gpus, _ in known}) < FEWEST_CARDS:
            continue
        low, high = (math.exp(limit(value for _, value in known) + expected) for limit in (min, max))
        above = claim.per_gpu > high * OTHER_CARDS_FACTOR
        below = claim.count == 1 and claim.rate < low / OTHER_CARDS_FACTOR and (claim.batch or FULL) >= FULL
        if above or below:
            message = (
                f"{claim.name} on {claim.gpu_text}: {claim.per_gpu:.4g} per GPU; published measurements of "
                f"{len(known)} cases on other cards, scaled to this one by specification, give {low:.4g} to {high:.4g}"
            )
            found.append(Finding("sources_contradict", Severity.SUSPECT, (claim.row,), message))
    return found


def _beyond_every_card(claims: Sequence[Claim], believed: Sequence[Claim]) -> list[Finding]:
    """Find throughputs per GPU of unknown cards that are far above those of every known one."""
    fastest: dict[tuple[str, bool], float] = defaultdict(float)
    for claim in believed:
        fastest[_kind(claim)] = max(fastest[_kind(claim)], claim.per_gpu)
    found = []
    for claim in claims:
        limit = fastest.get(_kind(claim), math.inf)
        if not claim.gpus and claim.per_gpu > FACTOR * limit:
            message = f"{claim.name} on {claim.gpu_text or 'an unnamed GPU'}: {claim.per_gpu:.4g} per GPU"
            message += f"; the fastest published card has {limit:.4g}"
            found.append(Finding("sources_contradict", Severity.SUSPECT, (claim.row,), message))
    return found


FULL = 8
"""Samples per GPU below which a throughput may be low for that reason alone."""


def _kind(claim: Claim) -> tuple[str, bool]:
    return _base(claim.model), claim.precision in ("fp16", "bf16")


def _swapped(claims: Sequence[Claim], believed: Sequence[Claim]) -> list[Finding]:
    """Find two networks whose ratio is outside of every published one, and inside when they are exchanged."""
    ratios = _ratios(believed)
    votes: dict[tuple[str, str], list[tuple[Claim, Claim, bool]]] = defaultdict(list)
    for first, second, value in _network_pairs(claims):
        known = ratios.get((first.model, second.model, first.precision in ("fp16", "bf16")), [])
        if len(known) < FEWEST_CARDS:
            continue
        low, high = min(known) - SWAP_MARGIN, max(known) + SWAP_MARGIN
        swapped = not low <= value <= high and low <= -value <= high
        votes[(first.model, second.model)].append((first, second, swapped))
    found = []
    for (one, other), pairs in votes.items():
        wrong = [(first, second) for first, second, swapped in pairs if swapped]
        if wrong:
            first, second = wrong[0]
            rows = tuple(sorted({claim.row for pair in wrong for claim in pair}))
            usual = math.exp(statistics.median(ratios[(one, other, first.precision in ("fp16", "bf16"))]))
            message = (
                f"{one} and {other} look exchanged in {len(wrong)} of {len(pairs)} cases, e.g. {first.precision} "
                f"×{first.count}: {first.rate:g} and {second.rate:g}; published ratios are around {usual:.2f}"
            )
            found.append(Finding("networks_exchanged", Severity.SUSPECT, rows, message))
    return found


def _ratios(believed: Sequence[Claim]) -> dict[tuple[str, str, bool], list[float]]:
    found: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    for first, second, value in _network_pairs(believed):
        found[(first.model, second.model, first.precision in ("fp16", "bf16"))].append(value)
    return found


def _network_pairs(claims: Sequence[Claim]) -> list[tuple[Claim, Claim, float]]:
    """Return every two networks of one card and setting, by name, with the logarithm of their ratio."""
    pairs = []
    for group in grouped(claims, lambda claim: (claim.group, claim.precision, claim.strict, claim.count)).values():
        of_model = {model: cells[0] for model, cells in grouped(group, lambda claim: claim.model).items()}
        for one, other in itertools.combinations(sorted(of_model), 2):
            first, second = of_model[one], of_model[other]
            pairs.append((first, second, math.log(first.rate / second.rate)))
    return pairs
