"""A record: what one repeat leaves, also when it failed; `record_json` writes it, `results.runs.reading` checks it."""

from __future__ import annotations

from dataclasses import dataclass, field

from results.schema.case import Case
from results.schema.health import GPUFacts
from results.schema.words import Communication, Status

SCHEMA_VERSION = 1
METHOD_VERSION = 2
"""2: a step ends on its replicas' devices, without a wait of the host; all-reduces are chained; the peak of memory is
that of training alone.
"""


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
        index: The driver's own, as `nvidia-smi` shows it; of a MIG slice its GPU's.
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
        cuda_compat: Version of the CUDA driver library (`libcuda`) that was loaded in place of the driver's own, from
            NVIDIA's compatibility package, e.g. `570.172.08`; None: the driver's own, or not known.
        ptxas: Version of the assembler that XLA calls; None: there is none, or a CPU case.
        wheel_compute_capabilities: GPU architectures with code in the TensorFlow build.
        cpu_limit: CPUs this process may use: affinity and container limit together, may be fractional.
        intra_op_threads: Threads that TensorFlow uses within one operation.
        tf32_enabled: TensorFlow's switch as it stood while timing.
        tf32_observed: Whether a matrix product on the device rounded its inputs as TF32 does; None: not probed.
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
    cublas: str | None = None
    cuda_compat: str | None = None
    ptxas: str | None = None


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
        metric: `matrix_product`, `memory_add`, `host_to_device`, `device_to_host` or `all_reduce`; of a
            deep check also `sustained_product`, `python_loop`.
        unit: Of `value`: `FLOP/s` or `B/s`.
        arithmetic: `fp64`, `fp32`, `tf32`, `fp16`, `bf16`; None where bytes are only moved.
        devices: That took part.
        size: Rows of the square matrices, or bytes of one array.
        amount: Operations of one call, or bytes that it moved; of an all-reduce bytes × 2 (n − 1) / n.
        seconds: Of one call in the fastest round.
        p50_seconds: Median over the rounds.
        p95_seconds: 95th percentile over the rounds.
        value: `amount / seconds`; None: not measured.
        reason: Why there is no value; None where there is one.
        chained: Operations that one call of a function starts one after another; `amount` and `seconds` are of one.
        gpu: Place of the device among those of the case, in a deep check; None: the first, or all of them.
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
    chained: int = 1
    gpu: int | None = None


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
        peak_flops_per_second: Of all replicas, measured by matrix products of this precision in this process, or in an
            earlier one (`peaks_reused`).
        peak_bytes_per_second: Of all replicas, read and written, likewise.
        peaks_reused: Both are those of an earlier repeat of the run on the same device: it was not measured again.
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
    latency: Latency | None = None
    input_limit: InputLimit | None = None
    ranks: list[Rank] = field(default_factory=list)
    all_reduce_bytes_per_second: float | None = None
    communication: Communication | None = None
    peaks_reused: bool = False


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was observed while timing, on all hosts; what a device does not offer is None, never a guess.

    Attributes:
        host_memory_peak_bytes: Largest resident set of the process.
        device_memory_peak_bytes: Largest allocation by TensorFlow on one device.
        device_memory_used_peak_bytes: Largest use of one GPU's memory as the driver sees it, by all processes.
        energy_joules: GPU board energy over the timed steps by the driver's counter, all GPUs together.
        energy_integrated_joules: The same by integrating sampled power.
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
    """One validity check.

    Attributes:
        passed: None: the check does not apply, and `detail` has the reason.
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
    """A warning about a valid number.

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
class Phase:
    """A part of a repeat's time.

    Attributes:
        name: One of `results.schema.progress.STATES`.
        seconds: By the clock.
        cpu_seconds: Processor time of all threads: also comparable on a machine that does other work.
    """

    name: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one repeat leaves, also when it failed.

    Attributes:
        cause: Why `status` is not `ok`, for a person; None when it is.
        started_at: UTC, ISO 8601.
        finished_at: UTC, ISO 8601.
        device_results: Of a case whose model is `device`; it has no `measurement`.
        phases: Where the time went until the record was written; empty in records before this field, and where the
            process died.
        device_observations: Each GPU of a deep check, under load.
        simulated: Whether its GPUs compute nothing: the null GPU of the tests. Never a measurement.
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
    phases: list[Phase] = field(default_factory=list)
    device_observations: list[GPUFacts] = field(default_factory=list)
    simulated: bool = False
    schema_version: int = SCHEMA_VERSION
    method_version: int = METHOD_VERSION
