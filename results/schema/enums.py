"""Enumerations of the contract: statuses, and the values of a case's settings."""

from __future__ import annotations

import enum

DEVICE_MODEL = "device"
"""`model` of a case that measures the device itself instead of a network."""


SUSPECT = "suspect"
"""Code of the warning that a record contradicts its controller, its hardware or other records."""


class Status(enum.StrEnum):
    """How a repeat ended."""

    OK = "ok"
    OOM = "oom"
    NO_GPU = "no_gpu"
    UNSUPPORTED = "unsupported"
    DRIVER_TOO_OLD = "driver_too_old"
    NOT_FINITE = "not_finite"
    INVALID = "invalid"  # a validity check failed; see `validity`
    BAD_INPUT = "bad_input"  # the data set is missing, empty or corrupt
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
    """Which part of a step XLA compiles, for any number of replicas."""

    OFF = "off"
    AUTO = "auto"  # tf.config.optimizer.set_jit: TensorFlow chooses clusters
    REPLICA = "replica"  # forward and backward pass of each replica, without all-reduce and update


class Mode(enum.StrEnum):
    """Mode of a measurement."""

    TRAIN = "train"  # forward, backward, all-reduce, update
    INFER = "infer"  # forward only: throughput at a batch, and latency at batch 1
    DEVICE = "device"  # no network: matrix products, copies, all-reduce


class Data(enum.StrEnum):
    """Source of a step's batch."""

    SYNTHETIC = "synthetic"  # one batch that stays on the device
    HOST = "host"  # synthetic, copied from the host in each step by tf.data
    TFRECORD = "tfrecord"  # JPEG files in TFRecords, read, decoded and augmented by tf.data


class Communication(enum.StrEnum):
    """Implementation of the all-reduce between hosts, as requested from `MultiWorkerMirroredStrategy`."""

    AUTO = "auto"  # TensorFlow chooses
    RING = "ring"  # over gRPC, through the hosts' memory
    NCCL = "nccl"


class Device(enum.StrEnum):
    """Kind of device that a case runs on."""

    GPU = "gpu"
    CPU = "cpu"  # replicas are logical CPU devices


class BatchNorm(enum.StrEnum):
    """Implementation of batch normalisation."""

    FUSED = "fused"  # one fused operation, without the biases that it cancels
    KERAS = "keras"  # Keras's default layer
    NONE = "none"  # networks without batch normalisation


class Optimizer(enum.StrEnum):
    """Optimizer of the training step; AdamW keeps two values per weight."""

    MOMENTUM = "momentum"  # SGD with momentum 0.9
    ADAMW = "adamw"  # Adam with decoupled weight decay


class AllReduceDtype(enum.StrEnum):
    """Data type of gradients in the all-reduce."""

    FP32 = "fp32"
    FP16 = "fp16"  # only for fp16 steps, which scale the loss
    BF16 = "bf16"  # only for bf16 steps
