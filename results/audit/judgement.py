"""Judges the tables of a file by all rules, and formats the findings.

Here are the rules that compare throughputs with the reference: with limits of GPUs and networks (arithmetic, memory
bandwidth, memory size, the order of networks), and with trusted measurements.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from results.audit.claims import ENOUGH_READ, Claim, Finding, Reading, Severity, TableFinding, read_throughputs
from results.audit.consistency import RULES, Pair, above, pairs, specified_ratios
from results.reference import FOLDER, GIBI, all_published
from results.reference.gpus import CLOCK_MARGIN, PEAKS, SLICE, loosest_figures
from results.reference.networks import OF_BYTES, WINOGRAD, NetworkCost, networks
from results.reference.prices import span
from results.schema.networks import NETWORKS
from results.table.comparable import grouped
from results.text import counted

INDIRECT = ("scaling_out_of_line", "gpu_out_of_line")
"""Rules whose findings are left out if findings of other rules, above a note, have all their rows."""

WINOGRAD_NETWORKS = ("alexnet", "vgg16", "inception_v4")
"""Networks whose operations are mostly convolutions that Winograd's algorithm suits."""

TENSOR_SHARE_SUSPECT = 0.6
"""Higher shares of the tensor peak are unknown for training of convolutional networks; published: 10 to 40 %."""

FILLING_BATCH = 128
"""Samples per GPU from which the batch does not change the order of networks; from a quarter of it, half of the other
network's batch suffices.

Source: an H100 in fp16, where InceptionV3 with 64 is slower than ResNet152 with 256 (docs/validation.md).
"""

FREE_MEMORY = 0.8
"""Share of memory available to activations; the rest is for weights, gradients and workspace."""

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

FACTOR = 3.0
"""Largest plausible ratio to the fastest measurement of one GPU, network, precision and GPU count.

Published figures differ by a factor of 1.4 between frameworks (ResNet50, one A100) and of 2.6 with and without padding
(BERT-Large).
"""

SLOW_FACTOR = 4.0
"""Likewise to the slowest one: builds older than the GPU were up to 2.6 times slower (RTX 3090, 2020)."""

OFF_COLUMN = 0.5
"""Largest plausible deviation of a column from published measurements relative to the other columns, in natural
logarithms.

Software affects a whole table: builds without XLA reach 0.6 of published figures. A halved column deviates by 0.69.
"""

ENOUGH_OF_GPU = 4
"""Minimum number of networks in such a column: an early build (RTX 3090, TF 2.4.1) ran three of six at half speed."""

RATIO_NOTED = 0.2
"""Deviation of the ratio of two GPUs from published ones, in natural logarithms, for a note; a suspicion: `OFF_COLUMN`.

Published ratios differ by up to 0.36 between frameworks (RTX A6000 to RTX 3090, ResNet50 FP16: 1.01 and 1.45).
"""

Reference = Mapping[Any, tuple[float, float]]
"""Least and greatest trusted throughput by GPU and `Claim.case`, and ratio of two GPUs by both and `Claim.case`; of one
GPU each, as scaling depends on the host."""


def audit_file(path: Path, decimal: str | None = None) -> Reading:
    """Audit all tables of a file.

    Args:
        path: Tables of throughputs as CSV, TSV or Markdown.
        decimal: The decimal mark, if the numbers are ambiguous.

    Raises:
        NotATable: The file has no throughputs.
    """
    reading = read_throughputs(path, decimal)
    reading.findings = [*claim_findings(reading.claims, trusted_reference()), *reading.unread]
    reading.findings.sort(key=lambda finding: ([*Severity].index(finding.severity), finding.rule, finding.rows))
    return reading


def claim_findings(claims: Sequence[Claim], reference: Reference) -> list[TableFinding]:
    """Apply all rules to the claims of one file.

    Args:
        claims: The claims.
        reference: Trusted measurements.
    """
    found = [
        TableFinding(rule, severity, tuple(sorted({claim.row for claim in of})), message)
        for findings in (*(rule(claims) for rule in (_limits, _order, *RULES)), _contradictions(claims, reference))
        for rule, severity, of, message in findings
        if severity
    ]
    explained = {row for of in found if of.rule not in INDIRECT and of.severity is not Severity.NOTE for row in of.rows}
    return [of for of in found if of.rule not in INDIRECT or not explained.issuperset(of.rows)]


