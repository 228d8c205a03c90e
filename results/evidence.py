"""What is known about the speed of a GPU for a network: measured here, published by others, or only bounded."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from results.fleets import FleetRate
from results.limits import BYTES
from results.reference import gpu_key, networks, published, specifications
from results.stats import Estimate, Interval


class Basis(enum.StrEnum):
    """Where a throughput comes from; best first."""

    MEASURED = "measured"
    PUBLISHED = "published"
    BOUND = "bound"  # an upper limit by memory bandwidth, not a prediction


@dataclass(frozen=True)
class Evidence:
    """The throughput of a GPU for one network.

    Attributes:
        subject: Fleet, or GPU where others measured.
        gpu: Name in `reference/gpu_specs.csv`, else as it came.
        samples_per_second: Over all GPUs; of a bound the limit.
        estimate: Throughput with its uncertainty; None when that is not known.
        setting: What it was measured with. Only equal settings are compared.
        usd_per_gpu_hour: Price given with the measurement; None: see the prices.
    """

    basis: Basis
    subject: str
    gpu: str
    samples_per_second: float
    estimate: Estimate | None
    setting: str
    usd_per_gpu_hour: float | None = None

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the throughput; None when it is not known."""
        return self.estimate.interval() if self.estimate else None


def measured_evidence(rates: Sequence[FleetRate], model: str, precision: str, count: int) -> list[Evidence]:
    """Return what our own records say about a network."""
    found = []
    for rate in rates:
        if (rate.named("model"), rate.named("precision"), rate.named("num_gpus")) != (model, precision, count):
            continue
        if rate.named("num_hosts") != 1:
            continue
        if rate.mean is None:
            continue
        gpu = str(rate.named("gpu") or rate.named("cpu") or "")
        setting = f"batch {rate.named('batch_per_gpu')}, xla {rate.named('xla')}, data {rate.named('data')}"
        found.append(
            Evidence(
                basis=Basis.MEASURED,
                subject=rate.fleet,
                gpu=gpu_key(gpu) or gpu,
                samples_per_second=rate.mean,
                estimate=rate.estimate,
                setting=setting,
                usd_per_gpu_hour=rate.usd_per_gpu_hour,
            )
        )
    return found


def published_evidence(model: str, precision: str, count: int, gpus: Sequence[str]) -> list[Evidence]:
    """Return what others published about a network, of one source and software: that which knows most of the GPUs.

    Suspect rows are left out. ResNet50 v1.5 stands in where no source measured v1 on more of the GPUs.

    Args:
        model: Our name of the network.
        precision: `fp32`, `tf32`, `fp16`.
        count: Number of GPUs.
        gpus: Those that matter, names of `reference/gpu_specs.csv`.
    """
    wanted = {model, f"{model}_v1.5"}
    sources: dict[str, dict[str, float]] = defaultdict(dict)
    for row in published():
        if row["suspect"] or row["model"] not in wanted:
            continue
        if (row["precision"], row["num_gpus"]) != (precision, str(count)):
            continue
        xla = f", xla {row['xla']}" if row["xla"] else ""
        setting = f"{row['source']}: {row['framework']}, {row['model']}{xla}"
        rate = float(row["samples_per_second"])
        # A source that measured several batches is taken at its best, as it would be used.
        sources[setting][row["gpu"]] = max(rate, sources[setting].get(row["gpu"], 0.0))
    if not sources:
        return []
    setting, of_gpus = max(
        sources.items(), key=lambda item: (len(item[1].keys() & set(gpus)), f", {model}" in item[0], item[0])
    )
    return [Evidence(Basis.PUBLISHED, gpu, gpu, rate, None, setting) for gpu, rate in of_gpus.items() if gpu in gpus]


def bound_evidence(model: str, precision: str, count: int, gpus: Sequence[str]) -> list[Evidence]:
    """Return how fast a network could be at most, by the GPU's memory bandwidth with unfused layers."""
    network = networks().get(model)
    if network is None or precision not in BYTES:
        return []
    found = []
    for gpu in gpus:
        bandwidth = specifications().get(gpu, {}).get("memory_bandwidth")
        if bandwidth:
            limit = bandwidth * 1e9 / (network.elements_unfused * BYTES[precision]) * count
            found.append(Evidence(Basis.BOUND, gpu, gpu, limit, None, "memory bandwidth, layers unfused"))
    return found


def precision_gains(rates: Sequence[FleetRate], best: Evidence, model: str, count: int) -> dict[str, float]:
    """Return how fast the other precisions are against the one of `best`, on the same machine and in the same setting.

    Args:
        rates: What was measured.
        best: Evidence for the network in the precision that was asked for.
        model: Our name of the network.
        count: Number of GPUs.
    """
    gains = {}
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        if best.basis is Basis.MEASURED:
            found = measured_evidence(rates, model, precision, count)
        else:
            found = published_evidence(model, precision, count, [best.gpu])
        same = [item for item in found if (item.subject, item.setting) == (best.subject, best.setting)]
        if same and best.basis is not Basis.BOUND:
            gains[precision] = same[0].samples_per_second / best.samples_per_second
    return gains
