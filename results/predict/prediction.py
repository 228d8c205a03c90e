"""A prediction where nobody measured: the throughput of a GPU in the specification table, with its interval.

A prediction is never evidence: it is labelled, and no table, ranking or comparison of measured or published figures
takes it in.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.audit.limits import BYTES
from results.digits import significant
from results.grid import Grid
from results.predict.left_out import LEVEL, KindError, calibrate, interval_class, kind_of, refusal
from results.predict.model import Model, rates_of
from results.predict.reach import out_of_reach
from results.predict.rows import (
    OURS,
    PEAKS,
    Observation,
    Setting,
    card_figures,
    family_of,
    published_observations,
    specification_name,
)
from results.reference import GIBI
from results.reference.gpus import specifications
from results.reference.networks import networks
from results.text import counted

LABEL = "predicted"


@dataclass(frozen=True)
class Prediction:
    """A throughput that nobody measured.

    Attributes:
        gpu: Name in `reference/gpu_specs.csv`.
        batch: Samples per GPU and step; None: as usual in the rows that it rests on.
        samples_per_second: Over all GPUs.
        low: Lower end of the interval of a measurement.
        high: Its upper end.
        level: Share of left-out rows that such intervals are made to cover.
        as_measured_by: Source whose way of measuring is predicted.
        rows: Rows of this network and precision that it rests on.
        cards: GPUs they were measured on.
        sources: Who measured them.
        left_out_error: Median error of this kind of workload on cards that were left out, the worse of with and without
            their siblings.
        coverage: Share of left-out rows of this kind within their intervals.
    """

    gpu: str
    network: str
    precision: str
    batch: int | None
    num_gpus: int
    samples_per_second: float
    low: float
    high: float
    level: float
    as_measured_by: str
    rows: int
    cards: tuple[str, ...]
    sources: tuple[str, ...]
    left_out_error: float
    coverage: float
    label: str = LABEL


@dataclass(frozen=True)
class NoPrediction:
    """Why there is no prediction.

    Attributes:
        gpu: Name in `reference/gpu_specs.csv`.
        reason: What is missing, or by how much predictions of this kind miss.
    """

    gpu: str
    network: str
    precision: str
    batch: int | None
    num_gpus: int
    reason: str
    label: str = "no prediction"


def predict(
    gpu: str,
    network: str,
    precision: str,
    batch: int | None = None,
    num_gpus: int = 1,
    *,
    observations: Sequence[Observation] | None = None,
) -> Prediction | NoPrediction:
    """Predict the training throughput of one GPU model; see `predictions_for`."""
    (found,) = predictions_for([gpu], network, precision, batch, num_gpus, observations=observations)
    return found


def predictions_for(
    gpus: Sequence[str],
    network: str,
    precision: str,
    batch: int | None = None,
    num_gpus: int = 1,
    *,
    observations: Sequence[Observation] | None = None,
) -> list[Prediction | NoPrediction]:
    """Predict the training throughput of GPUs that nobody measured, in the order asked for.

    Args:
        gpus: Names in `reference/gpu_specs.csv`.
        network: Our name of the network.
        precision: `fp32`, `tf32`, `fp16` or `bf16`.
        batch: Samples per GPU and step; None: as usual.
        num_gpus: GPUs of one host.
        observations: What to rest on; None: the published rows.
    """
    rows = tuple(published_observations() if observations is None else observations)
    about = [row for row in rows if (row.setting.network, row.setting.precision) == (network, precision)]
    answers: dict[str, Prediction | NoPrediction] = {}
    targets: dict[str, Setting] = {}
    for gpu in gpus:
        reason = _missing(gpu, network, precision, num_gpus, rows) or _known(gpu, num_gpus, about)
        reason = reason or _too_large(gpu, network, precision, batch)
        target = None if reason else _target(gpu, network, precision, batch, num_gpus, about)
        if target is not None:
            reason = out_of_reach(target, (row.setting for row in rows))
        if target is None or reason:
            answers[gpu] = NoPrediction(gpu, network, precision, batch, num_gpus, reason)
        else:
            targets[gpu] = target
    if targets:
        answers |= _answers(targets, rows, about)
    return [answers[gpu] for gpu in gpus]


def _missing(gpu: str, network: str, precision: str, num_gpus: int, rows: Sequence[Observation]) -> str:
    """Say what a prediction would need and has not; empty: nothing."""
    figures = specifications().get(specification_name(gpu) or "", {})
    known = sorted({row.setting.network for row in rows})
    if network not in known:
        variants = [name for name in known if name.startswith(network)]
        hint = f". Name one of {', '.join(variants)}" if variants else ""
        return f"no measured or published row of {network}{hint}"
    counts = [r.setting.count for r in rows if (r.setting.network, r.setting.precision) == (network, precision)]
    if not counts:
        return f"no measured or published row of {network} in {precision}"
    if "compute_capability" not in figures:
        return "there are rows for NVIDIA GPUs only"
    if card_figures(gpu, precision) is None:
        return f"the specification table has no bandwidth or no {PEAKS[precision]} for it"
    if num_gpus > max(counts):
        return f"nobody measured {network} in {precision} on more than {max(counts)} GPUs"
    return ""


def _known(gpu: str, num_gpus: int, about: Sequence[Observation]) -> str:
    """Say what was measured already: a prediction is for what was not; empty: nothing."""
    for row in about:
        if row.setting.count == num_gpus and specification_name(row.setting.card) == specification_name(gpu):
            how = "measured" if row.setting.source == OURS else "published"
            return f"{how} already: {significant(row.rate, 4)} samples/s, {row.setting.source}, {row.setting.software}"
    return ""


def _too_large(gpu: str, network: str, precision: str, batch: int | None) -> str:
    """Say that a batch does not fit into memory, where that is known; empty: it fits, or it is not known."""
    saved = networks()[network].saved_bytes.get(BYTES[precision]) if network in networks() else None
    memory = specifications().get(specification_name(gpu) or "", {}).get("memory")
    if batch is None or saved is None or memory is None or batch * saved <= memory * GIBI:
        return ""
    return f"a batch of {batch} keeps {batch * saved / GIBI:.1f} GiB of activations, the card has {memory:g} GiB"


def _target(
    gpu: str, network: str, precision: str, batch: int | None, num_gpus: int, about: Sequence[Observation]
) -> Setting:
    """Describe what is predicted: as our own records where there are some, else as the source with the most cards."""
    cards: dict[str, set[str]] = defaultdict(set)
    for row in about:
        cards[row.setting.source].add(row.setting.card)
    source = max(cards, key=lambda name: (name == OURS, len(cards[name]), name))
    compiled = [row.setting.xla for row in about if row.setting.source == source]
    bandwidth, arithmetic, consumer = card_figures(gpu, precision) or (0.0, 0.0, False)
    return Setting(
        card=gpu,
        family=family_of(gpu),
        network=network,
        precision=precision,
        count=num_gpus,
        batch=batch,
        source=source,
        software="",
        xla=max(sorted(set(compiled)), key=compiled.count),
        bandwidth=bandwidth,
        arithmetic=arithmetic,
        consumer=consumer,
    )


def _answers(
    targets: dict[str, Setting], rows: tuple[Observation, ...], about: Sequence[Observation]
) -> dict[str, Prediction | NoPrediction]:
    """Predict what nothing speaks against but, maybe, its kind."""
    calibration = calibrate(rows)
    settings = [row.setting for row in rows]
    model = Model([*settings, *targets.values()])
    fitted, wanted = np.arange(len(rows)), np.arange(len(rows), len(rows) + len(targets))
    forecast = model.predict(fitted, rates_of(rows), wanted)
    answers: dict[str, Prediction | NoPrediction] = {}
    for (gpu, setting), log_rate, sd in zip(targets.items(), forecast.log_rate, forecast.sd, strict=True):
        asked = (gpu, setting.network, setting.precision, setting.batch, setting.count)
        reason = refusal(setting, calibration.kinds)
        if reason:
            answers[gpu] = NoPrediction(*asked, reason)
        else:
            reach = calibration.multipliers[interval_class(setting)] * sd
            ends = [float(np.exp(log_rate + side * reach)) for side in (0, -1, 1)]
            answers[gpu] = _prediction(setting, ends, about, calibration.kinds[kind_of(setting)])
    return answers


def _prediction(setting: Setting, ends: Sequence[float], about: Sequence[Observation], error: KindError) -> Prediction:
    value, low, high = ends
    return Prediction(
        gpu=setting.card,
        network=setting.network,
        precision=setting.precision,
        batch=setting.batch,
        num_gpus=setting.count,
        samples_per_second=value,
        low=low,
        high=high,
        level=LEVEL,
        as_measured_by=setting.source,
        rows=len(about),
        cards=tuple(sorted({row.setting.card for row in about})),
        sources=tuple(sorted({row.setting.source for row in about})),
        left_out_error=max(error.by_card, error.by_family),
        coverage=error.coverage,
    )


def prediction_grid(found: Sequence[Prediction | NoPrediction]) -> Grid:
    """Return predictions as a table of their own, each row labelled; where there is none, why."""
    rows = []
    for item in found:
        if isinstance(item, NoPrediction):
            rows.append([item.gpu, "", "", item.label, "", "", "", item.reason])
            continue
        rows.append(
            [
                item.gpu,
                significant(item.samples_per_second),
                f"{significant(item.low)} to {significant(item.high)}",
                item.label,
                f"{item.rows} rows of {len(item.cards)} GPUs",
                item.as_measured_by,
                f"{item.left_out_error * 100:.0f} %",
                "",
            ]
        )
    first = found[0]
    columns = ["GPU", "samples/s>", f"{LEVEL * 100:.0f} % interval>", "basis", "based on", "as measured by"]
    title = f"{first.network} {first.precision} on {counted(first.num_gpus, 'GPU')}"
    notes = []
    if any(isinstance(item, Prediction) for item in found):
        notes.append(
            "predicted from bandwidth, arithmetic and rows of other GPUs, not measured by anyone; see docs/method.md"
        )
    return Grid(
        f"{title}: PREDICTED, NOT MEASURED", [*columns, "left-out error>", "no prediction because"], rows, notes
    ).without_empty_columns()


def prediction_json(found: Sequence[Prediction | NoPrediction]) -> str:
    """Return predictions as JSON: a list in the order asked for, each with its `label`."""
    return json.dumps([dataclasses.asdict(item) for item in found], indent=1, ensure_ascii=False) + "\n"
