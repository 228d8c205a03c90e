"""A case: one point of the benchmark's matrix, its name, its command line, and settings that conflict."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple

from results.schema import bounds, enums
from results.schema.bounds import MOST, Range
from results.schema.networks import NETWORKS, SHORTEST_SEQUENCE, SMALLEST_IMAGE, Network

MOST_STEPS = 100_000
"""Maximum number of timed steps; a record stores the time of each."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of a case, from which its flag, suite key, table column and part of the case name are derived.

    Attributes:
        meaning: One sentence, for `--help` and the table.
        part: Template of its part of the case name if the value is not the default. Empty: `Case.name` handles it.
        unit: Unit of the column; `-`: none.
        flag: Name of the flag if it differs from the field's.
        tuning: Whether it changes how a step is executed but not what it computes.
        train_only: Whether it applies only to training.
    """

    meaning: str
    part: str = ""
    unit: str = "-"
    flag: str = ""
    tuning: bool = False
    train_only: bool = False


def _setting(default: Any, meaning: str, **more: Any) -> Any:
    """Return a field of `Case` with a default and a `Setting`."""
    return field(default=default, metadata={"setting": Setting(meaning=meaning, **more)})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of the benchmark's matrix; each field's `Setting` describes it.

    In addition:

    * `batch_norm` and `optimizer`: None is replaced by the network's default, so that a record states what was
      measured. `image_size` and `sequence_length` stay None for the network's default.
    * `all_reduce` False: replicas do not add up their gradients, which isolates the cost of communication. This is not
      training and is excluded from tables of throughput.
    * `accumulate`: multiplies the global batch.
    * `min_seconds`: the number of steps differs between hosts, so only rates are compared.
    * `all_reduce_pack_mb`: the default of PyTorch's DistributedDataParallel (Li et al. 2020, VLDB 13, section 3.2.2).
    """

    model: bounds.Name = field(metadata={"setting": Setting(meaning="Network, e.g. resnet50, or the device itself.")})
    precision: enums.Precision = _setting(
        enums.Precision.FP32, "Arithmetic: fp32 (IEEE, TF32 off), tf32, fp16 or bf16."
    )
    batch_per_gpu: bounds.Count = _setting(128, "Samples per GPU and step.", unit="samples", flag="batch_size")
    num_gpus: bounds.Count = _setting(1, "Replicas of each host: GPUs, or logical devices on a CPU.")
    num_hosts: bounds.Count = _setting(1, "Hosts that train together, as TF_CONFIG lists them.")
    communication: enums.Communication = _setting(
        enums.Communication.AUTO, "All-reduce between hosts: auto, ring or nccl.", part="{}"
    )
    all_reduce: bounds.Flag = _setting(
        True, "False: no all-reduce, to measure the cost of communication.", part="no-all-reduce", train_only=True
    )
    xla: enums.XLA = _setting(
        enums.XLA.OFF, "What XLA compiles: off, auto (TensorFlow chooses) or replica (whole pass).", part="xla-{}"
    )
    mode: enums.Mode = _setting(
        enums.Mode.TRAIN, "What is measured: train, infer (also latency at batch 1) or device.", part="{}"
    )
    data: enums.Data = _setting(
        enums.Data.SYNTHETIC, "Source of a batch: synthetic (on the device), host (tf.data), tfrecord.", part="{}"
    )
    device: enums.Device = _setting(enums.Device.GPU, "Device: gpu, which never falls back to the CPU, or cpu.")
    batch_norm: enums.BatchNorm | None = _setting(
        None,
        "Variant of batch normalisation: fused, keras or none; default: fused, or none if the network has none.",
        part="bn-{}",
    )
    image_size: Annotated[int, Range(SMALLEST_IMAGE, MOST)] | None = _setting(
        None, "Height and width of images; empty: the network's own.", part="{}px", unit="pixels"
    )
    sequence_length: Annotated[int, Range(SHORTEST_SEQUENCE, MOST)] | None = _setting(
        None, "Tokens of a sequence; empty: the network's own.", part="seq{}", unit="tokens"
    )
    optimizer: enums.Optimizer | None = _setting(
        None, "How weights are updated: momentum or adamw; default: adamw for transformers, else momentum.", part="{}"
    )
    accumulate: bounds.Count = _setting(
        1, "Batches whose gradients are accumulated before an update.", part="acc{}", train_only=True
    )
    warmup_steps: bounds.CountOrZero = _setting(10, "Fewest untimed steps.", unit="steps")
    num_steps: Annotated[int, Range(1, MOST_STEPS, "steps")] = _setting(
        100, "Timed steps of a repeat; the fewest with min_seconds.", unit="steps"
    )
    all_reduce_pack_mb: bounds.CountOrZero = _setting(
        25,
        "MB of gradients per all-reduce; several packs can overlap with the backward pass. 0: all at once.",
        part="pack{}",
        tuning=True,
        train_only=True,
    )
    all_reduce_dtype: enums.AllReduceDtype = _setting(
        enums.AllReduceDtype.FP32,
        "Data type of gradients in the all-reduce: fp32, or the 16-bit type of the step.",
        part="reduce-{}",
        tuning=True,
        train_only=True,
    )
    memory_growth: bounds.Flag = _setting(True, "Allocate GPU memory on demand.", part="no-growth", tuning=True)
    deep_check: bounds.Flag = _setting(
        False,
        "Check whether the machine is worth keeping: each device alone, then all under load. With --model=device.",
        part="deep-check",
    )
    min_seconds: Annotated[float, Range(1.0, 3600.0, "s")] | None = _setting(
        None, "Minimum time of a repeat's timed steps, beyond num_steps; empty: none.", part="min{:g}s", unit="seconds"
    )

    def __post_init__(self) -> None:
        """Replace None by the network's default batch normalisation and optimizer."""
        for name, value in self._of_network.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def _of_network(self) -> dict[str, Any]:
        if network := NETWORKS.get(self.model):
            return {"batch_norm": next(iter(network.parameters)), "optimizer": network.optimizer}
        return {"batch_norm": enums.BatchNorm.FUSED, "optimizer": enums.Optimizer.MOMENTUM}

    def size(self, network: Network) -> int:
        """Return the size of its examples for a network, in pixels or tokens."""
        if network.image_size:
            return self.image_size or network.image_size
        return typing.cast(int, self.sequence_length or network.sequence_length)

    @property
    def global_batch(self) -> int:
        """Images or sequences per update, over all replicas."""
        return self.batch_per_gpu * self.replicas * self.accumulate

    @property
    def replicas(self) -> int:
        """Replicas over all hosts."""
        return self.num_hosts * self.num_gpus

    @property
    def name(self) -> str:
        """Unique name of the case, of letters, digits, dots, `-` and `_`."""
        hosts = "" if self.num_hosts == 1 else f"{self.num_hosts}x"
        parts = [self.model, self.precision, f"b{self.batch_per_gpu}", f"{hosts}{self.num_gpus}{self.device}"]
        changed = self.changed
        if self.mode == self.model:
            changed.pop("mode", None)  # a device has no other mode
        for name in _NAME_ORDER:
            if name == "num_steps":
                parts.append(f"w{self.warmup_steps}s{self.num_steps}")
            elif name in changed and SETTINGS[name].part:
                parts.append(SETTINGS[name].part.format(changed[name]))
        return "-".join(parts)

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that differ from their default and from the network's default, without `model`."""
        usual = _DEFAULTS | self._of_network
        return {name: value for name, value in vars(self).items() if name != "model" and value != usual[name]}

    def flags(self) -> list[str]:
        """Return the command line of `python -m tfbench` that measures this case."""
        named = [*_ALWAYS, *(name for name in self.changed if name not in _ALWAYS)]
        return [_flag(name, getattr(self, name)) for name in named]


