"""The networks at a size that trains in a test: fewer layers, fewer classes, small images or short sequences."""

from __future__ import annotations

import dataclasses

from results.schema import Case, Device
from tfbench.models import NETWORKS, Network

FEWER = {
    "resnet50_v1.5": {"blocks": (1, 1, 1, 1)},
    "resnet152_v1.5": {"blocks": (1, 2, 1, 1)},
    "bert_large": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "gpt2_small": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "vit_b16": {"layers": 2, "width": 32, "heads": 4},
    "inception_v4": {"blocks": (1, 1, 1)},
}
"""Options of the builders; networks of `keras.applications` stay as deep as they are."""

PIXELS = {"vgg16": 32, "alexnet": 64, "efficientnet_v2_s": 96, "inception_v3": 75, "inception_v4": 75}
TOKENS = 16
CLASSES = 40


def small_network(name: str) -> Network:
    """Return a network that is like the one of that name, but small."""
    network = NETWORKS[name]
    if network.inputs.sequence_length is not None:
        inputs = dataclasses.replace(network.inputs, sequence_length=TOKENS, longest=2 * TOKENS)
    else:
        inputs = dataclasses.replace(network.inputs, image_size=PIXELS.get(name, 32))
    options = {**network.options, **FEWER.get(name, {})}
    return dataclasses.replace(network, inputs=inputs, classes=CLASSES, options=options)


def small_case(name: str, **changes) -> Case:
    """Return a case of that network: two logical CPU replicas."""
    base = {"model": name, "device": Device.CPU, "num_gpus": 2, "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 3}
    return Case(**{**base, **changes})
