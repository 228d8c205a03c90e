"""How far predictions miss cards that were left out, and which kinds of workload are predicted well enough to show.

A card is left out with all its rows, of every source, network, precision and number of GPUs; leaving out a family takes
its siblings along (all A100s, all V100s), which is what a card that nobody measured is like. Kinds are judged by the
worse of both.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.predict.model import Model, rates_of
from results.predict.rows import Observation, Setting

IntervalClass = tuple[int, bool]
"""Bits per element, and whether there are several GPUs."""

LEVEL = 0.90
"""Share of new measurements that an interval should cover."""

ONE_GPU_LIMIT, SEVERAL_GPUS_LIMIT = 0.12, 0.18
"""Largest median error of left-out cards at which a kind is predicted."""

LEAST_COVERAGE = 0.85
"""Smallest share of left-out rows within their intervals at which a kind is predicted."""

FEWEST_FAMILIES = 3
"""Fewest families of cards that a kind, and a network, must have been measured on: two say nothing about a third."""


@dataclass(frozen=True, order=True)
class Kind:
    """What is judged as one: a prediction is shown or refused by the kind it belongs to."""

    workload: str
    precision: str
    several: bool

    @property
    def name(self) -> str:
        """The kind in words."""
        return f"{self.workload} {self.precision}, {'several GPUs' if self.several else 'one GPU'}"


def kind_of(setting: Setting) -> Kind:
    """Return the kind that a setting belongs to."""
    return Kind(setting.workload, setting.precision, setting.count > 1)


@dataclass(frozen=True)
class LeftOut:
    """A row that was predicted without its card.

    Attributes:
        observation: What was measured.
        log_rate: Prediction: logarithm of samples per second over all GPUs.
        sd: Its standard deviation, in logarithms.
    """

    observation: Observation
    log_rate: float
    sd: float

    @property
    def error(self) -> float:
        """Prediction / measurement − 1."""
        return float(np.exp(self.log_rate) / self.observation.rate - 1)

    @property
    def score(self) -> float:
        """Distance between prediction and measurement in standard deviations."""
        return float(abs(np.log(self.observation.rate) - self.log_rate) / self.sd)


@dataclass(frozen=True)
class KindError:
    """How well a kind is predicted.

    Attributes:
        rows: Rows of the kind.
        cards: Cards they were measured on.
        families: Likewise, siblings counted once.
        by_card: Median absolute relative error with the card left out.
        by_family: Likewise, with its siblings left out, too.
        coverage: Share of the rows within the intervals that were made without their family.
    """

    kind: Kind
    rows: int
    cards: int
    families: int
    by_card: float
    by_family: float
    coverage: float

    @property
    def limit(self) -> float:
        """Largest median error at which the kind is predicted."""
        return SEVERAL_GPUS_LIMIT if self.kind.several else ONE_GPU_LIMIT

    @property
    def refusal(self) -> str:
        """Why the kind is not predicted; empty: it is."""
        if self.families < FEWEST_FAMILIES:
            return f"{self.kind.name}: {too_few_families(self.families)}"
        worse = max(self.by_card, self.by_family)
        if worse > self.limit:
            return (
                f"{self.kind.name}: left-out cards are missed by {worse * 100:.1f} % (median), "
                f"more than {self.limit * 100:.0f} %"
            )
        if self.coverage < LEAST_COVERAGE:
            return f"{self.kind.name}: intervals of {LEVEL:.0%} cover {self.coverage:.0%} of left-out rows".replace(
                "%", " %"
            )
        return ""


@dataclass(frozen=True)
class Calibration:
    """What leaving out showed.

    Attributes:
        multipliers: Standard deviations on each side of a prediction's interval, by `interval_class`.
        kinds: How well each kind is predicted.
    """

    multipliers: Mapping[IntervalClass, float]
    kinds: Mapping[Kind, KindError]


def leave_out(model: Model, observations: Sequence[Observation], by: str) -> list[LeftOut]:
    """Predict every row without its card or family.

    Args:
        model: Over the observations' settings, in their order.
        observations: All that was measured.
        by: `card` or `family`.
    """
    found: list[LeftOut] = []
    for name in sorted({getattr(observation.setting, by) for observation in observations}):
        found += predict_without(model, observations, by, {name}, {name})
    return found


def predict_without(
    model: Model, observations: Sequence[Observation], by: str, without: Collection[str], wanted: Collection[str]
) -> list[LeftOut]:
    """Predict the rows of some cards or families from the rows of all that are not left out.

    Args:
        model: Over the observations' settings, in their order.
        observations: All that was measured.
        by: `card` or `family`.
        without: Names that are left out.
        wanted: Names that are predicted.
    """
    labels = [getattr(observation.setting, by) for observation in observations]
    fitted = np.flatnonzero([label not in without for label in labels])
    chosen = np.flatnonzero([label in wanted for label in labels])
    forecast = model.predict(fitted, rates_of(observations)[fitted], chosen)
    return [
        LeftOut(observations[int(i)], float(log_rate), float(sd))
        for i, log_rate, sd in zip(chosen, forecast.log_rate, forecast.sd, strict=True)
    ]


def interval_class(setting: Setting) -> IntervalClass:
    """Return what shares a multiplier: 16 or 32 bits per element, and one GPU or several."""
    return 16 if setting.precision == "fp16" else 32, setting.count > 1


def interval_multipliers(rows: Sequence[LeftOut], level: float = LEVEL) -> dict[IntervalClass, float]:
    """Return how many standard deviations cover a share of the left-out rows, class by class.

    Source: locally weighted conformal scores (Lei et al. 2018, section 5.2) of predictions without the row's group (CV+
    of Barber et al. 2021, here without the spread of the fits), by class (Vovk 2012). Cards are few and not
    exchangeable, so no guarantee is claimed: coverage is counted.
    """
    scores: dict[IntervalClass, list[float]] = defaultdict(list)
    for row in rows:
        scores[interval_class(row.observation.setting)].append(row.score)
    return {name: float(np.quantile(found, level, method="higher")) for name, found in scores.items()}


def covered_apart(rows: Sequence[LeftOut]) -> dict[Observation, bool]:
    """Say of each left-out row whether its interval covers it, with multipliers from the other families only."""
    return {
        row.observation: covered
        for family in {row.observation.setting.family for row in rows}
        for row, covered in _covered(
            [row for row in rows if row.observation.setting.family == family],
            interval_multipliers([row for row in rows if row.observation.setting.family != family]),
        )
    }


def _covered(rows: Sequence[LeftOut], multipliers: Mapping[IntervalClass, float]) -> list[tuple[LeftOut, bool]]:
    """Pair each row with whether its interval covers it; a class that no other family has covers nothing."""
    return [(row, row.score <= multipliers.get(interval_class(row.observation.setting), 0.0)) for row in rows]


def nested_coverage(model: Model, observations: Sequence[Observation]) -> dict[Observation, bool]:
    """Say the same with nothing of a family in its multiplier, not even in the fits that the scores come from.

    Every pair of families is left out together once. Slower than `covered_apart`, which it confirms.
    """
    families = sorted({observation.setting.family for observation in observations})
    others: dict[str, list[LeftOut]] = defaultdict(list)
    for pair in itertools.combinations(families, 2):
        for row in predict_without(model, observations, "family", pair, pair):
            (other,) = set(pair) - {row.observation.setting.family}
            others[other].append(row)
    found = {}
    for family in families:
        rows = predict_without(model, observations, "family", {family}, {family})
        pairs = _covered(rows, interval_multipliers(others[family]))
        found.update({row.observation: covered for row, covered in pairs})
    return found


def kind_errors(by_card: Sequence[LeftOut], by_family: Sequence[LeftOut]) -> dict[Kind, KindError]:
    """Judge each kind from its left-out rows."""
    covered = covered_apart(by_family)
    found = {}
    for kind in sorted({kind_of(row.observation.setting) for row in by_card}):
        cards, families = (
            [row for row in rows if kind_of(row.observation.setting) == kind] for rows in (by_card, by_family)
        )
        found[kind] = KindError(
            kind=kind,
            rows=len(cards),
            cards=len({row.observation.setting.card for row in cards}),
            families=len({row.observation.setting.family for row in cards}),
            by_card=median_error(cards),
            by_family=median_error(families),
            coverage=float(np.mean([covered[row.observation] for row in families])),
        )
    return found


def too_few_families(families: int) -> str:
    """Say on how few families of cards something was measured."""
    return f"measured on {families} famil{'y' if families == 1 else 'ies'} of cards only, {FEWEST_FAMILIES} needed"


def refusal(setting: Setting, kinds: Mapping[Kind, KindError]) -> str:
    """Return why a setting's kind is not predicted; empty: it is. Several GPUs need one GPU to hold, too."""
    kind = kind_of(setting)
    for needed in (dataclasses.replace(kind, several=False), kind):
        error = kinds.get(needed)
        if error is None:
            return f"{kind.name}: nobody measured it"
        if error.refusal:
            return error.refusal
    return ""


