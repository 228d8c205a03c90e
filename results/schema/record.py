"""The record of one repeat, written even after a failure; see `record_json` and `results.runs.reading`."""

from __future__ import annotations

from dataclasses import field

from results.schema import bounds
from results.schema.bounds import RecordPart
from results.schema.case import Case
from results.schema.enums import Communication, Status
from results.schema.health import GPUFacts, GPUIdentity, WorstOfGPUs

SCHEMA_VERSION = 2
"""2: fields of version 1 that no longer exist are gone; see `results.runs.reading.RECORD_CHANGES`."""

METHOD_VERSION = 6
"""2: a step ends on its replicas' devices without synchronising the host; all-reduces are chained; peak memory covers
training only. 3: on GPUs without oneDNN, which undid fusions, and in fp32 with all of cuDNN's algorithms; rates of
copies between host and device are of copies. 4: an untimed step precedes the interval; mean power comes from the
energy counter. 5: on GPUs, about 100 ms of short steps are in flight instead of two steps, and share a wait. 6: on
CPUs in fp32, convolutions are TensorFlow's own.
"""


class Origin(RecordPart):
    """Origin of a record, written by the orchestrator and never by the measured host.

    Attributes:
        launcher: `docker`, `process`, …
        variant: Container image variant, e.g. `cuda12.5`; None without a container.
        image: Requested image reference; None without a container.
        image_digest: Digest of the started image, `sha256:…`; None without a container.
        repeat: Number of the repeat, from 1.
        usd_per_gpu_hour: Price of one GPU of this host; None: not given.
    """

    run_id: bounds.Name
    fleet: bounds.Name
    host: bounds.Name
    launcher: bounds.Name
    repeat: bounds.Count
    variant: bounds.Name | None = None
    image: bounds.Name | None = None
    image_digest: bounds.Name | None = None
    usd_per_gpu_hour: bounds.Price | None = None


class GPU(GPUIdentity):
    """One GPU as reported by the driver.

    Attributes:
        name: Includes the profile of a MIG slice: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    """

    name: bounds.Text


class Environment(RecordPart):
    """Software and hardware of a repeat; unknown values are None.

    Attributes:
        cuda: CUDA version that TensorFlow was built with; None for a CPU build.
        cudnn: Version of the loaded library, e.g. `9.3.0`; `built for 9` if the repeat ended before loading it.
        nccl: Version of the loaded library; None: not loaded, because nothing was all-reduced on GPUs.
        cublas: Version of the loaded library; None: not loaded.
        cuda_compat: Version of `libcuda` from NVIDIA's compatibility package, e.g. `570.172.08`; None: the driver's own
            was loaded, or unknown.
        ptxas: Version of the assembler that XLA calls; None: missing, or a CPU case.
        wheel_compute_capabilities: GPU architectures with machine code in the TensorFlow build.
        cpu_limit: CPUs available to the process, by affinity and container limit; may be fractional.
        intra_op_threads: Threads that TensorFlow uses within one operation.
        tf32_enabled: Whether TensorFlow and NVIDIA's libraries may use TF32 while timing.
        tf32_observed: Whether a matrix product or a convolution on the device rounded to TF32; None: not probed.
        variables: Environment variables that affect the measurement (TF_XLA_FLAGS, NVIDIA_TF32_OVERRIDE, …).
    """

    tfbench: bounds.Text
    python: bounds.Text
    tensorflow: bounds.Text
    keras: bounds.Text
    kernel: bounds.Text
    operating_system: bounds.Text
    cpu: bounds.Text
    cpu_count: bounds.Count
    cpu_limit: bounds.CPUs
    memory_bytes: bounds.Bytes | None
    intra_op_threads: bounds.CountOrZero
    inter_op_threads: bounds.CountOrZero
    tf32_enabled: bounds.Flag
    cuda: bounds.Text | None = None
    cudnn: bounds.Text | None = None
    nccl: bounds.Text | None = None
    driver: bounds.Text | None = None
    gpus: bounds.ListOf[GPU] = field(default_factory=list)
    wheel_compute_capabilities: bounds.ListOf[bounds.Text] = field(default_factory=list)
    variables: bounds.Texts = field(default_factory=dict)
    tf32_observed: bounds.Flag | None = None
    cublas: bounds.Text | None = None
    cuda_compat: bounds.Text | None = None
    ptxas: bounds.Text | None = None