SETTINGS: dict[str, Setting] = {item.name: item.metadata["setting"] for item in fields(Case)}
"""By field of `Case`, in the order of a record's keys."""

_HINTS = typing.get_type_hints(Case, include_extras=True)


def annotated(name: str) -> Any:
    """Return the annotated type of a setting's value, other than None, in suites and records."""
    hint = _HINTS[name]
    return typing.get_args(hint)[0] if type(None) in typing.get_args(hint) else hint


def kind_of(name: str) -> type:
    """Return the type of a setting's value, other than None."""
    return typing.cast(type, next(iter(typing.get_args(annotated(name))), annotated(name)))


def range_of(name: str) -> Range:
    """Return the range of a setting that is a number."""
    return typing.cast(Range, typing.get_args(annotated(name))[1])


def default_of(name: str) -> Any:
    """Return the default of a setting; None: it has none, or it depends on the network."""
    return getattr(Case, name, None)


_DEFAULTS: dict[str, Any] = {name: default_of(name) for name in SETTINGS}
_NAME_ORDER = tuple(dict.fromkeys(("mode", *SETTINGS)))
_ALWAYS = (
    *("model", "precision", "batch_per_gpu", "num_gpus", "xla", "mode", "data", "device", "batch_norm"),
    *("warmup_steps", "num_steps"),
)
"""Settings that command lines include even at their default."""


