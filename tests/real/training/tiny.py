"""A network of three layers in the shape of the real ones, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from results.schema import BatchNorm, Case, Device
from results.schema.networks import Inputs
from tfbench.models import Network

IMAGE_SIZE = 8
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class TinyNetwork(Network):
    """A fake row of `tfbench.models.NETWORKS`."""

    inputs: Inputs = field(default_factory=lambda: Inputs(name="tiny", image_size=IMAGE_SIZE))
    source: str = "tests"
    parameters: dict[BatchNorm, int] = field(default_factory=lambda: {BatchNorm.FUSED: 0})
    builder: str = ""
    classes: int = CLASSES

    def build(self, batch_norm, image_size, strategy):
        from tensorflow import keras

        from tfbench.models.convolution_layers import FusedBatchNormalization

        with strategy.scope():
            images = keras.Input((image_size, image_size, 3))
            x = keras.layers.Conv2D(8, 3, use_bias=False)(images)
            x = FusedBatchNormalization(momentum=0.9, epsilon=1e-3)(x)
            x = keras.layers.Activation("relu")(x)
            x = keras.layers.GlobalAveragePooling2D()(x)
            return keras.Model(images, keras.layers.Dense(CLASSES)(x))


def tiny_case(**changes):
    base = {"model": "tiny", "device": Device.CPU, "batch_per_gpu": 16, "warmup_steps": 2, "num_steps": 12}
    return Case(**{**base, **changes})
