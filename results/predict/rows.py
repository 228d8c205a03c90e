"""What a prediction rests on: published throughputs and measured ones, with the specifications of their cards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.reference import all_published
from results.reference.gpus import gpu_key, specifications
from results.table.fleets import FleetRate

PEAKS = {"fp16": "fp16_tensor_fp32_accumulate", "tf32": "tf32_tensor", "fp32": "fp32"}
"""Quantity of `gpu_specs.csv` that bounds each precision; a precision without published rows is not here."""

SAME_CARD = {
    "V100 32GB (DGX-2)": "V100 SXM3 32GB",
    "V100 SXM3 32GB": "V100 SXM2 32GB",
    "V100 SXM2 32GB": "V100 SXM2 16/32GB",
    "V100 SXM2 16GB": "V100 SXM2 16/32GB",
}
"""Names in publications, and the name under which the specification table has the card or its nearest relative.

The V100s differ in memory size, the SXM3 card of the DGX-2 in clocks, too; NVIDIA states 900 GB/s for all of them.
"""

CONSUMER_RATIO = 1.5
"""FP16 accumulation this many times as fast as FP32 accumulation marks a consumer card: 2.0 there, else 1.0."""

OURS = "tfbench"
"""The source of measured rows."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a throughput depends on, as far as predictions know it.

    Attributes:
        card: GPU as its source names it.
        family: Cards that share a chip under several names, e.g. `A100`; else the card itself.
        network: Our name of the network; of a transformer with its task and sequence length.
        precision: A key of `PEAKS`.
        count: GPUs of one host.
        batch: Samples per GPU and step; None: not stated.
        source: Who measured.
        software: Framework and its version; empty: unknown.
        xla: `on`, `off`, or empty where the source does not say.
        bandwidth: Memory bandwidth in GB/s.
        arithmetic: Dense peak of the precision in TFLOP/s.
        consumer: A GeForce card: copies between GPUs go through the host.
    """

    card: str
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

    @property
    def workload(self) -> str:
        """`transformer` or `convolutional`: what bounds a network's speed differs between the two."""
        transformer = self.network.startswith(("bert", "gpt", "vit"))
        return "transformer" if transformer else "convolutional"


@dataclass(frozen=True)
class Observation:
    """One throughput that was measured.

    Attributes:
        setting: What was measured.
        rate: Samples per second over all GPUs.
    """

    setting: Setting
    rate: float


def family_of(card: str) -> str:
    """Return the name that siblings share: memory sizes and form factors of one data-centre chip are one family."""
    match = re.match(r"(?:A|H|V|MI)\d{3}\b", card)
    return match[0] if match else card


def specification_name(card: str) -> str | None:
    """Return the name in `gpu_specs.csv` under which a card's figures stand; None when they are missing."""
    while card not in specifications() and card in SAME_CARD:
        card = SAME_CARD[card]
    return card if card in specifications() else gpu_key(card)


def card_figures(card: str, precision: str) -> tuple[float, float, bool] | None:
    """Return bandwidth in GB/s, peak in TFLOP/s and whether it is a consumer card; None where a figure is missing."""
    figures = specifications().get(specification_name(card) or "", {})
    bandwidth, arithmetic = figures.get("memory_bandwidth"), figures.get(PEAKS.get(precision, ""))
    if not (bandwidth and arithmetic):
        return None
    half, full = (figures.get(f"fp16_tensor_{name}_accumulate", 0.0) for name in ("fp16", "fp32"))
    return bandwidth, arithmetic, half > CONSUMER_RATIO * full


def published_observations(rows: Sequence[Mapping[str, str]] | None = None) -> list[Observation]:
    """Return the published rows that are not suspect and whose cards are in the specification table."""
    found = []
    for row in all_published() if rows is None else rows:
        figures = card_figures(row["gpu"], row["precision"])
        if row["suspect"] or figures is None:
            continue
        card = SAME_CARD[row["gpu"]] if row["gpu"].endswith("(DGX-2)") else row["gpu"]
        setting = Setting(
            card=card,
            family=family_of(card),
            network=row["model"],
            precision=row["precision"],
            count=int(row["num_gpus"]),
            batch=int(row["batch_per_gpu"]) if row["batch_per_gpu"] else None,
            source=row["source"],
            software=f"{row['framework']}, xla {row['xla'] or '?'}",
            xla=row["xla"],
            bandwidth=figures[0],
            arithmetic=figures[1],
            consumer=figures[2],
        )
        found.append(Observation(setting, float(row["samples_per_second"])))
    return found


def measured_observations(rates: Sequence[FleetRate]) -> list[Observation]:
    """Return what our own records say: training on one host of GPUs that are in the specification table."""
    found = []
    for rate in rates:
        name = specification_name(str(rate.named("gpu") or ""))
        precision = str(rate.named("precision"))
        figures = card_figures(name or "", precision)
        wanted = (rate.named("mode"), rate.named("device"), rate.named("num_hosts"))
        if rate.mean is None or name is None or figures is None or wanted != ("train", "gpu", 1):
            continue
        setting = Setting(
            card=name,
            family=family_of(name),
            network=str(rate.named("model")),
            precision=precision,
            count=int(str(rate.named("num_gpus"))),
            batch=int(str(rate.named("batch_per_gpu"))),
            source=OURS,
            software=f"TensorFlow {rate.named('tensorflow')}",
            xla="off" if rate.named("xla") == "off" else "on",
            bandwidth=figures[0],
            arithmetic=figures[1],
            consumer=figures[2],
        )
        found.append(Observation(setting, rate.mean))
    return found
