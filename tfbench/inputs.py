"""Batches: one that lives on each replica's device, or one that comes from the host at every step."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from results.schema import Case, Data
from tfbench.types import ReplicaContext, Strategy, Tensor

Batch = tuple[Tensor, Tensor]
"""Images, float32 (batch, size, size, 3), standard normal, and labels, int32 (batch,); one pair per
replica.
"""

SEED = 20_14


def synthetic_batch(case: Case, image_size: int, classes: int, replica: int) -> Batch:
    """Draw the batch of one replica; the same numbers wherever it is called.

    Args:
        case: Its batch per GPU is drawn.
        image_size: Height and width in pixels.
        classes: Labels are below this.
        replica: Replicas get different batches, else a missing all-reduce would not show.
    """
    shape = (case.batch_per_gpu, image_size, image_size, 3)
    images = tf.random.stateless_normal(shape, (SEED, 2 * replica))
    labels = tf.random.stateless_uniform(shape[:1], (SEED, 2 * replica + 1), 0, classes, tf.int32)
    return images, labels


def batch_source(case: Case, image_size: int, classes: int, strategy: Strategy) -> Callable[[], Batch]:
    """Return what gives the next step its batch, as values per replica.

    `synthetic` gives the same batch, already on the devices, at every step; `host` moves it there through
    `tf.data`.
    """

    def of_replica(context: ReplicaContext) -> Batch:
        return synthetic_batch(case, image_size, classes, context.replica_id_in_sync_group)

    if case.data is Data.SYNTHETIC:
        images = strategy.experimental_distribute_values_from_function(lambda context: of_replica(context)[0])
        labels = strategy.experimental_distribute_values_from_function(lambda context: of_replica(context)[1])
        return lambda: (images, labels)
    parts = [synthetic_batch(case, image_size, classes, replica) for replica in range(case.num_gpus)]
    with tf.device("CPU:0"):
        images, labels = (tf.concat(tensors, 0) for tensors in zip(*parts, strict=True))
        data = tf.data.Dataset.from_tensors((images, labels)).repeat().prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    iterator = iter(strategy.experimental_distribute_dataset(data.with_options(options)))
    return lambda: next(iterator)
