# ruff: noqa: T201 (a script prints its result)
"""How far predictions miss a GPU that was left out: `python -m tests.benchmarks.predict_left_out [--nested] [--older]`.

Every GPU is left out in turn with all its rows of all sources, and predicted from the rest. Prints the tables of
docs/method.md, section 10. `--nested` also repeats, without anything of the family that is predicted, what was chosen
by data: the scale of the model and the widths of the intervals. It takes minutes. `--older` rests on `published.csv`
alone, without the newer GPUs of `published_pytorch.csv`.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from results.grid import Grid, markdown
from results.predict.left_out import (
    LeftOut,
    covered_apart,
    interval_class,
    interval_multipliers,
    kind_errors,
    leave_out,
    left_out_rows,
    median_error,
    nested_coverage,
    predict_without,
    refusal,
)
from results.predict.model import Model
from results.predict.reach import capability, factor_beyond, out_of_reach
from results.predict.rows import Observation, published_observations
from results.reference import all_published, published

SCALES = (0.5, 0.7, 1.0, 1.4)
"""Candidates for `results.predict.model.SCALE`."""

MOST_OF_ONE_ROW = 0.5
"""Largest absolute error, in logarithms, that a faulty row contributes to the choice of a scale."""


def main() -> None:
    observations = published_observations(published() if "--older" in sys.argv[1:] else all_published())
    print(tables(observations))
    if "--nested" in sys.argv[1:]:
        covered = nested_coverage(Model([o.setting for o in observations]), observations)
        print(f"\nCoverage, nested: {np.mean(list(covered.values())):.1%}")
        print_nested_scale(observations)


def tables(observations: Sequence[Observation]) -> str:
    """Return what docs/method.md has of this, as Markdown."""
    by_card, by_family = left_out_rows(tuple(observations))
    plain = [row for row in plain_fit(observations) if row is not None]
    by_architecture = without_architecture(observations)
    grids = [
        _totals(by_card, by_family, plain),
        _kinds(by_card, by_family),
        _reach(by_card, by_family, by_architecture),
        _cards(by_card, by_family),
    ]
    return "\n".join(markdown(grid) for grid in grids).strip()


def _totals(by_card: Sequence[LeftOut], by_family: Sequence[LeftOut], plain: Sequence[LeftOut]) -> Grid:
    shown_by_card, shown_by_family = (shown(rows, by_card, by_family) for rows in (by_card, by_family))
    rows = [
        ["the card left out", *_errors(by_card), ""],
        ["its siblings, too", *_errors(by_family), _coverage(by_family, by_family)],
        ["the card left out; those that would be shown", *_errors(shown_by_card), ""],
        ["its siblings, too; those that would be shown", *_errors(shown_by_family), _coverage(shown_by_family, by_family)],
        ["two slopes per source, network, precision and count; the card left out", *_errors(plain), ""],
    ]  # fmt: skip
    columns = ["", "rows>", "median error, one GPU>", "all counts>", "coverage, one GPU / all>"]
    return Grid("", columns, rows)


def shown(rows: Sequence[LeftOut], by_card: Sequence[LeftOut], by_family: Sequence[LeftOut]) -> list[LeftOut]:
    """Keep the rows that would be predicted if nothing of their card, or of its siblings, had been measured."""
    kinds = kind_errors(by_card, by_family)
    by = "family" if rows is by_family else "card"
    each = {_place(row): row.observation.setting for row in rows}
    near = {
        place: not out_of_reach(setting, [s for s in each.values() if getattr(s, by) != getattr(setting, by)])
        for place, setting in each.items()
    }
    return [row for row in rows if near[_place(row)] and not refusal(row.observation.setting, kinds)]


def _place(row: LeftOut) -> tuple[str, str, str]:
    setting = row.observation.setting
    return setting.card, setting.precision, setting.network


def _coverage(rows: Sequence[LeftOut], by_family: Sequence[LeftOut]) -> str:
    covered = covered_apart(by_family)
    shares = (np.mean([covered[row.observation] for row in found]) for found in (_one(rows), rows))
    return " / ".join(map(_percent, shares))


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


def without_architecture(observations: Sequence[Observation]) -> dict[str, list[LeftOut]]:
    """Predict every row without the cards of its compute capability."""
    model = Model([observation.setting for observation in observations])
    cards: dict[str, set[str]] = defaultdict(set)
    for observation in observations:
        cards[capability(observation.setting)].add(observation.setting.card)
    return {name: predict_without(model, observations, "card", cards[name], cards[name]) for name in sorted(cards)}


def _reach(by_card: Sequence[LeftOut], by_family: Sequence[LeftOut], by_architecture: dict[str, list[LeftOut]]) -> Grid:
    """Show what becomes of cards that are refused by `results.predict.reach`, and of those that are just not."""
    every = [row for found in by_architecture.values() for row in found]
    far, largest = _beyond_all_others(by_card)
    groups = [
        *((f"architecture {name}", found) for name, found in by_architecture.items()),
        ("every architecture", every),
        (f"a card beyond all others by up to {largest:.2f} times, not its architecture", far),
    ]
    multipliers = interval_multipliers(by_family)
    rows = []
    for name, found in groups:
        inside = [row.score <= multipliers[interval_class(row.observation.setting)] for row in found]
        rows.append([name, *_errors(found), _percent(np.mean(inside))])
    return Grid("", ["left out", "rows>", "median error, one GPU>", "all counts>", "coverage>"], rows)


def _beyond_all_others(by_card: Sequence[LeftOut]) -> tuple[list[LeftOut], float]:
    """Return the rows of cards with more or less of something than all others, one of which has their architecture.

    Returns:
        Those rows, and the largest factor.
    """
    settings = [row.observation.setting for row in by_card]
    factors = {}
    for key, setting in {(s.card, s.precision): s for s in settings}.items():
        others = [s for s in settings if s.card != setting.card and s.precision == setting.precision]
        if capability(setting) in map(capability, others):
            factors[key] = factor_beyond(setting, others)
    keys = [(setting.card, setting.precision) for setting in settings]
    return [row for row, key in zip(by_card, keys, strict=True) if factors.get(key, 0) > 1], max(factors.values())


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
