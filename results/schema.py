"""The contract between what measures and what reads: cases and records, and each of their words.

Standard library only, because this file also runs in every container. A record is the JSON that one repeat
(one fresh process measuring one case) writes, also when it failed; `record_json` writes, reads and checks it:

    {"schema_version": 1, "method_version": 1, "status": "ok", "cause": null, "case": {…}, "origin": {…},
     "environment": {…}, "measurement": {…}, "telemetry": {…}, "validity": {…}, "warnings": […], …}

`SCHEMA_VERSION` changes when the shape of a record changes, `METHOD_VERSION` when what is measured changes: numbers
of two method versions are never put into one cell of a table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1
METHOD_VERSION = 2
"""2: a step ends on its replicas' devices, without a wait of the host; all-reduces are chained; the peak of memory is
that of training alone.
"""

DEVICE_MODEL = "device"
"""The `model` of a case that measures the device itself and no network."""


class Status(enum.StrEnum):
    """How a repeat ended, in one word that a user can act on."""

    OK = "ok"
    OOM = "oom"
    NO_GPU = "no_gpu"
    UNSUPPORTED = "unsupported"
    DRIVER_TOO_OLD = "driver_too_old"
    NOT_FINITE = "not_finite"
    INVALID = "invalid"  # a validity gate failed: see `validity`
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
    """How hosts add up their gradients: a wish to `MultiWorkerMirroredStrategy`."""

    AUTO = "auto"  # TensorFlow chooses
    RING = "ring"  # over gRPC, through the hosts' memory
    NCCL = "nccl"


class Device(enum.StrEnum):
    """What trains."""

    GPU = "gpu"
    CPU = "cpu"  # replicas are logical CPU devices


class BatchNorm(enum.StrEnum):
    """How batch normalisation is done: part of the network's variant."""

    FUSED = "fused"  # one fused operation; biases that it cancels are left out
    KERAS = "keras"  # what a plain Keras user gets
    NONE = "none"  # networks without batch normalisation


class Optimizer(enum.StrEnum):
    """How weights are updated: part of what is measured, because AdamW and LAMB keep two values per weight."""

    MOMENTUM = "momentum"  # SGD with momentum 0.9
    ADAMW = "adamw"  # Adam with decoupled weight decay
    LAMB = "lamb"  # layer-wise trust ratio over Adam


class AllReduceDtype(enum.StrEnum):
    """What gradients travel as between replicas."""

    FP32 = "fp32"
    FP16 = "fp16"  # with loss scaling, so only of an fp16 step
    BF16 = "bf16"  # only of a bf16 step


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


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a record comes from; written by the orchestrator, never by the host that was measured.

    Attributes:
        run_id: The run's name.
        fleet: Group of equal hosts.
        host: The machine.
        launcher: `docker`, `process`, …
        variant: Container image variant, e.g. `cuda12.5`; None without a container.
        image: Image reference as asked for; None without a container.
        image_digest: What was started, `sha256:…`; None without a container.
        repeat: Which repeat, from 1.
        usd_per_gpu_hour: Price asked for one GPU of this host; None: not given.
    """

    run_id: str
    fleet: str
    host: str
    launcher: str
    repeat: int
    variant: str | None = None
    image: str | None = None
    image_digest: str | None = None
    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One GPU as its driver describes it; what it does not offer is None.

    Attributes:
        index: The driver's own, as `nvidia-smi` shows it; of a MIG slice its board's.
        name: Of a MIG slice with its profile: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
        compute_capability: e.g. `8.6`.
        power_limit_watts: Enforced limit.
    """

    index: int
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    power_limit_watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Software and hardware identity of a repeat; what cannot be known is None.

    Attributes:
        cuda: CUDA version that TensorFlow was built with; None for a CPU build.
        cudnn: Version of the library that was loaded, e.g. `9.3.0`; `built for 9` where a repeat ended before that.
        nccl: Version of the library that was loaded; None: none was, since nothing was all-reduced on GPUs.
        cublas: Version of the library that was loaded; None: none was.
        wheel_compute_capabilities: GPU architectures with code in the TensorFlow build.
        cpu_limit: CPUs this process may use: affinity and container limit together, may be fractional.
        intra_op_threads: Threads that TensorFlow uses within one operation.
        tf32_enabled: TensorFlow's switch as it stood while timing.
        tf32_observed: Whether a matrix product on the device rounded its inputs as TF32 does; None: not probed.
        tf32_observed_in_convolution: Whether a convolution did so; None: not probed.
        variables: Environment variables that change what is measured (TF_XLA_FLAGS, NVIDIA_TF32_OVERRIDE, …).
    """

    tfbench: str
    python: str
    tensorflow: str
    keras: str
    kernel: str
    operating_system: str
    cpu: str
    cpu_count: int
    cpu_limit: float
    memory_bytes: int | None
    intra_op_threads: int
    inter_op_threads: int
    tf32_enabled: bool
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    gpus: list[GPU] = field(default_factory=list)
    wheel_compute_capabilities: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    tf32_observed: bool | None = None
    tf32_observed_in_convolution: bool | None = None
    cublas: str | None = None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long one sample takes: batch 1 on the first device, which is waited for after every call.

    Attributes:
        step_seconds: Of each call, from the host's call until the host has the answer.
    """

    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    step_seconds: list[float]


