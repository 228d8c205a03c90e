# ruff: noqa: T201 (a script prints its result)
"""Measures errors of predictions for held-out GPUs: `python -m studies.predict_held_out`.

Holds out each GPU with all its single-GPU rows, then each family (all A100s, all V100s), as for a new GPU. The larger
error decides which kinds of workload are predicted. Prints errors by kind and by source, and the table
`results.recommend.prediction.KINDS`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.recommend.prediction import FEWEST_FAMILIES, Observation, forecast, published_observations
from results.text_table import Grid, markdown

LEVEL = 0.90
"""Share of new measurements that an interval should cover."""

LIMIT = 0.12
"""Largest median error of held-out GPUs at which a kind is predicted."""

LEAST_COVERAGE = 0.85
"""Smallest coverage of intervals at which a kind is predicted."""

Kind = tuple[str, str]
"""Workload and precision."""


@dataclass(frozen=True)
class HeldOutRow:
    """A row predicted without its GPU or family.

    Attributes:
        row: The measurement.
        log_rate: Predicted logarithm of samples per second over all GPUs.
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
    """Errors of a kind: median errors for held-out GPUs and families, and coverage."""

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
    """Return the kind of a row."""
    return row.workload, row.precision


def hold_out(observations: Sequence[Observation], by: str) -> list[HeldOutRow]:
    """Predict each row without its `gpu` or `family`.

    Source of the widths: locally weighted conformal scores (Lei et al. 2018, section 5.2) of predictions without the
    row's group. GPUs are few and not exchangeable, so coverage is not guaranteed but counted.
    """
    found = []
    for name in sorted({getattr(row, by) for row in observations}):
        chosen = [row for row in observations if getattr(row, by) == name]
        predicted = forecast([row for row in observations if getattr(row, by) != name], chosen)
        found += [HeldOutRow(row, float(log), float(sd)) for row, log, sd in zip(chosen, *predicted, strict=True)]
    return found


def multipliers(rows: Sequence[HeldOutRow]) -> dict[bool, float]:
    """Return the number of standard deviations that cover `LEVEL` of the rows, by whether they are FP16."""
    scores: dict[bool, list[float]] = defaultdict(list)
    for row in rows:
        scores[row.row.precision == "fp16"].append(row.score)
    return {name: float(np.quantile(found, LEVEL, method="higher")) for name, found in scores.items()}


def covered_apart(rows: Sequence[HeldOutRow]) -> dict[Observation, bool]:
    """Return whether the interval of each held-out row covers it, with widths from the other families."""
    found = {}
    for family in {row.row.family for row in rows}:
        widths = multipliers([row for row in rows if row.row.family != family])
        for row in (row for row in rows if row.row.family == family):
            found[row.row] = row.score <= widths.get(row.row.precision == "fp16", 0.0)
    return found


def kind_errors(by_gpu: Sequence[HeldOutRow], by_family: Sequence[HeldOutRow]) -> dict[Kind, KindError]:
    """Return the errors of each kind."""
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


def predicted_kinds(errors: Mapping[Kind, KindError], by_family: Sequence[HeldOutRow]) -> dict[Kind, float]:
    """Return the value of `results.recommend.prediction.KINDS`."""
    widths = multipliers(by_family)
    return {kind: widths[kind[1] == "fp16"] for kind, error in errors.items() if error.holds}


def median_error(rows: Sequence[HeldOutRow]) -> float:
    """Return the median of the absolute relative errors."""
    return float(np.median([row.error for row in rows])) if rows else float("nan")


def main() -> None:
    """Print the tables."""
    observations = published_observations()
    by_gpu, by_family = hold_out(observations, "gpu"), hold_out(observations, "family")
    errors = kind_errors(by_gpu, by_family)
    rows = [
        [f"{workload} {precision}", str(error.rows), str(error.families),
         *(f"{value * 100:.1f} %" for value in (error.by_gpu, error.by_family, error.coverage)),
         "yes" if error.holds else "no"]
        for (workload, precision), error in errors.items()
    ]  # fmt: skip
    columns = ["kind", "rows>", "families>", "held-out GPU>", "held-out family>", "coverage>", "holds"]
    print(markdown(Grid("", columns, rows)))
    groups = {
        "TensorFlow": [row for row in by_family if row.row.software.startswith(("tf_cnn", "TF"))],
        "PyTorch": [row for row in by_family if row.row.software.startswith("PyTorch")],
        "all": by_family,
    }
    table = [[name, str(len(group)), f"{median_error(group) * 100:.1f} %"] for name, group in groups.items()]
    print(markdown(Grid("", ["rows", "number>", "median error, held-out family>"], table)))
    print(predicted_kinds(errors, by_family))


if __name__ == "__main__":
    main()
