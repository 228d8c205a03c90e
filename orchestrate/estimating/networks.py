"""What a sample of each network costs: operations, memory traffic and layers."""

from __future__ import annotations

from dataclasses import dataclass

from results.schema import Case, Mode, Precision

BYTES = {Precision.FP32: 4, Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2}


@dataclass(frozen=True)
class Work:
    """What one image or sequence costs at the network's own size.

    Attributes:
        size: Pixels of an edge, or tokens, that the figures are for.
        layers: Of the Keras model: what building and compiling it grow with.
        train_flops: Operations of forward and backward pass.
        train_elements: Elements that training reads and writes, no two operations fused.
        infer_flops: Operations of the forward pass.
        infer_elements: Elements that it reads and writes.
    """

    size: int
    layers: int
    train_flops: float
    train_elements: float
    infer_flops: float
    infer_elements: float


WORK: dict[str, Work] = {
    "resnet50": Work(224, 177, 2.291e10, 2.314e08, 7.716e09, 7.971e07),
    "resnet152": Work(224, 517, 6.746e10, 4.946e08, 2.256e10, 1.712e08),
    "inception_v3": Work(299, 313, 3.424e10, 2.287e08, 1.143e10, 7.209e07),
    "googlenet": Work(224, 196, 9.26e09, 8.582e07, 3.165e09, 2.761e07),
    "resnet50_v1.5": Work(224, 175, 2.43e10, 2.378e08, 8.178e09, 8.089e07),
    "resnet152_v1.5": Work(224, 515, 6.885e10, 5.009e08, 2.303e10, 1.724e08),
    "inception_v4": Work(299, 487, 7.349e10, 4.266e08, 2.451e10, 1.323e08),
    "vgg16": Work(224, 23, 9.265e10, 1.538e08, 3.094e10, 3.037e07),
    "alexnet": Work(224, 14, 4.145e09, 6.227e06, 1.428e09, 1.645e06),
    "efficientnet_b0": Work(224, 240, 2.293e09, 1.575e08, 7.716e08, 5.26e07),
    "efficientnet_v2_s": Work(384, 516, 5.015e10, 7.948e08, 1.673e10, 2.608e08),
    "gpt2_small": Work(1024, 125, 8.749e11, 3.557e09, 2.916e11, 4.148e08),
    "vit_b16": Work(224, 128, 1.052e11, 2.896e08, 3.513e10, 7.065e07),
    "bert_large": Work(128, 257, 2.405e11, 4.799e08, 8.015e10, 1.215e08),
}
"""By network. Source: `tfbench/roofline/limits.py`, which counts them from the shapes of the layers."""


def work_of(case: Case) -> tuple[float, float, int] | None:
    """Return operations and bytes of one step of one replica, and the layers of the network; None: it is not known.

    Images cost by their area; sequences by their length, which leaves out that attention grows with its square.
    """
    found = WORK.get(case.model)
    if found is None:
        return None
    scale = 1.0
    if case.image_size is not None:
        scale = (case.image_size / found.size) ** 2
    elif case.sequence_length is not None:
        scale = case.sequence_length / found.size
    train = case.mode is Mode.TRAIN
    flops = found.train_flops if train else found.infer_flops
    elements = found.train_elements if train else found.infer_elements
    samples = case.batch_per_gpu * case.accumulate * scale
    return flops * samples, elements * samples * BYTES[case.precision], found.layers
