# ruff: noqa: T201 (a script prints its result)
"""How often what ends early is as well known as it says: steps within a process, and repeats of a case.

Part of `python -m tests.benchmarks.coverage`. Steps are drawn as they hang together on real machines: AR(1), rare stalls
of three steps, long tails. `ended` is the share of processes that ended early; `held` the share of those whose interval
holds the true mean step; `wrong` the share of all that ended early with an interval that does not. A row fails where
`held` is outside of 93 to 97 %, unless hardly any process ends early: then `wrong` is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter  # type: ignore[import-untyped]

from orchestrate.deciding.early_end import known
from results.schema import Case
from results.schema.progress import STEPS_PER_LINE
from results.stats import t_interval
from tfbench.measuring.early_stop import enough_for, relative_half_width

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

TARGET = 0.02
"""What `--target-ci` asks for."""

RARELY = 0.1
"""Where fewer processes end early than this share, they are too few and too odd for a coverage of their own."""

WRONG = 0.07
"""Most processes of a row that may end early with an interval that does not hold the truth."""


def correlated(phi: float, cv: float) -> Draw:
    """Draw steps of mean 1 of an autoregressive process of first order."""

    def draw(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        settling = 500
        shocks = random.standard_normal(count + settling) * math.sqrt(1 - phi**2)
        return np.asarray(1 + cv * lfilter([1.0], [1.0, -phi], shocks)[settling:])

    return draw


def stalling(slower: float, share: float = 0.01, length: int = 3, cv: float = 0.01) -> Draw:
    """Draw steps of mean 1 of which a share begins a stall: `length` steps that take `slower` longer."""

    def draw(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        begins = (random.random(count + length) < share).astype(float)
        stalled = np.convolve(begins, np.ones(length))[length : length + count]
        steps = 1 + cv * random.standard_normal(count) + slower * stalled
        return np.asarray(steps / (1 + slower * share * length))

    return draw


def lognormal(sigma: float) -> Draw:
    """Draw independent steps of mean 1 with a long tail."""
    return lambda random, count: np.exp(sigma * random.standard_normal(count) - sigma**2 / 2)


@dataclass(frozen=True)
class Steps:
    """One row: how steps come about, and the most that a process takes."""

    name: str
    draw: Draw
    most: int = 1000


ROWS = (
    *(
        Steps(f"AR(1) {phi:.2f}, CV {cv:.1%}, of {most} steps", correlated(phi, cv), most)
        for phi, cv, most in (
            (0.0, 0.02, 1000),
            (0.0, 0.1, 1000),
            (0.0, 0.2, 5000),
            (0.5, 0.02, 1000),
            (0.5, 0.1, 5000),
            (0.8, 0.02, 1000),
            (0.8, 0.05, 5000),
            (0.9, 0.02, 1000),
            (0.9, 0.05, 5000),
            (0.95, 0.02, 5000),
            (0.97, 0.005, 1000),
            (0.97, 0.02, 1000),
            (0.97, 0.02, 5000),
        )
    ),
    Steps("1 % stalls of 3 steps, 5 % slower", stalling(0.05)),
    Steps("1 % stalls of 3 steps, 2 times as long", stalling(1.0)),
    Steps("1 % stalls of 3 steps, 10 times as long", stalling(9.0), 5000),
    Steps("lognormal, CV 15 %", lognormal(0.15), 5000),
)


@dataclass
class Ended:
    """What became of the processes of a row."""

    draws: int = 0
    early: int = 0
    held: int = 0
    steps: int = 0

    @property
    def wrong(self) -> float:
        """Share of all processes that ended early with an interval that does not hold the truth."""
        return (self.early - self.held) / self.draws

    @property
    def good(self) -> bool:
        """Whether those that ended early are as well known as they say."""
        if self.early < RARELY * self.draws:
            return self.wrong <= WRONG
        return 0.93 <= self.held / self.early <= 0.97

    def __str__(self) -> str:
        """Write a row's figures, marked where they are out of bounds."""
        held = f"{self.held / self.early:.3f}" if self.early else "-"
        steps = f"{self.steps / self.early:.0f}" if self.early else "-"
        mark = "" if self.good else " !"
        return f"{self.early / self.draws:>10.3f}{held:>10}{self.wrong:>10.3f}{steps:>10}{mark}"


def ended_early(row: Steps, draws: int, seed: int = 20261122) -> Ended:
    """Let processes take steps until the rule of `tfbench` ends them."""
    random = np.random.default_rng(seed)
    enough = enough_for(Case(model="resnet50", num_steps=row.most, target_ci=TARGET))
    ended = Ended(draws)
    for _ in range(draws):
        steps = row.draw(random, row.most).tolist()
        taken = next((n for n in range(STEPS_PER_LINE, row.most, STEPS_PER_LINE) if enough(steps[:n])), None)
        if taken is not None:
            mean = math.fsum(steps[:taken]) / taken
            ended.early += 1
            ended.steps += taken
            ended.held += abs(mean - 1) <= relative_half_width(steps[:taken]) * mean
    return ended


def repeats_held(cv: float, most: int, draws: int, seed: int = 20261122) -> float:
    """Return how often the interval over repeats that ended early holds the truth.

    Args:
        cv: Standard deviation between repeats, as a share.
        most: Repeats that were planned.
        draws: Cases.
        seed: Of the draws.
    """
    random = np.random.default_rng(seed)
    held = 0
    for _ in range(draws):
        rates = (1 + cv * random.standard_normal(most)).tolist()
        taken = next((n for n in range(2, most) if known(rates[:n], TARGET)), most)
        held += t_interval(rates[:taken]).contains(1.0)
    return held / draws


def print_rows(draws: int, only: str) -> bool:
    """Print a row for each way that steps come about; return whether all hold what they say."""
    good = True
    print(f"\n{'steps, --target-ci 2 %':42}{'ended':>10}{'held':>10}{'wrong':>10}{'steps':>10}")
    for row in ROWS:
        if only in row.name:
            found = ended_early(row, draws)
            good = good and found.good
            print(f"{row.name:42}{found}", flush=True)
    print(f"\n{'repeats, --target-ci 2 %, of 10':42}{'held':>10}")
    for cv in (0.003, 0.01, 0.02, 0.03, 0.05):
        if only in "repeats":
            share = repeats_held(cv, 10, draws)
            good = good and 0.93 <= share <= 0.97
            print(f"CV {cv:<39.1%}{share:>10.3f}{'' if 0.93 <= share <= 0.97 else ' !'}", flush=True)
    return good
