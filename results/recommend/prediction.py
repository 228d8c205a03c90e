"""Throughput that nobody measured, predicted from the rows of other GPUs, with its error.

A prediction is good for a short list. It is marked wherever it is shown and ranked below every figure that was measured
or published. `python -m tests.benchmarks.predict_left_out` measures its errors by leaving out GPUs and their siblings.

A hierarchical log-linear model of throughput: a roofline in logarithms, and what differs from it by group.

    log(rate) = Σ over effects of (coefficient of its group) × (covariate) + noise

Each coefficient is normal around its effect's mean with its effect's standard deviation, so a group with few rows is
drawn towards the roofline (partial pooling), and a GPU that nobody measured is at it. That is a Gaussian process whose
kernel is the sum over effects of sd² × [same group] × covariate × covariate. The noise is Student's t, fitted by
iteratively reweighted least squares, so that a faulty row pulls little.

The standard deviations of the effects were written down from what is known of GPUs. One factor on all of them, `SCALE`,
was chosen by the data, for every family of GPUs by leaving out the others in turn.

Source: Gelman and Hill 2007, ch. 12 (partial pooling); Rasmussen and Williams 2006, ch. 2 (posterior of a Gaussian
process); Lange, Little and Taylor 1989 (weights of Student's t); Williams, Waterman and Patterson 2009 (roofline).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.linalg  # type: ignore[import-untyped]

from results.reference import all_published
from results.reference.gpus import PEAKS, compute_capability, specifications
from results.stats import Interval

Array = npt.NDArray[np.float64]

NOISE = 0.05
"""Standard deviation of a row around the model, in logarithms: about 5 %."""

SCALE = 0.5
"""Factor on the standard deviations of all effects but the first two; of 0.5, 0.7, 1 and 1.4 the best in every fold."""

UNSCALED = 2
"""Effects at the head of the list that `SCALE` leaves alone: levels that the data alone decide."""

DEGREES_OF_FREEDOM = 4.0
"""Of the noise: heavy enough tails for faulty rows (Lange, Little and Taylor 1989 use 4)."""

PASSES = 6
"""Of reweighting."""

TYPICAL = {"fp16": (800.0, 120.0), "tf32": (800.0, 50.0), "fp32": (800.0, 15.0)}
"""Bandwidth in GB/s and peak in TFLOP/s where the covariates are 0: the middle of the GPUs that were published."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One throughput, and what it depends on as far as predictions consider it.

    Attributes:
        gpu: As its source names it.
        network: Our name of the network; of a transformer with its task and sequence length.
        precision: `fp16`, `tf32` or `fp32`.
        batch: Samples per GPU and step; None: not stated.
        source: Who measured.
        software: Framework and its version; empty: unknown.
        xla: `on`, `off`, or empty where the source does not say.
        bandwidth: Memory bandwidth in GB/s.
        arithmetic: Dense peak of the precision in TFLOP/s.
        rate: Samples per second of one GPU; 0 where it is to be predicted.
    """

    gpu: str
    network: str
    precision: str
    source: str
    xla: str
    software: str = ""
    batch: int | None = None
    rate: float = 0.0
    bandwidth: float = 0.0
    arithmetic: float = 0.0

    @property
    def family(self) -> str:
        """The name that siblings share: memory sizes and form factors of one data-centre chip are one family."""
        match = re.match(r"(?:A|H|V|MI)\d{3}\b", self.gpu)
        return match[0] if match else self.gpu

    @property
    def workload(self) -> str:
        """`transformer` or `convolutional`: what bounds a network's speed differs between the two."""
        transformer = self.network.startswith(("bert", "gpt", "vit"))
        return "transformer" if transformer else "convolutional"


@dataclass(frozen=True)
class Effect:
    """One term of the model.

    Attributes:
        by: Attributes of a setting; each combination of their values has a coefficient. Empty: one for all.
        times: The covariate.
        sd: Standard deviation of the coefficients, in logarithms per unit of the covariate.
        mean: What they are drawn towards.
    """

    by: tuple[str, ...]
    times: str
    sd: float
    mean: float = 0.0


EFFECTS = (
    Effect(("network",), "one", 5.0),  # the data alone decide
    Effect(("network", "precision"), "one", 1.0),
    Effect(("source",), "one", 0.3),
    Effect(("source", "network", "precision"), "one", 0.15),
    Effect(("software",), "one", 0.15),
    Effect(("software", "precision"), "one", 0.1),
    Effect(("xla",), "one", 0.15),
    Effect(("xla", "precision"), "one", 0.1),
    Effect(("xla", "network"), "one", 0.1),
    Effect(("gpu",), "one", 0.12),  # what a GPU has beyond its bandwidth and arithmetic
    Effect(("gpu", "precision"), "one", 0.08),
    Effect(("gpu", "network"), "one", 0.06),
    # How speed grows with the specifications.
    Effect((), "bandwidth", 0.2, mean=0.6),  # most layers of published networks wait for memory
    Effect((), "arithmetic", 0.2, mean=0.4),  # both add up to 1: a GPU that is twice in all is twice as fast
    *(
        Effect(by, times, sd)
        for times in ("bandwidth", "arithmetic")
        for by, sd in ((("workload",), 0.3), (("network",), 0.1), (("precision",), 0.15))
    ),
    Effect((), "batch", 0.05, mean=0.05),
)
"""How fast one GPU is apart from its specifications, then how speed grows with these."""


