# ruff: noqa: T201 (a script prints its result)
"""How far predictions miss a GPU that was left out: `python -m tests.benchmarks.predict_left_out`.

Every GPU is left out with all its rows of one GPU, of every source, network and precision; then every family with
its siblings (all A100s, all V100s), which is what a GPU that nobody measured is like. Kinds of workload are judged by
the worse of both. Prints the errors by kind and by source, and what `results.recommend.prediction.KINDS` must hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.grid import Grid, markdown
from results.recommend.prediction import (
    FEWEST_FAMILIES,
    Observation,
    forecast,
    published_observations,
)

LEVEL = 0.90
"""Share of new measurements that an interval should cover."""

LIMIT = 0.12
"""Largest median error of left-out GPUs at which a kind is predicted."""

LEAST_COVERAGE = 0.85
"""Smallest share of left-out rows within their intervals at which a kind is predicted."""

Kind = tuple[str, str]
"""Workload and precision."""


@dataclass(frozen=True)
class LeftOutRow:
    """A row that was predicted without its GPU or family.

    Attributes:
        row: What was measured.
        log_rate: Prediction: logarithm of samples per second over all GPUs.
        sd: Its standard deviation, in logarithms.
    """

    row: Observation
    log_rate: float
    sd: float

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(float(np.exp(self.log_rate)) / self.row.rate - 1)

    @property
    def score(self) -> float:
        """Distance between prediction and measurement in standard deviations."""
        return abs(float(np.log(self.row.rate)) - self.log_rate) / self.sd


@dataclass(frozen=True)
class KindError:
    """How well a kind is predicted: median errors without the GPU and without its family, and coverage."""

    rows: int
    families: int
    by_gpu: float
    by_family: float
    coverage: float

    @property
    def holds(self) -> bool:
        """Whether the kind is predicted."""
        within = max(self.by_gpu, self.by_family) <= LIMIT and self.coverage >= LEAST_COVERAGE
        return within and self.families >= FEWEST_FAMILIES


def kind_of(row: Observation) -> Kind:
    """Return the kind that a row belongs to."""
    return row.workload, row.precision


def leave_out(observations: Sequence[Observation], by: str) -> list[LeftOutRow]:
    """Predict every row without its `gpu` or `family`.

    Source of the widths: locally weighted conformal scores (Lei et al. 2018, section 5.2) of predictions without the
    row's group. GPUs are few and not exchangeable, so no guarantee is claimed: coverage is counted.
    """
    found = []
    for name in sorted({getattr(row, by) for row in observations}):
        chosen = [row for row in observations if getattr(row, by) == name]
        predicted = forecast([row for row in observations if getattr(row, by) != name], chosen)
        found += [LeftOutRow(row, float(log), float(sd)) for row, log, sd in zip(chosen, *predicted, strict=True)]
    return found


def multipliers(rows: Sequence[LeftOutRow]) -> dict[bool, float]:
    """Return how many standard deviations cover `LEVEL` of the rows, with 16 bits and with 32."""
    scores: dict[bool, list[float]] = defaultdict(list)
    for row in rows:
        scores[row.row.precision == "fp16"].append(row.score)
    return {name: float(np.quantile(found, LEVEL, method="higher")) for name, found in scores.items()}


def covered_apart(rows: Sequence[LeftOutRow]) -> dict[Observation, bool]:
    """Return of each left-out row whether its interval covers it, with widths from the other families only."""
    found = {}
    for family in {row.row.family for row in rows}:
        widths = multipliers([row for row in rows if row.row.family != family])
        for row in (row for row in rows if row.row.family == family):
            found[row.row] = row.score <= widths.get(row.row.precision == "fp16", 0.0)
    return found


def kind_errors(by_gpu: Sequence[LeftOutRow], by_family: Sequence[LeftOutRow]) -> dict[Kind, KindError]:
    """Judge each kind from its left-out rows."""
    covered, found = covered_apart(by_family), {}
    for kind in sorted({kind_of(row.row) for row in by_gpu}):
        gpus, families = ([row for row in rows if kind_of(row.row) == kind] for rows in (by_gpu, by_family))
        found[kind] = KindError(
            rows=len(gpus),
            families=len({row.row.family for row in gpus}),
            by_gpu=median_error(gpus),
            by_family=median_error(families),
            coverage=float(np.mean([covered[row.row] for row in families])),
        )
    return found


def predicted_kinds(errors: Mapping[Kind, KindError], by_family: Sequence[LeftOutRow]) -> dict[Kind, float]:
    """Return what `results.recommend.prediction.KINDS` must hold."""
    widths = multipliers(by_family)
    return {kind: widths[kind[1] == "fp16"] for kind, error in errors.items() if error.holds}


def median_error(rows: Sequence[LeftOutRow]) -> float:
    """Return the median of the absolute relative errors."""
    return float(np.median([row.error for row in rows])) if rows else float("nan")


def main() -> None:
    """Print the tables."""
    observations = published_observations()
    by_gpu, by_family = leave_out(observations, "gpu"), leave_out(observations, "family")
    errors = kind_errors(by_gpu, by_family)
    rows = [
        [f"{workload} {precision}", str(error.rows), str(error.families),
         *(f"{value * 100:.1f} %" for value in (error.by_gpu, error.by_family, error.coverage)),
         "yes" if error.holds else "no"]
        for (workload, precision), error in errors.items()
    ]  # fmt: skip
    columns = ["kind", "rows>", "families>", "GPU left out>", "siblings, too>", "coverage>", "holds"]
    print(markdown(Grid("", columns, rows)))
    groups = {
        "TensorFlow": [row for row in by_family if row.row.software.startswith(("tf_cnn", "TF"))],
        "PyTorch": [row for row in by_family if row.row.software.startswith("PyTorch")],
        "all": by_family,
    }
    table = [[name, str(len(group)), f"{median_error(group) * 100:.1f} %"] for name, group in groups.items()]
    print(markdown(Grid("", ["rows", "number>", "median error, siblings left out>"], table)))
    print(predicted_kinds(errors, by_family))


if __name__ == "__main__":
    main()
