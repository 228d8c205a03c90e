"""A device that computes nothing, or a training that changes nothing, gives no number."""

import math

import pytest

from results.schema import Status
from tests.real.training.test_training import build
from tests.real.training.tiny import measure_repeat, tiny_case
from tfbench.failures import CaseFailedError

pytestmark = pytest.mark.tensorflow


def measured_with(strategy, change, **options):
    """Measure the tiny network with a training whose replica step is changed; return what failed."""
    from tfbench.training.step import Training

    class Changed(Training):
        pass

    for name, function in change(Training).items():
        setattr(Changed, name, function)
    with pytest.raises(CaseFailedError) as caught:
        measure_repeat(tiny_case(**options), strategy, make_training=Changed)
    assert caught.value.status is Status.INVALID
    return str(caught.value)


def nothing_computed(base):
    """Give losses and gradients as a device that drops every kernel leaves them."""

    def forward_backward(self, features, labels, loss_scale):
        import tensorflow as tf

        loss, gradients = base.forward_backward(self, features, labels, loss_scale)
        return loss * 0.0, [tf.zeros_like(gradient) for gradient in gradients]

    return {"forward_backward": forward_backward}


def one_gradient_only(base):
    """Drop all gradients but the last layer's."""

    def forward_backward(self, features, labels, loss_scale):
        import tensorflow as tf

        loss, gradients = base.forward_backward(self, features, labels, loss_scale)
        return loss, [*(tf.zeros_like(gradient) for gradient in gradients[:-1]), gradients[-1]]

    return {"forward_backward": forward_backward}


def nothing_updated(base):
    """Compute an update and drop it."""
    return {"_update": lambda self, gradients: [gradient + 0.0 for gradient in gradients]}


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (nothing_computed, ["loss_of_an_untrained_network", "gradients_not_zero"]),
        (one_gradient_only, ["gradients_not_zero"]),
        (nothing_updated, ["gradients_not_zero"]),  # the first moments stay 0
    ],
)
def test_training_that_computes_nothing_is_invalid(one_replica, change, checks):
    cause = measured_with(one_replica, change)
    assert all(name in cause for name in checks), cause


def test_weights_and_losses_that_stay_are_seen(one_replica, validity):
    training, next_batch = build(tiny_case(), one_replica)
    witness = validity.LearningWitness(training)
    assert "weights_change" in validity.failures(witness.checks([7.0, 6.9, 6.8]))
    training.step(next_batch())
    assert validity.failures(witness.checks([7.0, 6.9, 6.8])) == ""
    assert "loss_changes" in validity.failures(witness.checks([7.0] * 5))
    assert validity.failures(witness.checks([7.0] * 4 + [6.9])) == ""


@pytest.mark.parametrize("loss", [0.0, -1.0, math.inf, math.nan, 1.7, 28.0])
def test_an_impossible_first_loss_fails_and_prints(tensorflow, loss, validity):
    assert "loss_of_an_untrained_network" in validity.failures([validity.untrained_loss_check(loss, math.log(1000))])


def test_the_first_step_that_is_not_finite_is_named(tensorflow, validity):
    check = validity.finite_check("x", [7.0, 6.9, math.nan, 6.8, math.inf])
    assert validity.failures([check]) == "x: the value of step 3 is nan"
    assert validity.finite_check("x", [7.0, 6.9]).value == 6.9