def _limits(claims: Sequence[Claim]) -> Iterator[Finding]:
    """Find claims that exceed the limits of known GPUs and networks, and note what has no known limits."""
    for claim in claims:
        for rule, severity, text in _beyond(claim):
            yield rule, severity, [claim], f"{claim.name}: {text}"
    some_gpu = any(claim.gpu_text for claim in claims)
    unknown = [claim for claim in claims if not claim.gpus and bool(claim.gpu_text) == some_gpu]
    for rule, name, chosen in (
        ("gpu_slice", "gpu_text", [claim for claim in unknown if SLICE.search(claim.gpu_text)]),
        ("unknown_gpu", "gpu_text", [claim for claim in unknown if not SLICE.search(claim.gpu_text)]),
        ("unknown_network", "model", [claim for claim in claims if claim.model not in networks()]),
        ("unknown_precision", "precision", [claim for claim in claims if claim.precision not in PEAKS]),
    ):
        if chosen:
            named = ", ".join(sorted({getattr(claim, name) or "none given" for claim in chosen}))
            yield rule, Severity.NOTE, chosen, f"limits not checked, no data for: {named}"


def _order(claims: Sequence[Claim]) -> Iterator[Finding]:
    """Find networks that are slower than others with many times their FLOPs and memory traffic."""
    alike = pairs(claims, "group", "precision", "num_gpus", "mode", "image_size")
    both = [sorted(pair, key=lambda claim: claim.rate) for pair in alike]
    kinds = grouped(((_out_of_order(*pair), pair[0].model, pair[1].model), pair) for pair in both)
    for (severity, small, large), settings in kinds.items():
        slow, fast = settings[0]
        message = (
            f"{small} is slower than {large}, which needs {flop_ratio(small, large):.1f} times its FLOPs, in "
            f"{counted(len(settings), 'setting')}, e.g. {slow.number} < {fast.number} "
            f"({slow.precision} ×{slow.num_gpus})"
        )
        yield "order_of_networks", severity, itertools.chain(*settings), message


def _out_of_order(slow: Claim, fast: Claim) -> Severity | None:
    """Return how certainly a network cannot be slower than another; None: it may be, or its batch is too small."""
    small, large = cost_of_unit(slow.model), cost_of_unit(fast.model)
    needed = min(fast.batch, FILLING_BATCH, max(fast.batch / 2, FILLING_BATCH / 4))
    if small is None or large is None or slow.rate == fast.rate or (slow.batch and slow.batch < needed):
        return None
    flops = more = flop_ratio(slow.model, fast.model)
    models, traffic = (slow.model, fast.model), "elements_train_millions"
    if "elements_fused_millions" in small and "elements_fused_millions" in large:
        more = min(flops, large[traffic] / small[traffic])
    elif flops <= ORDER_BY_FLOPS and not all(model.startswith("bert") for model in models):
        more = 1.0
    if more > ORDER_IMPOSSIBLE:
        return Severity.IMPOSSIBLE
    even = flops > 1 and all(model.startswith(EVEN_KINDS) for model in models)
    most = EVEN.get(slow.precision, math.inf) if even else math.inf
    return Severity.SUSPECT if more > ORDER_SUSPECT or flops * fast.rate / slow.rate > most else None


@functools.cache
def cost_of_unit(model: str) -> NetworkCost | None:
    """Return the cost of an image, sequence or token, whichever throughputs count, with the memory of a sequence."""
    network = networks().get(model)
    if network is None or model not in NETWORKS or NETWORKS[model].unit != "tokens":
        return network
    parts = ("gflop_train", "elements_train_millions", "elements_fused_millions")
    return {**network, **{name: network[name] / network["size"] for name in parts if name in network}}


def flop_ratio(small: str, large: str) -> float:
    """Return the ratio of the FLOPs of two networks; 1: unknown."""
    one, other = cost_of_unit(small), cost_of_unit(large)
    return other["gflop_train"] / one["gflop_train"] if one and other else 1.0


