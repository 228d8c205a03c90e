"""The words of the contract: how a repeat can end, and what each setting of a case can be."""

from __future__ import annotations

import enum

DEVICE_MODEL = "device"
"""The `model` of a case that measures the device itself and no network."""


SUSPECT = "suspect"
"""Code of the warning that a record contradicts what its controller saw, its hardware or other records."""


class Status(enum.StrEnum):
    """How a repeat ended, in one word that a user can act on."""

    OK = "ok"
    OOM = "oom"
    NO_GPU = "no_gpu"
    UNSUPPORTED = "unsupported"
    DRIVER_TOO_OLD = "driver_too_old"
    NOT_FINITE = "not_finite"
    INVALID = "invalid"  # a validity check failed: see `validity`
    BAD_INPUT = "bad_input"  # the data set is missing, empty or damaged
    TIMEOUT = "timeout"
    PULL_FAILED = "pull_failed"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    BAD_RESULT = "bad_result"
    STOPPED = "stopped"
    ERROR = "error"


class Precision(enum.StrEnum):
    """Arithmetic of the training step; never a bare "FP32"."""

    FP32 = "fp32"  # IEEE single precision, TF32 off
    TF32 = "tf32"  # FP32 storage, TensorFloat-32 matrix products
    FP16 = "fp16"  # mixed_float16 with loss scaling
    BF16 = "bf16"  # mixed_bfloat16


class XLA(enum.StrEnum):
    """Which part of a step XLA compiles, the same for one replica and for many."""

    OFF = "off"
    AUTO = "auto"  # tf.config.optimizer.set_jit: clusters chosen by TensorFlow
    REPLICA = "replica"  # forward and backward pass compiled in each replica; all-reduce and update outside


class Mode(enum.StrEnum):
    """What is measured."""

    TRAIN = "train"  # forward, backward, all-reduce, update
    INFER = "infer"  # forward only: throughput at a batch, and latency at batch 1
    DEVICE = "device"  # no network: matrix products, copies, all-reduce


class Data(enum.StrEnum):
    """Where a step's batch comes from."""

    SYNTHETIC = "synthetic"  # one batch that lives on the device
    HOST = "host"  # synthetic, moved from the host at every step by tf.data
    TFRECORD = "tfrecord"  # JPEG files in TFRecords, read, decoded and augmented by tf.data


class Communication(enum.StrEnum):
    """How hosts add up their gradients, as requested of `MultiWorkerMirroredStrategy`."""

    AUTO = "auto"  # TensorFlow chooses
    RING = "ring"  # over gRPC, through the hosts' memory
    NCCL = "nccl"


class Device(enum.StrEnum):
    """What trains."""

    GPU = "gpu"
    CPU = "cpu"  # replicas are logical CPU devices


class BatchNorm(enum.StrEnum):
    """How batch normalisation is done: part of the network's variant."""

    FUSED = "fused"  # one fused operation; without the biases that it cancels
    KERAS = "keras"  # what a plain Keras user gets
    NONE = "none"  # networks without batch normalisation


class Optimizer(enum.StrEnum):
    """How weights are updated: part of what is measured, because AdamW keeps two values per weight."""

    MOMENTUM = "momentum"  # SGD with momentum 0.9
    ADAMW = "adamw"  # Adam with decoupled weight decay


class AllReduceDtype(enum.StrEnum):
    """What gradients travel as between replicas."""

    FP32 = "fp32"
    FP16 = "fp16"  # with loss scaling, so only of an fp16 step
    BF16 = "bf16"  # only of a bf16 step
