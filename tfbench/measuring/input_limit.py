"""Whether input is the bottleneck: steps with real batches against steps with a batch on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from results.schema import InputLimit
from tfbench.measuring.timing import Step, TimedSteps, take_steps
from tfbench.training.inputs import BATCHES_AHEAD
from tfbench.training.tasks import Batch
from tfbench.training.tfrecords import PREFETCHED_BATCHES, DataSet

STEP_RATIO_LIMIT = 1.1
"""A real step this many times as long as a synthetic one waits for input; noise and copies may explain less."""

DRAINING_STEPS = PREFETCHED_BATCHES + BATCHES_AHEAD + 2
"""Untimed real steps after synthetic ones: batches prepared meanwhile would make the input look faster."""


class WaitingSource:
    """A source of batches that measures the time spent waiting for them.

    Attributes:
        seconds: Waited since it was set to 0.
    """

    def __init__(self, next_batch: Callable[[], Batch]) -> None:
        self._next_batch = next_batch
        self.seconds = 0.0

    def __call__(self) -> Batch:
        """Return the next batch."""
        begin = time.perf_counter()
        batch = self._next_batch()
        self.seconds += time.perf_counter() - begin
        return batch


class InputComparison:
    """Takes synthetic steps before and after the timed real ones, so that drift affects both alike.

    Args:
        real: Source of real batches.
        real_step: Takes one step with a real batch.
        synthetic_step: Takes one step with a batch on the device.
        steps: Number of timed steps; as many synthetic ones are taken, half before and half after.
    """

    def __init__(self, real: WaitingSource, real_step: Step, synthetic_step: Step, steps: int) -> None:
        self._real, self._synthetic_step = real, synthetic_step
        self._half = -(-steps // 2)
        take_steps(synthetic_step, 1)  # the first step with its batch may trace
        self._seconds = take_steps(synthetic_step, self._half).step_seconds
        take_steps(real_step, DRAINING_STEPS)

    def start(self) -> None:
        """Begin to count the waits for real batches; call at the start of the timed steps."""
        self._real.seconds = 0.0

    def result(self, timed: TimedSteps, data_set: DataSet, images: int) -> InputLimit:
        """Take the second half and compare; call immediately after the timed steps.

        Args:
            timed: The real steps.
            data_set: Their source.
            images: Number of images in them.
        """
        waited = self._real.seconds
        self._seconds += take_steps(self._synthetic_step, self._half).step_seconds
        synthetic = statistics.median(self._seconds)
        ratio = statistics.median(timed.step_seconds) / synthetic
        return InputLimit(
            synthetic_step_seconds=synthetic,
            step_ratio=ratio,
            limit=STEP_RATIO_LIMIT,
            limited=ratio > STEP_RATIO_LIMIT,
            wait_share=min(1.0, waited / timed.seconds),
            read_bytes_per_second=images * data_set.bytes_per_image / timed.seconds,
            files=len(data_set.files),
        )
