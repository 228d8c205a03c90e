"""Checks throughputs against limits: arithmetic, memory bandwidth, memory size, and the order of networks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter

from results.audit.claims import Claim, grouped
from results.audit.series import Severity, TableFinding, above
from results.audit.texts import is_slice
from results.reference.gpus import CLOCK_MARGIN, FREE_MEMORY, PEAKS, loosest_figures, roofline
from results.reference.networks import NetworkCost, networks
from results.schema.networks import NETWORKS
from results.text import counted

WINOGRAD = 2.25
"""Reduction of multiplications in 3×3 convolutions. Source: Lavin and Gray, CVPR 2016."""

TENSOR_SHARE_SUSPECT = 0.6
"""Higher shares of the tensor peak are unknown for training of convolutional networks; published: 10 to 40 %."""

FILLING_BATCH = 128
"""Samples per GPU from which the batch does not change the order of networks; from a quarter of it, half of the other
network's batch suffices.

Source: an H100 in fp16, where InceptionV3 with 64 is slower than ResNet152 with 256 (docs/validation.md).
"""

ORDER_SUSPECT, ORDER_IMPOSSIBLE = 1.8, 5.0
"""Ratios of FLOPs and memory traffic from which the larger network must be slower, probably or certainly."""

ORDER_BY_FLOPS = 3.0
"""Likewise for networks of different kinds if only FLOPs are known."""

EVEN_KINDS = ("resnet", "inception")
"""Batch-normalised networks of dense convolutions, which run at nearly the same FLOP/s on one GPU."""

EVEN = {"fp32": 1.8, "tf32": 1.8, "fp16": 2.3, "bf16": 2.3}
"""Largest plausible ratio of FLOP/s of two such networks if the one with fewer FLOPs is slower.

Published: at most 1.3 in FP32 and TF32; 2.0 in FP16, on an RTX 3090 with a cuDNN without kernels for it.
"""


def limit_findings(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find claims that exceed the limits of known GPUs and networks."""
    beyond = [
        TableFinding(rule, severity, (claim.row,), f"{claim.name}: {text}")
        for claim in claims
        if (network := _cost(claim)) and claim.gpus and claim.precision in PEAKS
        for rule, severity, text in _beyond(claim, network)
    ]
    return [*_order(claims), *beyond, *_not_checked(claims)]


def _cost(claim: Claim) -> NetworkCost | None:
    """Return the cost of a sample at the claim's image size; a forward pass is a third of training."""
    network = _cost_of_unit(claim.model)
    if network is None:
        return None
    passes = 1.0 if claim.mode == "train" else 1 / 3
    pixels = 1.0 if network.sequences else ((claim.image_size or network.size) / network.size) ** 2
    return dataclasses.replace(
        network,
        flop_per_sample=network.flop_per_sample * pixels * passes,
        elements_unfused=network.elements_unfused * pixels,
        elements_fused=network.elements_fused * pixels,
        saved_bytes={size: saved * pixels for size, saved in network.saved_bytes.items()},
    )


def _cost_of_unit(model: str) -> NetworkCost | None:
    """Return the cost of an image, sequence or token, whichever throughputs count, with the memory of a sequence."""
    network = networks().get(model)
    if network is None or model not in NETWORKS or NETWORKS[model].unit != "tokens":
        return network
    parts = ("flop_per_sample", "elements_unfused", "elements_fused")
    return dataclasses.replace(network, **{name: getattr(network, name) / network.size for name in parts})


def _not_checked(claims: Sequence[Claim]) -> list[TableFinding]:
    """Return notes on unknown GPUs, networks and precisions."""
    unknown = {
        "gpu_slice": [(claim.gpu_text, claim.row) for claim in claims if is_slice(claim.gpu_text)],
        "unknown_gpu": [
            (claim.gpu_text, claim.row)
            for claim in claims
            if claim.gpu_text and not claim.gpus and not is_slice(claim.gpu_text)
        ],
        "unknown_network": [(claim.model, claim.row) for claim in claims if claim.model not in networks()],
        "unknown_precision": [
            (claim.precision or "none", claim.row) for claim in claims if claim.precision not in PEAKS
        ],
    }
    if claims and not any(claim.gpu_text for claim in claims):
        unknown["unknown_gpu"] = [("none given", claim.row) for claim in claims]
    found = []
    for rule, names in unknown.items():
        if names:
            rows = tuple(sorted({row for _, row in names}))
            why = "parts of a GPU are not compared with whole ones" if rule == "gpu_slice" else "no data for"
            message = f"limits not checked, {why}: {', '.join(sorted({name for name, _ in names}))}"
            found.append(TableFinding(rule, Severity.NOTE, rows, message))
    return found


