"""Times steps: warm-up until their times settle, then an interval in which the end of each step is recorded."""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from results.schema.case import MOST_STEPS
from results.schema.progress import STEPS_PER_LINE, step_line

MOST_REPLICAS = 64
"""Maximum number of replicas of a host, all waited for at once: twice as many as any machine has GPUs."""

WAITS_IN_FLIGHT = 2
"""Maximum number of unfinished waits, each of which spins in a thread per replica; see `steps_per_wait`."""

SECONDS_IN_FLIGHT = 0.1
"""Work on the devices that outlasts a pause of the host: 20 to 50 ms were seen on virtual machines with an H100."""

MOST_STEPS_PER_WAIT = 8
"""16 steps in flight. Steps that would need more are so short that the host sets their pace."""


@dataclass(frozen=True, kw_only=True)
class TimedSteps:
    """Steps that were taken one after another.

    Attributes:
        seconds: From the start to the end of the last step on all replicas.
        step_seconds: Of each step, from the end of the previous one to its own; they add up to `seconds`. Steps that
            share a wait have their mean.
        losses: Of each step, over the global batch.
        lead_seconds: Of each wait, from the moment the host had launched its last step to that step's end, at least 0.
    """

    seconds: float
    step_seconds: list[float]
    losses: list[float]
    lead_seconds: list[float]


Tensor = Any
"""As in `keras_versions`, which imports TensorFlow: this module does not."""

Report = Callable[[int, float], None]
"""Called with the number of steps taken and their mean duration in seconds since the last call. It gets no loss:
reading a value would also wait for the next step.
"""


Step = Callable[[], Sequence[Tensor]]
"""Starts a step and returns a scalar per replica, on its device, which exists once the replica has finished; their
sum is the loss.
"""

Wait = Callable[[Tensor], None]
"""Waits until the device of a replica's scalar has finished everything enqueued so far."""


def wait_for_device(share: Tensor) -> None:
    """Wait until a device has finished everything in its compute stream at this moment.

    Reading the scalar would also wait for the next step: TensorFlow synchronises the stream first and then enqueues the
    copy, behind anything enqueued meanwhile, so that steps seem to end in pairs.
    """
    import tensorflow as tf  # imported here, so that tests of this module do not need it

    with tf.device(share.device):
        tf.raw_ops.SyncDevice()


def take_steps(
    step: Step,
    count: int,
    report: Report = lambda *_: None,
    least_seconds: float = 0.0,
    wait: Wait = wait_for_device,
    on_start: Callable[[], object] | None = None,
    per_wait: int = 1,
) -> TimedSteps:
    """Take `count` steps, or more until a time has passed, and time them.

    Other threads wait for steps and record the time, while this one starts the next ones. Waiting here after every
    step would leave a GPU idle while the host prepares the next; not waiting at all would give only the total. Losses
    are read after the interval.

    Args:
        step: Starts a step; all earlier steps must have finished.
        count: Number of steps, at least 1.
        report: Called every `STEPS_PER_LINE` steps and after the last.
        least_seconds: Minimum duration; more than `count` steps are taken until the last finished one ended this long
            after the start, and those still in flight are included.
        wait: Waits for one replica.
        on_start: Called at the start, in another thread. With it, an untimed step goes first, and its end is the start:
            the device already has the next step. Otherwise the first step includes the time in which the host prepares
            it for an idle device: with BERT-Large on an H100, 60 ms instead of 51.
        per_wait: Steps from one wait to the next, see `steps_per_wait`; the last wait may have fewer.
    """
    ends: list[float] = []  # the start, then of each wait
    taken = [0]  # steps until each of these
    shares: list[Sequence[Tensor]] = []
    launched: list[float] = []
    waiting: deque[tuple[int, list[Future[float]]]] = deque()
    reported = 0

    def collect() -> None:
        nonlocal reported
        steps, replicas = waiting.popleft()
        at = max(end.result() for end in replicas)
        if ends and ends[-1] > at:  # its thread was scheduled late: the step ended between its neighbours
            ends[-1] = statistics.fmean([ends[-2] if len(ends) > 1 else begin, at])
        ends.append(at)
        if not steps:
            return
        taken.append(steps)
        if steps // STEPS_PER_LINE > taken[reported] // STEPS_PER_LINE or steps == count or not waiting:
            report(steps, (at - ends[reported]) / (steps - taken[reported]))
            reported = len(taken) - 1

    about_to_wait = threading.Semaphore(0)

    def end_of(share: Tensor) -> float:
        about_to_wait.release()
        wait(share)
        return time.perf_counter()

    def watch(shares: Sequence[Tensor]) -> list[Future[float]]:
        """Wait for all replicas at once, in a thread each: one after another, the next step of later ones counts."""
        ends = [pool.submit(end_of, share) for share in shares]
        for _ in shares:
            about_to_wait.acquire()
        return ends

    with ThreadPoolExecutor(max_workers=WAITS_IN_FLIGHT * MOST_REPLICAS + 1) as pool:
        pool.submit(time.perf_counter).result()  # the first thread exists before the clock starts
        begin = time.perf_counter()
        if on_start is None:
            ends.append(begin)
        else:
            untimed = watch(step())
            waiting.append((0, untimed))
            started = pool.submit(lambda: ([end.result() for end in untimed], on_start()))
        # Checked after each wait that finished, because a step may turn out to have ended before its thread noticed.
        while (more := len(shares) < count or _is_early(ends, len(shares), least_seconds)) or waiting:
            if more:
                left = (count if len(shares) < count else MOST_STEPS) - len(shares)
                shares.extend(step() for _ in range(min(per_wait, left)))
                launched.append(time.perf_counter())
                waiting.append((len(shares), watch(shares[-1])))
            if not more or len(waiting) >= WAITS_IN_FLIGHT:
                collect()
        if on_start is not None:
            started.result()
    losses = [wait_for_loss(of_step) for of_step in shares]
    step_seconds: list[float] = []
    for (before, end), (first, last) in zip(itertools.pairwise(ends), itertools.pairwise(taken), strict=True):
        step_seconds += [(end - before) / (last - first)] * (last - first)
    leads = [max(0.0, end - launch) for launch, end in zip(launched, ends[1:], strict=True)]
    return TimedSteps(seconds=ends[-1] - ends[0], step_seconds=step_seconds, losses=losses, lead_seconds=leads)


