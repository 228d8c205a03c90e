"""Limits that throughput cannot pass: arithmetic, memory traffic, memory size, scaling, and the order of networks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from results.claims import Claim
from results.findings import Finding, Severity
from results.reference import GIBI, Network, networks, specifications
from results.scaling import CEILING

SUSPECT_EFFICIENCY, IMPOSSIBLE_EFFICIENCY = 1.10, 1.25
"""Scaling above 1.05 is noted; published VGG16 runs reach 1.07. Above 1.25 no cache, clock or noise explains it."""

CLOCK_MARGIN = 1.2
"""Cards run up to this much above the clock that their peak is quoted for."""

TENSOR_SHARE_SUSPECT = 0.6
"""Share of the tensor peak that no convolutional network is known to reach in training; published: 10 to 40 %."""

MEMORY_SHARE_SUSPECT = 0.8
"""Share of memory that saved activations alone may take before weights, gradients and workspace make it doubtful."""

ORDER_SUSPECT, ORDER_IMPOSSIBLE = 1.8, 5.0
"""How many times the FLOPs and memory traffic of another a network needs to be expected slower, or surely so."""

BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
"""Bytes per element of activations."""


def limit_findings(claims: Sequence[Claim]) -> list[Finding]:
    """Find claims that go beyond what the hardware can do, as far as GPU and network are known."""
    found = _superlinear(claims) + _order(claims)
    for claim in claims:
        network, figures = networks().get(claim.model), specifications().get(claim.gpu or "")
        if network and figures and claim.precision in BYTES:
            found += _beyond(claim, network, figures)
    unknown = [claim for claim in claims if claim.gpu_text and claim.gpu is None]
    if unknown:
        names = ", ".join(sorted({claim.gpu_text for claim in unknown}))
        rows = tuple(sorted({claim.row for claim in unknown}))
        found.append(Finding("unknown_gpu", Severity.NOTE, rows, f"no specification, limits not checked: {names}"))
    return found


def _superlinear(claims: Sequence[Claim]) -> list[Finding]:
    found = []
    for series in _series(claims, lambda claim: (claim.group, claim.model, claim.precision)):
        for claim in series:
            baseline = _baseline(claim, series)
            if baseline is None:
                continue
            efficiency = claim.rate / claim.count / baseline.rate
            if efficiency > CEILING:
                message = (
                    f"{claim.name}: {claim.rate:g} is {efficiency:.2f} of {claim.count} × {baseline.rate:g} "
                    f"(row {baseline.row}), more than {CEILING}: this number or its baseline is wrong"
                )
                found.append(Finding("superlinear_scaling", _severity(efficiency), (claim.row,), message))
    return found


def _severity(efficiency: float) -> Severity:
    if efficiency > IMPOSSIBLE_EFFICIENCY:
        return Severity.IMPOSSIBLE
    return Severity.SUSPECT if efficiency > SUSPECT_EFFICIENCY else Severity.NOTE


def _baseline(claim: Claim, series: Sequence[Claim]) -> Claim | None:
    """Return the one-GPU claim of the same batch per GPU; None when there is none, or several."""
    ones = [other for other in series if other.count == 1 and other.batch == claim.batch]
    return ones[0] if claim.count > 1 and len(ones) == 1 else None


def _order(claims: Sequence[Claim]) -> list[Finding]:
    """Find networks that are slower than others that need many times their FLOPs and memory traffic."""
    found: dict[tuple[str, str, Severity], list[tuple[Claim, Claim]]] = defaultdict(list)
    for series in _series(claims, lambda claim: (claim.group, claim.precision, claim.count)):
        known = [(claim, networks()[claim.model]) for claim in series if claim.model in networks()]
        for (claim, small), (other, large) in itertools.permutations(known, 2):
            more = min(large.flop_per_sample / small.flop_per_sample, large.elements_unfused / small.elements_unfused)
            if claim.rate < other.rate and more > ORDER_SUSPECT:
                severity = Severity.IMPOSSIBLE if more > ORDER_IMPOSSIBLE else Severity.SUSPECT
                found[(claim.model, other.model, severity)].append((claim, other))
    findings = []
    for (slow, fast, severity), pairs in found.items():
        claim, other = pairs[0]
        ratio = networks()[fast].flop_per_sample / networks()[slow].flop_per_sample
        message = (
            f"{slow} is slower than {fast}, which needs {ratio:.1f} times its FLOPs, in {len(pairs)} settings, "
            f"e.g. {claim.rate:g} < {other.rate:g} ({claim.precision} ×{claim.count})"
        )
        rows = tuple(sorted({one.row for pair in pairs for one in pair}))
        findings.append(Finding("order_of_networks", severity, rows, message))
    return findings


def _beyond(claim: Claim, network: Network, figures: Mapping[str, float]) -> list[Finding]:
    return [*_flop_bound(claim, network, figures), *_bandwidth_bound(claim, network, figures),
            *_memory_bound(claim, network, figures)]  # fmt: skip


def _flop_bound(claim: Claim, network: Network, figures: Mapping[str, float]) -> list[Finding]:
    quantity = _peak_quantity(claim, figures)
    peak = figures.get(quantity, 0.0) * 1e12
    if not peak:
        return []
    achieved = claim.rate / claim.count * network.flop_per_sample
    share = achieved / peak
    text = f"{claim.name}: {achieved / 1e12:.1f} TFLOP/s per GPU is {share:.0%} of its {quantity} peak".replace(
        "%", " %"
    )
    if share > CLOCK_MARGIN:
        return [Finding("flop_bound", Severity.IMPOSSIBLE, (claim.row,), text)]
    if quantity != "fp32" and share > TENSOR_SHARE_SUSPECT:
        return [
            Finding("flop_bound", Severity.SUSPECT, (claim.row,), f"{text}; networks of this kind reach 10 to 40 %")
        ]
    return []


def _peak_quantity(claim: Claim, figures: Mapping[str, float]) -> str:
    """Name the peak that a precision is measured against; an unclear fp32 is given the benefit of TF32."""
    if claim.precision in ("fp16", "bf16"):
        return "fp16_tensor_fp32_accumulate"
    return "tf32_tensor" if "tf32_tensor" in figures and not claim.strict else "fp32"


def _bandwidth_bound(claim: Claim, network: Network, figures: Mapping[str, float]) -> list[Finding]:
    bandwidth = figures.get("memory_bandwidth", 0.0) * 1e9
    per_gpu = claim.rate / claim.count
    size = BYTES[claim.precision]
    fused, unfused = (bandwidth / (elements * size) for elements in (network.elements_fused, network.elements_unfused))
    if not bandwidth or per_gpu <= unfused:
        return []
    text = f"{claim.name}: {per_gpu:.0f} per GPU and second"
    if per_gpu > fused:
        message = f"{text} needs more than its memory bandwidth; the bound with all layers fused is {fused:.0f}"
        return [Finding("bandwidth_bound", Severity.IMPOSSIBLE, (claim.row,), message)]
    message = f"{text} is above the bound of {unfused:.0f} without fused layers: fused kernels are needed for it"
    return [Finding("bandwidth_bound", Severity.NOTE, (claim.row,), message)]


def _memory_bound(claim: Claim, network: Network, figures: Mapping[str, float]) -> list[Finding]:
    saved = network.saved_bytes.get(BYTES[claim.precision])
    memory = figures.get("memory", 0.0) * GIBI
    if not (saved and memory and claim.batch):
        return []
    share = claim.batch * saved / memory
    text = (
        f"{claim.name}: a batch of {claim.batch} keeps {claim.batch * saved / GIBI:.1f} GiB of activations, "
        f"the card has {memory / GIBI:.0f} GiB"
    )
    if share > 1:
        return [Finding("memory_size", Severity.IMPOSSIBLE, (claim.row,), text)]
    if share > MEMORY_SHARE_SUSPECT:
        return [Finding("memory_size", Severity.SUSPECT, (claim.row,), f"{text}: weights and workspace come on top")]
    return []


def _series(claims: Iterable[Claim], key: Callable[[Claim], Hashable]) -> list[list[Claim]]:
    found: dict[Hashable, list[Claim]] = defaultdict(list)
    for claim in claims:
        found[key(claim)].append(claim)
    return list(found.values())