def _flag(name: str, value: object) -> str:
    flag = SETTINGS[name].flag or name
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{flag}"
    return f"--{flag}={value:g}" if isinstance(value, float) else f"--{flag}={value}"


class CaseRefusal(NamedTuple):
    """Why a case cannot be measured with one of its settings.

    Attributes:
        key: The setting: attribute of the case, and name of the flag and of the suite's key.
        text: The setting with its value, what does not support it, and what is supported instead.
    """

    key: str
    text: str


def case_refusal(case: Case, network: Network | None) -> CaseRefusal | None:
    """Return the first setting that the network or another setting does not support; None: all are supported.

    Args:
        case: A case.
        network: That of the case; None: the device itself.
    """
    for refused, other, key, reason in (*(_network_rules(case, network) if network else ()), *_setting_rules(case)):
        if refused:
            return CaseRefusal(key, f"{key}: {getattr(case, key)} is not for {other}: {reason}")
    return None


Rules = list[tuple[bool, str, str, str]]
"""Rows of: whether it refuses, the network or other setting, the setting, the reason."""


def _network_rules(case: Case, network: Network) -> Rules:
    size, longest = case.size(network), math.inf if network.longest is None else network.longest
    rules = [(case.batch_norm not in network.parameters, "batch_norm", f"it has {' or '.join(network.parameters)}")]
    if network.image_size is None:
        rules += [
            (case.image_size is not None, "image_size", "it takes sequences. Use sequence_length"),
            (case.data is enums.Data.TFRECORD, "data", "it takes no images"),
            (size > longest, "sequence_length", f"it has {network.longest} positions"),
            (size < SHORTEST_SEQUENCE, "sequence_length", f"it needs at least {SHORTEST_SEQUENCE} tokens"),
        ]
    else:
        rules += [
            (case.sequence_length is not None, "sequence_length", "it takes images. Use image_size"),
            (size < network.smallest, "image_size", f"it needs at least {network.smallest} pixels"),
            (size % network.multiple != 0, "image_size", f"it needs a multiple of {network.multiple}"),
        ]
    return [(refused, case.model, key, reason) for refused, key, reason in rules]


def _setting_rules(case: Case) -> Rules:
    trains, several = case.mode is enums.Mode.TRAIN, case.num_hosts > 1
    mode, precision, hosts = f"mode {case.mode}", f"precision {case.precision}", f"num_hosts {case.num_hosts}"
    dtype, on_cpus = case.all_reduce_dtype, case.device is enums.Device.CPU
    travel = f"gradients travel as fp32, or as {dtype} from steps of that precision"
    steps = "all hosts of a multi-host job take the same number of steps: remove it and raise num_steps"
    rules = [(SETTINGS[key].train_only and not trains, mode, key, "it is for mode train") for key in case.changed]
    rules += [
        (str(dtype) not in ("fp32", case.precision), precision, "all_reduce_dtype", travel),
        (case.deep_check and case.mode is not enums.Mode.DEVICE, mode, "deep_check", "it is for mode device"),
        (case.data is enums.Data.TFRECORD and not trains, mode, "data", "it is for mode train"),
        (several and not trains, hosts, "mode", "inference needs no other host"),
        (several and case.data is enums.Data.TFRECORD, hosts, "data", "it is for one host. Use synthetic or host"),
        (several and on_cpus and case.num_gpus > 1, hosts, "num_gpus", "TensorFlow uses one CPU device of each"),
        (several and case.min_seconds is not None, hosts, "min_seconds", steps),
    ]
    return rules
