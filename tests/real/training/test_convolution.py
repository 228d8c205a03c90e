"""Convolutions in a CPU's forms, against Keras's own: same weights, same results, same gradients."""

import numpy as np
import pytest

from results.schema import BatchNorm
from results.schema.networks import NETWORKS
from tests.real.training.small import small_network
from tfbench.models import build

pytestmark = pytest.mark.tensorflow

ROUNDING = 2e-6


def results(tf, strategy, layer, images, **arguments):
    """Return a layer's output, its gradients of images and weights, and the operations of that, also with their inputs'."""

    @tf.function
    def run(images):
        def replica(images):
            with tf.GradientTape() as tape:
                tape.watch(images)
                output = layer(images, **arguments)
                loss = tf.reduce_sum(tf.sin(output))
            return output, *tape.gradient(loss, [images, *map(tensorflow_variable, layer.trainable_variables)])

        return strategy.run(replica, (images,))

    from tfbench.keras_versions import tensorflow_variable

    graph = run.get_concrete_function(images).graph
    operations = {operation.type for operation in graph.get_operations()}
    operations |= {f"{item.type} of {item.inputs[0].op.type}" for item in graph.get_operations() if item.inputs}
    return [tensor.numpy() for tensor in run(images)], operations


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({"kernel_size": 1, "activation": "relu"}, "MatMul"),
        ({"kernel_size": 1, "use_bias": False}, "MatMul"),
        ({"kernel_size": (7, 1), "padding": "same", "use_bias": False}, "Transpose"),
        ({"kernel_size": (3, 1), "use_bias": False}, "Transpose"),
        ({"kernel_size": 3, "padding": "same"}, "BiasAddGrad of Reshape"),
        ({"kernel_size": (3, 1), "activation": "relu"}, "BiasAddGrad of Reshape"),
        ({"kernel_size": 5, "strides": 2, "padding": "same", "activation": "relu"}, "BiasAddGrad of Reshape"),
        ({"kernel_size": 1, "strides": 2}, "BiasAddGrad of Reshape"),
        ({"kernel_size": 1, "strides": 2, "use_bias": False}, None),
        ({"kernel_size": 1, "groups": 2}, None),
        ({"kernel_size": 1, "activation": "tanh"}, None),
        ({"kernel_size": (3, 1), "dilation_rate": 2, "use_bias": False}, None),
        ({"kernel_size": 3, "padding": "same", "activation": "tanh"}, None),
        ({"kernel_size": 3, "padding": "same", "use_bias": False}, None),
    ],
)
@pytest.mark.parametrize("filters", [4, 40])
def test_every_form_gives_what_keras_gives(tensorflow, one_replica, settings, form, filters, convolution_layers):
    keras, images = tensorflow.keras, tensorflow.random.stateless_normal((3, 17, 9, 16), (1, 2))
    with one_replica.scope():
        theirs, ours = keras.layers.Conv2D(filters, **settings), convolution_layers.Convolution(filters, **settings)
        for layer in (theirs, ours):
            layer.build((None, 17, 9, 16))
        bias = [np.linspace(-1.0, 1.0, filters)] if theirs.use_bias else []
        theirs.set_weights([theirs.get_weights()[0], *bias])
        ours.set_weights(theirs.get_weights())
    wanted, usual = results(tensorflow, one_replica, theirs, images)
    found, operations = results(tensorflow, one_replica, ours, images, training=True)
    for mine, right in zip(found, wanted, strict=True):
        assert mine.shape == right.shape
        assert np.max(np.abs(mine - right)) <= ROUNDING * np.max(np.abs(right))
    new = operations - usual
    assert form in new if form else not new & {"MatMul", "Transpose", "BiasAddGrad of Reshape"}


def test_inference_other_types_and_shapes_of_a_model_are_those_of_keras(tensorflow, one_replica, convolution_layers):
    images = tensorflow.random.stateless_normal((2, 8, 8, 4), (1, 2))
    half = convolution_layers.Convolution(8, 1, use_bias=False, dtype="mixed_bfloat16")
    with one_replica.scope():
        half.build((None, 8, 8, 4))
    (output, *_), operations = results(tensorflow, one_replica, half, images, training=True)
    assert output.dtype == "bfloat16" and "MatMul" not in operations
    plain = convolution_layers.Convolution(8, 1, use_bias=False)
    with one_replica.scope():
        plain.build((None, 8, 8, 4))
    assert "MatMul" not in results(tensorflow, one_replica, plain, images)[1]
    assert "MatMul" in results(tensorflow, one_replica, plain, images, training=True)[1]
    inputs = tensorflow.keras.Input((8, 8, 4))
    assert convolution_layers.Convolution(8, 1)(inputs).shape == (None, 8, 8, 8)
    assert convolution_layers.Convolution(8, (3, 1))(inputs).shape == (None, 6, 8, 8)


def test_a_network_uses_them_in_training_and_the_stock_variant_never(tensorflow, one_replica, convolution_layers):
    model = build(NETWORKS["googlenet"], BatchNorm.NONE, 64, one_replica)
    images, products = tensorflow.zeros((1, 64, 64, 3)), {}
    for training in (True, False):
        run = tensorflow.function(
            lambda images, training=training: one_replica.run(model, (images,), {"training": training})
        )
        operations = run.get_concrete_function(images).graph.get_operations()
        products[training] = sum(operation.type == "MatMul" for operation in operations)
    assert products == {True: 37 + 1, False: 1}, "each 1 × 1 convolution, and the last layer"
    ours, plain = convolution_layers.Convolution, tensorflow.keras.layers.Conv2D
    for variant, kind in ((BatchNorm.FUSED, ours), (BatchNorm.KERAS, plain)):
        layers = build(small_network("resnet50"), variant, 64, one_replica).layers
        assert {type(layer) for layer in layers if isinstance(layer, plain)} == {kind}
