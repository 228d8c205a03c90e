"""Predicts the training throughput of GPUs without measurements from those with measurements.

Predictions fill gaps in the tables of `recommend`, marked and ranked below measured and published figures.
`python -m studies.predict_held_out` measures their errors by cross-validation over GPUs and families.

The logarithm of throughput is a sum of Gaussian effects: network, precision, source, software, the exponents of
bandwidth and arithmetic, and the GPU itself. The exponents are shrunk towards a roofline (0.6 and 0.4) by network and
precision (partial pooling), so groups with few rows are close to it, and a GPU without rows is on it. This is a
Gaussian process whose kernel is the sum over effects of sd² × [same group] × covariate × covariate. The noise is
Student's t, by one reweighting, so faulty rows have little influence. The standard deviations are prior knowledge about
GPUs; a factor on all of them was chosen by cross-validation over families of GPUs.

Source: Gelman and Hill 2007, ch. 12 (partial pooling); Rasmussen and Williams 2006, ch. 2 (posterior of a Gaussian
process); Lange, Little and Taylor 1989 (weights of Student's t); Williams, Waterman and Patterson 2009 (roofline).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from results.reference import all_published
from results.reference.gpus import PEAKS, compute_capability, specifications
from results.stats import Interval

Array = npt.NDArray[np.float64]

NOISE = 0.05
"""Standard deviation of a row around the model, in logarithms: about 5 %."""

DEGREES_OF_FREEDOM = 4.0
"""Of the noise: heavy enough tails for faulty rows (Lange, Little and Taylor 1989 use 4)."""

TYPICAL = {"fp16": (800.0, 120.0), "tf32": (800.0, 50.0), "fp32": (800.0, 15.0)}
"""Bandwidth in GB/s and peak in TFLOP/s at which the covariates are 0: the centre of the published GPUs."""

REACH = 1.5
"""Maximum factor by which the bandwidth or arithmetic of a predicted GPU may be outside the range of GPUs with rows.

Source: for held-out GPUs up to 1.64 times outside the range of the others (H100 SXM5: 3350 and 2039 GB/s), errors are
smaller than for the rest. Larger factors could not be tested.
"""

FEWEST_FAMILIES = 3
"""Minimum number of GPU families with rows of a network; two do not predict a third."""

SAME_GPU = {"V100 32GB (DGX-2)": "V100 SXM2 32GB", "V100 SXM3 32GB": "V100 SXM2 32GB"}
"""GPUs of publications, and the closest one with specifications: NVIDIA states 900 GB/s for all of them."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A throughput and the predictors of the model.

    Attributes:
        gpu: Name in its source.
        network: Canonical name of the network; of a transformer with its task and sequence length.
        precision: `fp16`, `tf32` or `fp32`.
        source: Who measured.
        software: Framework and its version; empty: unknown.
        bandwidth: Memory bandwidth in GB/s.
        arithmetic: Dense peak of the precision in TFLOP/s.
        rate: Samples per second of one GPU; 0: to be predicted.
    """

    gpu: str
    network: str
    precision: str
    source: str
    software: str = ""
    rate: float = 0.0
    bandwidth: float = 0.0
    arithmetic: float = 0.0

    @property
    def family(self) -> str:
        """Name of the family: all memory sizes and form factors of one data-centre chip."""
        match = re.match(r"(?:A|H|V|MI)\d{3}\b", self.gpu)
        return match[0] if match else self.gpu

    @property
    def workload(self) -> str:
        """`transformer` or `convolutional`, which have different bottlenecks."""
        transformer = self.network.startswith(("bert", "gpt", "vit"))
        return "transformer" if transformer else "convolutional"

    @property
    def capability(self) -> str:
        """The compute capability of its GPU, e.g. `8.6`."""
        return compute_capability(SAME_GPU.get(self.gpu, self.gpu))


LEVELS = {
    "network": 5.0,  # determined by the data alone
    "network precision": 1.0,
    "source": 0.15,
    "source network precision": 0.075,
    "software": 0.075,
    "gpu": 0.06,  # beyond bandwidth and arithmetic
    "gpu precision": 0.04,
    "gpu network": 0.03,
}
"""Standard deviation in logarithms of each group's effect, given the specifications of its GPUs."""

SLOPES = {"": 0.1, "workload": 0.15, "network": 0.05, "precision": 0.075}
"""Standard deviation of the exponents of bandwidth and of arithmetic in each group."""

EXPONENTS = 0.6, 0.4
"""Prior means of the exponents of bandwidth and arithmetic: most layers of published networks are memory-bound, and a
GPU with twice both is twice as fast."""


KINDS = {
    ("convolutional", "fp16"): 2.759,
    ("convolutional", "fp32"): 1.154,
    ("convolutional", "tf32"): 1.154,
    ("transformer", "fp16"): 2.759,
}
"""Workloads and precisions that are predicted for one GPU, with the number of standard deviations of the model that
cover 90 % of held-out rows.

For other transformers errors exceed 12 %, or intervals cover less than 85 %. `predict_held_out` prints this table; a
test checks it.
"""


