"""Settings that a network does not support, or that conflict: checked during planning and before training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from results.schema.case import SETTINGS, Case
from results.schema.enums import Data, Device, Mode
from results.schema.networks import SHORTEST_SEQUENCE, Network


@dataclass(frozen=True)
class CaseRefusal:
    """Why a case cannot be measured with one of its settings.

    Attributes:
        other: The network that does not support the setting, or another setting that conflicts with it.
        key: Attribute of the case, and name of the flag and of the suite's key.
        value: Its value in the case.
        reason: What is supported instead.
    """

    other: str
    key: str
    value: object
    reason: str

    @property
    def as_flag(self) -> str:
        """The message for a command line."""
        return f"--{self.key}={self.value} is not for {self.other}: {self.reason}"

    @property
    def as_setting(self) -> str:
        """The message for a suite."""
        return f"{self.key}: {self.value} is not for {self.other}: {self.reason}"


def network_refusal(case: Case, network: Network) -> CaseRefusal | None:
    """Return the first setting that a network does not support; None: it supports all."""
    size, longest = case.size(network), math.inf if network.longest is None else network.longest
    rules = [(case.batch_norm not in network.parameters, "batch_norm", f"it has {' or '.join(network.parameters)}")]
    if network.image_size is None:
        rules += [
            (case.image_size is not None, "image_size", "it takes sequences. Use sequence_length"),
            (case.data is Data.TFRECORD, "data", "it takes no images"),
            (size > longest, "sequence_length", f"it has {network.longest} positions"),
            (size < SHORTEST_SEQUENCE, "sequence_length", f"it needs at least {SHORTEST_SEQUENCE} tokens"),
        ]
    else:
        rules += [
            (case.sequence_length is not None, "sequence_length", "it takes images. Use image_size"),
            (size < network.smallest, "image_size", f"it needs at least {network.smallest} pixels"),
            (size % network.multiple != 0, "image_size", f"it needs a multiple of {network.multiple}"),
        ]
    return _first(case, ((refused, case.model, key, reason) for refused, key, reason in rules))


def tuning_refusal(case: Case) -> CaseRefusal | None:
    """Return the first conflict between settings, independent of the network; None: there is no conflict."""
    trains, several = case.mode is Mode.TRAIN, case.num_hosts > 1
    mode, precision, hosts = f"mode {case.mode}", f"precision {case.precision}", f"num_hosts {case.num_hosts}"
    dtype, on_cpus = case.all_reduce_dtype, case.device is Device.CPU
    travel = f"gradients travel as fp32, or as {dtype} from steps of that precision"
    steps = "all hosts of a multi-host job take the same number of steps: remove it and raise num_steps"
    rules = [(SETTINGS[key].train_only and not trains, mode, key, "it is for mode train") for key in case.changed]
    rules += [
        (str(dtype) not in ("fp32", case.precision), precision, "all_reduce_dtype", travel),
        (case.deep_check and case.mode is not Mode.DEVICE, mode, "deep_check", "it is for mode device"),
        (several and not trains, hosts, "mode", "inference needs no other host"),
        (several and case.data is Data.TFRECORD, hosts, "data", "it is for one host. Use synthetic or host"),
        (several and on_cpus and case.num_gpus > 1, hosts, "num_gpus", "TensorFlow uses one CPU device of each"),
        (several and case.min_seconds is not None, hosts, "min_seconds", steps),
    ]
    return _first(case, rules)


def _first(case: Case, rules: Iterable[tuple[bool, str, str, str]]) -> CaseRefusal | None:
    """Return the first refusal of rows of: whether it applies, the other setting, the setting, the reason."""
    found = (CaseRefusal(other, key, getattr(case, key), reason) for refused, other, key, reason in rules if refused)
    return next(found, None)
