"""Updates of the weights on each replica, by one fused operation per variable where TensorFlow has one.

Keras's optimizers use several small operations per variable, which a hardware benchmark should not time. There are no
branches: if a step's gradients are not finite, they are passed in as zeros, rates become 0 and decays 1, so that
nothing changes and the host does not have to wait for a decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from results.schema import Optimizer
from tfbench.keras_versions import Tensor, Variable, assign_local

MOMENTUM = 0.9

BETA_1, BETA_2, EPSILON, WEIGHT_DECAY = 0.9, 0.999, 1e-6, 0.01
"""Parameters of AdamW. Source: Devlin et al. 2018, A.2, and their code."""

LEARNING_RATES = {Optimizer.MOMENTUM: 1e-3, Optimizer.ADAMW: 1e-5}
"""Learning rates at which no network here diverges on random labels; speed does not depend on them."""


class Updater:
    """Updates variables from gradients; create it in the strategy's scope.

    Attributes:
        first_moments: A decaying sum of the gradients of each variable, float32, initially zero.
        first_share: `first_moments` over the gradient after the first update.
    """

    first_share = 1.0

    def __init__(self, variables: Sequence[Variable], learning_rate: float) -> None:
        self.variables, self.learning_rate = variables, learning_rate
        self.first_moments = self._zeros()

    def apply(self, gradients: Sequence[Tensor], finite: Tensor | None) -> list[Tensor]:
        """Update this replica's variables.

        Args:
            gradients: Summed over all replicas, float32.
            finite: Whether all gradients were finite; None: not checked.

        Returns:
            Operations that end with the update.
        """
        raise NotImplementedError

    def _zeros(self) -> list[Variable]:
        return [tf.Variable(tf.zeros(v.shape, tf.float32), trainable=False) for v in self.variables]


class Momentum(Updater):
    """SGD with momentum."""

    def apply(self, gradients: Sequence[Tensor], finite: Tensor | None) -> list[Tensor]:
        """See `Updater.apply`."""
        rate, momentum = _if_finite(finite, self.learning_rate, 0.0), _if_finite(finite, MOMENTUM, 1.0)
        return [
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle, accum=velocity.handle, lr=rate, grad=gradient, momentum=momentum
            )
            for variable, velocity, gradient in zip(self.variables, self.first_moments, gradients, strict=True)
        ]


class AdamW(Updater):
    """Adam by one fused operation, with decoupled weight decay of all matrices.

    Source: Kingma and Ba 2014; Loshchilov and Hutter 2017. No decay of biases and normalisations: Devlin et al.
    """

    first_share = 1.0 - BETA_1

    def __init__(self, variables: Sequence[Variable], learning_rate: float) -> None:
        super().__init__(variables, learning_rate)
        self.second_moments = self._zeros()
        self._updates = tf.Variable(0.0, trainable=False)

    def apply(self, gradients: Sequence[Tensor], finite: Tensor | None) -> list[Tensor]:
        """See `Updater.apply`."""
        number = tf.convert_to_tensor(self._updates) + 1.0
        counted = assign_local(self._updates, number - 1.0 + _if_finite(finite, 1.0, 0.0))
        power_1, power_2 = tf.pow(BETA_1, number), tf.pow(BETA_2, number)
        rate = _if_finite(finite, self.learning_rate, 0.0)
        updates = [counted]
        # Earlier, the passes still use the weights, so TensorFlow would copy them: 1.4 GB per step of BERT-Large.
        # One after another: otherwise the decays of all weights would be in memory at once.
        before = tf.group(*gradients)
        for variable, first, second, gradient in zip(
            self.variables, self.first_moments, self.second_moments, gradients, strict=True
        ):
            if len(variable.shape) > 1:
                with tf.control_dependencies([before]):
                    decay = tf.convert_to_tensor(variable) * (rate * WEIGHT_DECAY)
                    before = tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=decay)
                updates.append(before)
            updates.append(
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle,
                    m=first.handle,
                    v=second.handle,
                    beta1_power=power_1,
                    beta2_power=power_2,
                    lr=rate,
                    beta1=_if_finite(finite, BETA_1, 1.0),
                    beta2=_if_finite(finite, BETA_2, 1.0),
                    epsilon=EPSILON,
                    grad=gradient,
                )
            )
        return updates


def make_updater(optimizer: Optimizer, variables: Sequence[Variable], learning_rate: float | None) -> Updater:
    """Create the updater of a case; a learning rate of None is the optimizer's default."""
    rate = LEARNING_RATES[optimizer] if learning_rate is None else learning_rate
    return AdamW(variables, rate) if optimizer is Optimizer.ADAMW else Momentum(variables, rate)


def _if_finite(finite: Tensor | None, value: float, otherwise: float) -> Tensor:
    return tf.constant(value) if finite is None else tf.where(finite, value, otherwise)
