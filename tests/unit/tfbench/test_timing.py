from __future__ import annotations

import itertools
import math
import time

import pytest

from tfbench.measuring.timing import STEPS_IN_FLIGHT, coefficient_of_variation, drift, percentile, take_steps


class Loss:
    """A step's result that is there only after `seconds` of work on a device of its own."""

    def __init__(self, device, value):
        self.device, self.value = device, value

    def numpy(self):
        self.device.finish_one()
        return self.value


class Device:
    """Works on one step after another, whatever the host does meanwhile."""

    def __init__(self, step_seconds):
        self.step_seconds, self.free_at = step_seconds, 0.0
        self.due, self.most_in_flight = [], 0

    def step(self):
        self.free_at = max(self.free_at, time.perf_counter()) + self.step_seconds
        self.due.append(self.free_at)
        self.most_in_flight = max(self.most_in_flight, len(self.due))
        return [Loss(self, float(len(self.due)))]

    def finish_one(self):
        time.sleep(max(0.0, self.due[0] - time.perf_counter()))
        self.due.pop(0)


def test_step_times_add_up_to_the_interval_and_losses_are_kept():
    device = Device(0.001)
    interval = take_steps(device.step, 25)
    assert len(interval.step_seconds) == len(interval.losses) == 25
    assert math.isclose(sum(interval.step_seconds), interval.seconds, rel_tol=1e-9)
    assert min(interval.step_seconds) >= 0
    assert interval.seconds >= 25 * 0.001


def test_steps_go_on_until_the_asked_time_has_passed():
    device = Device(0.002)
    reported = []
    interval = take_steps(device.step, 3, lambda step, *_: reported.append(step), least_seconds=0.1)
    assert interval.seconds >= 0.1
    assert 3 < len(interval.step_seconds) == len(interval.losses) == reported[-1]
    *_, before_last_two = list(itertools.accumulate(interval.step_seconds))[:-STEPS_IN_FLIGHT]
    assert before_last_two < 0.1, "no more than what was in flight is taken beyond it"
    assert len(take_steps(device.step, 5, least_seconds=0.001).step_seconds) == 5
    calls = take_steps(device.step, 4, steps_per_call=4, least_seconds=0.02)
    assert len(calls.step_seconds) % 4 == 0 and calls.seconds >= 0.02


def test_the_host_prepares_the_next_step_while_the_device_works():
    device = Device(0.005)

    def slow_host():
        time.sleep(0.004)
        return device.step()

    serial_seconds = 40 * (0.004 + 0.005)
    assert take_steps(slow_host, 40).seconds < 0.9 * serial_seconds
    assert device.most_in_flight == 2


def test_a_line_is_reported_every_ten_steps_and_after_the_last():
    seen = []
    take_steps(Device(0.0001).step, 23, lambda step, seconds, loss: seen.append((step, seconds > 0)))
    assert seen == [(10, True), (20, True), (23, True)]


def test_an_error_of_a_step_reaches_the_caller():
    class Broken:
        def numpy(self):
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        take_steps(lambda: [Broken()], 5)


def test_percentiles_are_those_of_numpy():
    numpy = pytest.importorskip("numpy")
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    for share in (0.0, 0.5, 0.95, 1.0):
        assert math.isclose(percentile(values, share), numpy.percentile(values, 100 * share))
    assert percentile([2.0], 0.95) == 2.0


def test_spread_and_drift_have_the_textbook_values():
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)
    assert coefficient_of_variation([1.0]) is None
    assert drift([1.0, 1.0, 5.0, 1.0, 1.2, 1.2]) == pytest.approx(0.2)
    assert drift([1.0, 2.0]) is None


def test_the_steps_of_one_call_count_as_equally_long():
    device, seen = Device(0.001), []
    interval = take_steps(device.step, 19, lambda step, *_: seen.append(step), steps_per_call=4)
    assert len(interval.step_seconds) == len(interval.losses) == 20, "whole calls"
    assert interval.seconds < 20 * 0.001, "five calls, not twenty"
    assert math.isclose(sum(interval.step_seconds), interval.seconds, rel_tol=1e-9)
    for call in range(0, 20, 4):
        assert max(interval.step_seconds[call : call + 4]) == pytest.approx(interval.step_seconds[call])
    assert seen == [12, 20]
