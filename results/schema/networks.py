"""Settings that each network supports, checked during planning and before training.

Standard library only, because this file also runs in every container. `tfbench.models` builds the networks.
"""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass

from results.schema import SETTINGS, BatchNorm, Case, Data, Mode
from results.schema.case import SHORTEST_SEQUENCE, SMALLEST_IMAGE

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE


@dataclass(frozen=True)
class CaseRefusal:
    """Why a network cannot be measured with a setting of a case.

    Attributes:
        network: Its name, or the setting that conflicts with the value.
        key: Attribute of the case, and name of the flag and of the suite's key.
        value: Its value in the case.
        reason: What the network supports instead.
    """

    network: str
    key: str
    value: object
    reason: str

    @property
    def as_flag(self) -> str:
        """The message for a command line."""
        return f"--{self.key}={self.value} is not for {self.network}: {self.reason}"

    @property
    def as_setting(self) -> str:
        """The message for a suite."""
        return f"{self.key}: {self.value} is not for {self.network}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a network: images or sequences.

    Attributes:
        name: The network, as in `--model`.
        image_size: Default height and width of its images in pixels; None: it takes sequences.
        sequence_length: Default length of its sequences in tokens; None: it takes images.
        longest: Number of positions, in tokens.
        multiple: Image size must be a multiple of this, in pixels.
        smallest: Smallest image size that all pooling layers allow, in pixels.
        batch_norms: Supported variants of batch normalisation.
    """

    name: str
    image_size: int | None = None
    sequence_length: int | None = None
    longest: int | None = None
    multiple: int = 1
    smallest: int = SMALLEST_IMAGE
    batch_norms: tuple[BatchNorm, ...] = (FUSED, KERAS)

    def size(self, case: Case) -> int:
        """Return the size of a case's examples in pixels or tokens."""
        size = case.image_size or self.image_size if self.image_size else case.sequence_length or self.sequence_length
        return typing.cast(int, size)

    def refusal(self, case: Case) -> CaseRefusal | None:
        """Return the first setting that this network does not support; None: it supports all."""
        size, longest = self.size(case), math.inf if self.longest is None else self.longest
        norms = ("batch_norm", case.batch_norm, case.batch_norm not in self.batch_norms)
        checks: list[tuple[str, object, bool, str]] = [(*norms, f"it has {' or '.join(self.batch_norms)}")]
        if self.image_size is None:
            checks += [
                ("image_size", case.image_size, case.image_size is not None, "it takes sequences. Use sequence_length"),
                ("data", case.data, case.data is Data.TFRECORD, "it takes no images"),
                ("sequence_length", size, size > longest, f"it has {self.longest} positions"),
                ("sequence_length", size, size < SHORTEST_SEQUENCE, f"it needs at least {SHORTEST_SEQUENCE} tokens"),
            ]
        else:
            length = case.sequence_length
            checks += [
                ("sequence_length", length, length is not None, "it takes images. Use image_size"),
                ("image_size", size, size < self.smallest, f"it needs at least {self.smallest} pixels"),
                ("image_size", size, size % self.multiple != 0, f"it needs a multiple of {self.multiple}"),
            ]
        refused = ((key, value, reason) for key, value, is_wrong, reason in checks if is_wrong)
        return next((CaseRefusal(self.name, *why) for why in refused), None)


def tuning_refusal(case: Case) -> CaseRefusal | None:
    """Return the first conflict between settings, independent of the network; None: there is no conflict."""
    for key, value in case.changed.items():
        if SETTINGS[key].train_only and case.mode is not Mode.TRAIN:
            return CaseRefusal(f"mode {case.mode}", key, value, f"it is for mode {Mode.TRAIN}")
    if str(case.all_reduce_dtype) not in ("fp32", case.precision):
        reason = f"gradients travel as fp32, or as {case.all_reduce_dtype} from steps of that precision"
        return CaseRefusal(f"precision {case.precision}", "all_reduce_dtype", case.all_reduce_dtype, reason)
    if case.deep_check and case.mode is not Mode.DEVICE:
        return CaseRefusal(f"mode {case.mode}", "deep_check", True, f"it is for mode {Mode.DEVICE}")
    if case.min_seconds is not None and case.num_hosts > 1:
        reason = "all hosts of a multi-host job take the same number of steps: remove it and raise num_steps"
        return CaseRefusal(f"num_hosts {case.num_hosts}", "min_seconds", case.min_seconds, reason)
    return None


INPUTS = {
    inputs.name: inputs
    for inputs in (
        Inputs(name="resnet50", image_size=224),
        Inputs(name="resnet152", image_size=224),
        Inputs(name="inception_v3", image_size=299, smallest=75),
        Inputs(name="googlenet", image_size=224, batch_norms=(NONE, FUSED, KERAS)),
        Inputs(name="resnet50_v1.5", image_size=224),
        Inputs(name="resnet152_v1.5", image_size=224),
        Inputs(name="inception_v4", image_size=299, smallest=75),
        Inputs(name="vgg16", image_size=224, batch_norms=(NONE,)),
        Inputs(name="alexnet", image_size=224, smallest=63, batch_norms=(NONE,)),
        Inputs(name="efficientnet_b0", image_size=224),
        Inputs(name="efficientnet_v2_s", image_size=384),
        Inputs(name="bert_large", sequence_length=128, longest=512, batch_norms=(NONE,)),
        Inputs(name="gpt2_small", sequence_length=1024, longest=1024, batch_norms=(NONE,)),
        Inputs(name="vit_b16", image_size=224, multiple=16, batch_norms=(NONE,)),
    )
}
"""By name of the network."""
