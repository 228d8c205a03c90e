"""A case: one point of the benchmark's matrix, its name and its command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Tuning:
    """One of the settings that change how a step is executed, and not what it computes.

    Attributes:
        part: What a case's name says where the value is not the default; `{}` becomes the value.
        meaning: One sentence, for `--help` and the column.
        least: Smallest value of a number.
        train_only: Whether it says nothing about inference and devices.
    """

    part: str
    meaning: str
    least: int = 0
    train_only: bool = True


TUNING: dict[str, Tuning] = {
    "all_reduce_pack_mb": Tuning(
        "pack{}", "MB of gradients per all-reduce, so that it overlaps with the backward pass; 0: all at once."
    ),
    "all_reduce_dtype": Tuning("reduce-{}", "Type in which gradients travel: fp32, or the 16 bits of the step."),
    "steps_per_call": Tuning("call{}", "Steps per call of TensorFlow's function.", least=1),
    "compile_update": Tuning("compiled-update", "Compile the update of the weights with XLA."),
    "cublaslt": Tuning("cublaslt", "Use cuBLASLt for matrix products (TF_USE_CUBLASLT).", train_only=False),
    "memory_growth": Tuning("no-growth", "Let TensorFlow take GPU memory as it needs it.", train_only=False),
    "frozen": Tuning(
        "frozen", "Inference from a frozen graph: weights are constants, batch norm is folded.", train_only=False
    ),
}
"""By the field of `Case`. From this table follow the flags, the keys of a suite, the columns and the case's name."""

FEWEST_STEPS = 50
"""No repeat that may end early ends before so many timed steps."""

WITHOUT_BATCH_NORM = frozenset({"alexnet", "bert_large", "gpt2_small", "vgg16", "vit_b16"})
"""Networks without batch normalisation: that is their variant where a case names none."""

