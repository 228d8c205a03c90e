"""Claims against published measurements: of the same card, of other cards, and of the same networks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from results.audit.findings import Finding, Severity
from results.audit.limits import EVEN, EVEN_KINDS, flop_ratio
from results.audit.reading.claims import Claim, read_claims
from results.audit.scaling_audit import HEAVY
from results.audit.series import expected_log_speed, grouped
from results.reference import FOLDER, published
from results.reference.networks import networks

FACTOR = 3.0
"""Claims above every measurement of one card, network, precision and GPU count by more contradict them.

Published figures differ by 1.4 between frameworks (ResNet50, one A100) and by 2.6 between one that skips padding and
one that does not (BERT-Large).
"""

SLOW_FACTOR = 4.0
"""Likewise below all of them: builds that do not know a new card yet were up to 2.6 times slower (RTX 3090, 2020)."""

OTHER_CARDS_FACTOR = 4.0
"""Likewise of other cards, scaled by specification; that adds a factor of 1.3 at most, and rare networks run badly."""

FEWEST_CARDS = 2
"""Cards that a network's speed must be known from."""

FEWEST_RATIOS = 3
"""Likewise cards of a ratio of two networks."""

SWAP_MARGIN = 0.15
"""Natural logarithm by which a ratio of two networks may be beyond all published ones."""

WIDEST_RATIOS = 0.8
"""Natural logarithm that published ratios of two networks may spread over before they say nothing."""

SAME_WORK = 1.4
"""Networks whose FLOPs differ by less stand in either order in honest tables: Inception v4 and ResNet152."""

OUTLYING = 5.0
"""Robust standard deviations from the median beyond which a published ratio does not widen the range.

One published build in 24 ran ResNet50 slower than Inception v3 (RTX 3090, 2020); all others 1.4 to 2.2 times faster.
"""

LEAST_SPREAD = 0.05
"""Natural logarithm that honest ratios of two networks spread by at least, in robust standard deviations."""

ENOUGH_NETWORKS = 5
"""Networks that a column needs before outlying ratios are left out; fewer cannot show which one was exchanged."""

MARGIN_WITHIN = 0.3
"""Natural logarithm by which a ratio may be beyond those of the other columns of its table, whatever their precision.

Those must agree at least as well with each other.
"""

MARGIN_OF_FAMILY = 0.3
"""Natural logarithm by which the ratio of two networks of a family may be beyond those of their FLOPs and traffic.

No fit: e to this power is 1.35. ResNet152 needs 2.92 times the FLOPs and 2.15 times the traffic of ResNet50, so that
ratios of 1.6 to 3.9 are taken for honest. Between families the margin is that of `EVEN`.
"""


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
    return tuple(claim for claim in read_claims(FOLDER / "published.csv") if claim.row not in suspect)