def median_error(rows: Sequence[LeftOut]) -> float:
    """Return the median of the absolute relative errors."""
    return float(np.median([abs(row.error) for row in rows]))


@functools.lru_cache(maxsize=4)
def left_out_rows(observations: tuple[Observation, ...]) -> tuple[list[LeftOut], list[LeftOut]]:
    """Leave out every card, and every family; a card without siblings is left out once.

    Returns:
        The rows predicted without their card, and the rows predicted without their family.
    """
    model = Model([observation.setting for observation in observations])
    by_family = leave_out(model, observations, "family")
    cards: dict[str, set[str]] = defaultdict(set)
    for observation in observations:
        cards[observation.setting.family].add(observation.setting.card)
    by_card = [row for row in by_family if len(cards[row.observation.setting.family]) == 1]
    for card in sorted(itertools.chain(*(names for names in cards.values() if len(names) > 1))):
        by_card += predict_without(model, observations, "card", {card}, {card})
    return by_card, by_family


@functools.lru_cache(maxsize=4)
def calibrate(observations: tuple[Observation, ...]) -> Calibration:
    """Learn from the rows that were left out how wide intervals are, and which kinds hold."""
    by_card, by_family = left_out_rows(observations)
    return Calibration(multipliers=interval_multipliers(by_family), kinds=kind_errors(by_card, by_family))
