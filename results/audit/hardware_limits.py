"""Checks throughputs against limits: arithmetic, memory bandwidth, memory size, and the order of networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from results.audit.findings import Row, Severity, TableFinding, above, cost_of_unit, grouped, pairs
from results.reference.gpus import CLOCK_MARGIN, FREE_MEMORY, PEAKS, is_slice, loosest_figures, roofline
from results.reference.networks import WINOGRAD, NetworkCost, networks
from results.text import counted

WINOGRAD_NETWORKS = ("alexnet", "vgg16", "inception_v4")
"""Networks whose operations are mostly convolutions that Winograd's algorithm suits."""

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

PEAK_NAMES = {"fp16": "FP16 tensor", "bf16": "FP16 tensor", "tf32": "TF32 tensor", "fp32": "FP32"}


def limit_findings(claims: pd.DataFrame) -> list[TableFinding]:
    """Find claims that exceed the limits of known GPUs and networks."""
    known = claims[claims.gpus.map(bool) & claims.precision.isin(PEAKS) & claims.model.isin(networks())]
    beyond = [
        TableFinding.of(rule, severity, [claim], f"{claim.name}: {text}")
        for claim in known.claim
        for rule, severity, text in _beyond(claim)
    ]
    return [*_order(claims), *beyond, *_not_checked(claims)]


def _not_checked(claims: pd.DataFrame) -> list[TableFinding]:
    """Return notes on slices, unknown GPUs, networks and precisions."""
    slices = claims.gpu_text.map(is_slice)
    unknown = ~claims.gpus.map(bool) & ~slices & ((claims.gpu_text != "") | (not any(claims.gpu_text)))
    no_data = "no data for"
    checks = (
        ("gpu_slice", slices, claims.gpu_text, "parts of a GPU are not compared with whole ones"),
        ("unknown_gpu", unknown, claims.gpu_text.replace("", "none given"), no_data),
        ("unknown_network", ~claims.model.isin(networks()), claims.model, no_data),
        ("unknown_precision", ~claims.precision.isin(PEAKS), claims.precision.replace("", "none"), no_data),
    )
    return [
        TableFinding.of(rule, Severity.NOTE, claims[chosen].claim, f"limits not checked, {why}: {names}")
        for rule, chosen, texts, why in checks
        if (names := ", ".join(sorted(set(texts[chosen]))))
    ]


def _order(claims: pd.DataFrame) -> list[TableFinding]:
    """Find networks that are slower than others with many times their FLOPs and memory traffic."""
    costs = [cost_of_unit(model) for model in claims.model]
    known = claims.assign(
        flop=[cost.flop_per_sample if cost else np.nan for cost in costs],
        fused=[bool(cost and cost.elements_fused) for cost in costs],
        unfused=[cost.elements_unfused if cost else np.nan for cost in costs],
    ).dropna(subset="flop")
    columns = ["model", "precision", "batch", "image_size", "rate", "flop", "fused", "unfused"]
    both = pairs(known, ["table", "precision", "num_gpus", "mode"], columns)
    both = both[(both.rate_low < both.rate_high) & _comparable(both)]  # the low one is slower
    more, even = _times_the_work(both), both.precision_low.map(EVEN).fillna(np.inf)
    flops = both.flop_high / both.flop_low
    uneven = _both(both, EVEN_KINDS) & (flops > 1) & (flops * both.rate_high / both.rate_low > even)
    certain = more > ORDER_IMPOSSIBLE
    found = []
    for severity, chosen in (
        (Severity.IMPOSSIBLE, certain),
        (Severity.SUSPECT, ~certain & (uneven | (more > ORDER_SUSPECT))),
    ):
        for settings in grouped(both[chosen], ["model_low", "model_high"]):
            low, high = settings[0]
            ratio = flop_ratio(low.model, high.model)
            message = (
                f"{low.model} is slower than {high.model}, which needs {ratio:.1f} times its FLOPs, in "
                f"{counted(len(settings), 'setting')}, e.g. {low.number} < {high.number} "
                f"({low.precision} ×{low.num_gpus})"
            )
            found.append(TableFinding.of("order_of_networks", severity, itertools.chain(*settings), message))
    return found


