"""Validity checks: each compares a measured value with its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from results.schema import XLA, Case, Check, Precision
from tfbench.keras_versions import Strategy, Variable, components
from tfbench.training.step import Training, split_batch
from tfbench.training.tasks import Batch

UPDATE_LIMITS = {Precision.FP32: 5e-3, Precision.TF32: 2e-2, Precision.FP16: 5e-2, Precision.BF16: 2e-1}
"""Limit of the relative difference between the update of N replicas and that of one device.

Far above rounding, far below a fault: one of eight replicas excluded changes the update by more than a tenth.
"""

XLA_FACTOR = 10.0
"""Factor by which limits are wider for compiled replicas: the reference is not compiled, so it fuses nothing and rounds
differently, which batch normalisation amplifies for small batches.
"""

LOSS_LIMITS = {Precision.FP32: 1e-4, Precision.TF32: 5e-3, Precision.FP16: 5e-3, Precision.BF16: 2e-2}
"""Limit of the relative difference between the loss of N replicas and that of one device."""

UNTRAINED_LIMIT = math.log(4.0)
"""Limit of |ln(first loss / expected loss of an untrained network)|: a factor of 4. At full size on a CPU, the
networks of this project start within a factor of 1.2.
"""

ZERO_GRADIENTS_LIMIT = 0.5
"""Limit of the share of variables whose first gradient is all zero. In half precision some gradients underflow."""

STEPS_THAT_SHOW_LEARNING = 5
"""Minimum number of losses for a verdict on equal ones: loss scaling may skip the first steps."""

DIVERGENCE_LIMIT = 1e-6
"""Limit of the relative difference between two replicas' weights, which is 0 if all replicas add the same sum."""


def finite_check(name: str, losses: Sequence[float]) -> Check:
    """Check that every loss is finite."""
    bad = [index for index, loss in enumerate(losses, start=1) if not math.isfinite(loss)]
    if bad:
        return Check(name=name, passed=False, detail=f"the value of step {bad[0]} is {losses[bad[0] - 1]}")
    return Check(name=name, passed=True, detail=f"{len(losses)} steps, all finite", value=losses[-1])


def untrained_loss_check(loss: float, expected: float) -> Check:
    """Check that the first loss is plausible for random labels: a device that computes nothing gives 0."""
    detail = f"the first loss is {loss:.4g}; an untrained network has about {expected:.3g}"
    factor = abs(math.log(loss / expected)) if 0.0 < loss < math.inf else math.inf
    return within("loss_of_an_untrained_network", factor, UNTRAINED_LIMIT, detail)


def output_check(mean: float) -> Check:
    """Check that the outputs of inference are not all zero."""
    value = mean if math.isfinite(mean) else None
    return Check(name="outputs_not_zero", passed=bool(value), detail=f"their mean is {mean:.4g}", value=value)


def gradients_check(training: Training) -> Check:
    """Check that gradients reach the variables; the value is the share of variables whose gradient is all zero."""
    per_replica = _of_replicas(training, training.updater.first_moments)
    sums = [[tf.reduce_sum(tf.abs(tf.convert_to_tensor(moment))).numpy() for moment in of] for of in per_replica]
    zero = int(np.max(np.sum(np.equal(sums, 0.0), axis=1)))
    detail = f"{zero} of {len(sums[0])} variables got a gradient that is zero everywhere"
    share = zero / len(sums[0]) if np.isfinite(sums).all() else math.nan
    return within("gradients_not_zero", share, ZERO_GRADIENTS_LIMIT, detail)


