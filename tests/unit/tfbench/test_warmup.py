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


@pytest.mark.parametrize(
    ("means", "floor", "ceiling", "steps", "settled"),
    [
        ([1.0, 1.0, 5.0, 4.0, 4.0], 12, 50, 25, True),  # windows that agree before the floor do not end it
        ([1.0, 2.0, 1.0, 2.0], 10, 18, 18, False),  # not settled at the ceiling
        ([1.0], 3, default_ceiling(3), 3, None),  # a short floor is taken exactly
        ([], 0, default_ceiling(0), 0, None),
    ],
)
def test_warm_up_lasts_from_its_floor_to_its_ceiling(windows, means, floor, ceiling, steps, settled):
    windows += means
    done, _ = run(floor, ceiling)
    assert (done.steps, done.settled) == (steps, settled)
    assert default_ceiling(10) == 50
