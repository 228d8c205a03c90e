# ruff: noqa: T201 (a script prints its result)
"""How far predictions miss a GPU that was left out: `python -m tests.benchmarks.predict_left_out [--nested | --later]`.

Every GPU is left out in turn with all its rows of all sources, and predicted from the rest. Prints the tables of
docs/method.md, section 10. `--nested` also repeats, without anything of the family that is predicted, what was chosen
by data: the scale of the model and the widths of the intervals. It takes minutes. `--later`
compares predictions with rows of later cards and software, which nothing was ever fitted to: `later_rows.csv`.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from results.grid import Grid, markdown
from results.left_out import (
    LeftOut,
    calibrate,
    covered_apart,
    interval_class,
    kind_errors,
    kind_of,
    leave_out,
    left_out_rows,
    median_error,
    nested_coverage,
    predict_without,
)
from results.prediction_model import Model, rates_of
from results.prediction_rows import Observation, published_observations

LATER = Path(__file__).parent / "later_rows.csv"

SCALES = (0.5, 0.7, 1.0, 1.4)
"""Candidates for `results.prediction_model.SCALE`."""

MOST_OF_ONE_ROW = 0.5
"""Largest absolute error, in logarithms, that a faulty row contributes to the choice of a scale."""


def main() -> None:
    observations = published_observations()
    if "--later" in sys.argv[1:]:
        print(markdown(later_grid(observations)))
        return
    print(tables(observations))
    if "--nested" in sys.argv[1:]:
        covered = nested_coverage(Model([o.setting for o in observations]), observations)
        print(f"\nCoverage, nested: {np.mean(list(covered.values())):.1%}")
        print_nested_scale(observations)


def tables(observations: Sequence[Observation]) -> str:
    """Return what docs/method.md has of this, as Markdown."""
    by_card, by_family = left_out_rows(tuple(observations))
    plain = [row for row in plain_fit(observations) if row is not None]
    grids = [_totals(by_card, by_family, plain), _kinds(by_card, by_family), _cards(by_card, by_family)]
    return "\n".join(markdown(grid) for grid in grids).strip()


def _totals(by_card: Sequence[LeftOut], by_family: Sequence[LeftOut], plain: Sequence[LeftOut]) -> Grid:
    covered = covered_apart(by_family)
    one = [inside for row, inside in covered.items() if row.setting.count == 1]
    rows = [
        ["the card left out", *_errors(by_card), ""],
        ["its siblings, too", *_errors(by_family), f"{_percent(np.mean(one))} / {_percent(np.mean([*covered.values()]))}"],
        ["two slopes per source, network, precision and count; the card left out", *_errors(plain), ""],
    ]  # fmt: skip
    columns = ["", "rows>", "median error, one GPU>", "all counts>", "coverage, one GPU / all>"]
    return Grid("", columns, rows)


def _errors(rows: Sequence[LeftOut]) -> list[str]:
    return [str(len(rows)), _error(_one(rows)), _error(rows)]


def _kinds(by_card: Sequence[LeftOut], by_family: Sequence[LeftOut]) -> Grid:
    rows = [
        [error.kind.name, str(error.rows), str(error.cards), str(error.families), _percent(error.by_card),
         _percent(error.by_family), _percent(error.coverage), "no" if error.refusal else "yes"]
        for error in kind_errors(by_card, by_family).values()
    ]  # fmt: skip
    columns = ["kind", "rows>", "cards>", "families>", "card left out>", "siblings, too>", "coverage>", "holds"]
    return Grid("", columns, rows)


def _cards(by_card: Sequence[LeftOut], by_family: Sequence[LeftOut]) -> Grid:
    networks = sorted({_network(row) for row in by_card})
    rows = []
    for card in [*sorted({row.observation.setting.card for row in by_card}), ""]:
        own = [[row for row in found if card in ("", row.observation.setting.card)] for found in (by_card, by_family)]
        cells = [_cell([row for row in own[0] if _network(row) == network]) for network in networks]
        rows.append([card or "all cards", *cells, _cell(own[0]), _cell(own[1])])
    columns = ["card left out", *(f"{name}>" for name in networks), "all networks>", "siblings out, too>"]
    return Grid("", columns, rows)


def _network(row: LeftOut) -> str:
    name = row.observation.setting.network
    return "bert_large" if name.startswith("bert_large") else name


def _cell(rows: Sequence[LeftOut]) -> str:
    """Write the median error on one GPU and over all counts."""
    return f"{_error(_one(rows))} / {_error(rows)}" if rows else ""


def _one(rows: Sequence[LeftOut]) -> list[LeftOut]:
    return [row for row in rows if row.observation.setting.count == 1]


def _error(rows: Sequence[LeftOut]) -> str:
    return _percent(median_error(rows)) if rows else "-"


def _percent(share: float | np.floating) -> str:
    return f"{share * 100:.1f} %"


def later_grid(observations: Sequence[Observation]) -> Grid:
    """Compare predictions, as Lambda's earlier rows would have been measured, with its later ones."""
    source = "Lambda deeplearning-benchmark (raw log)"
    with LATER.open(encoding="utf-8", newline="") as file:
        later = [
            Observation(
                dataclasses.replace(row.setting, source=source, software="", xla=""),
                row.rate,
            )
            for row in published_observations(list(csv.DictReader(file)))
        ]
    calibration = calibrate(tuple(observations))
    model = Model([row.setting for row in (*observations, *later)])
    fitted = np.arange(len(observations))
    forecast = model.predict(fitted, rates_of(observations), np.arange(len(later)) + len(observations))
    rows = []
    missed: dict[str, list[LeftOut]] = defaultdict(list)
    for row, log_rate, sd in zip(later, forecast.log_rate, forecast.sd, strict=True):
        if not calibration.kinds[kind_of(row.setting)].refusal:
            missed[row.setting.card].append(LeftOut(row, float(log_rate), float(sd)))
    for card, own in [*sorted(missed.items()), ("all cards", list(itertools.chain(*missed.values())))]:
        inside = [row.score <= calibration.multipliers[interval_class(row.observation.setting)] for row in own]
        rows.append([card, *_errors(own), f"{sum(inside)} of {len(inside)}"])
    return Grid("", ["card", "rows>", "median error, one GPU>", "all counts>", "within the interval>"], rows)


