"""Checks throughputs against limits: arithmetic, memory bandwidth, memory size, and the order of networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from results.audit.findings import Claim, Severity, TableFinding, above, cost_of_unit, grouped, pairs
from results.reference.gpus import CLOCK_MARGIN, FREE_MEMORY, PEAKS, is_slice, loosest_figures, roofline
from results.reference.networks import WINOGRAD, networks
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

FORWARD = 1 / 3
"""Share of a forward pass in the arithmetic of training."""

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

PART = "parts of a GPU are not compared with whole ones"

SETTING = ("group", "precision", "num_gpus", "mode", "image_size")
"""What two networks share to be compared."""


def limit_findings(claims: Sequence[Claim]) -> Iterator[TableFinding]:
    """Find claims that exceed the limits of known GPUs and networks, and note what has no known limits."""
    yield from _order(claims)
    for claim in claims:
        for rule, severity, text in _beyond(claim):
            yield TableFinding.of(rule, severity, [claim], f"{claim.name}: {text}")
    some_gpu = any(claim.gpu_text for claim in claims)
    unknown = [claim for claim in claims if not claim.gpus and bool(claim.gpu_text) == some_gpu]
    for rule, chosen, name, why in (
        ("gpu_slice", [claim for claim in unknown if is_slice(claim.gpu_text)], "gpu_text", PART),
        ("unknown_gpu", [claim for claim in unknown if not is_slice(claim.gpu_text)], "gpu_text", "no data for"),
        ("unknown_network", [claim for claim in claims if claim.model not in networks()], "model", "no data for"),
        ("unknown_precision", [claim for claim in claims if claim.precision not in PEAKS], "precision", "no data for"),
    ):
        if chosen:
            named = ", ".join(sorted({getattr(claim, name) or "none given" for claim in chosen}))
            yield TableFinding.of(rule, Severity.NOTE, chosen, f"limits not checked, {why}: {named}")


def _order(claims: Sequence[Claim]) -> Iterator[TableFinding]:
    """Find networks that are slower than others with many times their FLOPs and memory traffic."""
    both = [sorted(pair, key=lambda claim: claim.rate) for pair in pairs(claims, *SETTING)]
    kinds = grouped(both, lambda pair: (_out_of_order(*pair), pair[0].model, pair[1].model))
    for (severity, small, large), settings in kinds.items():
        if severity:
            slow, fast = settings[0]
            message = (
                f"{small} is slower than {large}, which needs {flop_ratio(small, large):.1f} times its FLOPs, in "
                f"{counted(len(settings), 'setting')}, e.g. {slow.number} < {fast.number} ({slow.precision} "
                f"×{slow.num_gpus})"
            )
            yield TableFinding.of("order_of_networks", severity, itertools.chain(*settings), message)


def _out_of_order(slow: Claim, fast: Claim) -> Severity | None:
    """Return how certainly a network cannot be slower than another; None: it may be, or its batch is too small."""
    small, large = cost_of_unit(slow.model), cost_of_unit(fast.model)
    needed = min(fast.batch, FILLING_BATCH, max(fast.batch / 2, FILLING_BATCH / 4))
    if small is None or large is None or slow.rate == fast.rate or (slow.batch and slow.batch < needed):
        return None
    flops = more = large.flop_per_sample / small.flop_per_sample
    models = slow.model, fast.model
    if small.elements_fused and large.elements_fused:
        more = min(flops, large.elements_unfused / small.elements_unfused)
    elif flops <= ORDER_BY_FLOPS and not all(model.startswith("bert") for model in models):
        more = 1.0
    if more > ORDER_IMPOSSIBLE:
        return Severity.IMPOSSIBLE
    even = flops > 1 and all(model.startswith(EVEN_KINDS) for model in models)
    most = EVEN.get(slow.precision, math.inf) if even else math.inf
    return Severity.SUSPECT if more > ORDER_SUSPECT or flops * fast.rate / slow.rate > most else None


def flop_ratio(small: str, large: str) -> float:
    """Return the ratio of the FLOPs of two networks; 1: unknown."""
    one, other = cost_of_unit(small), cost_of_unit(large)
    return other.flop_per_sample / one.flop_per_sample if one and other else 1.0


def _beyond(claim: Claim) -> Iterator[tuple[str, Severity, str]]:
    """Yield the limits that a claim exceeds as rule, severity and text; fp32 that may be TF32 is treated as TF32."""
    figures, network = loosest_figures(claim.gpus), cost_of_unit(claim.model)
    if network is None or claim.precision not in PEAKS:
        return
    tf32 = claim.precision in ("fp32", "tf32") and "tf32_tensor" in figures and not claim.strict
    peak = "tf32" if tf32 else "fp32" if claim.precision == "tf32" else claim.precision
    line = roofline(figures, network, peak)
    if line is None:
        return
    pixels = (claim.image_size / network.size) ** 2 if claim.image_size and not network.sequences else 1.0
    rate = claim.per_gpu * pixels  # in samples of the default size
    share = rate / line.arithmetic * (1 if claim.mode == "train" else FORWARD)
    achieved = share * figures[PEAKS[peak][0]]
    text = f"{achieved:.1f} TFLOP/s per GPU is {share * 100:.0f} % of its {PEAK_NAMES[peak]} peak"
    if share > CLOCK_MARGIN * (WINOGRAD if network.model in WINOGRAD_NETWORKS else 1.0):
        yield "flop_bound", Severity.IMPOSSIBLE, text
    elif peak != "fp32" and share > TENSOR_SHARE_SUSPECT and network.elements_fused:
        yield "flop_bound", Severity.SUSPECT, f"{text}; networks of this kind reach 10 to 40 %"
    if claim.mode != "train":
        return
    if rate > line.fused:
        bound = line.fused / pixels
        text = f"{above(claim.per_gpu, round(bound), 0)} per GPU and second needs more than its memory bandwidth"
        yield "bandwidth_bound", Severity.IMPOSSIBLE, f"{text}; the bound with all layers fused is {bound:.0f}"
    if line.largest_batch and claim.batch * pixels > line.largest_batch:
        fits = claim.batch * pixels * FREE_MEMORY <= line.largest_batch
        share, severity = (FREE_MEMORY, Severity.SUSPECT) if fits else (1.0, Severity.IMPOSSIBLE)
        text = f"activations of a batch of {claim.batch} take more than {share * 100:.0f} % of the memory"
        yield "memory_size", severity, f"{text} of {figures['memory']:.0f} GiB"