def _beyond(claim: Claim) -> Iterator[tuple[str, Severity, str]]:
    """Yield the limits that a claim exceeds as rule, severity and text; fp32 that may be TF32 is treated as TF32.

    Source: Williams, Waterman, Patterson, Roofline, CACM 52 (4), 2009.
    """
    figures, network = loosest_figures(claim.gpus), cost_of_unit(claim.model)
    if network is None or claim.precision not in PEAKS:
        return
    tf32 = claim.precision in ("fp32", "tf32") and "tf32_tensor" in figures and not claim.strict
    kind = "tf32" if tf32 else "fp32" if claim.precision == "tf32" else claim.precision
    peak, size = PEAKS[kind]
    if not {peak, "memory_bandwidth"} <= figures.keys():
        return
    pixels = (claim.image_size / network["size"]) ** 2 if claim.image_size and not network["sequences"] else 1.0
    rate = claim.per_gpu * pixels  # in samples of the default size
    achieved = rate * network["gflop_train"] / 1e3 * (1 if claim.mode == "train" else FORWARD)
    share, fused = achieved / figures[peak], network.get("elements_fused_millions")
    text = f"{achieved:.1f} TFLOP/s per GPU is {share * 100:.0f} % of its {PEAK_NAMES[kind]} peak"
    if share > CLOCK_MARGIN * (WINOGRAD if claim.model in WINOGRAD_NETWORKS else 1.0):
        yield "flop_bound", Severity.IMPOSSIBLE, text
    elif kind != "fp32" and share > TENSOR_SHARE_SUSPECT and fused:
        yield "flop_bound", Severity.SUSPECT, f"{text}; networks of this kind reach 10 to 40 %"
    if claim.mode != "train":
        return
    if fused and claim.per_gpu > (bound := figures["memory_bandwidth"] * 1e3 / size / fused / pixels):
        text = f"{above(claim.per_gpu, round(bound), 0)} per GPU and second needs more than its memory bandwidth"
        yield "bandwidth_bound", Severity.IMPOSSIBLE, f"{text}; the bound with all layers fused is {bound:.0f}"
    memory = claim.batch * pixels * network.get(f"saved_{OF_BYTES[size]}_mb", 0.0) * 1e6 / GIBI
    if memory > FREE_MEMORY * figures["memory"]:
        share, severity = (1.0, Severity.IMPOSSIBLE) if memory > figures["memory"] else (FREE_MEMORY, Severity.SUSPECT)
        text = f"activations of a batch of {claim.batch} take more than {share * 100:.0f} % of the memory"
        yield "memory_size", severity, f"{text} of {figures['memory']:.0f} GiB"


def reference_of(trusted: Iterable[Claim]) -> Reference:
    """Return what trusted measurements say."""
    known = [claim for claim in trusted if claim.gpu]
    rates = ((_key(claim), claim.rate) for claim in known)
    ratios = ((_key(low, high), high.rate / low.rate) for low, high in _rivals(known))
    return {key: (min(of_key), max(of_key)) for key, of_key in grouped(itertools.chain(rates, ratios)).items()}


def _key(*claims: Claim) -> tuple[object, ...]:
    """Return what is compared with measurements of the same: GPUs and case."""
    return *(claim.gpu for claim in claims), claims[0].case


def trusted_claims() -> list[Claim]:
    """Return the measurements shipped with tfbench: published ones, without suspect ones, and own ones."""
    claims, own = (read_throughputs(FOLDER / name).claims for name in ("published.csv", "measured.csv"))
    suspect = {number for number, row in enumerate(all_published()) if row["suspect"]}
    return [claim for claim in claims if claim.row not in suspect] + own


@functools.cache
def trusted_reference() -> Reference:
    """Return what `trusted_claims` say, computed once for all audits."""
    return reference_of(trusted_claims())


def _contradictions(claims: Sequence[Claim], reference: Reference) -> Iterator[Finding]:
    """Find cells, columns and ratios of GPUs that are far from all trusted measurements."""
    training = [claim for claim in claims if claim.gpu and claim.mode == "train" and not claim.image_size]
    single = []
    for claim in training:
        least, most = reference.get(_key(claim), (0.0, math.inf))
        if not least / SLOW_FACTOR <= claim.rate <= most * FACTOR:
            measured = span((least, most))
            text = f"{claim.name} on {claim.gpu}: {claim.number}, measured elsewhere: {measured}: too far apart"
            yield "sources_contradict", Severity.SUSPECT, [claim], text
        elif least and claim.num_gpus == 1:
            single.append(((claim.gpu, claim.precision), (claim, _outside(claim.rate, least, most))))
    yield from _off_columns(grouped(single))
    yield from _off_ratios(training, reference)


def _outside(value: float, least: float, most: float) -> float:
    """Return by how much a value is outside the range of measured ones, in natural logarithms; 0: it is inside."""
    return math.log(value / min(max(value, least), most))