def forecast(known: Sequence[Observation], wanted: Sequence[Observation]) -> tuple[Array, Array]:
    """Predict the logarithms of throughputs from known ones.

    Returns:
        The logarithms and their standard deviations for a new measurement, shape (n,) for n `wanted`.
    """
    rows, count = [*known, *wanted], len(known)
    kernel, mean = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    bandwidth = np.log([row.bandwidth / TYPICAL[row.precision][0] for row in rows])
    arithmetic = np.log([row.arithmetic / TYPICAL[row.precision][1] for row in rows])
    for names, sd in LEVELS.items():
        kernel += sd**2 * _same(rows, names)
    for exponent, values in zip(EXPONENTS, (bandwidth, arithmetic), strict=True):
        mean += exponent * values
        kernel += sum(sd**2 * _same(rows, names) for names, sd in SLOPES.items()) * np.outer(values, values)
    residual = np.log([row.rate for row in known]) - mean[:count]
    noise = np.full(count, NOISE**2)
    for _ in range(2):
        inverse = np.linalg.inv(kernel[:count, :count] + np.diag(noise))
        solved = inverse @ residual
        left = solved * noise  # of the residual, as K α + N α = r
        noise = NOISE**2 * (DEGREES_OF_FREEDOM + (left / NOISE) ** 2) / (DEGREES_OF_FREEDOM + 1)
    cross = kernel[count:, :count]
    variance = np.diag(kernel)[count:] - np.einsum("ij,jk,ik->i", cross, inverse, cross) + NOISE**2
    return mean[count:] + cross @ solved, np.sqrt(np.maximum(variance, NOISE**2))


def _same(rows: Sequence[Observation], names: str) -> npt.NDArray[np.bool_]:
    """Return which pairs of rows have equal attributes `names`."""
    labels = [repr([getattr(row, name) for name in names.split()]) for row in rows]
    _, groups = np.unique(labels, return_inverse=True)
    return np.equal.outer(groups, groups)


def predict(
    gpu: str, count: int, network: str, precision: str, source: str, known: Sequence[Observation] = ()
) -> Interval | str:
    """Predict the training throughput of a single GPU, or return why it is not predicted.

    Args:
        gpu: Name in the reference.
        count: GPUs of the job; only 1 is predicted.
        network: Name in the rows.
        precision: A key of `PEAKS`.
        source: Source for whose method of measuring to predict.
        known: Known throughputs; empty: the published ones.
    """
    known = known or published_observations()
    target = _specified(Observation(gpu=gpu, network=network, precision=precision, source=source))
    refusal = "several GPUs" if count > 1 else _refusal(target, known)
    if refusal or target is None:
        return refusal
    (value,), (sd,) = forecast(known, [target])
    half = KINDS[target.workload, precision] * sd
    middle, low, high = (float(np.exp(value + side * half)) for side in (0, -1, 1))
    return Interval(middle, low, high, 0.9)


def _refusal(target: Observation | None, known: Sequence[Observation]) -> str:
    """Return why a throughput is not predicted; empty if it is."""
    if target is None:
        return "its bandwidth or peak is not specified"
    same = [row for row in known if row.precision == target.precision]
    families = {row.family for row in same if row.network == target.network}
    if not families:
        return "no row of this network and precision"
    if (target.workload, target.precision) not in KINDS:
        return f"{target.workload} networks in {target.precision} are not predicted: the error would be too large"
    if len(families) < FEWEST_FAMILIES:
        return f"{target.network} was measured on fewer than {FEWEST_FAMILIES} families of GPUs"
    if target.capability not in {row.capability for row in same}:
        return f"no row of compute capability {target.capability}"
    for name in ("bandwidth", "arithmetic"):
        values, figure = [getattr(row, name) for row in same], getattr(target, name)
        if max(figure / max(values), min(values) / figure) > REACH:
            return f"its {name} is more than {REACH:g} times away from all GPUs with rows"
    return ""


@functools.cache
def published_observations() -> tuple[Observation, ...]:
    """Return the published single-GPU rows that are not suspect and whose GPU has specifications."""
    rows = (
        Observation(
            gpu=row["gpu"],
            network=row["model"],
            precision=row["precision"],
            source=row["source"],
            software=f"{row['framework']}, xla {row['xla'] or '?'}",
            rate=float(row["samples_per_second"]),
        )
        for row in all_published()
        if not row["suspect"] and row["num_gpus"] == "1"
    )
    return tuple(filter(None, map(_specified, rows)))


def _specified(row: Observation) -> Observation | None:
    """Add the bandwidth and peak of its GPU to a row; None: one of them is unknown."""
    figures = specifications().get(SAME_GPU.get(row.gpu, row.gpu), {})
    bandwidth, arithmetic = figures.get("memory_bandwidth"), figures.get(PEAKS[row.precision][0])
    gpu = "V100 SXM3 32GB" if row.gpu.endswith("(DGX-2)") else row.gpu
    return replace(row, gpu=gpu, bandwidth=bandwidth, arithmetic=arithmetic) if bandwidth and arithmetic else None
