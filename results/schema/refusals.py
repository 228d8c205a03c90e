"""Settings that a network does not support, or that conflict: checked during planning and before training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from results.schema.case import SETTINGS, Case
from results.schema.enums import Data, Mode
from results.schema.networks import SHORTEST_SEQUENCE, Network


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


def network_refusal(case: Case, network: Network) -> CaseRefusal | None:
    """Return the first setting that a network does not support; None: it supports all."""
    size, longest = case.size(network), math.inf if network.longest is None else network.longest
    norms = ("batch_norm", case.batch_norm, case.batch_norm not in network.parameters)
    checks: list[tuple[str, object, bool, str]] = [(*norms, f"it has {' or '.join(network.parameters)}")]
    if network.image_size is None:
        checks += [
            ("image_size", case.image_size, case.image_size is not None, "it takes sequences. Use sequence_length"),
            ("data", case.data, case.data is Data.TFRECORD, "it takes no images"),
            ("sequence_length", size, size > longest, f"it has {network.longest} positions"),
            ("sequence_length", size, size < SHORTEST_SEQUENCE, f"it needs at least {SHORTEST_SEQUENCE} tokens"),
        ]
    else:
        length = case.sequence_length
        checks += [
            ("sequence_length", length, length is not None, "it takes images. Use image_size"),
            ("image_size", size, size < network.smallest, f"it needs at least {network.smallest} pixels"),
            ("image_size", size, size % network.multiple != 0, f"it needs a multiple of {network.multiple}"),
        ]
    refused = ((key, value, reason) for key, value, is_wrong, reason in checks if is_wrong)
    return next((CaseRefusal(network.name, *why) for why in refused), None)


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
