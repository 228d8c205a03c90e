"""One repeat, from a fresh process to its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from results.schema import Case, Data, Device, InputLimit, Latency, Measurement, Mode, Rank, Status, Telemetry
from results.schema.networks import NETWORKS, Network
from results.schema.refusals import network_refusal, tuning_refusal
from tfbench.deep_check import deep_check, with_product_rates
from tfbench.device_case import measure_devices
from tfbench.environment import read_environment
from tfbench.flags import Options
from tfbench.inference import Inference
from tfbench.keras_types import Variable
from tfbench.keras_versions import keras_version
from tfbench.machine.host import cpu_limit
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Cooling, Observer, cool_gpus
from tfbench.measuring import validity
from tfbench.measuring.soft_warnings import gpu_warnings, soft_warnings
from tfbench.measuring.timing import (
    TimedSteps,
    Warmup,
    coefficient_of_variation,
    default_ceiling,
    drift,
    percentile,
    print_steps,
    steps_per_wait,
    take_steps,
    warm_up,
)
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.peers.links import Alone, Peers
from tfbench.ranks import Ranks, bus_bytes_per_second, check_software, combined, meeting_of, rank_parts
from tfbench.roofline.peaks import tf32_observed
from tfbench.roofline.sums import (
    device_memory_peak_bytes,
    first_device,
    host_bytes_per_second,
    limit_fields,
)
from tfbench.roofline.transfers import connect
from tfbench.setup.devices import communication_of, configure, create_strategy, threads_for
from tfbench.training.inputs import batch_source, bytes_per_example
from tfbench.workload import Built, FirstStep, InputComparison, Repeat, WaitingSource, build, check_first_step, require


def run_repeat(case: Case, options: Options, findings: Findings, peers: Ranks = Alone()) -> None:  # noqa: B008
    """Set up this fresh process for a case and measure it; results go into `findings`.

    Args:
        case: What to measure.
        options: How to measure it.
        findings: Filled step by step.
        peers: The other hosts of the case, connected.

    Raises:
        CaseFailedError: The case cannot be measured, or a validity check failed.
        Exception: Anything that TensorFlow raises.
    """
    threads = threads_for(cpu_limit())
    if case.mode is not Mode.DEVICE:
        refuse_unsupported(case, NETWORKS[case.model])
    gpus = GPUs(case.num_gpus if case.device is Device.GPU and options.telemetry else 0)
    configure(case, threads)
    strategy = create_strategy(case)
    findings.environment = read_environment(case, threads)
    check_software(peers, findings.environment)
    try:
        if case.mode is Mode.DEVICE:
            findings.phases.enter("timing")
            if case.deep_check:
                deep_check(case, strategy, findings, gpus)
            else:
                measure_devices(case, strategy, findings, options, gpus)
        else:
            connect(strategy)  # NCCL allocates its memory before the network takes the rest
            network = NETWORKS[case.model]
            repeat = Repeat(case=case, network=network, strategy=strategy, options=options, gpus=gpus, peers=peers)
            measure(repeat, findings)
    finally:
        gpus.close()
    telemetry = replace(findings.telemetry or Telemetry(), other_processes=gpus.other_processes())
    findings.telemetry = combined(peers, telemetry)
    findings.warnings += gpu_warnings(peers, gpus.warnings, findings.gpus)
    findings.warnings += soft_warnings(case, findings.environment, findings.measurement, findings.telemetry)
    peers.finish()


def measure(repeat: Repeat, findings: Findings) -> None:
    """Build, check, warm up and time a case.

    Args:
        repeat: What to measure.
        findings: Filled step by step.

    Raises:
        CaseFailedError: A validity check failed.
        Exception: Anything that TensorFlow raises.
    """
    findings.phases.enter("building")
    built = build(repeat)
    first = check_first_step(repeat, built, findings)
    warm = warm_through(repeat, built, first, findings)
    timed = time_steps(repeat, built, warm, findings)
    findings.phases.enter("peaks")
    findings.measurement = describe(repeat, built, first, warm.warmup, timed)
    if repeat.options.peaks:
        findings.gpus = with_product_rates(repeat.case, findings.gpus, repeat.peers)
    if findings.environment is not None:
        findings.phases.enter("checking")
        observed = tf32_observed(first_device(repeat.case))
        findings.environment = replace(findings.environment, tf32_observed=observed)


@dataclass(frozen=True)
class Warm:
    """The warm-up and what came before.

    Attributes:
        cooling: The wait before the warm-up.
        warmup: The untimed steps.
    """

    cooling: Cooling
    warmup: Warmup


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The timed steps and related measurements.

    Attributes:
        interval: The timed steps of this host, with the seconds of the slowest host.
        per_wait: See `take_steps`.
        input_limit: Whether input was the bottleneck; None: it is synthetic.
        ranks: Figures of each of several hosts.
        all_reduce_bytes_per_second: Bus bandwidth between hosts.
        latency: At batch 1; inference only.
    """

    interval: TimedSteps
    per_wait: int = 1
    input_limit: InputLimit | None = None
    ranks: list[Rank] = field(default_factory=list)
    all_reduce_bytes_per_second: float | None = None
    latency: Latency | None = None


