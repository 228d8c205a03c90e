"""One training step: forward, backward, all-reduce, update, on every replica.

Not Keras's optimizers: they do several small operations per variable, and a benchmark of hardware should not
time those. The update is one fused operation per variable on each replica's own copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from results.schema import XLA, Case, Precision
from tfbench.inputs import Batch
from tfbench.types import Model, Strategy, Tensor
from tfbench.variables import assign_local, components, tensorflow_variable

LEARNING_RATE = 1e-3
"""Small enough that no network here diverges on random labels; speed does not depend on it."""

MOMENTUM = 0.9

INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS = 2.0**15, 2000
"""As in Keras: halved when a gradient is not finite, doubled after so many steps in which all were."""

AllReduce = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def sum_over_replicas(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sum each tensor over all replicas; in a replica's context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors))


class Training:
    """A network in training.

    Attributes:
        variables: Trained TensorFlow variables, mirrored over the replicas.
        velocity: Momentum of each; after the first step from zero it is the gradient that was applied.
        step: Takes the replicas' batches, trains one step, returns the loss over the global batch (a scalar
            that is there only when every replica has finished its update).
    """

    def __init__(
        self,
        case: Case,
        model: Model,
        strategy: Strategy,
        *,
        learning_rate: float = LEARNING_RATE,
        all_reduce: AllReduce = sum_over_replicas,
    ) -> None:
        self.case, self.model, self.strategy = case, model, strategy
        self.learning_rate = learning_rate
        self.variables = [tensorflow_variable(variable) for variable in model.trainable_variables]
        self._all_reduce = all_reduce
        with strategy.scope():
            self.velocity = [
                tf.Variable(tf.zeros(variable.shape, tf.float32), trainable=False) for variable in self.variables
            ]
            self._loss_scale = tf.Variable(self._first_loss_scale(), trainable=False)
            self._finite_steps = tf.Variable(0, trainable=False)
        self.step = tf.function(self._step)

    @property
    def global_batch(self) -> int:
        """Samples per step over all replicas."""
        return self.case.batch_per_gpu * self.case.num_gpus

    def forward_backward(self, images: Tensor, labels: Tensor, loss_scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return one replica's share of the loss, and its gradients times `loss_scale`; nothing is updated.

        The share is the sum over the replica's samples divided by the *global* batch: shares add up to the
        mean.
        """
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(losses) / self.global_batch
            scaled = loss * loss_scale if self._scales else loss
        return loss, tape.gradient(scaled, self.variables)

    def _step(self, batch: Batch) -> Tensor:
        shares = self.strategy.run(self._replica_step, args=batch)
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)

    def _replica_step(self, images: Tensor, labels: Tensor) -> Tensor:
        compute = self.forward_backward
        if self.case.xla is XLA.REPLICA:
            compute = tf.function(compute, jit_compile=True)
        loss, gradients = compute(images, labels, tf.convert_to_tensor(self._loss_scale))
        updates = self._update(self._all_reduce(gradients))
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    def _update(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Apply summed gradients to this replica's copies.

        With loss scaling a step whose gradients are not finite must change nothing. That is done without a
        branch, for which the host would have to wait: gradients times 0 (`multiply_no_nan` makes NaN × 0 =
        0), rate 0, momentum 1.
        """
        rate, momentum = tf.constant(self.learning_rate), tf.constant(MOMENTUM)
        updates = []
        if self._scales:
            scale = tf.convert_to_tensor(self._loss_scale)
            finite = tf.math.is_finite(tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
            factor = tf.where(finite, 1.0 / scale, 0.0)
            gradients = [tf.math.multiply_no_nan(gradient, factor) for gradient in gradients]
            rate, momentum = tf.where(finite, rate, 0.0), tf.where(finite, momentum, 1.0)
            updates += self._update_loss_scale(scale, finite)
        for variable, velocity, gradient in zip(self.variables, self.velocity, gradients, strict=True):
            updates.append(
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle, accum=velocity.handle, lr=rate, grad=gradient, momentum=momentum
                )
            )
        return updates

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