TRAINED_BY_ADAMW = frozenset({"bert_large", "gpt2_small", "vit_b16"})
"""Networks whose authors trained them by Adam; all others by SGD with momentum."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of the benchmark's matrix.

    Attributes:
        model: Name of the network, e.g. `resnet50`.
        precision: Arithmetic of the step.
        batch_per_gpu: Samples per replica and step.
        num_gpus: Replicas of each host: GPUs, or logical CPU devices where `device` is `cpu`.
        num_hosts: Hosts that train together, one process on each.
        communication: How several hosts add up their gradients.
        all_reduce: False: replicas do not add up their gradients and train apart. What that saves is the share of
            communication; it is no training, and never in a table of speed.
        xla: Which part XLA compiles.
        mode: What is measured.
        data: Where the batch comes from.
        device: What trains.
        batch_norm: Variant of batch normalisation; None becomes the network's own: `fused`, or `none` where it has
            none.
        image_size: Height and width of an image in pixels; None: the network's own.
        sequence_length: Tokens of a sequence; None: the network's own.
        optimizer: How weights are updated; None becomes the network's own.
        accumulate: Batches whose gradients are added up before an update; the global batch is so many times larger.
        warmup_steps: Fewest steps before timing starts.
        num_steps: Timed steps; at most so many where `target_ci` is given.
        target_ci: Timed steps, and then repeats, end early when the 95 % interval of the throughput is at most ± this
            share of it; None: never. A share between 0 and 1.
        all_reduce_pack_mb: This and the rest: see `TUNING`. The default is that of PyTorch's
            DistributedDataParallel (Li et al. 2020, VLDB 13, section 3.2.2).
    """

    model: str
    precision: Precision = Precision.FP32
    batch_per_gpu: int = 128
    num_gpus: int = 1
    num_hosts: int = 1
    communication: Communication = Communication.AUTO
    all_reduce: bool = True
    xla: XLA = XLA.OFF
    mode: Mode = Mode.TRAIN
    data: Data = Data.SYNTHETIC
    device: Device = Device.GPU
    batch_norm: BatchNorm | None = None
    image_size: int | None = None
    sequence_length: int | None = None
    optimizer: Optimizer | None = None
    accumulate: int = 1
    warmup_steps: int = 10
    num_steps: int = 100
    target_ci: float | None = None
    all_reduce_pack_mb: int = 25
    all_reduce_dtype: AllReduceDtype = AllReduceDtype.FP32
    steps_per_call: int = 1
    compile_update: bool = False
    cublaslt: bool = False
    memory_growth: bool = True
    frozen: bool = False

    def __post_init__(self) -> None:
        """Put the network's own where nothing was named, so that a record says what was measured."""
        if self.batch_norm is None:
            object.__setattr__(self, "batch_norm", self._own_batch_norm)
        if self.optimizer is None:
            object.__setattr__(self, "optimizer", self._own_optimizer)

    @property
    def _own_batch_norm(self) -> BatchNorm:
        return BatchNorm.NONE if self.model in WITHOUT_BATCH_NORM else BatchNorm.FUSED

    @property
    def _own_optimizer(self) -> Optimizer:
        return Optimizer.ADAMW if self.model in TRAINED_BY_ADAMW else Optimizer.MOMENTUM

    @property
    def global_batch(self) -> int:
        """Images or sequences of an update, over all replicas."""
        return self.batch_per_gpu * self.replicas * self.accumulate

    @property
    def replicas(self) -> int:
        """Replicas over all hosts."""
        return self.num_hosts * self.num_gpus

    @property
    def name(self) -> str:
        """Name the case in letters, digits, dots, `-` and `_`: equal cases have equal names."""
        hosts = "" if self.num_hosts == 1 else f"{self.num_hosts}x"
        parts = [self.model, self.precision, f"b{self.batch_per_gpu}", f"{hosts}{self.num_gpus}{self.device}"]
        if self.communication is not Communication.AUTO:
            parts.append(self.communication)
        if not self.all_reduce:
            parts.append("no-all-reduce")
        if self.mode not in (Mode.TRAIN, self.model):
            parts.append(self.mode)
        if self.xla is not XLA.OFF:
            parts.append(f"xla-{self.xla}")
        if self.data is not Data.SYNTHETIC:
            parts.append(self.data)
        if self.batch_norm is not self._own_batch_norm:
            parts.append(f"bn-{self.batch_norm}")
        if self.image_size is not None:
            parts.append(f"{self.image_size}px")
        if self.sequence_length is not None:
            parts.append(f"seq{self.sequence_length}")
        if self.optimizer is not self._own_optimizer:
            parts.append(str(self.optimizer))
        if self.accumulate > 1:
            parts.append(f"acc{self.accumulate}")
        parts.append(f"w{self.warmup_steps}s{self.num_steps}")
        if self.target_ci is not None:
            parts.append(f"ci{100 * self.target_ci:g}")
        parts += [TUNING[name].part.format(value) for name, value in self.tuned.items()]
        return "-".join(parts)

    @property
    def tuned(self) -> dict[str, Any]:
        """Return the settings of `TUNING` that are not at their default."""
        values = {name: getattr(self, name) for name in TUNING}
        return {name: value for name, value in values.items() if value != getattr(type(self), name)}

    def flags(self) -> list[str]:
        """Return the command line of `python -m tfbench` that measures this case."""
        flags = [
            f"--model={self.model}",
            f"--precision={self.precision}",
            f"--batch_size={self.batch_per_gpu}",
            f"--num_gpus={self.num_gpus}",
            f"--xla={self.xla}",
            f"--mode={self.mode}",
            f"--data={self.data}",
            f"--device={self.device}",
            f"--batch_norm={self.batch_norm}",
            f"--warmup_steps={self.warmup_steps}",
            f"--num_steps={self.num_steps}",
        ]
        if self.num_hosts > 1:
            flags += [f"--num_hosts={self.num_hosts}", f"--communication={self.communication}"]
        if not self.all_reduce:
            flags.append("--noall_reduce")
        if self.image_size is not None:
            flags.append(f"--image_size={self.image_size}")
        if self.sequence_length is not None:
            flags.append(f"--sequence_length={self.sequence_length}")
        if self.optimizer is not self._own_optimizer:
            flags.append(f"--optimizer={self.optimizer}")
        if self.accumulate > 1:
            flags.append(f"--accumulate={self.accumulate}")
        if self.target_ci is not None:
            flags.append(f"--target_ci={self.target_ci:g}")
        for name, value in self.tuned.items():
            flags.append(f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}")
        return flags