def warm_through(repeat: Repeat, built: Built, first: FirstStep, findings: Findings) -> Warm:
    """Wait for hot GPUs to cool down, then take untimed steps until their times have settled.

    Raises:
        CaseFailedError: A loss or an output is not finite.
    """
    case, options = repeat.case, repeat.options
    if len(repeat.gpus):
        findings.phases.enter("cooling")
    cooling = cool_gpus(repeat.gpus, options.max_cooling_seconds)
    findings.phases.enter("warming")
    ceiling = options.max_warmup_steps
    warmup = warm_up(
        built.step,
        case.warmup_steps,
        default_ceiling(case.warmup_steps) if ceiling is None else ceiling,
        print_steps(repeat.samples_per_step, repeat.network.unit),
        lambda seconds: max(repeat.peers.gather("warm-up", seconds)),
    )
    findings.checks.append(
        validity.finite_check(f"{repeat.quantity}_finite_before_timing", [first.loss, *warmup.losses])
    )
    if first.witness is not None:
        findings.checks += first.witness.checks([first.loss, *warmup.losses])
    require(findings.checks, repeat.peers)
    return Warm(cooling, warmup)


def time_steps(repeat: Repeat, built: Built, warm: Warm, findings: Findings) -> Timed:
    """Time steps while observing the devices; then measure input, latency and bandwidth between hosts.

    Args:
        repeat: What is measured.
        built: Its network, after warm-up.
        warm: Its warm-up.
        findings: Receives the telemetry, and the check of the timed steps' losses or outputs.

    Raises:
        CaseFailedError: A loss or an output is not finite.
    """
    case, strategy = repeat.case, repeat.strategy
    per_wait = _steps_per_wait(repeat, warm.warmup)
    comparison = _input_comparison(repeat, built)
    findings.phases.enter("timing")
    observer = Observer(repeat.gpus)
    meet = meeting_of(strategy) if case.num_hosts > 1 else None
    if meet is not None:
        meet()
    report = print_steps(repeat.samples_per_step, repeat.network.unit)

    def start() -> None:
        observer.start()
        if comparison is not None:
            comparison.start()

    least_seconds = case.min_seconds or 0.0
    interval = take_steps(built.step, case.num_steps, report, least_seconds, on_start=start, per_wait=per_wait)
    findings.telemetry = replace(observer.stop(warm.cooling), device_memory_peak_bytes=device_memory_peak_bytes(case))
    findings.gpus = observer.gpus
    input_limit = None
    if comparison is not None and built.data_set is not None:
        input_limit = comparison.result(interval, built.data_set, case.global_batch * len(interval.losses))
    findings.checks.append(validity.finite_check(f"{repeat.quantity}_finite_while_timing", interval.losses))
    require(findings.checks, repeat.peers)
    if isinstance(repeat.peers, Peers):
        ranks = rank_parts(repeat.peers, repeat.samples_per_step, interval)
        return Timed(
            interval=replace(interval, seconds=max(rank.seconds for rank in ranks)),
            per_wait=per_wait,
            ranks=ranks,
            all_reduce_bytes_per_second=bus_bytes_per_second(strategy, case.replicas),
        )
    latency = None
    if isinstance(built.workload, Inference):
        latency = built.workload.latency(built.next_batch(), case.num_steps)
    return Timed(interval=interval, per_wait=per_wait, input_limit=input_limit, latency=latency)


def _steps_per_wait(repeat: Repeat, warmup: Warmup) -> int:
    """Return the number of timed steps per wait; more than 1 only if the host can run several steps ahead of a GPU.

    On several GPUs a launch waits for the all-reduce, and with input from the host for the next batch.
    """
    case, asked = repeat.case, repeat.options.steps_per_wait
    if asked is not None:
        return asked
    runs_ahead = case.device is Device.GPU and case.replicas == 1 and case.data is Data.SYNTHETIC
    return steps_per_wait(warmup.step_seconds) if runs_ahead else 1


