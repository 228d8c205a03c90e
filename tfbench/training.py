"""One training step: forward, backward, all-reduce, update, on every replica.

Gradients of several batches can be added up before an update (`--accumulate`), one batch after another, so that
only one batch's activations are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from results.schema import XLA, Case, Precision
from tfbench.optimizers import make_updater
from tfbench.tasks import IMAGES, Batch, Task
from tfbench.types import Model, Strategy, Tensor
from tfbench.variables import assign_local, components, tensorflow_variable

INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS = 2.0**15, 2000
"""As in Keras: halved when a gradient is not finite, doubled after so many steps in which all were."""

AllReduce = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def sum_over_replicas(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sum each tensor over all replicas; in a replica's context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors))


def split_batch(batch: Batch, parts: int) -> Batch:
    """Return a batch with its first axis, n, split into (parts, n / parts)."""
    return tf.nest.map_structure(lambda tensor: tf.reshape(tensor, (parts, -1, *tensor.shape[1:])), batch)


class Training:
    """A network in training.

    Attributes:
        variables: Trained TensorFlow variables, mirrored over the replicas.
        updater: Changes them; after the first step its first moments are a known share of the gradient that was
            applied.
        step: Takes the replicas' batches, trains one step, returns the loss over the global batch (a scalar
            that is there only when every replica has finished its update).
    """

    def __init__(
        self,
        case: Case,
        model: Model,
        strategy: Strategy,
        *,
        task: Task = IMAGES,
        learning_rate: float | None = None,
        all_reduce: AllReduce = sum_over_replicas,
    ) -> None:
        self.case, self.model, self.strategy = case, model, strategy
        self.task = task
        self.variables = [tensorflow_variable(variable) for variable in model.trainable_variables]
        self._all_reduce = all_reduce if case.all_reduce else list
        with strategy.scope():
            self.updater = make_updater(case.optimizer, self.variables, learning_rate)
            self._loss_scale = tf.Variable(self._first_loss_scale(), trainable=False)
            self._finite_steps = tf.Variable(0, trainable=False)
        self.step = tf.function(self._step)

    @property
    def global_batch(self) -> int:
        """Samples per step over all replicas."""
        return self.case.global_batch

    def forward_backward(self, features: Tensor, labels: Tensor, loss_scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return one batch's share of the loss, and its gradients times `loss_scale`; nothing is updated.

        The share is the sum over the batch's samples divided by the *global* batch: shares add up to the mean.
        """
        with tf.GradientTape() as tape:
            losses = self.task.losses(self.model(features, training=True), labels)
            loss = tf.reduce_sum(losses) / self.global_batch
            scaled = loss * loss_scale if self._scales else loss
        return loss, tape.gradient(scaled, self.variables)

    def _step(self, batch: Batch) -> Tensor:
        shares = self.strategy.run(self._replica_step, args=batch)
        if self.case.num_hosts == 1:
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)
        # Not once more over the network: it went around with the gradients, and every replica has all of it.
        local = tf.add_n(self.strategy.experimental_local_results(shares))
        return local / self.case.num_gpus if self.case.all_reduce else local

    def _replica_step(self, features: Tensor, labels: Tensor) -> Tensor:
        loss, gradients = self._accumulated(features, labels, tf.convert_to_tensor(self._loss_scale))
        if self.case.num_hosts > 1:
            *gradients, loss = self._all_reduce([*gradients, loss])
            updates = self._update(gradients)
        else:
            updates = self._update(self._all_reduce(gradients))
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    def _accumulated(self, features: Tensor, labels: Tensor, loss_scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the sum of `forward_backward` over this replica's batches, which are taken one after another."""
        compute = self.forward_backward
        if self.case.xla is XLA.REPLICA:
            compute = tf.function(compute, jit_compile=True)
        if self.case.accumulate == 1:
            return compute(features, labels, loss_scale)
        batches = split_batch((features, labels), self.case.accumulate)

        def add_next(index: Tensor, loss: Tensor, sums: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            part, gradients = compute(*tf.nest.map_structure(lambda tensor: tensor[index], batches), loss_scale)
            return index + 1, loss + part, [total + g for total, g in zip(sums, gradients, strict=True)]

        nothing = [tf.zeros(variable.shape, tf.float32) for variable in self.variables]
        _, loss, gradients = tf.while_loop(
            lambda index, *_: index < self.case.accumulate, add_next, (0, 0.0, nothing), parallel_iterations=1
        )
        return loss, gradients

    def _update(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Apply summed gradients to this replica's copies.

        With loss scaling a step whose gradients are not finite must change nothing. That is done without a
        branch, for which the host would have to wait: gradients times 0 (`multiply_no_nan` makes NaN × 0 =
        0), and an update that changes nothing.
        """
        if not self._scales:
            return self.updater.apply(gradients, None)
        scale = tf.convert_to_tensor(self._loss_scale)
        finite = tf.math.is_finite(tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        factor = tf.where(finite, 1.0 / scale, 0.0)
        gradients = [tf.math.multiply_no_nan(gradient, factor) for gradient in gradients]
        return self._update_loss_scale(scale, finite) + self.updater.apply(gradients, finite)

    def _update_loss_scale(self, scale: Tensor, finite: Tensor) -> list[Tensor]:
        steps = tf.where(finite, tf.convert_to_tensor(self._finite_steps) + 1, 0)
        grow = steps >= LOSS_SCALE_GROWTH_STEPS
        scale = tf.where(finite, tf.where(grow, scale * 2.0, scale), scale / 2.0)
        return [
            assign_local(self._loss_scale, scale),
            assign_local(self._finite_steps, tf.where(grow, 0, steps)),
        ]

    def was_updated(self) -> bool:
        """Say whether the last step's gradients were finite, so that it changed the weights."""
        return not self._scales or int(components(self.strategy, self._finite_steps)[0]) > 0

    @property
    def _scales(self) -> bool:
        return self.case.precision is Precision.FP16

    def _first_loss_scale(self) -> float:
        return INITIAL_LOSS_SCALE if self._scales else 1.0
