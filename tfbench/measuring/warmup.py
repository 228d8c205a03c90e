"""Warm-up that ends by evidence: when two windows of steps agree, between a floor and a ceiling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tfbench.measuring.timing import Report, Step, take_steps

WINDOW_STEPS = 5

AGREEMENT = 0.01
"""Largest relative difference of the mean step time of two consecutive windows that agree."""

CEILING_FACTOR = 5
"""The ceiling where none is given, in floors."""


@dataclass
class Warmup:
    """What was done before timing.

    Attributes:
        steps: Steps taken.
        seconds: Of all of them.
        losses: Of each.
        settled: Whether windows agreed; None: there was no room to look.
    """

    steps: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    settled: bool | None = None


def default_ceiling(floor: int) -> int:
    """Return the most steps of warm-up: a floor too short for two windows stays as it is."""
    return floor * CEILING_FACTOR if floor >= 2 * WINDOW_STEPS else floor


def warm_up(
    step: Step,
    floor: int,
    ceiling: int,
    report: Report,
    slowest: Callable[[float], float] = lambda seconds: seconds,
) -> Warmup:
    """Take steps until their time has settled.

    Args:
        step: See `take_steps`.
        floor: Fewest steps.
        ceiling: Most steps; not above the floor: exactly the floor is taken and no evidence sought.
        report: See `take_steps`; counts on over all windows.
        slowest: Turns a window's mean step time into that of the slowest of several hosts: all must take the same
            number of steps.
    """
    done = Warmup()
    means: list[float] = []
    seek = ceiling > floor
    while done.steps < (ceiling if seek else floor):
        count = min(WINDOW_STEPS, ceiling - done.steps) if seek else floor
        window = take_steps(step, count, _counting_on(report, done.steps))
        count = len(window.step_seconds)
        done.steps += count
        done.seconds += window.seconds
        done.losses += window.losses
        means.append(slowest(window.seconds / count))
        if seek and done.steps >= floor and _agree(means):
            done.settled = True
            return done
    done.settled = False if seek else None
    return done


def _agree(means: list[float]) -> bool:
    return len(means) > 1 and abs(means[-1] - means[-2]) <= AGREEMENT * means[-2]


def _counting_on(report: Report, before: int) -> Report:
    return lambda step, seconds: report(before + step, seconds)