class Latency(RecordPart):
    """Latency of one sample: batch 1 on the first device, synchronised after each call.

    Attributes:
        step_seconds: Duration of each call until the result is on the host.
    """

    p50_seconds: bounds.Seconds
    p95_seconds: bounds.Seconds
    p99_seconds: bounds.Seconds
    step_seconds: bounds.ListOf[bounds.Seconds]


class InputLimit(RecordPart):
    """Whether the input pipeline is the bottleneck: real against synthetic input in the same process.

    Attributes:
        synthetic_step_seconds: Median step with a batch that stays on the device; half of these steps run before the
            timed ones, half after.
        step_ratio: Median timed step over `synthetic_step_seconds`.
        limited: Whether `step_ratio` exceeds `limit`: the device waited for input.
        wait_share: Share of the timed interval in which the host waited for the next batch.
        read_bytes_per_second: Rate of encoded images used, in bytes of their files.
        files: Number of files in the data set.
    """

    synthetic_step_seconds: bounds.Seconds
    step_ratio: bounds.Ratio
    limit: bounds.Shown
    limited: bounds.Flag
    wait_share: bounds.Share
    read_bytes_per_second: bounds.PerSecond
    files: bounds.Exact


class DeviceResult(RecordPart):
    """Result of one micro-benchmark of the devices, or why it has none.

    Attributes:
        metric: `matrix_product`, `memory_add`, `host_to_device`, `device_to_host` or `all_reduce`; in a deep check also
            `sustained_product`, `python_loop`.
        unit: Unit of `value`: `FLOP/s` or `B/s`.
        arithmetic: `fp64`, `fp32`, `tf32`, `fp16`, `bf16`; None: bytes are only copied.
        devices: Number of devices that took part.
        size: Rows of the square matrices, or bytes of one array.
        amount: Operations or bytes per call; for an all-reduce bytes × 2 (n − 1) / n.
        seconds: Duration of one call in the fastest round.
        p50_seconds: Median over the rounds.
        p95_seconds: 95th percentile over the rounds.
        value: `amount / seconds`; None: not measured.
        reason: Why `value` is None; else None.
        chained: Operations that one function call runs in sequence; `amount` and `seconds` are per operation.
        gpu: Index of the device within the case, in a deep check; None: the first, or all.
    """

    metric: bounds.Name
    unit: bounds.Name
    arithmetic: bounds.Name | None = None
    devices: bounds.Count = 1
    size: bounds.Bytes | None = None
    amount: bounds.Amount | None = None
    seconds: bounds.Seconds | None = None
    p50_seconds: bounds.Seconds | None = None
    p95_seconds: bounds.Seconds | None = None
    value: bounds.Amount | None = None
    reason: bounds.Text | None = None
    chained: bounds.Count = 1
    gpu: bounds.CountOrZero | None = None


class Rank(RecordPart):
    """Timed steps of one host of a multi-host job.

    Attributes:
        rank: From 0, the chief, which writes the record.
        host: Its name in the orchestrator, else its address.
        seconds: Its interval around all timed steps, from the end of a step that all ranks took together.
        samples: Samples of its own replicas in that interval.
        samples_per_second: `samples / seconds`.
        step_p50_seconds: Median of its steps.
    """

    rank: bounds.CountOrZero
    host: bounds.Name
    seconds: bounds.Seconds
    samples: bounds.Exact
    samples_per_second: bounds.SamplesPerSecond
    step_p50_seconds: bounds.Seconds