def _off_columns(columns: Mapping[tuple[str, str], Sequence[tuple[Claim, float]]]) -> Iterator[Finding]:
    """Find columns of a GPU and precision that deviate from all measurements, unlike the others of the table."""
    medians = {name: statistics.median(off for _, off in column) for name, column in columns.items()}
    for name, column in columns.items():
        middle, others = medians[name], [median for other, median in medians.items() if other != name]
        apart = middle - statistics.median(others) if others else 0.0
        if len({claim.model for claim, _ in column}) >= ENOUGH_OF_GPU and min(abs(apart), abs(middle)) > OFF_COLUMN:
            text = (
                f"{' '.join(name)}: {math.exp(middle):.2f} times every published measurement of it in the median of "
                f"{len(column)} cells, unlike the other columns: {'halved?' if apart < 0 else 'doubled?'}"
            )
            yield "sources_contradict", Severity.SUSPECT, [claim for claim, _ in column], text


def _off_ratios(claims: Sequence[Claim], measured: Reference) -> Iterator[Finding]:
    """Find GPUs whose ratio no source has measured."""
    known = [pair for pair in _rivals(claims) if _key(*pair) in measured]
    for (one, other), cells in grouped(((pair[0].gpu, pair[1].gpu), pair) for pair in known).items():
        ratio = statistics.median(high.rate / low.rate for low, high in cells)
        off = abs(statistics.median(_outside(high.rate / low.rate, *measured[_key(low, high)]) for low, high in cells))
        specified = specified_ratios(*cells[0])
        if off > RATIO_NOTED and specified and not min(specified) <= ratio <= max(specified):
            least, most = zip(*(measured[_key(*pair)] for pair in cells), strict=True)
            text = (
                f"{other} is {ratio:.2f} times as fast as {one}, in the median of {counted(len(cells), 'cell')}; "
                f"published: {span((*least, *most))}, by specification {span(specified)}"
            )
            severity = Severity.SUSPECT if off > OFF_COLUMN and len(cells) > 1 else Severity.NOTE
            yield "ratio_of_gpus", severity, itertools.chain(*cells), text


def _rivals(claims: Iterable[Claim]) -> list[Pair]:
    """Return the pairs of two GPUs' fastest claims of one case of one GPU with the same software, in order of names."""
    # fp32 that may be TF32 is left out
    ones = [claim for claim in claims if claim.num_gpus == 1 and not claim.expected(ieee=True) < claim.expected()]
    best = grouped(((claim.gpu, claim.software, claim.case), claim) for claim in ones).values()
    fastest = [max(of, key=attrgetter("rate")) for of in best]
    return pairs(sorted(fastest, key=attrgetter("gpu")), "software", "case")


def reading_lines(reading: Reading) -> list[str]:
    """Return lines on how much of the file was read."""
    blank = f", {reading.blank} without a number" if reading.blank else ""
    lines = [f"{len(reading.claims)} of {reading.cells} cells with a throughput were read{blank}"]
    few = f"too little could be read to judge this file (under {ENOUGH_READ * 100:.0f} %)"
    lines += [f"columns not used: {', '.join(reading.ignored)}"] if reading.ignored else []
    return lines if reading.read_enough else [*lines, f"{few}: an absence of findings proves nothing"]


def audit_parts(path: Path, audited: Reading) -> list[list[str]]:
    """Return the answer as sentences: the counts and how much was read; then each finding alone."""
    counts = Counter(finding.severity for finding in audited.findings)
    texts = [f"{counts[kind]} {kind}" for kind in (Severity.IMPOSSIBLE, Severity.SUSPECT)]
    above = [f"{path.name}: {', '.join([*texts, counted(counts[Severity.NOTE], 'note')])}", *reading_lines(audited)]
    rows = ["rows are counted from 0 below the heading"] if audited.findings else []
    findings = [[f"{of.severity}: {of.rule}, {_rows_text(of.rows)}: {of.message}"] for of in audited.findings]
    return [[*above, *rows], *findings]


def _rows_text(rows: Sequence[int]) -> str:
    """Return row numbers, neighbours as a range: `rows 0 to 3, 7`."""
    runs = itertools.groupby(enumerate(rows), key=lambda item: item[1] - item[0])
    ranges = [[row for _, row in run] for _, run in runs]
    texts = [f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in ranges]
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(texts)}"
