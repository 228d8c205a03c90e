import numpy as np
import pytest

from results.schema import Optimizer

pytestmark = pytest.mark.tensorflow

RATE = 0.1


def trained(tf, strategy, optimizer, gradients, finite=None):
    """Apply one list of gradients after another to a matrix and a bias; return them after each update."""
    from tfbench.training.optimizers import make_updater

    generator = np.random.default_rng(1)
    with strategy.scope():
        variables = [
            tf.Variable(generator.standard_normal(shape).astype(np.float32), trainable=True) for shape in ((3, 4), (4,))
        ]
        updater = make_updater(optimizer, variables, RATE)

    @tf.function
    def update(first, second):
        def on_replica(first, second):
            with tf.control_dependencies(updater.apply([first, second], finite)):
                return tf.constant(0.0)

        return strategy.run(on_replica, args=(first, second))

    values = [[variable.numpy() for variable in variables]]
    for pair in gradients:
        update(*(tf.constant(gradient) for gradient in pair))
        values.append([variable.numpy() for variable in variables])
    return values, updater


def gradients_of(steps):
    generator = np.random.default_rng(2)
    return [[generator.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,))] for _ in range(steps)]


def adam_steps(gradients):
    """Yield Adam's direction for each step, from the formulas of Kingma and Ba 2014."""
    from tfbench.training import optimizers

    beta_1, beta_2, epsilon = optimizers.BETA_1, optimizers.BETA_2, optimizers.EPSILON
    mean = square = 0.0
    for number, gradient in enumerate(gradients, start=1):
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        yield (mean / (1 - beta_1**number)) / (np.sqrt(square / (1 - beta_2**number)) + epsilon)


def expected(start, gradients, is_matrix):
    from tfbench.training.optimizers import WEIGHT_DECAY

    weights = start.astype(np.float64)
    for step in adam_steps(gradients):
        if is_matrix:
            step = step + WEIGHT_DECAY * weights
        weights = weights - RATE * step
    return weights


def test_updates_are_those_of_the_published_formulas(tensorflow, one_replica):
    gradients = gradients_of(4)
    values, _ = trained(tensorflow, one_replica, Optimizer.ADAMW, gradients)
    for index, is_matrix in ((0, True), (1, False)):
        wanted = expected(values[0][index], [pair[index] for pair in gradients], is_matrix)
        np.testing.assert_allclose(values[-1][index], wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_the_first_moments_are_a_known_share_of_the_gradient(tensorflow, one_replica, optimizer):
    gradients = gradients_of(1)
    _, updater = trained(tensorflow, one_replica, optimizer, gradients)
    for moment, gradient in zip(updater.first_moments, gradients[0], strict=True):
        np.testing.assert_allclose(moment.numpy(), updater.first_share * gradient, rtol=1e-5)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_step_that_was_not_finite_changes_nothing(tensorflow, one_replica, optimizer):
    nothing = [[np.zeros_like(gradient) for gradient in pair] for pair in gradients_of(2)]
    finite = tensorflow.constant(False)
    values, updater = trained(tensorflow, one_replica, optimizer, nothing, finite)
    for before, after in zip(values[0], values[-1], strict=True):
        np.testing.assert_array_equal(before, after)
    assert all(np.abs(moment.numpy()).max() == 0 for moment in updater.first_moments)