def flop_ratio(small: str, large: str) -> float:
    """Return the ratio of the FLOPs of two networks; 1: unknown."""
    one, other = cost_of_unit(small), cost_of_unit(large)
    return other.flop_per_sample / one.flop_per_sample if one and other else 1.0


def _both(both: pd.DataFrame, starts: tuple[str, ...]) -> pd.Series:
    """Return of which pairs both networks are of kinds."""
    return both.model_low.str.startswith(starts) & both.model_high.str.startswith(starts)


def _times_the_work(both: pd.DataFrame) -> pd.Series:
    """Return the smallest ratio of the work of two networks; 1: unknown."""
    flops, traffic = both.flop_high / both.flop_low, both.unfused_high / both.unfused_low
    by_flops = flops.where(_both(both, ("bert",)) | (flops > ORDER_BY_FLOPS), 1.0)
    return flops.clip(upper=traffic).where(both.fused_low & both.fused_high, by_flops)


def _comparable(both: pd.DataFrame) -> pd.Series:
    """Return whether the slow network's batch is large enough to compare the two."""
    needed = (both.batch_high / 2).clip(lower=FILLING_BATCH / 4)
    enough = both.batch_low >= np.minimum(both.batch_high.clip(upper=FILLING_BATCH), needed)
    unknown = (both.batch_low == 0) | (both.batch_high == 0)
    return (both.image_size_low == both.image_size_high) & (unknown | enough)


def _cost(claim: Row) -> NetworkCost:
    """Return the cost of a sample at the claim's image size; a forward pass is a third of training."""
    network = cost_of_unit(claim.model)
    assert network is not None
    pixels = (claim.image_size / network.size) ** 2 if claim.image_size and not network.sequences else 1.0
    return replace(
        network,
        flop_per_sample=network.flop_per_sample * pixels * (1.0 if claim.mode == "train" else 1 / 3),
        elements_unfused=network.elements_unfused * pixels,
        elements_fused=network.elements_fused * pixels,
        saved_bytes={size: saved * pixels for size, saved in network.saved_bytes.items()},
    )


def _beyond(claim: Row) -> Iterator[tuple[str, Severity, str]]:
    """Yield the limits that a claim exceeds as rule, severity and text; fp32 that may be TF32 is treated as TF32."""
    figures, network = loosest_figures(claim.gpus), _cost(claim)
    tf32 = claim.precision in ("fp32", "tf32") and "tf32_tensor" in figures and not claim.strict
    peak = "tf32" if tf32 else "fp32" if claim.precision == "tf32" else claim.precision
    line = roofline(figures, network, peak)
    if line is None:
        return
    share, achieved = claim.per_gpu / line.arithmetic, claim.per_gpu * network.flop_per_sample
    text = f"{achieved / 1e12:.1f} TFLOP/s per GPU is {share * 100:.0f} % of its {PEAK_NAMES[peak]} peak"
    if share > CLOCK_MARGIN * (WINOGRAD if network.model in WINOGRAD_NETWORKS else 1.0):
        yield "flop_bound", Severity.IMPOSSIBLE, text
    elif peak != "fp32" and share > TENSOR_SHARE_SUSPECT and network.elements_fused:
        yield "flop_bound", Severity.SUSPECT, f"{text}; networks of this kind reach 10 to 40 %"
    if claim.mode != "train":
        return
    if claim.per_gpu > line.fused:
        text = f"{above(claim.per_gpu, round(line.fused), 0)} per GPU and second needs more than its memory bandwidth"
        yield "bandwidth_bound", Severity.IMPOSSIBLE, f"{text}; the bound with all layers fused is {line.fused:.0f}"
    if line.largest_batch and claim.batch > line.largest_batch:
        fits = claim.batch * FREE_MEMORY <= line.largest_batch
        share, severity = (FREE_MEMORY, Severity.SUSPECT) if fits else (1.0, Severity.IMPOSSIBLE)
        text = f"activations of a batch of {claim.batch} take more than {share * 100:.0f} % of the memory"
        yield "memory_size", severity, f"{text} of {figures['memory']:.0f} GiB"