def _input_comparison(repeat: Repeat, built: Built) -> InputComparison | None:
    """Prepare the comparison with synthetic steps; None if the timed steps are synthetic."""
    if not isinstance(built.next_batch, WaitingSource):
        return None
    case = replace(repeat.case, data=Data.SYNTHETIC)
    on_device = batch_source(case, repeat.size, repeat.network.classes, repeat.strategy, repeat.task)
    return InputComparison(built.next_batch, built.step, lambda: built.workload.step(on_device()), case.num_steps)


def describe(repeat: Repeat, built: Built, first: FirstStep, warmup: Warmup, timed: Timed) -> Measurement:
    """Return the figures of a record, including the device's peak rates unless the options exclude them.

    Args:
        repeat: What was measured.
        built: Its network.
        first: Its first step.
        warmup: The untimed steps.
        timed: The timed steps and related measurements.
    """
    case, network, options, interval = repeat.case, repeat.network, repeat.options, timed.interval
    steps = interval.step_seconds
    samples = repeat.samples_per_step * len(steps)
    example_bytes = bytes_per_example(repeat.task, repeat.size, network.classes)
    return Measurement(
        samples_per_second=samples / interval.seconds,
        samples=samples,
        seconds=interval.seconds,
        num_steps=len(steps),
        step_seconds=steps,
        step_p50_seconds=percentile(steps, 0.50),
        step_p95_seconds=percentile(steps, 0.95),
        step_cv=coefficient_of_variation(steps),
        step_drift=drift(steps),
        lead_p50_seconds=percentile(interval.lead_seconds, 0.50),
        steps_per_wait=timed.per_wait,
        **limit_fields(case, built.model, repeat.samples_per_step, interval, options.peaks, options.known_peaks),
        unit=network.unit,
        build_seconds=built.seconds,
        compile_seconds=first.compile_seconds,
        warmup_steps=warmup.steps,
        warmup_seconds=warmup.seconds,
        warmup_settled=warmup.settled,
        replicas=case.replicas,
        batch_per_gpu=case.batch_per_gpu,
        global_batch=case.global_batch,
        image_size=repeat.size if network.image_size else None,
        sequence_length=repeat.size if network.sequence_length else None,
        attention=network.attention,
        parameters_trainable=_count(built.model.trainable_weights),
        parameters_total=_count(built.model.weights),
        loss_first=first.loss,
        loss_last=interval.losses[-1],
        host_bytes_per_second=host_bytes_per_second(case, example_bytes, interval),
        latency=timed.latency,
        input_limit=timed.input_limit,
        ranks=timed.ranks,
        all_reduce_bytes_per_second=timed.all_reduce_bytes_per_second,
        communication=communication_of(case) if case.num_hosts > 1 else None,
    )


def refuse_unsupported(case: Case, network: Network) -> None:
    """Raise for cases that cannot be measured, before anything is built."""
    if refusal := validity.keras_refusal(keras_version(), case.replicas):
        raise CaseFailedError(Status.UNSUPPORTED, refusal)
    if case.num_hosts > 1:
        _refuse_over_hosts(case)
    if refused := network_refusal(case, network) or tuning_refusal(case):
        raise CaseFailedError(Status.UNSUPPORTED, refused.as_flag)
    if case.mode is not Mode.TRAIN and case.accumulate > 1:
        raise CaseFailedError(Status.UNSUPPORTED, f"--accumulate={case.accumulate} goes with --mode=train only")


def _refuse_over_hosts(case: Case) -> None:
    """Raise for cases that several hosts cannot measure together."""
    refusals = {
        "--mode=train only: inference needs no other host": case.mode is not Mode.TRAIN,
        "--data=synthetic or host only": case.data not in (Data.SYNTHETIC, Data.HOST),
        "--num_gpus=1 on CPUs: TensorFlow uses one CPU device of each host": case.device is Device.CPU
        and case.num_gpus > 1,
    }
    for wanted, refused in refusals.items():
        if refused:
            raise CaseFailedError(Status.UNSUPPORTED, f"--num_hosts={case.num_hosts} goes with {wanted}")


def _count(variables: Sequence[Variable]) -> int:
    return sum(math.prod(map(int, variable.shape)) for variable in variables)
