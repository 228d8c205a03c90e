"""A hierarchical log-linear model of throughput: a roofline in logarithms, and what differs from it by group.

    log(rate / GPUs) = Σ over effects of (coefficient of its group) × (covariate) + noise

Each coefficient is normal around its effect's mean with its effect's standard deviation, so a group with few rows is
drawn towards the roofline (partial pooling), and a GPU that nobody measured is at it. That is a Gaussian process whose
kernel is the sum over effects of sd² × [same group] × covariate × covariate. The noise is Student's t, fitted by
iteratively reweighted least squares, so that a faulty row pulls little.

The standard deviations of the effects were written down from what is known of GPUs. One factor on all of them, `SCALE`,
was chosen by the data, for every family of GPUs by leaving out the others in turn:
`python -m tests.benchmarks.predict_left_out --nested` repeats that.

Source: Gelman and Hill 2007, ch. 12 (partial pooling); Rasmussen and Williams 2006, ch. 2 (posterior of a Gaussian
process); Lange, Little and Taylor 1989 (weights of Student's t); Williams, Waterman and Patterson 2009 (roofline).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg  # type: ignore[import-untyped]

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
        family: GPUs that share a chip under several names, e.g. `A100`; else the GPU itself.
        network: Our name of the network; of a transformer with its task and sequence length.
        precision: `fp16`, `tf32` or `fp32`.
        count: GPUs of one host.
        batch: Samples per GPU and step; None: not stated.
        source: Who measured.
        software: Framework and its version; empty: unknown.
        xla: `on`, `off`, or empty where the source does not say.
        bandwidth: Memory bandwidth in GB/s.
        arithmetic: Dense peak of the precision in TFLOP/s.
        consumer: A GeForce GPU: copies between GPUs go through the host.
        rate: Samples per second over all GPUs; 0 where it is to be predicted.
    """

    gpu: str
    family: str
    network: str
    precision: str
    count: int
    batch: int | None
    source: str
    software: str
    xla: str
    bandwidth: float
    arithmetic: float
    consumer: bool
    rate: float

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


LEVELS = (
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
)
"""How fast one GPU is, apart from its specifications."""

ROOFLINE = (
    Effect((), "bandwidth", 0.2, mean=0.6),  # most layers of published networks wait for memory
    Effect((), "arithmetic", 0.2, mean=0.4),  # both add up to 1: a GPU that is twice in all is twice as fast
    *(
        Effect(by, times, sd)
        for times in ("bandwidth", "arithmetic")
        for by, sd in ((("workload",), 0.3), (("network",), 0.1), (("precision",), 0.15))
    ),
    Effect((), "batch", 0.05, mean=0.05),
)
"""How speed grows with the specifications."""

SCALING = (
    *(
        Effect(by, times, sd, mean)
        for times in ("several", "doublings")
        for by, sd, mean in (
            ((), 0.1, -0.02),
            (("consumer",), 0.1, 0.0),
            (("consumer", "network"), 0.05, 0.0),
            (("consumer", "precision"), 0.05, 0.0),
            (("xla",), 0.1, 0.0),
            (("xla", "precision"), 0.1, 0.0),
            (("workload",), 0.1, 0.0),
            (("source",), 0.05, 0.0),
        )
    ),
    Effect(("network",), "doublings", 0.03),
    Effect(("software",), "doublings", 0.05),
    Effect(("gpu",), "doublings", 0.06),
    Effect(("gpu", "network"), "doublings", 0.05),
    # Copies between consumer GPUs go through the host, and hosts differ in lanes and switches.
    Effect(("gpu", "software"), "consumer_doublings", 0.15),
    Effect(("gpu", "network"), "consumer_doublings", 0.1),
)
"""What is lost between GPUs: once with the second, and with each doubling."""

EFFECTS = (*LEVELS, *ROOFLINE, *SCALING)


@dataclass(frozen=True)
class Forecast:
    """Predicted logarithms of throughput over all GPUs.

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
        self._mean = np.log([setting.count for setting in settings])
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
        "several": np.array([float(s.count > 1) for s in settings]),
        "doublings": np.log2([s.count for s in settings]),
        "consumer_doublings": np.array([math.log2(s.count) * s.consumer for s in settings]),
    }


def rates_of(observations: Sequence[Observation]) -> Array:
    """Return the rates of observations in samples per second, shape (n,)."""
    return np.array([observation.rate for observation in observations])
