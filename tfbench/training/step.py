"""One training step: forward, backward, all-reduce, update, on every replica.

With `--accumulate`, gradients of several batches are added up before an update, one batch after another, so that only
one batch's activations are in memory.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from results.schema import XLA, AllReduceDtype, Case, Optimizer, Precision
from tfbench import keras_versions
from tfbench.keras_versions import ConcreteFunction, Model, Shape, Strategy, Tensor, assign_local, components
from tfbench.training.optimizers import make_updater
from tfbench.training.tasks import IMAGES, Batch, Task

ROW_ELEMENTS = 16
"""float32 elements of a buffer's row: 64 bytes, so that a split between rows shares the buffer instead of copying it.

Source: TensorFlow, core/kernels/split_v_op.cc, ComputeEasyCases: split_dim == 0 and IsInnerDimsSizeAligned.
"""

ELEMENT_BYTES = 4


class GradientPacks:
    """Packs gradients into flat buffers of about equal size, and unpacks them without a copy.

    Buffers are in the order of their first variables. TensorFlow reverses its arguments
    (CollectiveAllReduce._all_reduce in cross_device_ops.py), so that the all-reduce of the last layers, whose gradients
    are ready first, starts first. For the same reason the buffers are filled beginning with the last variable.

    A large gradient is a buffer by itself, as it is: to join it would only copy it.

    TensorFlow's own packing (`CommunicationOptions(bytes_per_pack)`) makes as many all-reduces, but also joins large
    gradients: on two null GPUs, a step of VGG16 copies 1,241 instead of 108 MB. And it unpacks before loss scaling,
    which then reads each gradient by itself: a step of ResNet50 in fp16 has 963 instead of 572 launches per GPU on 2 to
    8 GPUs, and 950 instead of 597 on one.

    Args:
        shapes: Of the gradients, all float32.
        pack_bytes: Size at which a buffer is complete; 0: one buffer for all.
        alone_bytes: Size from which a gradient is not joined; None: all are joined.
    """

    def __init__(self, shapes: Sequence[Shape], pack_bytes: int, alone_bytes: int | None = None) -> None:
        self._shapes = [tuple(shape) for shape in shapes]
        sizes = [math.prod(shape) * ELEMENT_BYTES for shape in self._shapes]
        packs: list[list[int]] = []
        joined: list[int] = []
        for index in reversed(range(len(sizes))):
            if alone_bytes is not None and sizes[index] >= alone_bytes:
                packs.append([index])
                continue
            joined.insert(0, index)
            if pack_bytes and sum(sizes[each] for each in joined) >= pack_bytes:
                packs.append(joined)
                joined = []
        self._packs = sorted([*packs, joined] if joined else packs)

    def join(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the buffers, float32: (rows, `ROW_ELEMENTS`), or the shape of a gradient that is a buffer by itself.

        Args:
            gradients: One per shape, in the same order.
        """
        packs = [[gradients[index] for index in pack] for pack in self._packs]
        return [pack[0] if len(pack) == 1 else tf.concat([*map(_as_rows, pack)], 0) for pack in packs]

    def split(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Unpack the gradients from buffers with the shapes of `join`."""
        gradients: dict[int, Tensor] = {}
        for buffer, pack in zip(buffers, self._packs, strict=True):
            shapes = [self._shapes[index] for index in pack]
            if len(pack) == 1:
                parts = [buffer]
            else:
                rows = tf.split(buffer, [*map(_rows, shapes)], 0)
                parts = [_from_rows(part, shape) for part, shape in zip(rows, shapes, strict=True)]
            gradients.update(zip(pack, parts, strict=True))
        return [gradients[index] for index in range(len(gradients))]


def _rows(shape: Sequence[int]) -> int:
    """Return the number of rows of a gradient; the last one may be padded."""
    return -(-math.prod(shape) // ROW_ELEMENTS)


def _as_rows(gradient: Tensor) -> Tensor:
    rows = _rows(gradient.shape)
    if missing := rows * ROW_ELEMENTS - math.prod(gradient.shape):
        gradient = tf.pad(tf.reshape(gradient, [-1]), [[0, missing]])
    return tf.reshape(gradient, [rows, ROW_ELEMENTS])


def _from_rows(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    elements = math.prod(shape)
    if elements % ROW_ELEMENTS:
        rows = tf.reshape(rows, [-1])[:elements]
    return tf.reshape(rows, shape)


INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS = 2.0**15, 2000
"""As in Keras: the scale is halved if a gradient is not finite, and doubled after this many finite steps."""

ALONE_MB_WITHOUT_ALL_REDUCE = 4
"""Gradients of this size or more are not joined if only loss scaling reads the buffers."""

TRAVEL_DTYPES = {AllReduceDtype.FP32: tf.float32, AllReduceDtype.FP16: tf.float16, AllReduceDtype.BF16: tf.bfloat16}
"""Types to which gradients are cast for an all-reduce."""

MEGABYTE = 10**6

AllReduce = Callable[[Sequence[Tensor]], Sequence[Tensor]]

EACH_BY_ITSELF = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1)
"""TensorFlow would pack tensors up to this size. Gradients are in `GradientPacks` already: packing them again would
copy all of them and prevent overlap with the backward pass.
"""


def sum_over_replicas(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sum each tensor over all replicas, with one all-reduce per tensor; call in replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    sums: Sequence[Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors), options=EACH_BY_ITSELF)
    return sums


def split_batch(batch: Batch, parts: int) -> Batch:
    """Return a batch with its first axis, n, split into (parts, n / parts)."""
    split: Batch = tf.nest.map_structure(lambda tensor: tf.reshape(tensor, (parts, -1, *tensor.shape[1:])), batch)
    return split


class Training:
    """A network in training.

    Attributes:
        global_batch: Samples per step over all replicas, by which losses are divided.
        variables: Trained TensorFlow variables, mirrored over the replicas.
        updater: Updates them; after the first step its first moments are a known multiple of the applied gradient.
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
        self.task, self.global_batch, self._scales = task, case.global_batch, case.precision is Precision.FP16
        self.variables = [keras_versions.tensorflow_variable(variable) for variable in model.trainable_variables]
        self._all_reduce = all_reduce if case.all_reduce else list
        with strategy.scope():
            self.updater = make_updater(typing.cast(Optimizer, case.optimizer), self.variables, learning_rate)
            self._loss_scale = tf.Variable(INITIAL_LOSS_SCALE if self._scales else 1.0, trainable=False)
            # float32: TensorFlow has no GPU kernel for int32 variables, and would use the host.
            self._finite_steps = tf.Variable(0.0, trainable=False)
        self._loss = keras_versions.ReplicaResult(strategy)
        # With one replica and no loss scaling, buffers would only be copies.
        flat = case.replicas > 1 or self._scales
        shapes = [variable.shape for variable in self.variables]
        pack, reduced = case.all_reduce_pack_mb, case.replicas > 1
        alone = (pack if reduced else ALONE_MB_WITHOUT_ALL_REDUCE) * MEGABYTE if pack else None
        self._packs = GradientPacks(shapes, pack * MEGABYTE, alone) if flat else None
        self._call = keras_versions.Traced(self._step)

    def forward_backward(self, features: Tensor, labels: Tensor, loss_scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return one batch's share of the loss, and its gradients times `loss_scale`, without an update.

        The share is the sum over the batch's samples divided by the *global* batch: shares add up to the mean.
        """
        with tf.GradientTape() as tape:
            losses = self.task.losses(self.model(features, training=True), labels)
            loss = tf.reduce_sum(losses) / self.global_batch
            scaled = loss * loss_scale if self._scales else loss
        return loss, tape.gradient(scaled, self.variables)

    def step(self, batch: Batch) -> list[Tensor]:
        """Start one step, without waiting for its end.

        Args:
            batch: The replicas' batches.

        Returns:
            A scalar per replica of this host, on its device, which exists once the replica has updated its weights.
            Their sum is the loss over the global batch.
        """
        self._call(batch)
        return self._loss.read()

    def traced(self, batch: Batch) -> ConcreteFunction:
        """Return the concrete function of `step`, to inspect its graph."""
        return self._call.graph(batch)

    def _step(self, batch: Batch) -> None:
        self.strategy.run(lambda *of_replica: self._loss.assign(self._replica_step(*of_replica)), args=batch)

    def _replica_step(self, features: Tensor, labels: Tensor) -> Tensor:
        """Train one step on this replica; return its share of the loss, which depends on the update."""
        loss, gradients = self._accumulated(features, labels)
        if self._packs is not None:
            gradients = self._packs.join(gradients)
        if self.case.num_hosts > 1:
            # Over all hosts; last, so that TensorFlow reduces it first: it is ready before the gradients.
            *gradients, loss = self._summed([*gradients, loss])
            loss = loss / self.case.num_gpus if self.case.all_reduce else loss
        else:
            gradients = self._summed(gradients)
        with tf.control_dependencies(self._update(gradients)):
            return tf.identity(loss)

    def _summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum tensors over all replicas in the all-reduce's data type; the scalar among them stays float32."""
        dtype = TRAVEL_DTYPES[self.case.all_reduce_dtype]
        summed = self._all_reduce([tf.cast(tensor, dtype) if tensor.shape.rank else tensor for tensor in tensors])
        return [tf.cast(tensor, tf.float32) for tensor in summed]

    def _accumulated(self, features: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the sum of `forward_backward` over this replica's batches, processed one after another."""
        compute = self.forward_backward
        if self.case.xla is XLA.REPLICA:
            compute = tf.function(compute, jit_compile=True, autograph=False)
        if self.case.accumulate == 1:
            return compute(features, labels, tf.convert_to_tensor(self._loss_scale))
        batches = split_batch((features, labels), self.case.accumulate)

        def add_next(index: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            inputs, wanted = tf.nest.map_structure(lambda tensor: tensor[index], batches)
            # Read here: a tensor from outside the loop would pass through the host, a variable does not.
            loss, gradients = compute(inputs, wanted, tf.convert_to_tensor(self._loss_scale))
            return index + 1, [total + part for total, part in zip(sums, [loss, *gradients], strict=True)]

        nothing = [tf.zeros(shape, tf.float32) for shape in [(), *(variable.shape for variable in self.variables)]]
        _, (loss, *gradients) = tf.while_loop(
            lambda index, _: index < self.case.accumulate, add_next, (0, nothing), parallel_iterations=1
        )
        return loss, gradients

    def _update(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Apply summed gradients, or buffers of them, to this replica's variables.

        With loss scaling, a step with gradients that are not finite must change nothing. A branch would make the host
        wait; instead, gradients are multiplied by 0 (`multiply_no_nan` makes NaN × 0 = 0), and the update is the
        identity.
        """
        finite, changes = None, []
        if self._scales:
            scale = tf.convert_to_tensor(self._loss_scale)
            finite = tf.math.is_finite(tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
            factor = tf.where(finite, 1.0 / scale, 0.0)
            gradients = [tf.math.multiply_no_nan(gradient, factor) for gradient in gradients]
            changes = self._update_loss_scale(scale, finite)
        if self._packs is not None:
            gradients = self._packs.split(gradients)
        return changes + self.updater.apply(gradients, finite)

    def _update_loss_scale(self, scale: Tensor, finite: Tensor) -> list[Tensor]:
        steps = tf.where(finite, tf.convert_to_tensor(self._finite_steps) + 1.0, 0.0)
        grow = steps >= LOSS_SCALE_GROWTH_STEPS
        scale = tf.where(finite, tf.where(grow, scale * 2.0, scale), scale / 2.0)
        return [
            assign_local(self._loss_scale, scale),
            assign_local(self._finite_steps, tf.where(grow, 0.0, steps)),
        ]

    def was_updated(self) -> bool:
        """Return whether the last step's gradients were finite, so that the weights were updated."""
        return not self._scales or float(components(self.strategy, self._finite_steps)[0]) > 0

    @property
    def loss_scale(self) -> float:
        """Return the current factor of losses, which keeps half-precision gradients from underflowing."""
        return float(components(self.strategy, self._loss_scale)[0])
