# ruff: noqa: T201 (a script prints its result)
"""Measures errors of predictions for held-out GPUs: `python -m studies.predict_held_out`.

Holds out each GPU with all its single-GPU rows, then each family (all A100s, all V100s), as for a new GPU. The larger
error decides which kinds of workload are predicted. Prints errors by kind and by source, and the table
`results.recommend.prediction.KINDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.recommend.prediction import FEWEST_FAMILIES, forecast, published_observations
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


def hold_out(observations: pd.DataFrame, by: str) -> pd.DataFrame:
    """Predict each row without its `gpu` or `family`.

    Source of the widths: locally weighted conformal scores (Lei et al. 2018, section 5.2) of predictions without the
    row's group. GPUs are few and not exchangeable, so coverage is not guaranteed but counted.

    Returns:
        The rows with `error`, the absolute relative error; `score`, the distance between the logarithms of prediction
        and measurement in standard deviations; and `fp16`, whether their precision is FP16.
    """
    parts = []
    for name, chosen in observations.groupby(by):
        log_rate, sd = forecast(observations[observations[by] != name], chosen)
        parts.append(
            chosen.assign(
                error=np.abs(np.exp(log_rate) / chosen["rate"] - 1),
                score=np.abs(np.log(chosen["rate"]) - log_rate) / sd,
                fp16=chosen["precision"] == "fp16",
            )
        )
    return pd.concat(parts)


def multipliers(rows: pd.DataFrame) -> dict[bool, float]:
    """Return the number of standard deviations that cover `LEVEL` of the rows, by whether they are FP16."""
    widths = rows.groupby("fp16")["score"].quantile(LEVEL, interpolation="higher")
    return {bool(fp16): float(width) for fp16, width in widths.items()}


def covered_apart(rows: pd.DataFrame) -> pd.Series:
    """Return whether the interval of each held-out row covers it, with widths from the other families."""
    parts = []
    for family, chosen in rows.groupby("family"):
        widths = multipliers(rows[rows["family"] != family])
        parts.append(chosen["score"] <= chosen["fp16"].map(lambda fp16, widths=widths: widths.get(fp16, 0.0)))
    return pd.concat(parts)


def kind_errors(by_gpu: pd.DataFrame, by_family: pd.DataFrame) -> dict[Kind, KindError]:
    """Return the errors of each kind."""
    families = dict(list(by_family.assign(covered=covered_apart(by_family)).groupby(["workload", "precision"])))
    return {
        kind: KindError(
            rows=len(rows),
            families=rows["family"].nunique(),
            by_gpu=median_error(rows),
            by_family=median_error(families[kind]),
            coverage=float(families[kind]["covered"].mean()),
        )
        for kind, rows in by_gpu.groupby(["workload", "precision"])
    }


def predicted_kinds(errors: Mapping[Kind, KindError], by_family: pd.DataFrame) -> dict[Kind, float]:
    """Return the value of `results.recommend.prediction.KINDS`."""
    widths = multipliers(by_family)
    return {kind: widths[kind[1] == "fp16"] for kind, error in errors.items() if error.holds}


def median_error(rows: pd.DataFrame) -> float:
    """Return the median of the absolute relative errors."""
    return float(rows["error"].median())


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
        "TensorFlow": by_family[by_family["software"].str.startswith(("tf_cnn", "TF"))],
        "PyTorch": by_family[by_family["software"].str.startswith("PyTorch")],
        "all": by_family,
    }
    table = [[name, str(len(group)), f"{median_error(group) * 100:.1f} %"] for name, group in groups.items()]
    print(markdown(Grid("", ["rows", "number>", "median error, held-out family>"], table)))
    print(predicted_kinds(errors, by_family))


if __name__ == "__main__":
    main()