@dataclass(frozen=True)
class Forecast:
    """Predicted logarithms of throughput.

    Attributes:
        log_rate: Shape (n,).
        sd: Standard deviation of a new measurement around it, shape (n,).
    """

    log_rate: Array
    sd: Array


class Model:
    """The model over a fixed list of settings, of which any part is fitted to predict any other part.

    The kernel is computed once; leaving a GPU out costs one solution of the rows that stay.

    Args:
        settings: All observations, those that are fitted and those that are predicted.
        scale: See `SCALE`.
    """

    def __init__(self, settings: Sequence[Observation], scale: float = SCALE) -> None:
        self._kernel = np.zeros((len(settings), len(settings)))
        self._mean = np.zeros(len(settings))
        covariates = _covariates(settings)
        for i, effect in enumerate(EFFECTS):
            values = covariates[effect.times]
            labels = [tuple(getattr(setting, name) for name in effect.by) for setting in settings]
            _, groups = np.unique([repr(label) for label in labels], return_inverse=True)
            sd = effect.sd * (scale if i >= UNSCALED else 1.0)
            self._kernel += sd**2 * (groups[:, None] == groups[None, :]) * np.outer(values, values)
            self._mean = self._mean + effect.mean * values

    def predict(self, fitted: npt.NDArray[np.intp], rates: Array, wanted: npt.NDArray[np.intp]) -> Forecast:
        """Predict some settings from the rates of others.

        Args:
            fitted: Indices of the settings whose rates are known, shape (n,).
            rates: Samples per second, shape (n,).
            wanted: Indices of the settings to predict, shape (m,).
        """
        kernel = self._kernel[np.ix_(fitted, fitted)]
        residual = np.log(rates) - self._mean[fitted]
        weights = np.ones(len(fitted))
        for _ in range(PASSES):
            factor = scipy.linalg.cho_factor(kernel + np.diag(NOISE**2 / weights), lower=True, overwrite_a=True)
            solved = scipy.linalg.cho_solve(factor, residual)
            noise = solved * NOISE**2 / weights  # what is left of the residual, as K α + N α = r
            weights = (DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + (noise / NOISE) ** 2)
        cross = self._kernel[np.ix_(wanted, fitted)]
        own = self._kernel[wanted, wanted]
        whitened = scipy.linalg.solve_triangular(factor[0], cross.T, lower=True)
        variance = own - (whitened**2).sum(axis=0) + NOISE**2
        return Forecast(self._mean[wanted] + cross @ solved, np.sqrt(np.maximum(variance, NOISE**2)))


def _covariates(settings: Sequence[Observation]) -> dict[str, Array]:
    batches: dict[tuple[str, str], list[int]] = {}
    for setting in settings:
        if setting.batch:
            batches.setdefault((setting.network, setting.precision), []).append(setting.batch)
    usual = {key: float(np.median(found)) for key, found in batches.items()}

    def batch(setting: Observation) -> float:
        return math.log2(setting.batch / usual[setting.network, setting.precision]) if setting.batch else 0.0

    return {
        "one": np.ones(len(settings)),
        "bandwidth": np.log([s.bandwidth / TYPICAL[s.precision][0] for s in settings]),
        "arithmetic": np.log([s.arithmetic / TYPICAL[s.precision][1] for s in settings]),
        "batch": np.array([batch(s) for s in settings]),
    }


def rates_of(observations: Sequence[Observation]) -> Array:
    """Return the rates of observations in samples per second, shape (n,)."""
    return np.array([observation.rate for observation in observations])


SAME_GPU = {"V100 32GB (DGX-2)": "V100 SXM2 32GB", "V100 SXM3 32GB": "V100 SXM2 32GB"}
"""GPUs of publications, and their nearest relative with specifications: NVIDIA states 900 GB/s for all of them."""

REACH = 1.5
"""How many times more, or less, bandwidth or arithmetic a predicted GPU may have than any GPU with rows.

Source: left-out GPUs that lie outside of all others by up to 1.64 times (H100 SXM5: 3350 and 2039 GB/s) are missed by
less than the rest. Farther away nothing was left out to be tested.
"""

FEWEST_FAMILIES = 3
"""Fewest families of GPUs that a network must have been measured on: two say nothing about a third."""


@dataclass(frozen=True)
class PredictedKind:
    """How well one kind of workload is predicted for GPUs that were left out with their siblings.

    Attributes:
        error: Median absolute relative error.
        multiplier: Standard deviations of the model on each side of an interval that covers 90 % of left-out rows.
    """

    error: float
    multiplier: float


