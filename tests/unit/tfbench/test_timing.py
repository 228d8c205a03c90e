import functools
import itertools
import math
import statistics
import threading
import time
from types import SimpleNamespace

import pytest

from tfbench.measuring import timing


class Loss:
    """A replica's scalar on a device that works by itself; as in TensorFlow, reading it waits for later steps, too."""

    def __init__(self, stream, value):
        self.stream, self.value = stream, value

    def wait(self):
        self.stream.finish()

    def numpy(self):
        self.stream.finish()
        self.stream.finish()  # the copy is enqueued behind what was handed over meanwhile
        return self.value


class SimpleFloat(float):
    """A scalar that is the time at which its step ends."""

    def numpy(self):
        return self


class Device:
    """Works on one step after another, whatever the host does meanwhile."""

    def __init__(self, step_seconds):
        self.step_seconds, self.ends = step_seconds, []
        self.most_in_flight = 0

    def step(self):
        return [self.share()]

    def share(self):
        now = time.perf_counter()
        self.ends.append(max([now, *self.ends[-1:]]) + self.step_seconds)
        self.most_in_flight = max(self.most_in_flight, sum(end > now for end in self.ends[-20:]))
        return Loss(self, float(len(self.ends)))

    def finish(self):
        time.sleep(max(0.0, self.ends[-1] - time.perf_counter()))


take_steps = functools.partial(timing.take_steps, wait=Loss.wait)


def test_steps_go_on_until_the_asked_time_has_passed():
    device = Device(0.002)
    reported = []
    interval = take_steps(device.step, 3, lambda step, *_: reported.append(step), least_seconds=0.1)
    assert interval.seconds >= 0.1
    assert 3 < len(interval.step_seconds) == len(interval.losses) == reported[-1]
    *_, before_last_two = list(itertools.accumulate(interval.step_seconds))[: -timing.WAITS_IN_FLIGHT]
    assert before_last_two < 0.1, "no more than what was in flight is taken beyond it"
    assert len(take_steps(device.step, 5, least_seconds=0.001).step_seconds) == 5


def test_the_host_prepares_the_next_step_while_the_device_works():
    device = Device(0.025)

    def slow_host():
        time.sleep(0.02)
        return device.step()

    def one_after_another():
        begin = time.perf_counter()
        for _ in range(20):
            slow_host()[0].wait()
        return time.perf_counter() - begin

    # Both are slower on a busy machine.
    assert any(take_steps(slow_host, 20).seconds < 0.9 * one_after_another() for _ in range(5))
    assert device.most_in_flight == 2

    def first_over_the_others():
        first, *others = take_steps(slow_host, 10, on_start=lambda: None).step_seconds
        return first / statistics.median(others)

    assert any(first_over_the_others() < 1.4 for _ in range(5)), "1.8 if the device is idle before the first step"


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
    device, seen = Device(0.005), []
    take_steps(device.step, 60, lambda step, *_: seen.append(step), per_wait=4)
    assert 4 < device.most_in_flight <= 8 and seen == [12, 20, 32, 40, 52, 60]


@pytest.mark.parametrize("per_wait", [1, 4])
def test_a_device_that_waits_for_the_host_ends_steps_at_their_launch(per_wait):
    def lead_over_step(device):
        interval = take_steps(lambda: time.sleep(0.004) or device.step(), 20, per_wait=per_wait)
        return statistics.median(interval.lead_seconds) / statistics.median(interval.step_seconds)

    assert any(lead_over_step(Device(0.0001)) < 0.25 for _ in range(5))
    assert any(lead_over_step(Device(0.02)) > 1 for _ in range(5))


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


def test_each_report_has_the_mean_of_the_steps_since_the_last_one(ending):
    seen = []
    take = functools.partial(ending(step**2 for step in itertools.count(1)), report=lambda *line: seen.append(line))
    timed = take(23)
    assert seen == [(10, 100 / 10), (20, 300 / 10), (23, 129 / 3)]
    assert timed.step_seconds == [2 * step - 1 for step in range(1, 24)] and timed.seconds == 23**2

    timed = take(3, on_start=lambda: seen.append("started"))
    assert {"started", (3, (27**2 - 24**2) / 3)} == set(seen[3:]), "the untimed step is in no report"
    assert timed.step_seconds == [2 * step - 1 for step in (25, 26, 27)] and timed.seconds == 27**2 - 24**2
    assert timed.losses == [25**2, 26**2, 27**2]


def test_spread_and_drift_have_the_textbook_values():
    assert timing.coefficient_of_variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert timing.coefficient_of_variation([1.0]) is None
    assert timing.drift([1.0, 1.0, 5.0, 1.0, 1.2, 1.2]) == pytest.approx(0.2)
    assert timing.drift([2.0, 9.0, 3.0]) == pytest.approx(0.5)
    assert timing.drift([1.0, 2.0]) is None


@pytest.mark.parametrize(
    ("means", "floor", "ceiling", "steps", "settled"),
    [
        ([3.0, 2.0, 1.5, 1.49, 9.9], 10, 50, 20, True),  # it ends when two windows agree
        ([1.0, 1.0, 5.0, 4.0, 4.0], 12, 50, 25, True),  # windows that agree before the floor do not end it
        ([1.0, 2.0, 1.0, 2.0], 10, 18, 18, False),  # not settled at the ceiling
        ([1.0], 3, timing.default_ceiling(3), 3, None),  # a short floor is taken exactly
        ([], 0, timing.default_ceiling(0), 0, None),
    ],
)
def test_warm_up_lasts_from_its_floor_to_its_ceiling(monkeypatch, means, floor, ceiling, steps, settled):
    left, lines = iter(means), []

    def take(_step, count, report):
        report(count, mean := next(left))
        return SimpleNamespace(seconds=mean * count, step_seconds=[mean] * count, losses=[1.0] * count)

    monkeypatch.setattr(timing, "take_steps", take)
    done = timing.warm_up(lambda: None, floor, ceiling, lambda step, *_: lines.append(step))
    assert (done.steps, done.settled, len(done.losses)) == (steps, settled, steps)
    counts = [5] * (steps // 5) + [steps % 5] * (steps % 5 > 0)
    assert lines == list(itertools.accumulate(counts))
    assert done.seconds == pytest.approx(sum(mean * count for mean, count in zip(means, counts, strict=False)))
    assert timing.default_ceiling(10) == 50