class LearningWitness:
    """Keeps the first and the last variable from before the first step, to check that training changes them.

    Args:
        training: Before its first step.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._before = self._weights()

    def checks(self, losses: Sequence[float]) -> list[Check]:
        """Check that weights and losses have changed.

        Args:
            losses: Of the first step and of the warm-up. Later ones may be constant: a network that has memorised its
                only batch has a loss of 0.
        """
        changed = all(map(_changed, self._weights(), self._before))
        varied = len(set(losses)) > 1 or len(losses) < STEPS_THAT_SHOW_LEARNING
        detail = f"first and last variable after {len(losses)} steps"
        of_losses = f"{len(losses)} losses, the first {losses[0]:.6g}"
        return [
            Check(name="weights_change", passed=changed, detail=detail),
            Check(name="loss_changes", passed=varied and all(map(math.isfinite, losses)), detail=of_losses),
        ]

    def _weights(self) -> list[list[np.ndarray]]:
        """Return the first and the last variable of each replica."""
        ends = (self._training.variables[0], self._training.variables[-1])
        return [[part.numpy() for part in parts] for parts in _of_replicas(self._training, ends)]


def _of_replicas(training: Training, variables: Sequence[Variable]) -> Iterator[tuple[Variable, ...]]:
    """Return, for each replica, its parts of some variables."""
    return zip(*(components(training.strategy, variable) for variable in variables), strict=True)


def _changed(now: Sequence[np.ndarray], before: Sequence[np.ndarray]) -> bool:
    """Return whether one of a replica's variables has changed, and all are finite."""
    differ = not all(map(np.array_equal, now, before))
    return differ and all(np.isfinite(new).all() for new in now)


class OneDeviceReference:
    """Loss and gradient of the global batch, computed on one device at the current weights.

    The first device processes the replicas' batches, and the parts of each that a step accumulates, one after another,
    and averages. Batch normalisation then has the same statistics as on the replicas (each replica's own batch), so
    that both sides compute the same function.

    Half-precision gradients are computed at the training's loss scale, halved until they are finite, and divided by it
    in float32. At a scale of 1 they would underflow for a large global batch: before ResNet50's pooling they are about
    5e-4 / global batch, and the smallest fp16 number is 6e-8.

    Attributes:
        loss: Mean over the global batch.
        gradients: Of each variable, float32.
    """

    def __init__(self, training: Training, shards: Sequence[Batch]) -> None:
        self._compute = tf.function(training.forward_backward, autograph=False)
        self._training, self._shards = training, shards
        scale = training.loss_scale
        self.loss, self.gradients = self._at(scale)
        while scale > 1.0 and not all(np.isfinite(gradient).all() for gradient in self.gradients):
            scale /= 2.0
            self.loss, self.gradients = self._at(scale)

    def _at(self, scale: float) -> tuple[float, list[np.ndarray]]:
        """Return loss and gradients, computed at a loss scale and divided by it."""
        loss = 0.0
        gradients = [np.zeros(variable.shape, np.float32) for variable in self._training.variables]
        for features, labels in _one_by_one(self._shards, self._training.case.accumulate):
            share, parts = self._compute(features, labels, tf.constant(scale))
            loss += float(share)
            with np.errstate(invalid="ignore", over="ignore"):  # the caller checks that it is finite
                for total, part in zip(gradients, parts, strict=True):
                    total += part.numpy() / np.float32(scale)
        return loss, gradients


def update_check(training: Training, reference: OneDeviceReference) -> Check:
    """Compare the replicas' first update with one device's on the same global batch.

    The first moments start at zero, so after the first step they are a known multiple of the applied gradient: 1 with
    momentum, 0.1 with AdamW. The value is |applied − reference| / |reference|, with Euclidean norms over all variables,
    of the worst replica.
    """
    share = training.updater.first_share
    norm = math.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in reference.gradients))
    differences = []
    for moments in _of_replicas(training, training.updater.first_moments):
        pairs = zip(moments, reference.gradients, strict=True)
        squares = sum(float(np.square(moment.numpy() / share - g, dtype=np.float64).sum()) for moment, g in pairs)
        differences.append(math.sqrt(squares) / norm if norm else math.inf)
    return within(
        "update_equals_one_device",
        worst(differences),
        UPDATE_LIMITS[training.case.precision] * xla_factor(training.case),
        f"{training.case.replicas} replicas against one device that takes the same shards in turn",
    )


