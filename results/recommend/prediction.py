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
import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from results.reference import all_published
from results.reference.gpus import PEAKS, specifications
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


EFFECTS = {
    "network": (5.0, 0.05),  # determined by the data alone
    "network precision": (1.0, 0.0),
    "source": (0.15, 0.0),
    "source network precision": (0.075, 0.0),
    "software": (0.075, 0.0),
    "gpu": (0.06, 0.0),  # beyond bandwidth and arithmetic
    "gpu precision": (0.04, 0.0),
    "gpu network": (0.03, 0.0),
    "precision": (0.0, 0.075),
    "workload": (0.0, 0.15),
    "every": (0.0, 0.1),
}
"""Standard deviations of each group's effect, in logarithms, given the specifications of its GPUs, and of its exponents
of bandwidth and of arithmetic."""

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


def forecast(known: pd.DataFrame, wanted: pd.DataFrame) -> tuple[Array, Array]:
    """Predict the logarithms of throughputs from known ones.

    Args:
        known: Rows as of `specified`, with `source`, `software` and `rate`.
        wanted: Likewise, without `rate`.

    Returns:
        The logarithms and their standard deviations for a new measurement, shape (n,) for n rows of `wanted`.
    """
    rows, count = pd.concat([known, wanted]), len(known)
    typical = np.array([TYPICAL[precision] for precision in rows["precision"]])
    covariates = np.log(rows[["bandwidth", "arithmetic"]].to_numpy(float) / typical)
    mean, slopes = np.dot(covariates, EXPONENTS), covariates @ covariates.T
    kernel = np.sum([(sd**2 + of**2 * slopes) * _same(rows, names) for names, (sd, of) in EFFECTS.items()], axis=0)
    residual = np.log(known["rate"].to_numpy(float)) - mean[:count]
    noise = np.full(count, NOISE**2)
    for _ in range(2):
        inverse = np.linalg.inv(kernel[:count, :count] + np.diag(noise))
        solved = inverse @ residual
        left = solved * noise  # of the residual, as K α + N α = r
        noise = NOISE**2 * (DEGREES_OF_FREEDOM + (left / NOISE) ** 2) / (DEGREES_OF_FREEDOM + 1)
    cross = kernel[count:, :count]
    variance = np.diag(kernel)[count:] - np.einsum("ij,jk,ik->i", cross, inverse, cross) + NOISE**2
    return mean[count:] + cross @ solved, np.sqrt(np.maximum(variance, NOISE**2))


def _same(rows: pd.DataFrame, names: str) -> Array:
    """Return 1 for pairs of rows with equal values in the columns `names`, otherwise 0."""
    groups = rows.groupby(names.split(), dropna=False).ngroup().to_numpy()
    return np.equal.outer(groups, groups).astype(float)


@functools.cache
def published_observations() -> pd.DataFrame:
    """Return the published single-GPU rows that are not suspect and whose GPU has specifications; see `specified`."""
    rows = pd.DataFrame(all_published()).rename(columns={"model": "network"})
    rows = rows[(rows["suspect"] == "") & (rows["num_gpus"] == "1")]
    software = rows["framework"] + ", xla " + rows["xla"].replace("", "?")
    return specified(rows.assign(software=software, rate=rows["samples_per_second"].astype(float)))


def specified(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the predictors of the model to rows with `gpu`, `network` and `precision`.

    Returns:
        The rows whose GPU has a specified bandwidth (`bandwidth`, GB/s) and dense peak of the precision (`arithmetic`,
        TFLOP/s), with its compute `capability`, its `family` (all memory sizes and form factors of one data-centre
        chip) and the `workload`: `transformer` or `convolutional`, which have different bottlenecks.
    """
    names = rows["gpu"].replace(SAME_GPU)
    figures = [specifications().get(name, {}) for name in names]
    peaks = [PEAKS[precision][0] for precision in rows["precision"]]
    return rows.assign(
        gpu=rows["gpu"].replace("V100 32GB (DGX-2)", "V100 SXM3 32GB"),
        bandwidth=[of_gpu.get("memory_bandwidth", math.nan) for of_gpu in figures],
        arithmetic=[of_gpu.get(peak, math.nan) for of_gpu, peak in zip(figures, peaks, strict=True)],
        capability=[of_gpu.get("compute_capability", math.nan) for of_gpu in figures],
        family=rows["gpu"].str.extract(r"^((?:A|H|V|MI)\d{3})\b", expand=False).fillna(rows["gpu"]),
        workload=rows["network"].str.match("bert|gpt|vit").map({True: "transformer", False: "convolutional"}),
        every="",
    ).dropna(subset=["bandwidth", "arithmetic"])


def predict(gpu: str, count: int, network: str, precision: str, source: str) -> Interval | str:
    """Predict the training throughput of a single GPU, or return why it is not predicted.

    Args:
        gpu: Name in the reference.
        count: GPUs of the job; only 1 is predicted.
        network: Name in the rows.
        precision: A key of `PEAKS`.
        source: Source for whose method of measuring to predict.
    """
    known = published_observations()
    target = specified(pd.DataFrame([{"gpu": gpu, "network": network, "precision": precision, "source": source}]))
    refusal = "several GPUs" if count > 1 else _refusal(target, known[known["precision"] == precision])
    if refusal:
        return refusal
    (value,), (sd,) = forecast(known, target.assign(software=""))
    half = KINDS[target["workload"].item(), precision] * sd
    middle, low, high = (float(np.exp(value + side * half)) for side in (0, -1, 1))
    return Interval(middle, low, high, 0.9)


def _refusal(target: pd.DataFrame, same: pd.DataFrame) -> str:
    """Return why the throughput of a row is not predicted from those of the same precision; empty if it is."""
    if target.empty:
        return "its bandwidth or peak is not specified"
    row = target.iloc[0]
    families = same.loc[same["network"] == row["network"], "family"].nunique()
    if families < FEWEST_FAMILIES:
        return f"{row['network']} was measured on fewer than {FEWEST_FAMILIES} families of GPUs"
    if (row["workload"], row["precision"]) not in KINDS:
        return f"{row['workload']} networks in {row['precision']} are not predicted: the error would be too large"
    if row["capability"] not in {*same["capability"]}:
        return f"no row of compute capability {row['capability']}"
    for name in ("bandwidth", "arithmetic"):
        if max(row[name] / same[name].max(), same[name].min() / row[name]) > REACH:
            return f"its {name} is more than {REACH:g} times away from all GPUs with rows"
    return ""
