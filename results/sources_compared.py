"""One card, one case, two sources: claims against published measurements of the same card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from results.claims import Claim, read_claims
from results.findings import Finding, Severity
from results.reference import published, published_path

Case = tuple[str | None, str, str, int]  # GPU, network, precision, number of GPUs

FACTOR = 2.5
"""Claims of one card, network, precision and GPU count that differ by more contradict each other.

Frameworks and compilers explain less: published ResNet50 figures of one A100 differ by 1.38 between frameworks, and
XLA restores up to 2.0 on eight GPUs.
"""


def source_findings(claims: Sequence[Claim]) -> list[Finding]:
    """Find claims that are far from every published measurement of the same card and case that is not suspect."""
    suspect = {number for number, row in enumerate(published()) if row["suspect"]}
    measured: dict[Case, list[float]] = defaultdict(list)
    for claim in read_claims(published_path()):
        if claim.row not in suspect:
            measured[_case(claim)].append(claim.rate)
    found = []
    for claim in claims:
        known = measured.get(_case(claim), [])
        if claim.gpu and known and not min(known) / FACTOR <= claim.rate <= max(known) * FACTOR:
            message = (
                f"{claim.name} on {claim.gpu}: {claim.rate:g}, published measurements say {min(known):g} to "
                f"{max(known):g}: more than {FACTOR} times apart"
            )
            found.append(Finding("sources_contradict", Severity.SUSPECT, (claim.row,), message))
    return found


def _case(claim: Claim) -> Case:
    """Return what two sources must share; ResNet50 v1 and v1.5 differ by 6 % in work, far less than the factor."""
    return claim.gpu, claim.model.removesuffix("_v1.5"), claim.precision, claim.count