class Measurement(RecordPart):
    """The measured figures of a repeat.

    Attributes:
        unit: What a sample is: `images`, `sequences`, `tokens`.
        samples_per_second: `samples / seconds`, over all replicas: a ratio of totals.
        samples: Samples of all timed steps, over all replicas.
        seconds: One synchronised interval around all timed steps, from the end of the step before; of a multi-host job:
            the slowest host's.
        step_seconds: Duration of each timed step; their sum is at most `seconds`. See `steps_per_wait`.
        step_p50_seconds: Median of `step_seconds`.
        step_p95_seconds: 95th percentile of `step_seconds`.
        step_cv: Standard deviation of `step_seconds` over their mean; None with fewer than 2 steps.
        step_drift: Mean of the last third of `step_seconds` over that of the first third, minus 1.
        lead_p50_seconds: Median time from the moment the host had launched a step to the step's end on all replicas.
            Near 0, a GPU waits for the host; a CPU computes while it launches. None: an older record.
        steps_per_wait: Timed steps from one wait for the GPU to the next, whose `step_seconds` are their mean, because
            short steps are not waited for one by one; 1 in older records, too.
        compile_seconds: Trace, compile and first step, before warm-up.
        warmup_steps: Number of warm-up steps taken.
        loss_first: Loss of the first step, over the global batch; inference: mean of the outputs.
        loss_last: Likewise of the last timed step.
        warmup_settled: Whether consecutive windows of warm-up agreed; None: not checked.
        flops_per_sample: Floating point operations of one step per sample, from the layers' shapes; inference:
            of the forward pass.
        bytes_per_sample: Memory traffic per sample without fusion, likewise.
        fused_bytes_per_sample: Memory traffic per sample if all that can be fused is: a lower bound.
        peak_flops_per_second: Total of all replicas, measured by matrix products of this precision in this process, or
            in an earlier one (`peaks_reused`).
        peak_bytes_per_second: Total of all replicas, read and written, likewise.
        peaks_reused: Whether both peaks come from an earlier repeat of the run on the same device.
        flops_utilisation: Achieved share of `peak_flops_per_second`.
        bandwidth_utilisation: Share of `peak_bytes_per_second` that `bytes_per_sample` would need; above 1 if fusion or
            a cache saves traffic.
        bandwidth_bound_samples_per_second: Rate that `fused_bytes_per_sample` allows at `peak_bytes_per_second`.
        host_bytes_per_second: Input copied from the host to the devices while timing; None: none was.
        global_batch: Images or sequences per update, over all replicas and accumulated batches.
        sequence_length: Tokens per sequence as trained; None: samples are images. A sample is a token if the unit is
            `tokens`, else a whole sequence.
        attention: Implementation of attention: `matmul` = two batched matrix products around a softmax, fused only by
            XLA; None: the network has none.
        latency: Inference only.
        input_limit: Real input only.
        ranks: One entry per host of a multi-host job, by rank; else empty.
        all_reduce_bytes_per_second: Bus bandwidth of an all-reduce of one large tensor between hosts: its bytes ×
            2 (n − 1) / n over the time of one all-reduce, n replicas; None: one host.
        communication: `Case.communication` of a multi-host job after `auto` was resolved: `nccl` on GPUs, TensorFlow's
            choice on CPUs; None: one host, or a record of method version 1.
    """

    unit: bounds.Name
    samples_per_second: bounds.SamplesPerSecond
    samples: bounds.Exact
    seconds: bounds.Seconds
    num_steps: bounds.Steps
    step_seconds: bounds.ListOf[bounds.Seconds]
    step_p50_seconds: bounds.Seconds
    step_p95_seconds: bounds.Seconds
    step_cv: bounds.Ratio | None
    step_drift: bounds.Drift | None
    build_seconds: bounds.Seconds
    compile_seconds: bounds.Seconds
    warmup_steps: bounds.CountOrZero
    warmup_seconds: bounds.Seconds
    replicas: bounds.Replicas
    batch_per_gpu: bounds.Count
    global_batch: bounds.Batch
    image_size: bounds.Count | None
    parameters_trainable: bounds.Exact
    parameters_total: bounds.Exact
    loss_first: bounds.Loss
    loss_last: bounds.Loss
    warmup_settled: bounds.Flag | None = None
    flops_per_sample: bounds.PerSample | None = None
    bytes_per_sample: bounds.PerSample | None = None
    fused_bytes_per_sample: bounds.PerSample | None = None
    peak_flops_per_second: bounds.PerSecond | None = None
    peak_bytes_per_second: bounds.PerSecond | None = None
    flops_utilisation: bounds.Ratio | None = None
    bandwidth_utilisation: bounds.Ratio | None = None
    bandwidth_bound_samples_per_second: bounds.SamplesPerSecond | None = None
    host_bytes_per_second: bounds.PerSecond | None = None
    sequence_length: bounds.Count | None = None
    attention: bounds.Name | None = None
    latency: Latency | None = None
    input_limit: InputLimit | None = None
    ranks: bounds.ListOf[Rank] = field(default_factory=list)
    all_reduce_bytes_per_second: bounds.PerSecond | None = None
    communication: Communication | None = None
    peaks_reused: bounds.Flag = False
    lead_p50_seconds: bounds.Seconds | None = None
    steps_per_wait: bounds.Count = 1


