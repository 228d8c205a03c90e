"""Sources of batches: a constant one on each replica's device, or a new one from the host in every step."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from results.schema import Case, Data
from tfbench.keras_versions import ReplicaContext, Strategy
from tfbench.training.tasks import IMAGES, Batch, Draws, Task

BATCHES_AHEAD = 3
"""Batches on a device at a time: one in use, one ready, one being copied."""


def synthetic_batch(case: Case, size: int, classes: int, replica: int, task: Task = IMAGES) -> Batch:
    """Draw the batch of one replica, with the same numbers on every device.

    Args:
        case: Determines the number of examples: its batch per GPU times its accumulated batches.
        size: Height and width in pixels, or tokens of a sequence.
        classes: Upper bound of labels and tokens, exclusive.
        replica: Replicas get different batches; otherwise a missing all-reduce would go unnoticed.
        task: Defines an example.
    """
    return task.draw(Draws(replica), case.batch_per_gpu * case.accumulate, size, classes)


def bytes_per_example(task: Task, size: int, classes: int) -> int:
    """Return the size of one example's features and labels in bytes."""
    example = task.draw(Draws(0), 1, size, classes)
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tf.nest.flatten(example))


def batch_source(case: Case, size: int, classes: int, strategy: Strategy, task: Task = IMAGES) -> Callable[[], Batch]:
    """Return a function that returns the next step's batch, as values per replica.

    `synthetic` gives the same batch, already on the devices, at every step; `host` moves it there through
    `tf.data`. The arguments are those of `synthetic_batch`.
    """

    def of_replica(replica: int) -> Batch:
        return synthetic_batch(case, size, classes, replica, task)

    if case.data is Data.SYNTHETIC:
        devices = iter(strategy.extended.worker_devices)

        def draw(context: ReplicaContext) -> Batch:
            with tf.device(next(devices)):  # otherwise each batch would be drawn on the first device
                return of_replica(context.replica_id_in_sync_group)

        batch = strategy.experimental_distribute_values_from_function(draw)
        return lambda: batch
    first = case.num_gpus * (strategy.cluster_resolver.task_id if case.num_hosts > 1 else 0)
    return source_per_replica(
        strategy, lambda replica: tf.data.Dataset.from_tensors(of_replica(first + replica)).repeat().prefetch(2)
    )


def source_per_replica(strategy: Strategy, dataset_of: Callable[[int], tf.data.Dataset]) -> Callable[[], Batch]:
    """Return a source of batches that copies each replica's from host memory to its device ahead of the steps.

    Each device has its own pipeline. The strategy's distributed iterator copies a number back to the host in every step
    and waits for the device before it requests the next batch, so that every second copy does not overlap.

    Args:
        strategy: Over the replicas.
        dataset_of: Returns the batches of one of this host's replicas, in host memory.
    """
    pipelines = []
    for replica, device in enumerate(strategy.extended.worker_devices):
        with tf.device("CPU:0"):
            data = dataset_of(replica)
        if "GPU" in device:
            data = data.apply(tf.data.experimental.prefetch_to_device(device, buffer_size=BATCHES_AHEAD))
        pipelines.append(iter(data))

    def next_batch() -> Batch:
        batches = iter([next(pipeline) for pipeline in pipelines])
        batch: Batch = strategy.experimental_distribute_values_from_function(lambda _: next(batches))
        return batch

    return next_batch
