"""Throughput that nobody measured, predicted from the rows of other GPUs, with its error.

A prediction is good for a short list. It is marked wherever it is shown and ranked below every figure that was measured
or published. `python -m tests.benchmarks.predict_left_out` measures its errors by leaving out GPUs and their siblings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.recommend.prediction_model import Model, Observation, rates_of
from results.reference import all_published
from results.reference.gpus import PEAKS, compute_capability, gpu_key, specifications
from results.table.fleets import FleetRate

SAME_GPU = {"V100 32GB (DGX-2)": "V100 SXM2 32GB", "V100 SXM3 32GB": "V100 SXM2 32GB"}
"""GPUs of publications, and their nearest relative with specifications: NVIDIA states 900 GB/s for all of them."""

CONSUMER_RATIO = 1.5
"""FP16 accumulation this many times as fast as FP32 accumulation marks a consumer GPU: 2.0 there, else 1.0."""

OURS = "tfbench"
"""The source of measured rows."""

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
    ("convolutional", "fp16", False): PredictedKind(error=0.116, multiplier=2.742),
    ("convolutional", "fp16", True): PredictedKind(error=0.140, multiplier=2.289),
    ("convolutional", "tf32", False): PredictedKind(error=0.075, multiplier=1.268),
    ("convolutional", "tf32", True): PredictedKind(error=0.098, multiplier=1.352),
    ("transformer", "fp16", False): PredictedKind(error=0.075, multiplier=2.742),
    ("transformer", "fp16", True): PredictedKind(error=0.133, multiplier=2.289),
}
"""Kinds that are predicted: workload, precision, several GPUs. FP32, and transformers in TF32, miss by more than 12 %
(several GPUs: 18 %), or their intervals cover less than 85 %. `predict_left_out` prints this table; a test checks
it."""


@dataclass(frozen=True)
class Prediction:
    """A throughput that nobody measured.

    Attributes:
        samples_per_second: Over all GPUs.
        low: Lower end of the interval that should cover 90 % of measurements.
        high: Its upper end.
        source: Whose way of measuring is predicted.
        error: Median error of this kind on GPUs that were left out.
        rows: Rows of this network and precision that it rests on.
    """

    samples_per_second: float
    low: float
    high: float
    source: str
    error: float
    rows: int


def predict(
    gpus: Sequence[tuple[str, int]],
    network: str,
    precision: str,
    observations: Sequence[Observation],
    source: str = "",
) -> dict[tuple[str, int], Prediction | str]:
    """Predict the training throughput of GPUs, or say why that cannot be done.

    Args:
        gpus: Names in the reference, each with the number of GPUs of one host.
        network: Name in the rows.
        precision: A key of `PEAKS`.
        observations: What to rest on.
        source: Whose way of measuring to predict; empty: ours where it has rows, else the source with the most GPUs.
    """
    about = [row for row in observations if (row.network, row.precision) == (network, precision)]
    source = source if source in {row.source for row in about} else _source(about)
    compiled = [row.xla for row in about if row.source == source]
    found: dict[tuple[str, int], Prediction | str] = {}
    targets: dict[tuple[str, int], Observation] = {}
    for gpu, count in gpus:
        xla = max(sorted(set(compiled)), key=compiled.count, default="")
        target = _observation(gpu, network, precision, count, source=source, xla=xla)
        reason = _refusal(target, about, observations)
        if target is None or reason:
            found[gpu, count] = reason
        else:
            targets[gpu, count] = target
    if not targets:
        return found
    model, first = Model([*observations, *targets.values()]), len(observations)
    forecast = model.predict(np.arange(first), rates_of(observations), np.arange(first, first + len(targets)))
    for (key, target), log_rate, sd in zip(targets.items(), forecast.log_rate, forecast.sd, strict=True):
        kind = KINDS[target.workload, precision, target.count > 1]
        value, low, high = (float(np.exp(log_rate + side * kind.multiplier * sd)) for side in (0, -1, 1))
        found[key] = Prediction(value, low, high, source, kind.error, len(about))
    return found


def _refusal(target: Observation | None, about: Sequence[Observation], known: Sequence[Observation]) -> str:
    """Return why a throughput is not predicted; empty: it is."""
    if not about:
        return "no row of this network and precision"
    if target is None:
        return "its bandwidth or peak is not specified"
    if (target.workload, target.precision, target.count > 1) not in KINDS:
        return f"{target.workload} networks in {target.precision} are not predicted: the error would be too large"
    most = max(row.count for row in about)
    if target.count > most:
        return f"nobody measured {target.network} on more than {most} GPUs"
    return out_of_reach(target, known)


def published_observations(rows: Iterable[Mapping[str, str]] | None = None) -> list[Observation]:
    """Return the published rows that are not suspect and whose GPUs have specifications."""
    found = []
    for row in all_published() if rows is None else rows:
        observation = None if row["suspect"] else _observation(
            row["gpu"],
            row["model"],
            row["precision"],
            int(row["num_gpus"]),
            batch=int(row["batch_per_gpu"]) if row["batch_per_gpu"] else None,
            source=row["source"],
            software=f"{row['framework']}, xla {row['xla'] or '?'}",
            xla=row["xla"],
            rate=float(row["samples_per_second"]),
        )  # fmt: skip
        found += [observation] if observation else []
    return found


def measured_observations(rates: Sequence[FleetRate]) -> list[Observation]:
    """Return what our own records say: training on one host of GPUs that have specifications."""
    found = []
    for rate in rates:
        case = rate.case
        if rate.mean is None or (str(case.mode), str(case.device), case.num_hosts) != ("train", "gpu", 1):
            continue
        observation = _observation(
            gpu_key(str(rate.software.gpu or "")) or "",
            case.model,
            str(case.precision),
            case.num_gpus,
            batch=case.batch_per_gpu,
            source=OURS,
            software=f"TensorFlow {rate.named('tensorflow')}",
            xla="off" if rate.named("xla") == "off" else "on",
            rate=rate.mean,
        )
        found += [observation] if observation else []
    return found


def family_of(gpu: str) -> str:
    """Return the name that siblings share: memory sizes and form factors of one data-centre chip are one family."""
    match = re.match(r"(?:A|H|V|MI)\d{3}\b", gpu)
    return match[0] if match else gpu


def _observation(
    gpu: str,
    network: str,
    precision: str,
    count: int,
    *,
    source: str,
    xla: str,
    batch: int | None = None,
    software: str = "",
    rate: float = 0.0,
) -> Observation | None:
    """Return what a throughput depends on; None where a figure of the GPU is missing."""
    figures = specifications().get(SAME_GPU.get(gpu, gpu), {})
    bandwidth, arithmetic = figures.get("memory_bandwidth"), figures.get(PEAKS[precision][0])
    if not (bandwidth and arithmetic):
        return None
    half, full = (figures.get(f"fp16_tensor_{name}_accumulate", 0.0) for name in ("fp16", "fp32"))
    return Observation(
        gpu="V100 SXM3 32GB" if gpu.endswith("(DGX-2)") else gpu,
        family=family_of(gpu),
        network=network,
        precision=precision,
        count=count,
        batch=batch,
        source=source,
        software=software,
        xla=xla,
        bandwidth=bandwidth,
        arithmetic=arithmetic,
        consumer=half > CONSUMER_RATIO * full,
        rate=rate,
    )


def _source(about: Sequence[Observation]) -> str:
    """Choose whose measurement is predicted: ours where there is one, else the source with the most GPUs."""
    gpus = {source: {row.gpu for row in about if row.source == source} for source in {row.source for row in about}}
    return max(gpus, key=lambda name: (name == OURS, len(gpus[name]), name), default="")


def out_of_reach(target: Observation, known: Sequence[Observation]) -> str:
    """Return why a GPU is too far from those that were measured in its precision; empty: it is not."""
    same = [row for row in known if row.precision == target.precision]
    if len({row.family for row in same if row.network == target.network}) < FEWEST_FAMILIES:
        return f"{target.network} was measured on fewer than {FEWEST_FAMILIES} families of GPUs"
    own = capability(target)
    if own not in {capability(row) for row in same}:
        return f"no row of compute capability {own}"
    for name in ("bandwidth", "arithmetic"):
        if factor_beyond(target, same, name) > REACH:
            return f"its {name} is more than {REACH:g} times away from all GPUs with rows"
    return ""


def factor_beyond(target: Observation, others: Iterable[Observation], name: str) -> float:
    """Return how many times more, or less, of a figure a GPU has than all others; up to 1: no more."""
    values, own = [getattr(row, name) for row in others], getattr(target, name)
    return float(max(own / max(values), min(values) / own))


def capability(row: Observation) -> str:
    """Return the compute capability of a row's GPU, e.g. `8.6`."""
    return compute_capability(SAME_GPU.get(row.gpu, row.gpu))
