"""Inference: the forward pass of a batch on all replicas, and of single samples on the first device."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from results.schema import XLA, Case, Check, Latency, Precision
from tfbench.keras_versions import Model, ReplicaResult, Strategy, Tensor, Traced
from tfbench.measuring.timing import percentile
from tfbench.measuring.validity import does_not_apply, replicas_of, within, worst, xla_factor
from tfbench.training.tasks import Batch

LATENCY_STEPS = 100
"""Minimum number of calls at batch 1: a 99th percentile needs a hundred."""

LATENCY_WARMUP_STEPS = 10

OUTPUT_LIMITS = {Precision.FP32: 1e-4, Precision.TF32: 5e-3, Precision.FP16: 1e-2, Precision.BF16: 5e-2}
"""Limit of the relative difference between a replica's outputs and one device's for the same samples."""


class Inference:
    """A network in inference."""

    def __init__(self, case: Case, model: Model, strategy: Strategy) -> None:
        self.case, self.model, self.strategy = case, model, strategy
        compiled = case.xla is XLA.REPLICA
        self._compute = tf.function(self._forward, jit_compile=True, autograph=False) if compiled else self._forward
        self._share = ReplicaResult(strategy)
        self._call = Traced(self._step)

    def step(self, batch: Batch) -> list[Tensor]:
        """Start one forward pass, without waiting for its end.

        Args:
            batch: The replicas' batches.

        Returns:
            Each replica's share of the mean of all outputs, on its device; it exists once the replica has finished, and
            is finite only if every output is.
        """
        self._call(batch)
        return self._share.read()

    def checks(self, batch: Batch) -> list[Check]:
        """Check that all outputs are finite, and equal to those of one device."""
        shards = replicas_of(self.strategy, batch)
        answer = tf.function(lambda batch: self.strategy.run(self._outputs, args=batch), autograph=False)
        by_output = [self.strategy.experimental_local_results(output) for output in answer(batch)]
        outputs = [[part.numpy() for part in of_replica] for of_replica in zip(*by_output, strict=True)]
        name = "outputs_equal_one_device"
        same = self._same_on_one_device(name, shards, outputs) if len(shards) > 1 else does_not_apply(name)
        return [_finite(outputs), same]

    def latency(self, batch: Batch, count: int) -> Latency:
        """Time single samples on the first device, each until its result is on the host.

        Args:
            batch: Of all replicas; the first sample of the first one is used.
            count: Minimum number of calls, raised to `LATENCY_STEPS`.
        """
        inputs, *_ = replicas_of(self.strategy, batch)[0]
        device = tf.nest.flatten(inputs)[0].device
        with tf.device(device):
            one = tf.nest.map_structure(lambda tensor: tf.identity(tensor[:1]), inputs)

            @tf.function(autograph=False)
            def answer() -> Tensor:
                return _mean(self._outputs(one))

            seconds = []
            for call in range(-LATENCY_WARMUP_STEPS, max(count, LATENCY_STEPS)):
                begin = time.perf_counter()
                answer().numpy()
                if call >= 0:
                    seconds.append(time.perf_counter() - begin)
        p50, p95, p99 = (percentile(seconds, share) for share in (0.50, 0.95, 0.99))
        return Latency(p50_seconds=p50, p95_seconds=p95, p99_seconds=p99, step_seconds=seconds)

    def _step(self, batch: Batch) -> None:
        share = 1.0 / self.case.replicas
        self.strategy.run(lambda *of_replica: self._share.assign(_mean(self._outputs(*of_replica)) * share), args=batch)

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        outputs: list[Tensor] = tf.nest.flatten(self.model(inputs, training=False))
        return outputs

    def _outputs(self, inputs: Tensor, *_: Tensor) -> list[Tensor]:
        """Return the outputs of a replica's batch in float32."""
        return [tf.cast(output, tf.float32) for output in self._compute(inputs)]

    def _same_on_one_device(self, name: str, shards: Sequence[Batch], outputs: Sequence[list[np.ndarray]]) -> Check:
        """Compare every replica's outputs with the first device's for the same samples: the largest |y_r - y| / |y|."""
        compute = tf.function(self._outputs, autograph=False)
        differences = []
        with tf.device(tf.nest.flatten(shards[0])[0].device):
            for shard, answered in zip(shards, outputs, strict=True):
                for wanted, got in zip(compute(*shard), answered, strict=True):
                    norm = float(np.linalg.norm(wanted.numpy())) or 1.0
                    differences.append(float(np.linalg.norm(got - wanted.numpy())) / norm)
        detail = f"{len(shards)} replicas against one device that takes the same shards"
        return within(name, worst(differences), OUTPUT_LIMITS[self.case.precision] * xla_factor(self.case), detail)


def _mean(outputs: Sequence[Tensor]) -> Tensor:
    return tf.add_n([tf.reduce_mean(output) for output in outputs])


def _finite(outputs: Sequence[list[np.ndarray]]) -> Check:
    """Check that every output of the first step is finite."""
    bad = sum(int((~np.isfinite(part)).sum()) for parts in outputs for part in parts)
    count = sum(part.size for parts in outputs for part in parts)
    detail = f"{bad} of {count} outputs are not finite" if bad else f"{count} outputs, all finite"
    return Check(name="outputs_finite_at_first", passed=not bad, detail=detail, value=float(bad), limit=0.0)