@dataclass(frozen=True, kw_only=True)
class InputLimit:
    """Whether the input or the device limited the steps: real input against synthetic, in the same process.

    Attributes:
        synthetic_step_seconds: Median step with a batch that lives on the device, half of the steps before and
            half after the timed ones.
        step_ratio: Median timed step over `synthetic_step_seconds`.
        limited: Whether `step_ratio` is above `limit`: the device waited for its input.
        wait_share: Share of the timed interval in which the host waited for the next batch.
        read_bytes_per_second: Encoded images used, in bytes of their files.
        files: Of the data set.
    """

    synthetic_step_seconds: float
    step_ratio: float
    limit: float
    limited: bool
    wait_share: float
    read_bytes_per_second: float
    files: int


@dataclass(frozen=True, kw_only=True)
class DeviceResult:
    """One micro-benchmark of the devices: what was reached, or why nothing could be.

    Attributes:
        metric: `matrix_product`, `memory_add`, `memory_copy`, `host_to_device`, `device_to_host` or `all_reduce`.
        unit: Of `value`: `FLOP/s`, `OP/s` (integers) or `B/s`.
        arithmetic: `fp64`, `fp32`, `tf32`, `fp16`, `bf16`, `int8`; None where bytes are only moved.
        devices: That took part.
        size: Rows of the square matrices, or bytes of one array.
        amount: Operations of one call, or bytes that it moved; of an all-reduce bytes × 2 (n − 1) / n.
        seconds: Of one call in the fastest round.
        p50_seconds: Median over the rounds.
        p95_seconds: 95th percentile over the rounds.
        value: `amount / seconds`; None: not measured.
        reason: Why there is no value; None where there is one.
        compiled: Whether XLA compiled the operation; TensorFlow has no kernel of its own for it.
        chained: Operations that one call of a function starts one after another; `amount` and `seconds` are of one.
    """

    metric: str
    unit: str
    arithmetic: str | None = None
    devices: int = 1
    size: int | None = None
    amount: float | None = None
    seconds: float | None = None
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    value: float | None = None
    reason: str | None = None
    compiled: bool = False
    chained: int = 1


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What one of several hosts did in the timed steps.

    Attributes:
        rank: Its place in the cluster, from 0, the chief, which writes the record.
        host: As the orchestrator names it; else its address.
        seconds: Its own interval around all timed steps, from the common start.
        samples: Of its own replicas in that interval.
        samples_per_second: `samples / seconds`.
        step_p50_seconds: Median of its steps.
    """

    rank: int
    host: str
    seconds: float
    samples: int
    samples_per_second: float
    step_p50_seconds: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured.

    Attributes:
        unit: What a sample is: `images`, `sequences`, `tokens`.
        samples_per_second: `samples / seconds`, over all replicas: a ratio of totals.
        samples: Samples of all timed steps, over all replicas.
        seconds: One synchronised interval around all timed steps; of several hosts the slowest one's.
        step_seconds: Duration of each timed step; their sum is at most `seconds`.
        step_p50_seconds: Median of `step_seconds`.
        step_p95_seconds: 95th percentile of `step_seconds`.
        step_cv: Standard deviation of `step_seconds` over their mean; None with fewer than 2 steps.
        step_drift: Mean of the last third of `step_seconds` over that of the first third, minus 1.
        compile_seconds: Trace, compile and first step, before warm-up.
        warmup_steps: Steps of warm-up that were taken.
        loss_first: Loss of the first step, over the global batch; inference: mean of the outputs.
        loss_last: Likewise of the last timed step.
        warmup_settled: Whether consecutive windows of warm-up agreed; None: not looked for.
        flops_per_sample: Floating point operations of one step per sample, from the layers' shapes; inference:
            of the forward pass.
        bytes_per_sample: Memory traffic per sample where no two operations are fused, likewise.
        fused_bytes_per_sample: Memory traffic per sample where everything that can be fused is: a lower bound.
        peak_flops_per_second: Of all replicas, measured by matrix products of this precision in this process.
        peak_bytes_per_second: Of all replicas, read and written, measured in this process.
        flops_utilisation: Achieved share of `peak_flops_per_second`.
        bandwidth_utilisation: Share of `peak_bytes_per_second` that `bytes_per_sample` would need; above 1 where
            fusion or a cache saves traffic.
        bandwidth_bound_samples_per_second: What `fused_bytes_per_sample` allows at `peak_bytes_per_second`.
        host_bytes_per_second: Input moved from the host to the devices while timing; None: none was.
        global_batch: Images or sequences of an update, over all replicas and accumulated batches.
        sequence_length: Tokens of a sequence as trained; None: samples are images. Where the unit is `tokens` a sample
            is one of them, else a sample is a whole sequence.
        attention: How attention is computed: `matmul` = two batched matrix products around a softmax, with nothing
            fused but what XLA fuses; None: the network has none.
        seed: Of the initial weights and the data, drawn independently of TensorFlow's version; None: not asked for.
        losses: Of each timed step, over the global batch; kept where a seed was asked for.
        latency: Inference only.
        input_limit: Real input only.
        ranks: A part per host where several train together, by rank; else empty.
        all_reduce_bytes_per_second: Bus bandwidth of several hosts' all-reduce of one large tensor: its bytes ×
            2 (n − 1) / n over the time of one all-reduce, n replicas; None: one host.
        communication: What several hosts asked TensorFlow for (`Case.communication` after `auto` was resolved: `nccl`
            on GPUs, TensorFlow's own choice on CPUs); None: one host, or a record of method version 1.
    """

    unit: str
    samples_per_second: float
    samples: int
    seconds: float
    num_steps: int
    step_seconds: list[float]
    step_p50_seconds: float
    step_p95_seconds: float
    step_cv: float | None
    step_drift: float | None
    build_seconds: float
    compile_seconds: float
    warmup_steps: int
    warmup_seconds: float
    replicas: int
    batch_per_gpu: int
    global_batch: int
    image_size: int | None
    parameters_trainable: int
    parameters_total: int
    loss_first: float
    loss_last: float
    warmup_settled: bool | None = None
    flops_per_sample: float | None = None
    bytes_per_sample: float | None = None
    fused_bytes_per_sample: float | None = None
    peak_flops_per_second: float | None = None
    peak_bytes_per_second: float | None = None
    flops_utilisation: float | None = None
    bandwidth_utilisation: float | None = None
    bandwidth_bound_samples_per_second: float | None = None
    host_bytes_per_second: float | None = None
    sequence_length: int | None = None
    attention: str | None = None
    seed: int | None = None
    losses: list[float] = field(default_factory=list)
    latency: Latency | None = None
    input_limit: InputLimit | None = None
    ranks: list[Rank] = field(default_factory=list)
    all_reduce_bytes_per_second: float | None = None
    communication: Communication | None = None


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was observed while timing, on all hosts; what a device does not offer is None, never a guess.

    Attributes:
        host_memory_peak_bytes: Largest resident set of the process.
        device_memory_peak_bytes: Largest allocation by TensorFlow on one device.
        device_memory_used_peak_bytes: Largest use of one GPU's memory as the driver sees it, by all processes.
        energy_joules: GPU board energy over the timed steps by the driver's counter, all GPUs together.
        energy_integrated_joules: The same by integrating sampled power.
        cpu_energy_joules: Processor packages over the timed steps by RAPL.
        power_mean_watts: Mean of sampled power, all GPUs together.
        power_limit_watts: Enforced limits, all GPUs together.
        temperature_start_celsius: Hottest GPU before warm-up.
        temperature_steady_celsius: Hottest GPU's mean over the last third of the timed steps.
        sm_clock_mean_mhz: Mean over the timed steps, slowest GPU.
        sm_clock_max_mhz: That GPU's largest possible clock.
        throttle_power_share: Share of samples, worst GPU, in which the power limit held the clock down.
        throttle_thermal_share: Likewise a temperature, by software or hardware.
        throttle_hardware_share: Likewise a power brake or another hardware slowdown.
        other_processes: Other processes that used the GPUs when this one began.
        ecc_enabled: Whether all GPUs had error correction on.
        ecc_uncorrected_errors: Uncorrected memory errors that were counted over the timed steps.
        pcie_generation: Of the slowest link while timing.
        pcie_width: Lanes of the narrowest link while timing.
        pcie_width_max: Lanes that this GPU and its slot could use.
        samples: Samples taken of each GPU.
        cooling_seconds: Waited before warm-up for the GPUs to cool down.
    """

    host_memory_peak_bytes: int | None = None
    device_memory_peak_bytes: int | None = None
    device_memory_used_peak_bytes: int | None = None
    energy_joules: float | None = None
    energy_integrated_joules: float | None = None
    cpu_energy_joules: float | None = None
    power_mean_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_start_celsius: float | None = None
    temperature_steady_celsius: float | None = None
    sm_clock_mean_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    throttle_power_share: float | None = None
    throttle_thermal_share: float | None = None
    throttle_hardware_share: float | None = None
    other_processes: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected_errors: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    samples: int | None = None
    cooling_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One validity gate.

    Attributes:
        passed: None: the gate does not apply, and `detail` says why.
        value: What was measured; None where there is no number.
        limit: Largest value that passes.
    """

    name: str
    passed: bool | None
    detail: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Validity:
    """Whether a number may be trusted: no check failed, and at least one passed."""

    valid: bool
    checks: list[Check] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SoftWarning:
    """Something beside the number that its reader should know.

    Attributes:
        code: One word, stable.
        message: What was seen, with its figure and likely cause.
        hint: A command or step to try; None where there is none.
    """

    code: str
    message: str
    value: float | None = None
    limit: float | None = None
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one repeat leaves, also when it failed.

    Attributes:
        cause: Why `status` is not `ok`, for a person; None when it is.
        started_at: UTC, ISO 8601.
        finished_at: UTC, ISO 8601.
        device_results: Of a case whose model is `device`; it has no `measurement`.
    """

    status: Status
    case: Case
    started_at: str
    finished_at: str
    cause: str | None = None
    origin: Origin | None = None
    environment: Environment | None = None
    measurement: Measurement | None = None
    telemetry: Telemetry | None = None
    validity: Validity | None = None
    warnings: list[SoftWarning] = field(default_factory=list)
    device_results: list[DeviceResult] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION
    method_version: int = METHOD_VERSION
