from __future__ import annotations

import numpy as np
import pytest

from results.schema import BatchNorm
from tfbench.models import NETWORKS

pytestmark = pytest.mark.tensorflow

VARIANTS = [(name, variant) for name, network in NETWORKS.items() for variant in network.parameters]


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_network_has_the_parameters_that_it_states(one_replica, name, variant):
    network = NETWORKS[name]
    model = network.build(variant, 96, one_replica)  # parameters do not depend on the image size
    assert model.count_params() == network.parameters[variant]
    assert tuple(model.output.shape) == (None, 1000)


def test_fused_batch_norm_gives_what_keras_own_layer_gives(tensorflow):
    from tensorflow import keras

    from tfbench.models.layers import FusedBatchNormalization

    ours = FusedBatchNormalization(momentum=0.9, epsilon=1e-3)
    theirs = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    images = tensorflow.random.stateless_normal((4, 5, 5, 3), (1, 2)) * 3.0 + 1.0
    for _ in range(3):
        np.testing.assert_allclose(ours(images, training=True), theirs(images, training=True), atol=1e-4)
    # The fused operation keeps the unbiased variance, n / (n - 1) of Keras's; n = 100 here.
    np.testing.assert_allclose(ours(images, training=False), theirs(images, training=False), rtol=1e-2)
    np.testing.assert_allclose(ours.moving_mean, theirs.moving_mean, rtol=1e-4)


def test_a_rebuilt_network_uses_one_operation_per_batch_normalisation(one_replica, tensorflow):
    model = NETWORKS["googlenet"].build(BatchNorm.FUSED, 64, one_replica)
    graph = (
        tensorflow.function(lambda x: model(x, training=True))
        .get_concrete_function(tensorflow.TensorSpec((2, 64, 64, 3)))
        .graph
    )
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("FusedBatchNormV3") == 57
    assert "SquaredDifference" not in kinds
    assert "BiasAdd" in kinds  # of the last layer
    assert kinds.count("BiasAdd") == 1


def test_biases_stay_where_nothing_cancels_them(one_replica):
    from tensorflow import keras

    from tfbench.models.layers import with_fused_batch_norm

    images = keras.Input((8, 8, 3))
    shared = keras.layers.Conv2D(4, 1, name="shared")(images)
    normalised = keras.layers.BatchNormalization()(shared)
    alone = keras.layers.Conv2D(4, 1, name="alone")(normalised)
    alone = keras.layers.BatchNormalization()(alone)
    with one_replica.scope():
        model = with_fused_batch_norm(keras.Model(images, keras.layers.Add()([alone, shared])))
    assert model.get_layer("shared").use_bias  # its output also goes round the batch normalisation
    assert not model.get_layer("alone").use_bias