def _order(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find networks that are slower than others with many times their FLOPs and memory traffic."""
    found: dict[tuple[str, str, Severity], list[tuple[Claim, Claim]]] = defaultdict(list)
    key = attrgetter("group", "precision", "count", "mode")
    for series in grouped(claims, key).values():
        known = [(claim, network) for claim in series if (network := _cost_of_unit(claim.model))]
        for (claim, small), (other, large) in itertools.permutations(known, 2):
            more = _times_the_work(small, large)
            uneven = _is_uneven(claim, other, large.flop_per_sample / small.flop_per_sample)
            if claim.rate < other.rate and (more > ORDER_SUSPECT or uneven) and _comparable(claim, other):
                severity = Severity.IMPOSSIBLE if more > ORDER_IMPOSSIBLE else Severity.SUSPECT
                found[(claim.model, other.model, severity)].append((claim, other))
    findings = []
    for (slow, fast, severity), pairs in found.items():
        claim, other = pairs[0]
        ratio = flop_ratio(slow, fast)
        settings = counted(len(pairs), "setting")
        message = (
            f"{slow} is slower than {fast}, which needs {ratio:.1f} times its FLOPs, in {settings}, "
            f"e.g. {claim.number} < {other.number} ({claim.precision} ×{claim.count})"
        )
        rows = tuple(sorted({one.row for pair in pairs for one in pair}))
        findings.append(TableFinding("order_of_networks", severity, rows, message))
    return findings


def _is_uneven(slow: Claim, fast: Claim, flops: float) -> bool:
    """Return whether the slower of two networks of `EVEN_KINDS` needs fewer FLOPs and is too slow.

    Args:
        slow: A claim of a column.
        fast: A faster one of another network.
        flops: FLOPs of `fast` over those of `slow`.
    """
    even = all(claim.model.startswith(EVEN_KINDS) for claim in (slow, fast))
    return even and flops > 1 and flops * fast.rate / slow.rate > EVEN.get(slow.precision, math.inf)


def flop_ratio(small: str, large: str) -> float:
    """Return the ratio of the FLOPs of two networks; 1: unknown."""
    one, other = _cost_of_unit(small), _cost_of_unit(large)
    return other.flop_per_sample / one.flop_per_sample if one and other else 1.0


def _times_the_work(small: NetworkCost, large: NetworkCost) -> float:
    """Return the smallest ratio of the work of two networks; 1: unknown."""
    flops = large.flop_per_sample / small.flop_per_sample
    if small.elements_fused and large.elements_fused:
        return min(flops, large.elements_unfused / small.elements_unfused)
    one_kind = small.model.startswith("bert") and large.model.startswith("bert")
    return flops if one_kind or flops > ORDER_BY_FLOPS else 1.0


def _comparable(slow: Claim, fast: Claim) -> bool:
    """Return whether the slow network's batch is large enough to compare the two."""
    if slow.image_size != fast.image_size or slow.batch is None or fast.batch is None:
        return slow.image_size == fast.image_size
    needed = max(FILLING_BATCH / 4, fast.batch / 2)
    return slow.batch >= min(fast.batch, FILLING_BATCH, needed)


PEAK_NAMES = {"fp16": "FP16 tensor", "bf16": "FP16 tensor", "tf32": "TF32 tensor", "fp32": "FP32"}


def _beyond(claim: Claim, network: NetworkCost) -> Iterator[tuple[str, Severity, str]]:
    """Yield the limits that a claim exceeds as rule, severity and text; fp32 that may be TF32 is treated as TF32."""
    figures = loosest_figures(claim.gpus)
    tf32 = claim.precision in ("fp32", "tf32") and "tf32_tensor" in figures and not claim.strict
    peak = "tf32" if tf32 else "fp32" if claim.precision == "tf32" else claim.precision
    line = roofline(figures, network, peak)
    if line is None:
        return
    share, achieved = claim.per_gpu / line.arithmetic, claim.per_gpu * network.flop_per_sample
    text = f"{achieved / 1e12:.1f} TFLOP/s per GPU is {share * 100:.0f} % of its {PEAK_NAMES[peak]} peak"
    if share > CLOCK_MARGIN * (WINOGRAD if network.model in ("alexnet", "vgg16", "inception_v4") else 1.0):
        yield "flop_bound", Severity.IMPOSSIBLE, text
    elif peak != "fp32" and share > TENSOR_SHARE_SUSPECT and network.elements_fused:
        yield "flop_bound", Severity.SUSPECT, f"{text}; networks of this kind reach 10 to 40 %"
    if claim.mode != "train":
        return
    if claim.per_gpu > line.fused:
        text = f"{above(claim.per_gpu, round(line.fused), 0)} per GPU and second needs more than its memory bandwidth"
        yield "bandwidth_bound", Severity.IMPOSSIBLE, f"{text}; the bound with all layers fused is {line.fused:.0f}"
    if claim.batch and line.largest_batch and claim.batch > line.largest_batch:
        fits = claim.batch * FREE_MEMORY <= line.largest_batch
        text = f"activations of a batch of {claim.batch} take more than {FREE_MEMORY * 100 if fits else 100:.0f} %"
        yield (
            "memory_size",
            Severity.SUSPECT if fits else Severity.IMPOSSIBLE,
            f"{text} of the memory of {figures['memory']:.0f} GiB",
        )
