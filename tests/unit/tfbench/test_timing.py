import functools
import itertools
import math
import threading
from types import SimpleNamespace

import pytest

from tfbench.measuring import timing


class SimpleFloat(float):
    """A scalar that is the time at which its step ends."""

    def numpy(self):
        return self


@pytest.mark.parametrize(
    ("step_seconds", "steps"),
    [(1.0, 1), (0.034, 1), (0.025, 2), (0.015, 3), (0.005, 8), (0.0, 1)],
)
def test_short_steps_share_a_wait_so_that_a_tenth_of_a_second_is_in_flight(step_seconds, steps):
    assert timing.steps_per_wait(step_seconds) == steps


def test_steps_that_share_a_wait_have_their_mean_and_fill_the_device(ending):
    ends = itertools.chain([10.0], (10.0 + step**2 for step in itertools.count(1)))
    timed = ending(ends)(7, on_start=lambda: None, per_wait=3)
    assert timed.step_seconds == [3.0] * 3 + [9.0] * 3 + [13.0] and timed.seconds == 49
    assert timed.losses == [10.0 + step**2 for step in range(1, 8)] and len(timed.lead_seconds) == 3


@pytest.fixture
def ending(monkeypatch):
    """Return `take_steps` with steps that end at given times, which the clock of the waiting thread shows."""
    clock = threading.local()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: getattr(clock, "now", 0.0)))
    take = functools.partial(timing.take_steps, wait=lambda end: setattr(clock, "now", end))
    return lambda ends: functools.partial(take, lambda: [SimpleFloat(next(ends))])


def test_a_step_seen_late_ends_halfway_between_its_neighbours(ending):
    # Ending where the next one does, it would give that one no time, and an interval of three steps that of two.
    timed = ending(iter([25, 20, 35, 30, 40]))(4, on_start=lambda: None)
    assert timed.step_seconds == [10, 5, 5, 10] and timed.seconds == 30


def test_steps_go_on_until_the_asked_time_has_passed(ending):
    late = ending(itertools.chain([0.3], itertools.count(0.02, 0.01)))
    timed = late(3, least_seconds=0.1)
    assert 0.1 <= timed.seconds < 0.1 + 0.01 * (timing.WAITS_IN_FLIGHT + 1), (
        "a thread that wakes late ends nothing early"
    )
    assert len(timed.step_seconds) == len(timed.losses) > 3
    assert len(ending(itertools.count(1))(5, least_seconds=0.001).step_seconds) == 5


def test_each_report_has_the_mean_of_the_steps_since_the_last_one(ending):
    seen = []
    take = functools.partial(ending(step**2 for step in itertools.count(1)), report=lambda *line: seen.append(line))
    timed = take(23)
    assert seen == [(10, 100 / 10), (20, 300 / 10), (23, 129 / 3)]
    assert timed.step_seconds == [2 * step - 1 for step in range(1, 24)] and timed.seconds == 23**2
    timed = take(3, on_start=lambda: None)
    assert seen[3:] == [(3, (27**2 - 24**2) / 3)], "the untimed step is in no report"
    assert timed.step_seconds == [2 * step - 1 for step in (25, 26, 27)] and timed.losses == [25**2, 26**2, 27**2]


def test_spread_and_drift_have_the_textbook_values():
    assert timing.coefficient_of_variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert timing.coefficient_of_variation([1.0]) is None
    assert timing.drift([1.0, 1.0, 5.0, 1.0, 1.2, 1.2]) == pytest.approx(0.2)
    assert timing.drift([2.0, 9.0, 3.0]) == pytest.approx(0.5)
    assert timing.drift([1.0, 2.0]) is None
