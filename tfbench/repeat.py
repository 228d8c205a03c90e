"""One repeat, from an idle process to its numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from results.schema import Case, Check, Data, Device, Measurement, Mode, Status
from results.schema.networks import tuning_refusal
from results.schema.progress import state_line
from tfbench.device_case import measure_devices
from tfbench.environment import read_environment, with_loaded_libraries, with_tf32_observed
from tfbench.flags import Options
from tfbench.inference.forward import Inference
from tfbench.keras_versions.types import Strategy, Tensor, Variable
from tfbench.keras_versions.versions import keras_version
from tfbench.keras_versions.weights import draw_weights
from tfbench.machine.host import cpu_limit
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer, cool_down
from tfbench.measuring import validity
from tfbench.measuring.early_stop import enough_for
from tfbench.measuring.input_limit import InputComparison, WaitingSource
from tfbench.measuring.soft_warnings import soft_warnings
from tfbench.measuring.timing import print_steps, take_steps, wait_for_loss
from tfbench.measuring.warmup import default_ceiling, warm_up
from tfbench.models import NETWORKS, Network
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.peers.links import Alone, Peers
from tfbench.ranks import (
    Ranks,
    agree,
    bus_bytes_per_second,
    check_software,
    combined,
    meeting_of,
    rank_parts,
    ranks_check,
)
from tfbench.roofline.sums import (
    device_memory_peak_bytes,
    first_device,
    forget_memory_peak,
    host_bytes_per_second,
    limit_fields,
    timed_fields,
)
from tfbench.roofline.transfers import connect
from tfbench.setup.devices import communication_of, configure, create_strategy, threads_for
from tfbench.training.inputs import batch_source, bytes_per_example, synthetic_batch
from tfbench.training.step import Training
from tfbench.training.tasks import TASKS, Batch
from tfbench.training.tfrecords import open_data_set, tfrecord_source

STEPS_BEFORE_REPLICAS_CHECK = 3
"""Steps after which the weights of several replicas are compared."""

MAX_SKIPPED_STEPS = 16
"""First steps that loss scaling may skip: from 2¹⁵ it has then fallen below 1."""


def announce(state: str) -> None:
    """Print the line that announces a phase."""
    print(state_line(state), file=sys.stderr, flush=True)  # noqa: T201


def run_repeat(case: Case, options: Options, findings: Findings, peers: Ranks = Alone()) -> None:  # noqa: B008
    """Set this fresh process up for a case and measure it; everything learned goes into `findings`.

    Args:
        case: What to measure.
        options: How to measure it.
        findings: Filled step by step.
        peers: The other hosts that train it, connected.

    Raises:
        CaseFailedError: It cannot be measured, or a gate failed.
        Exception: Anything that TensorFlow raises.
    """
    threads = threads_for(cpu_limit())
    if case.mode is not Mode.DEVICE:
        refuse_unsupported(case, NETWORKS[case.model])
    gpus = GPUs(case.num_gpus if case.device is Device.GPU and options.telemetry else 0)
    other_processes = gpus.processes()  # before this process becomes one of them
    configure(case, threads)
    strategy = create_strategy(case)
    findings.environment = read_environment(case, threads)
    check_software(peers, findings.environment)
    try:
        if case.mode is Mode.DEVICE:
            announce("timing")
            measure_devices(case, strategy, findings, options, gpus)
        else:
            connect(strategy)  # NCCL's own memory, before the network has taken what there is
            measure(case, NETWORKS[case.model], strategy, findings, options, gpus, peers=peers)
    finally:
        gpus.close()
    findings.telemetry = combined(peers, replace(findings.telemetry, other_processes=other_processes))
    findings.warnings += gpus.warnings
    findings.warnings += soft_warnings(case, findings.environment, findings.measurement, findings.telemetry)
    peers.finish()


def measure(
    case: Case,
    network: Network,
    strategy: Strategy,
    findings: Findings,
    options: Options,
    gpus: GPUs,
    make_training: Callable[..., Training] = Training,
    peers: Ranks = Alone(),  # noqa: B008 (has no state)
) -> None:
    """Build, check, warm up and time a case.

    Args:
        case: What to measure.
        network: The case's.
        strategy: Over the case's replicas.
        findings: Filled step by step.
        options: How to measure it.
        gpus: Observed while timing; the null object on a CPU.
        make_training: Tests plant faults here.
        peers: The other hosts that train the case.

    Raises:
        CaseFailedError: A gate failed.
        Exception: Anything that TensorFlow raises.
    """
    size, task = network.size(case), TASKS[network.task]
    data_set = open_data_set(options.data_dir, network.classes) if options.data_dir else None
    announce("building")
    begin = time.perf_counter()
    model = network.build(case.batch_norm, size, strategy)
    if options.seed is not None:
        draw_weights(model, options.seed)
    infers = case.mode is Mode.INFER
    workload = Inference(case, model, strategy) if infers else make_training(case, model, strategy, task=task)
    if data_set is None:
        next_batch = batch_source(case, size, network.classes, strategy, task, options.seed)
    else:
        next_batch = WaitingSource(tfrecord_source(case, data_set, size, strategy))
    build_seconds = time.perf_counter() - begin
    samples_per_step = case.global_batch * network.samples_per_example(case)

    def step() -> Sequence[Tensor]:
        return workload.step(next_batch())

    if isinstance(workload, Inference):
        first, compile_seconds = _first_inference(workload, next_batch, findings.checks)
    else:
        shards = None
        if case.num_hosts > 1:
            shards = [
                synthetic_batch(case, size, network.classes, replica, task, options.seed)
                for replica in range(case.replicas)
            ]
        first, compile_seconds = _first_step(case, workload, next_batch, findings.checks, shards, peers)
    _require(findings.checks, peers)
    if findings.environment is not None:
        findings.environment = with_loaded_libraries(findings.environment)
        check_software(peers, findings.environment)
    if case.steps_per_call > 1:
        begin = time.perf_counter()
        wait_for_loss(step())
        compile_seconds += time.perf_counter() - begin
    forget_memory_peak(case)

    cooling_seconds = cool_down(gpus.temperatures_celsius, options.max_start_celsius, options.max_cooling_seconds)
    start_celsius = max(gpus.temperatures_celsius(), default=None)
    announce("warming")
    report = print_steps(samples_per_step, network.unit)
    ceiling = options.max_warmup_steps
    if ceiling is None:
        ceiling = default_ceiling(case.warmup_steps)
    warmup = warm_up(
        step,
        case.warmup_steps,
        ceiling,
        report,
        lambda seconds: max(peers.gather("warm-up", seconds)),
        case.steps_per_call,
    )
    losses = "outputs" if infers else "loss"
    findings.checks.append(validity.finite_check(f"{losses}_finite_before_timing", [first, *warmup.losses]))
    _require(findings.checks, peers)

    comparison = None
    if isinstance(next_batch, WaitingSource):
        on_device = batch_source(replace(case, data=Data.SYNTHETIC), size, network.classes, strategy, task)
        comparison = InputComparison(next_batch, step, lambda: workload.step(on_device()), case.num_steps)
    announce("timing")
    observer = Observer(gpus)
    meet = meeting_of(strategy) if case.num_hosts > 1 else None
    observer.start()
    if meet is not None:
        meet()
    timed = take_steps(step, case.num_steps, report, enough_for(case), case.steps_per_call)
    findings.telemetry = replace(
        observer.stop(),
        device_memory_peak_bytes=device_memory_peak_bytes(case),
        temperature_start_celsius=start_celsius,
        cooling_seconds=cooling_seconds if len(gpus) else None,
    )
    input_limit = None
    if comparison is not None and data_set is not None:
        input_limit = comparison.result(timed, data_set, case.global_batch * case.num_steps)
    findings.checks.append(validity.finite_check(f"{losses}_finite_while_timing", timed.losses))
    _require(findings.checks, peers)
    ranks, bandwidth = [], None
    if isinstance(peers, Peers):
        ranks = rank_parts(peers, samples_per_step, timed)
        timed = replace(timed, seconds=max(rank.seconds for rank in ranks))
        bandwidth = bus_bytes_per_second(strategy, case.replicas)
    latency = workload.latency(next_batch(), case.num_steps) if isinstance(workload, Inference) else None
    findings.measurement = Measurement(
        **timed_fields(samples_per_step, timed),
        **limit_fields(case, model, samples_per_step, timed, options.peaks),
        unit=network.unit,
        build_seconds=build_seconds,
        compile_seconds=compile_seconds,
        warmup_steps=warmup.steps,
        warmup_seconds=warmup.seconds,
        warmup_settled=warmup.settled,
        replicas=case.replicas,
        batch_per_gpu=case.batch_per_gpu,
        global_batch=case.global_batch,
        image_size=size if network.inputs.image_size else None,
        sequence_length=size if network.inputs.sequence_length else None,
        attention=network.attention,
        seed=options.seed,
        losses=timed.losses if options.seed is not None else [],
        parameters_trainable=_count(model.trainable_weights),
        parameters_total=_count(model.weights),
        loss_first=first,
        loss_last=timed.losses[-1],
        host_bytes_per_second=host_bytes_per_second(case, bytes_per_example(task, size, network.classes), timed),
        latency=latency,
        input_limit=input_limit,
        ranks=ranks,
        all_reduce_bytes_per_second=bandwidth,
        communication=communication_of(case) if case.num_hosts > 1 else None,
    )
    if findings.environment is not None:
        findings.environment = with_tf32_observed(findings.environment, first_device(case))


def _first_inference(inference: Inference, next_batch: Callable[[], Batch], checks: list[Check]) -> tuple[float, float]:
    """Trace, compile and take the first step; compare several replicas with one device.

    Returns:
        The mean of the first step's outputs, and the seconds that it took.
    """
    batch = next_batch()
    announce("compiling")
    begin = time.perf_counter()
    mean = wait_for_loss(inference.step(batch))
    compile_seconds = time.perf_counter() - begin
    announce("checking")
    checks.extend(inference.checks(batch))
    return mean, compile_seconds


def _first_step(
    case: Case,
    training: Training,
    next_batch: Callable[[], Batch],
    checks: list[Check],
    shards: Sequence[Batch] | None,
    peers: Ranks,
) -> tuple[float, float]:
    """Trace, compile and take the first step; with several replicas compare them with one device.

    Args:
        case: What is measured.
        training: The network.
        next_batch: Gives a step its batch.
        checks: Added to.
        shards: The batches of all replicas of all hosts; None: all are in what `next_batch` gives.
        peers: The other hosts.

    Returns:
        The first step's loss, and the seconds that it took.
    """
    batch = next_batch()
    reference = None
    if (case.replicas > 1 or case.accumulate > 1) and case.all_reduce:
        announce("checking")
        reference = validity.OneDeviceReference(training, shards or validity.replicas_of(training.strategy, batch))
    announce("compiling")
    begin = time.perf_counter()
    loss = wait_for_loss(training.one_step(batch))
    compile_seconds = time.perf_counter() - begin
    checks.append(validity.finite_check("loss_finite_at_first", [loss]))
    if reference is None:
        for name in ("loss_equals_one_device", "update_equals_one_device", "replicas_equal"):
            checks.append(
                validity.does_not_apply(name, "one replica" if case.all_reduce else "no all-reduce was asked for")
            )
        return loss, compile_seconds
    announce("checking")
    for _ in range(MAX_SKIPPED_STEPS):
        if training.was_updated():
            break
        training.one_step(batch)
    checks.append(validity.loss_check(training, reference, loss))
    checks.append(validity.update_check(training, reference))
    for _ in range(STEPS_BEFORE_REPLICAS_CHECK - 1):
        training.one_step(next_batch())
    checks.append(validity.replicas_check(training) if case.replicas > 1 else validity.does_not_apply("replicas_equal"))
    if case.num_hosts > 1:
        checks.append(ranks_check(training, peers))
    return loss, compile_seconds


def refuse_unsupported(case: Case, network: Network) -> None:
    """Refuse what cannot be measured, before anything is built."""
    if refusal := validity.keras_refusal(keras_version(), case.replicas):
        raise CaseFailedError(Status.UNSUPPORTED, refusal)
    if case.num_hosts > 1:
        _refuse_over_hosts(case)
    if refused := network.inputs.refusal(case) or tuning_refusal(case):
        raise CaseFailedError(Status.UNSUPPORTED, refused.as_flag)
    if case.mode is not Mode.TRAIN and case.accumulate > 1:
        raise CaseFailedError(Status.UNSUPPORTED, f"--accumulate={case.accumulate} goes with --mode=train only")


def _refuse_over_hosts(case: Case) -> None:
    """Refuse what several hosts cannot measure together."""
    refusals = {
        "--mode=train only: inference needs no other host": case.mode is not Mode.TRAIN,
        "--data=synthetic or host only": case.data not in (Data.SYNTHETIC, Data.HOST),
        "--num_gpus=1 on CPUs: TensorFlow uses one CPU device of each host": case.device is Device.CPU
        and case.num_gpus > 1,
    }
    for wanted, refused in refusals.items():
        if refused:
            raise CaseFailedError(Status.UNSUPPORTED, f"--num_hosts={case.num_hosts} goes with {wanted}")


def _require(checks: list[Check], peers: Ranks) -> None:
    """Go on only when no gate failed, on any host."""
    checks[:] = agree(peers, checks)
    failed = [check for check in checks if check.passed is False]
    if not failed:
        return
    peers.finish()  # all know
    only_finite = all("_finite_" in check.name for check in failed)
    raise CaseFailedError(Status.NOT_FINITE if only_finite else Status.INVALID, validity.failures(checks))


def _count(variables: Sequence[Variable]) -> int:
    total = 0
    for variable in variables:
        size = 1
        for length in variable.shape:
            size *= int(length)
        total += size
    return total