class Telemetry(WorstOfGPUs):
    """Readings while timing, over all hosts; values that a device does not report are None.

    Attributes:
        host_memory_peak_bytes: Largest resident set of the process.
        device_memory_peak_bytes: Largest allocation by TensorFlow on one device.
        device_memory_used_peak_bytes: Largest memory use of one GPU by all processes, as reported by the driver.
        energy_joules: Energy of all GPUs over the timed steps, by the driver's counter.
        energy_integrated_joules: The same by integrating sampled power.
        power_mean_watts: Energy by the counter over its seconds, or else mean of sampled power; total of all GPUs.
        power_limit_watts: Enforced limits, total of all GPUs.
        temperature_steady_celsius: Hottest GPU's mean over the last third of the timed steps.
        sm_clock_mean_mhz: Mean over the timed steps, slowest GPU.
        other_processes: Other processes on the GPUs when this one started.
        ecc_enabled: Whether error correction was on for all GPUs.
        pcie_generation: Slowest link while timing.
        pcie_width: Lanes of the narrowest link while timing.
        samples: Samples taken of each GPU.
        cooling_seconds: Time spent before warm-up until the GPUs had cooled down.
        other_cpu_share: Share of the CPUs of a benchmark that other programs used, less the error of the kernel's
            ticks; the worst host's.
    """

    host_memory_peak_bytes: bounds.Bytes | None = None
    device_memory_peak_bytes: bounds.Bytes | None = None
    device_memory_used_peak_bytes: bounds.Bytes | None = None
    energy_joules: bounds.Joules | None = None
    energy_integrated_joules: bounds.Joules | None = None
    power_mean_watts: bounds.Watts | None = None
    power_limit_watts: bounds.Watts | None = None
    temperature_steady_celsius: bounds.Celsius | None = None
    sm_clock_mean_mhz: bounds.Megahertz | None = None
    other_processes: bounds.CountOrZero | None = None
    ecc_enabled: bounds.Flag | None = None
    pcie_generation: bounds.CountOrZero | None = None
    pcie_width: bounds.CountOrZero | None = None
    samples: bounds.Exact | None = None
    cooling_seconds: bounds.Seconds | None = None
    other_cpu_share: bounds.Share | None = None


class Check(RecordPart):
    """One validity check.

    Attributes:
        passed: None: the check does not apply, for the reason in `detail`.
        value: The measured value; None: not a number.
        limit: Largest value that passes.
    """

    name: bounds.Text
    passed: bounds.Flag | None
    detail: bounds.Text
    value: bounds.Shown | None = None
    limit: bounds.Shown | None = None


class Validity(RecordPart):
    """Result of the validity checks: valid if none failed and at least one passed."""

    valid: bounds.Flag
    checks: bounds.ListOf[Check] = field(default_factory=list)


class SoftWarning(RecordPart):
    """A warning about a valid number.

    Attributes:
        code: Stable identifier.
        message: The finding, with its figure and likely cause.
        hint: A command or step to try.
    """

    code: bounds.Name
    message: bounds.Text
    value: bounds.Shown | None = None
    limit: bounds.Shown | None = None
    hint: bounds.Text | None = None


class Phase(RecordPart):
    """A part of a repeat's time.

    Attributes:
        name: One of `results.schema.progress.STATES`.
        seconds: Wall-clock time.
        cpu_seconds: CPU time of all threads, comparable even on a machine with other load.
    """

    name: bounds.Text
    seconds: bounds.Seconds
    cpu_seconds: bounds.Seconds


class Record(RecordPart):
    """The record of one repeat.

    Attributes:
        cause: Why `status` is not `ok`, for people; None if it is.
        started_at: UTC, ISO 8601.
        finished_at: UTC, ISO 8601.
        device_results: Results of a case with model `device`, which has no `measurement`.
        phases: Time breakdown until the record was written; empty in older records, and if the process died.
        device_observations: Each GPU of a deep check, under load.
        simulated: Whether its GPUs are null GPUs, which compute nothing. Never a measurement.
    """

    status: Status
    case: Case
    started_at: bounds.Time
    finished_at: bounds.Time
    cause: bounds.Text | None = None
    origin: Origin | None = None
    environment: Environment | None = None
    measurement: Measurement | None = None
    telemetry: Telemetry | None = None
    validity: Validity | None = None
    warnings: bounds.ListOf[SoftWarning] = field(default_factory=list)
    device_results: bounds.ListOf[DeviceResult] = field(default_factory=list)
    phases: bounds.ListOf[Phase] = field(default_factory=list)
    device_observations: bounds.ListOf[GPUFacts] = field(default_factory=list)
    simulated: bounds.Flag = False
    schema_version: bounds.Count = SCHEMA_VERSION
    method_version: bounds.Count = METHOD_VERSION
