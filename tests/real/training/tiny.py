"""A network of three layers in the shape of the real ones, for tests."""

import contextlib
from dataclasses import dataclass, field
from unittest import mock

from results.schema import BatchNorm, Case, Device
from results.schema.networks import Network
from tfbench.findings import Findings
from tfbench.flags import Options

IMAGE_SIZE = 8
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class TinyNetwork(Network):
    """A fake row of `results.schema.networks`."""

    image_size: int | None = IMAGE_SIZE
    source: str = "tests"
    parameters: dict[BatchNorm, int] = field(default_factory=lambda: {BatchNorm.FUSED: 0})
    builder: str = f"{__name__}:build_tiny"
    classes: int = CLASSES


def build_tiny(image_size, classes, *, batch_norm):
    from tensorflow import keras

    from tfbench.models.convolutional import FusedBatchNormalization

    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Conv2D(8, 3, use_bias=False)(images)
    x = FusedBatchNormalization(momentum=0.9, epsilon=1e-3)(x)
    x = keras.layers.Activation("relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(classes)(x))


def measure_repeat(case, strategy, network=None, findings=None, make_training=None, **options):
    """Measure a repeat without peaks, by default of the tiny network; return what was found.

    Args:
        case: Which.
        strategy: Over the case's replicas.
        network: In place of the tiny one.
        findings: To add to; what was found before a failure is in them.
        make_training: In place of `Training`.
        options: Of the command line.
    """
    from tfbench.repeat import Repeat

    findings = Findings() if findings is None else findings
    planted = mock.patch("tfbench.repeat.Training", make_training) if make_training else contextlib.nullcontext()
    with planted:
        Repeat(case, network or TinyNetwork(), strategy, Options(peaks=False, **options), findings).measure()
    return findings


def tiny_case(**changes):
    base = {"model": "tiny", "device": Device.CPU, "batch_per_gpu": 16, "warmup_steps": 2, "num_steps": 12}
    return Case(**{**base, **changes})