KINDS = {
    ("convolutional", "fp16"): PredictedKind(error=0.107, multiplier=2.488),
    ("convolutional", "fp32"): PredictedKind(error=0.094, multiplier=1.009),
    ("convolutional", "tf32"): PredictedKind(error=0.051, multiplier=1.009),
    ("transformer", "fp16"): PredictedKind(error=0.061, multiplier=2.488),
}
"""Kinds that are predicted, of one GPU. Other transformers miss by more than 12 %, or their intervals cover less than
85 %. `predict_left_out` prints this table; a test checks it."""


def predict(
    gpus: Sequence[tuple[str, int]],
    network: str,
    precision: str,
    observations: Sequence[Observation],
    source: str,
) -> dict[tuple[str, int], Interval | str]:
    """Predict the training throughput of GPUs, one of each, or say why that cannot be done.

    Args:
        gpus: Names in the reference, each with a number of GPUs; several are not predicted.
        network: Name in the rows.
        precision: A key of `PEAKS`.
        observations: What to rest on.
        source: Whose way of measuring to predict.
    """
    about = [row for row in observations if (row.network, row.precision) == (network, precision)]
    compiled = sorted(row.xla for row in about if row.source == source)
    xla = max(compiled, key=compiled.count, default="")
    found: dict[tuple[str, int], Interval | str] = {}
    targets: dict[tuple[str, int], Observation] = {}
    for gpu, count in gpus:
        specified = _specified(Observation(gpu=gpu, network=network, precision=precision, source=source, xla=xla))
        found[gpu, count] = "several GPUs" if count > 1 else _refusal(specified, about, observations)
        if not found[gpu, count]:
            targets[gpu, count] = specified[0]
    if not targets:
        return found
    model, first = Model([*observations, *targets.values()]), len(observations)
    forecast = model.predict(np.arange(first), rates_of(observations), np.arange(first, first + len(targets)))
    for (key, target), log_rate, sd in zip(targets.items(), forecast.log_rate, forecast.sd, strict=True):
        kind = KINDS[target.workload, precision]
        value, low, high = (float(np.exp(log_rate + side * kind.multiplier * sd)) for side in (0, -1, 1))
        found[key] = Interval(value, low, high, 0.9)
    return found


def _refusal(specified: Sequence[Observation], about: Sequence[Observation], known: Sequence[Observation]) -> str:
    """Return why a throughput is not predicted; empty: it is."""
    if not about:
        return "no row of this network and precision"
    if not specified:
        return "its bandwidth or peak is not specified"
    if (specified[0].workload, specified[0].precision) not in KINDS:
        kind = f"{specified[0].workload} networks in {specified[0].precision}"
        return f"{kind} are not predicted: the error would be too large"
    return out_of_reach(specified[0], known)


@functools.cache
def published_observations() -> list[Observation]:
    """Return the published rows of one GPU that are not suspect and whose GPU has specifications."""
    rows = [
        Observation(
            gpu=row["gpu"],
            network=row["model"],
            precision=row["precision"],
            source=row["source"],
            xla=row["xla"],
            software=f"{row['framework']}, xla {row['xla'] or '?'}",
            batch=int(row["batch_per_gpu"]) if row["batch_per_gpu"] else None,
            rate=float(row["samples_per_second"]),
        )
        for row in all_published()
        if not row["suspect"] and row["num_gpus"] == "1"
    ]
    return [specified for row in rows for specified in _specified(row)]


def _specified(row: Observation) -> list[Observation]:
    """Add the bandwidth and peak of its GPU to a row; none where one of them is not known."""
    figures = specifications().get(SAME_GPU.get(row.gpu, row.gpu), {})
    bandwidth, arithmetic = figures.get("memory_bandwidth"), figures.get(PEAKS[row.precision][0])
    gpu = "V100 SXM3 32GB" if row.gpu.endswith("(DGX-2)") else row.gpu
    return [replace(row, gpu=gpu, bandwidth=bandwidth, arithmetic=arithmetic)] if bandwidth and arithmetic else []


def out_of_reach(target: Observation, known: Sequence[Observation]) -> str:
    """Return why a GPU is too far from those that were measured in its precision; empty: it is not."""
    same = [row for row in known if row.precision == target.precision]
    if len({row.family for row in same if row.network == target.network}) < FEWEST_FAMILIES:
        return f"{target.network} was measured on fewer than {FEWEST_FAMILIES} families of GPUs"
    own = capability(target)
    if own not in {capability(row) for row in same}:
        return f"no row of compute capability {own}"
    for name in ("bandwidth", "arithmetic"):
        values, figure = [getattr(row, name) for row in same], getattr(target, name)
        if max(figure / max(values), min(values) / figure) > REACH:
            return f"its {name} is more than {REACH:g} times away from all GPUs with rows"
    return ""


def capability(row: Observation) -> str:
    """Return the compute capability of a row's GPU, e.g. `8.6`."""
    return compute_capability(SAME_GPU.get(row.gpu, row.gpu))
