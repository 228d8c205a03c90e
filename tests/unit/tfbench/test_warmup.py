from __future__ import annotations

import pytest

from tfbench.measuring import timing
from tfbench.measuring.timing import TimedSteps, default_ceiling, warm_up


@pytest.fixture
def windows(monkeypatch):
    """Let each window of steps take the next of these mean step times; give what was reported."""
    means = []

    def take(step, count, report):
        mean = means.pop(0)
        report(count, mean)
        return TimedSteps(seconds=mean * count, step_seconds=[mean] * count, losses=[1.0] * count)

    monkeypatch.setattr(timing, "take_steps", take)
    return means


def run(floor, ceiling):
    lines = []
    return warm_up(lambda: None, floor, ceiling, lambda step, *_: lines.append(step)), lines


def test_warm_up_ends_when_two_windows_agree(windows):
    windows += [3.0, 2.0, 1.5, 1.49, 9.9]
    done, lines = run(floor=10, ceiling=50)
    assert (done.steps, done.settled) == (20, True)
    assert lines == [5, 10, 15, 20]
    assert len(done.losses) == 20
    assert done.seconds == pytest.approx(5 * (3.0 + 2.0 + 1.5 + 1.49))


def test_windows_that_agree_before_the_floor_do_not_end_it(windows):
    windows += [1.0, 1.0, 5.0, 4.0, 4.0]
    done, _ = run(floor=12, ceiling=50)
    assert (done.steps, done.settled) == (25, True)


def test_without_evidence_it_ends_at_the_ceiling_and_says_so(windows):
    windows += [1.0, 2.0, 1.0, 2.0]
    done, _ = run(floor=10, ceiling=18)
    assert (done.steps, done.settled) == (18, False)


def test_a_short_floor_is_taken_exactly_and_no_evidence_sought(windows):
    windows += [1.0]
    done, _ = run(floor=3, ceiling=default_ceiling(3))
    assert (done.steps, done.settled) == (3, None)


def test_no_warm_up_at_all_is_possible(windows):
    done, lines = run(floor=0, ceiling=default_ceiling(0))
    assert (done.steps, done.seconds, lines) == (0, 0.0, [])


def test_the_ceiling_is_five_floors():
    assert default_ceiling(10) == 50