def _same_card(claims: Sequence[Claim], believed: Sequence[Claim]) -> tuple[list[Finding], set[int]]:
    """Return findings, and which claims have a measurement of their own card and case."""
    measured = grouped(believed, _case)
    found, judged = [], set()
    for claim in claims:
        known = [other.rate for other in measured.get(_case(claim), [])]
        if not claim.gpu or not known or claim.image_size is not None:
            continue
        judged.add(id(claim))
        if not min(known) / SLOW_FACTOR <= claim.rate <= max(known) * FACTOR:
            message = (
                f"{claim.name} on {claim.gpu}: {claim.rate:g}, published measurements are {min(known):g} to "
                f"{max(known):g}: too far apart"
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
            severity = Severity.SUSPECT if above else Severity.NOTE  # rare networks honestly run badly
            found.append(Finding("sources_contradict", severity, (claim.row,), message))
    return found


def _beyond_every_card(claims: Sequence[Claim], believed: Sequence[Claim]) -> list[Finding]:
    """Note throughputs per GPU of unknown cards far above those of every known one: the card may be a newer one."""
    fastest: dict[tuple[str, bool], float] = defaultdict(float)
    for claim in believed:
        fastest[_kind(claim)] = max(fastest[_kind(claim)], claim.per_gpu)
    found = []
    for claim in claims:
        limit = fastest.get(_kind(claim), math.inf)
        if not claim.gpus and claim.per_gpu > FACTOR * limit:
            message = f"{claim.name} on {claim.gpu_text or 'an unnamed GPU'}: {claim.per_gpu:.4g} per GPU"
            message += f"; the fastest published card has {limit:.4g}"
            found.append(Finding("sources_contradict", Severity.NOTE, (claim.row,), message))
    return found


FULL = 8
"""Samples per GPU below which a throughput may be low for that reason alone."""


def _kind(claim: Claim) -> tuple[str, bool]:
    return _base(claim.model), claim.precision in ("fp16", "bf16")


Column = dict[str, Claim]  # the networks of one card, precision and number of GPUs
Range = tuple[float, float]
RatioKey = tuple[str, str, bool]  # two networks, and whether in half precision


def _swapped(claims: Sequence[Claim], believed: Sequence[Claim]) -> list[Finding]:
    """Find columns whose ratios of networks are like others only when two networks are exchanged."""
    published = _columns(believed)
    every, usual = (_ranges(published, kept) for kept in (_extremes, _usual))
    columns = _columns(claims)
    votes: dict[tuple[str, str], list[tuple[Column, str]]] = defaultdict(list)
    for column in columns:
        exchange = _exchange(column, every, "published ratios")
        if exchange is None and len(column) >= ENOUGH_NETWORKS:
            within = _ranges_within(column, columns)
            exchange = _exchange(column, usual, "published ratios") or _exchange(
                column, within, "ratios in the other columns", clear_order=True
            )
            exchange = exchange or _exchange(column, _ranges_by_work(column), "ratios by FLOPs and memory traffic")
        if exchange is not None:
            votes[exchange[0]].append((column, exchange[1]))
    found = []
    for (one, other), voters in votes.items():
        where = f"{len(voters)} columns" if len(voters) > 1 else "one column"
        message = (
            f"{one} and {other} look swapped in {where}, {voters[0][1]}, and all networks of the column agree with "
            "those only if these two are swapped"
        )
        rows = tuple(sorted({column[model].row for column, _ in voters for model in (one, other)}))
        found.append(Finding("networks_exchanged", Severity.SUSPECT, rows, message))
    return found


def _exchange(
    column: Column, ranges: Mapping[RatioKey, Range], whose: str, clear_order: bool = False
) -> tuple[tuple[str, str], str] | None:
    """Find the two networks furthest apart whose exchange brings all ratios of a column into range.

    Args:
        column: May have been exchanged.
        ranges: Of ratios.
        whose: The ranges, in words.
        clear_order: Only two networks of which one is the faster over the whole range.

    Returns:
        The networks, and why.
    """
    if not _beyond(column, ranges):
        return None
    pairs = [
        (one, other)
        for one, other in itertools.combinations(sorted(column), 2)
        if not 1 / SAME_WORK < flop_ratio(one, other) < SAME_WORK
        and (limits := ranges.get(_ratio_key(column[one], column[other])))
        and (limits[0] * limits[1] > 0 or not clear_order)
        and not _beyond(_exchanged(column, one, other), ranges)
    ]
    if not pairs:
        return None
    best = max(pairs, key=lambda pair: abs(math.log(column[pair[0]].rate / column[pair[1]].rate)))
    first, second = column[best[0]], column[best[1]]
    low, high = (math.exp(limit) for limit in ranges[_ratio_key(first, second)])
    example = f"e.g. {first.precision} ×{first.count}: {first.rate:g} and {second.rate:g}"
    return best, f"{example}; {whose} are {low:.2f} to {high:.2f}"


def _columns(claims: Sequence[Claim]) -> list[Column]:
    """Return the networks of each card, setting and precision, at the fewest GPUs: scaling is another matter.

    Where one GPU is not among them, networks of many parameters are left out: they scale as no other does.
    """
    found = []
    for group in grouped(claims, lambda claim: (claim.group, claim.precision, claim.strict)).values():
        fewest = min(claim.count for claim in group)
        column: Column = {}
        for claim in group:
            if claim.count == fewest and (fewest == 1 or not claim.model.startswith(HEAVY)):
                column.setdefault(claim.model, claim)
        if len(column) > 1:
            found.append(column)
    return found


def _ranges(columns: Sequence[Column], kept: Callable[[Sequence[float]], Range]) -> dict[RatioKey, Range]:
    """Return the range of every two networks' ratio, with a margin, where enough cards agree on it.

    Args:
        columns: Of measurements to believe.
        kept: Returns the range of values.
    """
    values: dict[RatioKey, list[tuple[str, float]]] = defaultdict(list)
    for column in columns:
        for one, other in itertools.combinations(sorted(column), 2):
            first, second = column[one], column[other]
            values[_ratio_key(first, second)].append((first.gpu_text, math.log(first.rate / second.rate)))
    found = {}
    for key, known in values.items():
        low, high = kept([value for _, value in known])
        if len({gpu for gpu, _ in known}) >= FEWEST_RATIOS and high - low <= WIDEST_RATIOS:
            found[key] = (low - SWAP_MARGIN, high + SWAP_MARGIN)
    return found


def _extremes(values: Sequence[float]) -> Range:
    return min(values), max(values)


def _usual(values: Sequence[float]) -> Range:
    """Return the lowest and highest value without outliers. Source: Iglewicz and Hoaglin 1993, median deviations."""
    middle = statistics.median(values)
    spread = max(LEAST_SPREAD, 1.483 * statistics.median(abs(value - middle) for value in values))
    usual = [value for value in values if abs(value - middle) <= OUTLYING * spread]
    return _extremes(usual)


def _ranges_within(column: Column, columns: Sequence[Column]) -> dict[RatioKey, Range]:
    """Return the ranges of ratios in the other columns of a table, of all precisions together."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for other in columns:
        if other is not column:
            for pair in itertools.combinations(sorted(column.keys() & other.keys()), 2):
                ratios[pair].append(math.log(other[pair[0]].rate / other[pair[1]].rate))
    found = {}
    for (one, another), values in ratios.items():
        low, high = _usual(values)
        if len(values) >= FEWEST_RATIOS and high - low <= MARGIN_WITHIN:
            found[_ratio_key(column[one], column[another])] = low - MARGIN_WITHIN, high + MARGIN_WITHIN
    return found


def _ranges_by_work(column: Column) -> dict[RatioKey, Range]:
    """Return the ranges of ratios of batch-normalised networks between what their FLOPs and their traffic let expect.

    A network runs into one bound or the other, or into both in turn, so that its time lies between the two. Where the
    traffic is not known, only networks of one family are compared, by FLOPs: they are built from the same layers.
    """
    known, found = networks(), {}
    kinds = {model: kind for model in column for kind in EVEN_KINDS if model.startswith(kind)}
    for one, other in itertools.combinations(sorted(kinds), 2):
        expected = [math.log(flop_ratio(one, other))]
        if all(model in known and known[model].elements_fused for model in (one, other)):
            expected.append(math.log(known[other].elements_unfused / known[one].elements_unfused))
        elif kinds[one] != kinds[other]:
            continue
        low, high = _extremes(expected)
        margin = MARGIN_OF_FAMILY if kinds[one] == kinds[other] else math.log(EVEN["fp32"])
        found[_ratio_key(column[one], column[other])] = low - margin, high + margin
    return found


def _ratio_key(first: Claim, second: Claim) -> RatioKey:
    return first.model, second.model, first.precision in ("fp16", "bf16")


def _beyond(column: Column, ranges: Mapping[RatioKey, Range]) -> bool:
    """Return whether a ratio of two networks of a column is beyond its range."""
    for one, other in itertools.combinations(sorted(column), 2):
        limits = ranges.get(_ratio_key(column[one], column[other]))
        if limits and not limits[0] <= math.log(column[one].rate / column[other].rate) <= limits[1]:
            return True
    return False


def _exchanged(column: Column, one: str, other: str) -> Column:
    """Return a column with the rates of two networks exchanged."""
    first, second = column[one], column[other]
    return {
        **column,
        one: dataclasses.replace(first, rate=second.rate),
        other: dataclasses.replace(second, rate=first.rate),
    }
