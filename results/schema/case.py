"""A case: one point of the benchmark's matrix, its name and its command line."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from results.schema.networks import NETWORKS, SHORTEST_SEQUENCE, SMALLEST_IMAGE, Network
from results.schema.words import (
    XLA,
    AllReduceDtype,
    BatchNorm,
    Communication,
    Data,
    Device,
    Mode,
    Optimizer,
    Precision,
)

MOST_STEPS = 100_000
"""Maximum number of timed steps; a record stores the time of each."""


@dataclass(frozen=True)
class Setting:
    """A setting of a case, from which its flag, suite key, table column and part of the case name are derived.

    Attributes:
        meaning: One sentence, for `--help` and the table.
        part: Template of its part of the case name if the value is not the default. Empty: `Case.name` handles it.
        unit: Unit of the column; `-`: none.
        flag: Name of the flag if it differs from the field's.
        always: Whether command lines include it even at its default.
        least: Smallest number accepted from flags and suites; None: any.
        most: Largest one; None: any, and `bounds.MOST` in a record.
        tuning: Whether it changes how a step is executed but not what it computes.
        train_only: Whether it applies only to training.
    """

    meaning: str
    part: str = ""
    unit: str = "-"
    flag: str = ""
    always: bool = False
    least: float | None = None
    most: float | None = None
    tuning: bool = False
    train_only: bool = False


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

    model: Annotated[str, Setting("Network, e.g. resnet50, or the device itself.", always=True)]
    precision: Annotated[Precision, Setting("Arithmetic: fp32 (IEEE, TF32 off), tf32, fp16 or bf16.", always=True)] = (
        Precision.FP32
    )
    batch_per_gpu: Annotated[
        int, Setting("Samples per GPU and step.", unit="samples", flag="batch_size", always=True, least=1)
    ] = 128
    num_gpus: Annotated[
        int, Setting("Replicas of each host: GPUs, or logical devices on a CPU.", always=True, least=1)
    ] = 1
    num_hosts: Annotated[int, Setting("Hosts that train together, as TF_CONFIG lists them.", least=1)] = 1
    communication: Annotated[Communication, Setting("All-reduce between hosts: auto, ring or nccl.", part="{}")] = (
        Communication.AUTO
    )
    all_reduce: Annotated[
        bool, Setting("False: no all-reduce, to measure the cost of communication.", part="no-all-reduce")
    ] = True
    xla: Annotated[
        XLA,
        Setting(
            "What XLA compiles: off, auto (TensorFlow chooses) or replica (whole pass).", part="xla-{}", always=True
        ),
    ] = XLA.OFF
    mode: Annotated[
        Mode, Setting("What is measured: train, infer (also latency at batch 1) or device.", part="{}", always=True)
    ] = Mode.TRAIN
    data: Annotated[
        Data, Setting("Source of a batch: synthetic (on the device), host (tf.data), tfrecord.", part="{}", always=True)
    ] = Data.SYNTHETIC
    device: Annotated[Device, Setting("Device: gpu, which never falls back to the CPU, or cpu.", always=True)] = (
        Device.GPU
    )
    batch_norm: Annotated[
        BatchNorm | None,
        Setting(
            "Variant of batch normalisation: fused, keras or none; default: fused, or none if the network has none.",
            part="bn-{}",
            always=True,
        ),
    ] = None
    image_size: Annotated[
        int | None,
        Setting(
            "Height and width of images; empty: the network's own.", part="{}px", unit="pixels", least=SMALLEST_IMAGE
        ),
    ] = None
    sequence_length: Annotated[
        int | None,
        Setting(
            "Tokens of a sequence; empty: the network's own.", part="seq{}", unit="tokens", least=SHORTEST_SEQUENCE
        ),
    ] = None
    optimizer: Annotated[
        Optimizer | None,
        Setting(
            "How weights are updated: momentum or adamw; default: adamw for transformers, else momentum.",
            part="{}",
        ),
    ] = None
    accumulate: Annotated[
        int, Setting("Batches whose gradients are accumulated before an update.", part="acc{}", least=1)
    ] = 1
    warmup_steps: Annotated[int, Setting("Fewest untimed steps.", unit="steps", always=True, least=0)] = 10
    num_steps: Annotated[
        int,
        Setting(
            "Timed steps of a repeat; the fewest with min_seconds.", unit="steps", always=True, least=1, most=MOST_STEPS
        ),
    ] = 100
    all_reduce_pack_mb: Annotated[
        int,
        Setting(
            "MB of gradients per all-reduce; several packs can overlap with the backward pass. 0: all at once.",
            part="pack{}",
            least=0,
            tuning=True,
            train_only=True,
        ),
    ] = 25
    all_reduce_dtype: Annotated[
        AllReduceDtype,
        Setting(
            "Data type of gradients in the all-reduce: fp32, or the 16-bit type of the step.",
            part="reduce-{}",
            tuning=True,
            train_only=True,
        ),
    ] = AllReduceDtype.FP32
    memory_growth: Annotated[bool, Setting("Allocate GPU memory on demand.", part="no-growth", tuning=True)] = True
    deep_check: Annotated[
        bool,
        Setting(
            "Check whether the machine is worth keeping: each device alone, then all under load. With --model=device.",
            part="deep-check",
        ),
    ] = False
    min_seconds: Annotated[
        float | None,
        Setting(
            "Minimum time of a repeat's timed steps, beyond num_steps; empty: none.",
            part="min{:g}s",
            unit="seconds",
            least=1.0,
            most=3600.0,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Replace None by the network's default batch normalisation and optimizer."""
        for name, value in self._of_network.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def _of_network(self) -> dict[str, Any]:
        if network := NETWORKS.get(self.model):
            return {"batch_norm": next(iter(network.parameters)), "optimizer": network.optimizer}
        return {"batch_norm": BatchNorm.FUSED, "optimizer": Optimizer.MOMENTUM}

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
        named = self.changed
        if self.num_hosts == 1:
            named.pop("communication", None)  # one host does not communicate
        else:
            named["communication"] = self.communication
        flags = [_flag(name, getattr(self, name)) for name in _ALWAYS]
        return flags + [_flag(name, named[name]) for name in SETTINGS if name in named and name not in _ALWAYS]


_HINTS = typing.get_type_hints(Case, include_extras=True)

SETTINGS: dict[str, Setting] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
"""By field of `Case`, in the order of a record's keys."""

TUNING: dict[str, Setting] = {name: setting for name, setting in SETTINGS.items() if setting.tuning}
"""Settings that change how a step is executed but not what it computes."""


def kind_of(name: str) -> type:
    """Return the type of a setting's value, other than None."""
    hint = _HINTS[name].__origin__
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return typing.cast(type, kinds[0])


def default_of(name: str) -> Any:  # noqa: ANN401 (of the setting's type)
    """Return the default of a setting; None: it has none, or it depends on the network."""
    return getattr(Case, name, None)


_DEFAULTS: dict[str, Any] = {name: default_of(name) for name in SETTINGS}
_NAME_ORDER = tuple(dict.fromkeys(("mode", *SETTINGS)))
_ALWAYS = tuple(name for name, setting in SETTINGS.items() if setting.always)


def _flag(name: str, value: object) -> str:
    flag = SETTINGS[name].flag or name
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{flag}"
    return f"--{flag}={value:g}" if isinstance(value, float) else f"--{flag}={value}"
