"""Claims, what follows from them, and findings about them."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable
from itertools import combinations, pairwise
from operator import attrgetter
from typing import NamedTuple

from results.reference.gpus import gpus_in, is_slice, loosest_figures, specifications
from results.reference.networks import NetworkCost, networks
from results.schema.networks import NETWORKS
from results.table.comparable import grouped

BANDWIDTH_POWER, ARITHMETIC_POWER = 0.5, 0.3
"""Exponents of a GPU's bandwidth and arithmetic in its throughput.

Least absolute deviations over the training rows of published tables, within network, precision and source: between
(0.45, 0.30) and (0.70, 0.20) by table; medians of GPUs then deviate by 0.07 (FP32) and 0.12 (FP16), at most 0.25.
Their sum is below 1 because larger GPUs are harder to utilise.
"""

SWITCHED = 300.0
"""GB/s of NVLink in both directions from which NVLink connects all GPUs of a host.

Bridges between two GPUs have 100 to 112.
"""

MOST_ALIKE = 500
"""Maximum number of claims that are paired with each other; more of one case are a log, not a table."""


class Claim(NamedTuple):
    """A throughput in a table, and what follows from it.

    Attributes:
        row: 0-based data row of the file, counted over all its tables.
        group: Table that it belongs to: source, GPU and all settings not in other columns.
        software: Settings in `group` that other GPUs can share.
        gpu_text: Name of the GPU as received, without a count; empty without a column.
        model: Canonical name of the network.
        precision: `fp32`, `tf32`, `fp16`, `bf16`, or as received.
        strict: Whether fp32 is known to be IEEE arithmetic without TF32.
        batch: Samples per GPU and step; 0: not given.
        rate: Samples per second over all GPUs.
        last_place: Unit of the last digit of `rate`.
        mode: `train` or `infer`.
        image_size: Height and width in pixels, if not the default; 0: not given.
    """

    row: int
    group: tuple[str, ...]
    software: tuple[str, ...]
    gpu_text: str
    model: str
    precision: str
    strict: bool
    batch: int
    num_gpus: int
    rate: float
    last_place: float
    mode: str
    image_size: int

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs with specifications that may have this name."""
        return () if is_slice(self.gpu_text) else gpus_in(self.gpu_text)

    @property
    def gpu(self) -> str:
        """The GPU, if only one has its name; empty: none or several."""
        return self.gpus[0] if len(self.gpus) == 1 else ""

    @property
    def kind(self) -> tuple[object, ...]:
        """What is trained, and how; not the batch, which is often the largest that fits."""
        return self.model, self.precision, self.strict, self.mode, self.image_size

    @property
    def case(self) -> tuple[object, ...]:
        """What two sources share; ResNet50 v1 and v1.5 are one, because they differ in work by only 6 %."""
        return self.model.removesuffix("_v1.5"), self.precision, self.num_gpus, self.mode

    @property
    def per_gpu(self) -> float:
        """Samples per second of one GPU."""
        return self.rate / self.num_gpus

    @property
    def rounding(self) -> float:
        """The largest relative rounding error."""
        return self.last_place / 2 / self.rate

    @property
    def name(self) -> str:
        """The cell, for messages."""
        return " ".join(filter(None, (self.model, self.precision, f"×{self.num_gpus}")))

    def __str__(self) -> str:
        return f"{self.name} {self.number}"

    @property
    def number(self) -> str:
        """The throughput, for messages."""
        return f"{self.rate:.10g}"

    @property
    def switched(self) -> bool:
        """Whether all GPUs that its name may refer to have switched NVLink."""
        links = [specifications()[gpu].get("nvlink_both_directions", 0.0) for gpu in self.gpus]
        return min(links, default=0.0) >= SWITCHED

    def expected(self, *, ieee: bool = False) -> float:
        """Return the logarithm of the throughput that the GPU suggests, up to a constant; NaN: unknown.

        Args:
            ieee: Whether fp32 is without TF32 where this is not known.
        """
        strict = self.strict or (ieee and self.precision == "fp32")
        bandwidth, arithmetic = map(math.log, gpu_speeds(self.gpus, self.precision, strict))
        return BANDWIDTH_POWER * bandwidth + ARITHMETIC_POWER * arithmetic


class Severity(enum.StrEnum):
    """Severity of a finding."""

    IMPOSSIBLE = "impossible"  # no hardware or honest measurement gives this
    SUSPECT = "suspect"  # needs an explanation before the number is used
    NOTE = "note"  # worth knowing


class TableFinding(NamedTuple):
    """A finding about a table.

    Attributes:
        rule: Stable name of the rule.
        rows: 0-based data rows.
        message: The numbers, and what was expected.
    """

    rule: str
    severity: Severity
    rows: tuple[int, ...]
    message: str

    @classmethod
    def of(cls, rule: str, severity: Severity, claims: Iterable[Claim], message: str) -> TableFinding:
        """Return a finding about claims."""
        return cls(rule, severity, tuple(sorted({claim.row for claim in claims})), message)


@functools.cache
def gpu_speeds(gpus: tuple[str, ...], precision: str, strict: bool) -> tuple[float, float]:
    """Return the bandwidth and arithmetic of GPUs in a precision; NaN: unknown."""
    figures = loosest_figures(gpus)
    if precision in ("fp32", "tf32"):
        peak = figures.get("fp32") if strict else figures.get("tf32_tensor", figures.get("fp32"))
    else:  # GeForce GPUs halve the rate of FP32 accumulation, which affects networks less than the peak
        half = figures.get("fp16_tensor_fp32_accumulate", 0.0)
        peak = math.sqrt((figures.get("fp16_tensor_fp16_accumulate") or half) * half)
    return figures.get("memory_bandwidth") or math.nan, peak or math.nan


@functools.cache
def cost_of_unit(model: str) -> NetworkCost | None:
    """Return the cost of an image, sequence or token, whichever throughputs count, with the memory of a sequence."""
    network = networks().get(model)
    if network is None or model not in NETWORKS or NETWORKS[model].unit != "tokens":
        return network
    parts = ("gflop_train", "elements_train_millions", "elements_fused_millions")
    return {**network, **{name: network[name] / network["size"] for name in parts if name in network}}


def by(claims: Iterable[Claim], *shared: str) -> list[list[Claim]]:
    """Return the groups of claims that share attributes, in order of appearance."""
    return [*grouped((attrgetter(*shared)(claim), claim) for claim in claims).values()]


def pairs(claims: Iterable[Claim], *shared: str, neighbours: bool = False) -> list[tuple[Claim, Claim]]:
    """Return each two claims that share attributes, or only those that follow each other."""
    groups = [group for group in by(claims, *shared) if len(group) <= MOST_ALIKE]
    return [pair for group in groups for pair in (pairwise(group) if neighbours else combinations(group, 2))]


def above(value: float, limit: float, decimals: int = 2) -> str:
    """Format a value above a limit, with as many more decimals as it takes to see that."""
    return next(text for more in range(17) if float(text := f"{value:.{decimals + more}f}") > limit or more == 16)


def specified_ratios(low: Claim, high: Claim) -> list[float]:
    """Return the ratios of two GPUs' bandwidth and arithmetic; empty: unknown."""
    speeds = (gpu_speeds(claim.gpus, claim.precision, claim.strict) for claim in (low, high))
    return [ratio for one, other in zip(*speeds, strict=True) if not math.isnan(ratio := other / one)]