def loss_check(training: Training, reference: OneDeviceReference, loss: float) -> Check:
    """Compare the loss of N replicas with that of one device."""
    difference = abs(loss - reference.loss) / abs(reference.loss) if reference.loss else math.inf
    limit = LOSS_LIMITS[training.case.precision] * xla_factor(training.case)
    detail = f"replicas report {loss:.6g}, one device {reference.loss:.6g}"
    return within("loss_equals_one_device", difference, limit, detail)


def replicas_check(training: Training) -> Check:
    """Compare the replicas' weights: max |w_r − w_0| / max |w_0|, of the worst variable."""
    if training.case.replicas == 1:
        return does_not_apply("replicas_equal")
    differences = []
    for variable in training.variables:
        first, *others = (part.numpy() for part in components(training.strategy, variable))
        size = float(np.abs(first).max()) or 1.0
        differences += [float(np.abs(other - first).max()) / size for other in others]
    detail = f"weights of {training.case.num_gpus} replicas after a few steps"
    return within("replicas_equal", worst(differences), DIVERGENCE_LIMIT, detail)


def does_not_apply(name: str, why: str = "one replica") -> Check:
    """Return a check that does not apply to the case."""
    return Check(name=name, passed=None, detail=f"does not apply: {why}")


def keras_refusal(keras_version: str, replicas: int) -> str | None:
    """Return why this version of Keras must not train with several replicas; None: it may.

    Keras 3.0 to 3.4 never all-reduced gradients under `tf.distribute`, 3.5 to 3.7 summed without averaging, and up to
    3.9 losses were wrong. This benchmark has its own all-reduce, but uses Keras's variables.
    """
    major, minor = (int(part) for part in keras_version.split(".")[:2])
    if replicas == 1 or major != 3 or minor >= 10:
        return None
    why = f"Keras {keras_version} with {replicas} replicas: Keras 3.0 to 3.9 trains wrongly under tf.distribute"
    return f"{why}. Install Keras 3.10 or newer, or measure one GPU."


def failures(checks: Sequence[Check]) -> str:
    """Describe the failed checks, for `cause`."""
    texts = []
    for check in checks:
        if check.passed is False:
            known = check.value is not None and check.limit is not None
            numbers = f" ({check.value:.3g}, limit {check.limit:.3g})" if known else ""
            texts.append(f"{check.name}{numbers}: {check.detail}")
    return "; ".join(texts)


def xla_factor(case: Case) -> float:
    """Return the factor by which limits are wider for this case."""
    return 1.0 if case.xla is XLA.OFF else XLA_FACTOR


def worst(differences: Sequence[float]) -> float:
    """Return the largest difference, 0 if there are none, NaN if one is: the built-in `max` would ignore that."""
    return float(np.max(differences, initial=0.0))


def within(name: str, value: float, limit: float, detail: str) -> Check:
    """Check that a difference is a number and within its limit."""
    if not math.isfinite(value):
        return Check(name=name, passed=False, detail=f"{detail}: the difference is {value}", limit=limit)
    return Check(name=name, passed=value <= limit, detail=detail, value=value, limit=limit)


def replicas_of(strategy: Strategy, batch: Batch) -> list[Batch]:
    """Split a distributed batch into one per replica."""
    parts = [strategy.experimental_local_results(tensor) for tensor in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, tensors) for tensors in zip(*parts, strict=True)]


def _one_by_one(shards: Sequence[Batch], accumulate: int) -> Iterator[Batch]:
    """Yield the batches of all replicas, in the parts that one step accumulates, on the first replica's device.

    Being on one device, they let the reference be compiled once instead of once per replica.
    """
    device = tf.nest.flatten(shards[0])[0].device
    for shard in shards:
        with tf.device(device):
            parts = split_batch(tf.nest.map_structure(tf.identity, shard), accumulate)
            for index in range(accumulate):
                yield tf.nest.map_structure(lambda tensor, index=index: tensor[index], parts)
