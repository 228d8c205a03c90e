"""Steps against the clock: one synchronised interval, and when each step was finished within it."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from results.schema.case import MOST_STEPS
from results.schema.progress import STEPS_PER_LINE, step_line
from tfbench.keras_versions.types import Tensor

STEPS_IN_FLIGHT = 2
"""Steps handed to the devices and not yet finished: the next one waits there when one ends, no more than
that.
"""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Steps that were taken one after another.

    Attributes:
        seconds: From an idle device to the end of the last step on all replicas.
        step_seconds: From the end of the step before to the end of the step; they add up to `seconds`.
        losses: Of each step, over the global batch.
    """

    seconds: float
    step_seconds: list[float]
    losses: list[float]


Report = Callable[[int, float, float], None]
"""Called with the number of steps taken, the mean duration in seconds since the last call, and the last
loss.
"""


Step = Callable[[], Sequence[Tensor]]
"""Starts a step, or several, and returns a scalar for each replica, which exists when the replica has finished; their
sum is the loss.
"""


def take_steps(
    step: Step,
    count: int,
    report: Report = lambda *_: None,
    steps_per_call: int = 1,
    least_seconds: float = 0.0,
) -> Interval:
    """Take `count` steps, or more until a time has passed, and time them.

    A second thread waits for each step and notes the time, while this one already hands over the next
    step. To wait here after every step would leave a GPU idle while the host prepares the next; to wait for
    none would leave only the total.

    Args:
        step: All steps started before must have finished.
        count: At least 1; rounded up to whole calls.
        report: Called every `STEPS_PER_LINE` steps and after the last.
        steps_per_call: Steps that one call takes; they count as equally long.
        least_seconds: After `count` steps more are taken until the last finished one ended this long after the start;
            those in flight then are taken too.
    """
    calls = -(-count // steps_per_call)
    count = calls * steps_per_call
    finished: list[float] = []
    losses: list[float] = []
    waiting: deque[Future[tuple[float, float]]] = deque()
    reported = 0

    def collect() -> None:
        nonlocal reported
        loss, at = waiting.popleft().result()
        losses.extend([loss] * steps_per_call)
        before = finished[-1] if finished else start
        share = (at - before) / steps_per_call
        finished.extend(before + share * step for step in range(1, steps_per_call))
        finished.append(at)
        taken = len(finished)
        if taken // STEPS_PER_LINE > (taken - steps_per_call) // STEPS_PER_LINE or taken == count or not waiting:
            since = finished[reported - 1] if reported else start
            report(taken, (at - since) / (taken - reported), loss)
            reported = taken

    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(time.perf_counter).result()  # the thread exists before the clock starts
        start = time.perf_counter()
        begun = 0
        while begun < calls or _is_early(start, finished, begun * steps_per_call, least_seconds):
            begun += 1
            waiting.append(pool.submit(_timed_wait, step()))
            while len(waiting) >= STEPS_IN_FLIGHT:
                collect()
        while waiting:
            collect()
    return Interval(seconds=finished[-1] - start, step_seconds=durations(start, finished), losses=losses)


def _is_early(start: float, finished: Sequence[float], begun: int, least_seconds: float) -> bool:
    """Return whether the steps so far took less than `least_seconds`, and a record can hold one more call's."""
    return (finished[-1] if finished else start) - start < least_seconds and begun < MOST_STEPS


def durations(start: float, finished: Sequence[float]) -> list[float]:
    """Return how long each step took, from when the step before it was finished."""
    return [end - begin for begin, end in zip([start, *finished], finished, strict=False)]


def wait_for_loss(shares: Sequence[Tensor]) -> float:
    """Wait until a step is finished on all replicas, and return its loss."""
    return sum(float(share.numpy()) for share in shares)


def _timed_wait(shares: Sequence[Tensor]) -> tuple[float, float]:
    """Wait until a step is finished on all replicas; return its loss and the time."""
    return wait_for_loss(shares), time.perf_counter()


def print_steps(samples_per_step: int, unit: str) -> Report:
    """Return a report that prints a line on stderr."""

    def report(step: int, seconds: float, loss: float) -> None:
        line = step_line(step, samples_per_step / seconds, unit, seconds, loss)
        print(line, file=sys.stderr, flush=True)  # noqa: T201 (progress is this program's stderr)

    return report


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie.

    Linear between neighbours: type 7 of Hyndman and Fan 1996, as numpy does.
    """
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return standard deviation over mean, no unit; None for fewer than two values."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None


def drift(values: Sequence[float]) -> float | None:
    """Return the last third's mean over the first third's, minus 1; None for fewer than three values."""
    third = len(values) // 3
    return statistics.fmean(values[-third:]) / statistics.fmean(values[:third]) - 1.0 if third else None