def plain_fit(observations: Sequence[Observation]) -> list[LeftOut | None]:
    """Predict each row by two slopes, of bandwidth and arithmetic; None where no other card has such a row."""
    groups: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for row in observations:
        setting = row.setting
        groups[setting.source, setting.network, setting.precision, setting.count].append(row)
    found: list[LeftOut | None] = []
    for rows in groups.values():
        for row in rows:
            fitted = [other for other in rows if other.setting.card != row.setting.card]
            slopes = (
                np.linalg.lstsq(_columns(fitted), np.log([o.rate for o in fitted]), rcond=None)[0] if fitted else None
            )
            found.append(None if slopes is None else LeftOut(row, float((_columns([row]) @ slopes)[0]), 1.0))
    return found


def _columns(rows: Sequence[Observation]) -> np.ndarray:
    return np.array([[1.0, np.log(row.setting.bandwidth), np.log(row.setting.arithmetic)] for row in rows])


def print_nested_scale(observations: Sequence[Observation]) -> None:
    """Choose the scale for each family from the other families alone, and predict the family with it."""
    families = sorted({observation.setting.family for observation in observations})
    inner: dict[tuple[float, str], list[float]] = defaultdict(list)
    outer: dict[float, list[LeftOut]] = {}
    for scale in SCALES:
        model = Model([observation.setting for observation in observations], scale)
        outer[scale] = leave_out(model, observations, "family")
        for pair in itertools.combinations(families, 2):
            for row in predict_without(model, observations, "family", pair, pair):
                (other,) = set(pair) - {row.observation.setting.family}
                miss = abs(np.log(row.observation.rate) - row.log_rate)
                inner[scale, other].append(min(miss, MOST_OF_ONE_ROW))
    chosen = {family: min(SCALES, key=_mean_miss(inner, family)) for family in families}
    rows = [row for f, scale in chosen.items() for row in outer[scale] if row.observation.setting.family == f]
    print(f"Scale by family: {chosen}\nMedian error, nested: one GPU {_error(_one(rows))}, all {_error(rows)}")


def _mean_miss(inner: dict[tuple[float, str], list[float]], family: str) -> Callable[[float], float]:
    return lambda scale: float(np.mean(inner[scale, family]))


if __name__ == "__main__":
    main()
