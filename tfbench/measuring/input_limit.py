"""Whether real input or the device limits the steps: both are timed in the same process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from results.schema import InputLimit
from tfbench.measuring.timing import Interval, Step, take_steps
from tfbench.training.tasks import Batch
from tfbench.training.tfrecords import PREFETCHED_BATCHES, DataSet

STEP_RATIO_LIMIT = 1.1
"""A real step that takes so many synthetic ones waits for its input; below that, noise and copies explain it."""

DRAINING_STEPS = 2 * PREFETCHED_BATCHES + 2
"""Untimed real steps after synthetic ones: the batches that were prepared meanwhile would flatter the input."""


class WaitingSource:
    """Gives batches, and counts how long was waited for them.

    Attributes:
        seconds: Waited since the last `reset`.
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

    def reset(self) -> None:
        """Begin to count again."""
        self.seconds = 0.0


class InputComparison:
    """Takes synthetic steps before and after the timed real ones, so that drift touches both alike.

    Args:
        real: Where real batches come from.
        real_step: Takes one step with a real batch.
        synthetic_step: Takes one step with a batch that lives on the device.
        steps: That will be timed; so many synthetic ones are taken, half before and half after.
    """

    def __init__(self, real: WaitingSource, real_step: Step, synthetic_step: Step, steps: int) -> None:
        self._real, self._synthetic_step = real, synthetic_step
        self._half = -(-steps // 2)
        take_steps(synthetic_step, 1)  # its batch was never used: the first step may trace
        self._seconds = take_steps(synthetic_step, self._half).step_seconds
        take_steps(real_step, DRAINING_STEPS)
        real.reset()

    def result(self, timed: Interval, data_set: DataSet, images: int) -> InputLimit:
        """Take the other half and compare; call it at once after the timed steps.

        Args:
            timed: The real steps.
            data_set: Where they came from.
            images: Used by them.
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