def steps_per_wait(step_seconds: float) -> int:
    """Return the number of steps from one wait to the next that keeps the devices busy while the host pauses.

    With `WAITS_IN_FLIGHT`, up to twice as many are in flight: about `SECONDS_IN_FLIGHT` of work.

    Args:
        step_seconds: Duration of a step.
    """
    wanted = SECONDS_IN_FLIGHT / WAITS_IN_FLIGHT / step_seconds if step_seconds else 0.0
    return max(1, min(MOST_STEPS_PER_WAIT, round(wanted)))


def _is_early(ends: Sequence[float], begun: int, least_seconds: float) -> bool:
    """Return whether the steps so far took less than `least_seconds` and a record has space for another."""
    return (ends[-1] - ends[0] if ends else 0.0) < least_seconds and begun < MOST_STEPS


def wait_for_loss(shares: Sequence[Tensor]) -> float:
    """Wait until a step is finished on all replicas, and return its loss."""
    return sum(float(share.numpy()) for share in shares)


def print_steps(samples_per_step: int, unit: str) -> Report:
    """Return a `Report` that prints lines to stderr."""

    def report(step: int, seconds: float) -> None:
        line = step_line(step, samples_per_step / seconds, unit, seconds)
        print(line, file=sys.stderr, flush=True)  # noqa: T201 (progress is this program's stderr)

    return report


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of `values` at `share`, from 0 to 1, linear between neighbours."""
    return float(np.percentile(values, 100 * share))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return standard deviation over mean, no unit; None for fewer than two values."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None


def drift(values: Sequence[float]) -> float | None:
    """Return the last third's mean over the first third's, minus 1; None for fewer than three values."""
    third = len(values) // 3
    return statistics.fmean(values[-third:]) / statistics.fmean(values[:third]) - 1.0 if third else None


WINDOW_STEPS = 5

AGREEMENT = 0.01
"""Two consecutive windows agree if their mean step times differ by at most this share."""

CEILING_FACTOR = 5
"""Default maximum number of warm-up steps, as a multiple of the minimum."""


@dataclass
class Warmup:
    """The untimed steps before timing.

    Attributes:
        steps: Steps taken.
        seconds: Of all of them.
        losses: Of each.
        settled: Whether windows agreed; None: there were too few steps to compare.
        step_seconds: Mean of the last window, of the slowest host; 0: no steps.
    """

    steps: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    settled: bool | None = None
    step_seconds: float = 0.0


def default_ceiling(floor: int) -> int:
    """Return the maximum number of warm-up steps; equal to a minimum that is too small for two windows."""
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
        floor: Minimum number of steps.
        ceiling: Maximum number of steps; if not above `floor`, exactly `floor` steps run and windows are not compared.
        report: See `take_steps`; counts over all windows.
        slowest: Maps a window's mean step time to that of the slowest of several hosts, because all must take the same
            number of steps.
    """
    done = Warmup()
    seek = ceiling > floor
    while done.steps < (ceiling if seek else floor):
        count = min(WINDOW_STEPS, ceiling - done.steps) if seek else floor
        window = take_steps(step, count, lambda steps, seconds: report(done.steps + steps, seconds))
        count = len(window.step_seconds)
        done.steps += count
        done.seconds += window.seconds
        done.losses += window.losses
        before, done.step_seconds = done.step_seconds, slowest(window.seconds / count)
        agree = before > 0 and abs(done.step_seconds - before) <= AGREEMENT * before
        done.settled = (done.steps >= floor and agree) if seek else None
        if done.settled:
            break
    return done
