"""One repeat, from a fresh process to its figures."""

from __future__ import annotations

import gc
import math
import statistics
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from results.schema import BatchNorm, Case, Check, Data, Device, InputLimit, Measurement, Mode, Status, Telemetry
from results.schema.case import case_refusal
from results.schema.networks import NETWORKS, Network
from tfbench import devices, models, ranks
from tfbench.device_case import measure_devices, with_product_rates
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
from tfbench.flags import Options
from tfbench.inference import Inference
from tfbench.keras_versions import Model, Strategy, Tensor, Variable, keras_version
from tfbench.machine.host import cpu_limit
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer, combined
from tfbench.measuring import timing, validity
from tfbench.measuring.soft_warnings import gpu_warnings, soft_warnings
from tfbench.peers import Peers
from tfbench.roofline import peaks, transfers
from tfbench.roofline.limits import limit_fields
from tfbench.training import inputs, tfrecords
from tfbench.training.step import Training
from tfbench.training.tasks import TASKS, Batch

STEP_RATIO_LIMIT = 1.1
"""A real step this many times as long as a synthetic one waits for input; noise and copies may explain less."""

DRAINING_STEPS = tfrecords.PREFETCHED_BATCHES + inputs.BATCHES_AHEAD + 2
"""Untimed real steps after synthetic ones: batches prepared meanwhile would make the input look faster."""


class ComparedInput:
    """A source of real batches that measures the waits for them, and compares real with synthetic steps.

    Synthetic steps go before and after the timed real ones, so that drift affects both alike.

    Attributes:
        waited_seconds: For batches, since it was set to 0.

    Args:
        next_batch: The source.
        data_set: Of the batches.
    """

    def __init__(self, next_batch: Callable[[], Batch], data_set: tfrecords.DataSet) -> None:
        self._next_batch, self._data_set = next_batch, data_set
        self.waited_seconds = 0.0

    def __call__(self) -> Batch:
        """Return the next batch."""
        begin = time.perf_counter()
        batch = self._next_batch()
        self.waited_seconds += time.perf_counter() - begin
        return batch

    def prepare(self, real_step: timing.Step, synthetic_step: timing.Step, steps: int) -> None:
        """Take half of the synthetic steps.

        Args:
            real_step: Takes one step with a real batch.
            synthetic_step: Takes one step with a batch on the device.
            steps: Number of timed steps; as many synthetic ones are taken.
        """
        self._synthetic_step, self._half = synthetic_step, -(-steps // 2)
        timing.take_steps(synthetic_step, 1)  # the first step with its batch may trace
        self._seconds = timing.take_steps(synthetic_step, self._half).step_seconds
        timing.take_steps(real_step, DRAINING_STEPS)

    def result(self, timed: timing.TimedSteps, images: int) -> InputLimit:
        """Take the other half and compare; call immediately after the timed steps.

        Args:
            timed: The real steps.
            images: Number of images in them.
        """
        waited = self.waited_seconds
        self._seconds += timing.take_steps(self._synthetic_step, self._half).step_seconds
        synthetic = statistics.median(self._seconds)
        ratio = statistics.median(timed.step_seconds) / synthetic
        return InputLimit(
            synthetic_step_seconds=synthetic,
            step_ratio=ratio,
            limit=STEP_RATIO_LIMIT,
            limited=ratio > STEP_RATIO_LIMIT,
            wait_share=min(1.0, waited / timed.seconds),
            read_bytes_per_second=images * self._data_set.bytes_per_image / timed.seconds,
            files=len(self._data_set.files),
        )


STEPS_BEFORE_REPLICAS_CHECK = 3
"""Number of steps after which the weights of several replicas are compared."""

MAX_SKIPPED_STEPS = 16
"""Maximum number of first steps that loss scaling may skip: it has then fallen from 2¹⁵ below 1."""


def run_repeat(case: Case, options: Options, findings: Findings, peers: Peers) -> None:
    """Set up this fresh process for a case and measure it; results go into `findings`.

    Args:
        case: What to measure.
        options: How to measure it.
        findings: Filled step by step.
        peers: All ranks of the case, connected.

    Raises:
        CaseFailedError: The case cannot be measured, or a validity check failed.
        Exception: Anything that TensorFlow raises.
    """
    threads = devices.threads_for(cpu_limit())
    if case.mode is not Mode.DEVICE:
        refuse_unsupported(case, NETWORKS[case.model])
    gpus = GPUs(case.num_gpus if case.device is Device.GPU and options.telemetry else 0)
    devices.configure(case, threads)
    strategy = devices.create_strategy(case)
    findings.environment = devices.read_environment(case, threads)
    ranks.check_software(peers, findings.environment)
    try:
        if case.mode is Mode.DEVICE:
            findings.phases.enter("timing")
            measure_devices(case, strategy, findings, options, gpus)
        else:
            transfers.connect(strategy)  # NCCL allocates its memory before the network takes the rest
            Repeat(case, NETWORKS[case.model], strategy, options, findings, gpus, peers).measure()
    finally:
        gpus.close()
    telemetry = replace(findings.telemetry or Telemetry(), other_processes=gpus.other_processes())
    of_ranks = peers.gather("telemetry", vars(telemetry))
    findings.telemetry = combined([Telemetry(**reported) for reported in of_ranks])
    findings.warnings += gpu_warnings(peers, gpus.warnings, findings.gpus)
    findings.warnings += soft_warnings(case, findings.environment, findings.measurement, findings.telemetry)
    peers.finish()


class Repeat:
    """A repeat of a case with a network; each of its parts adds to the figures.

    Args:
        case: What to measure.
        network: The case's.
        strategy: Over the case's replicas.
        options: How to measure it.
        findings: Filled step by step.
        gpus: Observed while timing; None: the case is on a CPU.
        peers: All ranks of the case; None: this is the only one.

    Attributes:
        figures: Of the record's `Measurement`, so far.
        model: The Keras model, once built.
        workload: Training or inference with it.
        next_batch: Returns a step's batches, one per replica.
    """

    model: Model
    workload: Training | Inference
    next_batch: Callable[[], Batch]

    def __init__(
        self,
        case: Case,
        network: Network,
        strategy: Strategy,
        options: Options,
        findings: Findings,
        gpus: GPUs | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.case, self.network, self.strategy, self.options = case, network, strategy, options
        self.findings, self.peers = findings, peers or Peers()
        self.size, self.task = case.size(network), TASKS[network.task]
        self.samples_per_step = case.global_batch * (self.size if network.unit == "tokens" else 1)
        self.figures: dict[str, Any] = {}
        self._gpus = GPUs(0) if gpus is None else gpus
        self._quantity = "outputs" if case.mode is Mode.INFER else "loss"
        self._witness: validity.LearningWitness | None = None
        self._report = timing.print_steps(self.samples_per_step, network.unit)

    def measure(self) -> None:
        """Build, check, warm up and time the case.

        Raises:
            CaseFailedError: A validity check failed.
            Exception: Anything that TensorFlow raises.
        """
        findings, enter = self.findings, self.findings.phases.enter
        enter("building")
        self.build()
        self.check_first_step()
        self.warm_through()
        self.time_steps()
        enter("peaks")
        findings.measurement = self.described()
        if self.options.peaks:
            findings.gpus = with_product_rates(self.case, findings.gpus, self.peers)
        if findings.environment is not None:
            enter("checking")
            observed = peaks.tf32_observed(devices.first_device(self.case))
            findings.environment = replace(findings.environment, tf32_observed=observed)

    def step(self) -> Sequence[Tensor]:
        """Start a step with the next batch; see `tfbench.measuring.timing.Step`."""
        return self.workload.step(self.next_batch())

    def build(self) -> None:
        """Build the network, its step and its batches.

        Raises:
            CaseFailedError: The data set is missing, empty or damaged.
        """
        case, network, strategy = self.case, self.network, self.strategy
        folder = self.options.data_dir
        data_set = None if folder is None else tfrecords.open_data_set(folder, network.classes)
        begin = time.perf_counter()
        self.model = models.build(network, typing.cast(BatchNorm, case.batch_norm), self.size, strategy)
        if case.mode is Mode.INFER:
            self.workload = Inference(case, self.model, strategy)
        else:
            self.workload = Training(case, self.model, strategy, task=self.task)
        if data_set is None:
            self.next_batch = inputs.batch_source(case, self.size, network.classes, strategy, self.task)
        else:
            self.next_batch = ComparedInput(tfrecords.tfrecord_source(case, data_set, self.size, strategy), data_set)
        self.figures["build_seconds"] = time.perf_counter() - begin

    def check_first_step(self) -> None:
        """Trace, compile and take the first step, and compare several replicas with one device.

        Raises:
            CaseFailedError: A validity check failed, or the hosts have loaded different libraries.
        """
        findings, batch = self.findings, self.next_batch()
        if isinstance(self.workload, Inference):
            mean = self._take_first_step(batch)
            findings.checks += self.workload.checks(batch)
            if math.isfinite(mean):
                findings.checks.append(validity.output_check(mean))
        else:
            self._check_first_training(self.workload, batch)
        require(findings.checks, self.peers)
        if findings.environment is not None:
            findings.environment = devices.with_loaded_libraries(findings.environment)
            ranks.check_software(self.peers, findings.environment)
        gc.collect()  # free tensors of the checks, which reference cycles may hold
        devices.forget_memory_peak(self.case)

    def _take_first_step(self, batch: Batch) -> float:
        """Take the first step; return its loss or mean output."""
        self.findings.phases.enter("compiling")
        begin = time.perf_counter()
        loss = timing.wait_for_loss(self.workload.step(batch))
        self.figures |= {"loss_first": loss, "compile_seconds": time.perf_counter() - begin}
        self.findings.phases.enter("checking")
        return loss

    def _check_first_training(self, training: Training, batch: Batch) -> None:
        case, checks = self.case, self.findings.checks
        reference = None
        if (case.replicas > 1 or case.accumulate > 1) and case.all_reduce:
            self.findings.phases.enter("checking")
            reference = validity.OneDeviceReference(training, self._all_shards(batch))
        self._witness = validity.LearningWitness(training)
        loss = self._take_first_step(batch)
        checks.append(validity.finite_check("loss_finite_at_first", [loss]))
        if math.isfinite(loss):
            checks.append(validity.untrained_loss_check(loss, self.task.untrained_loss(self.network.classes)))
        for _ in range(MAX_SKIPPED_STEPS):
            if training.was_updated():
                break
            training.step(batch)
        checks.append(validity.gradients_check(training))
        if reference is None:
            reason = "one replica" if case.all_reduce else "no all-reduce was asked for"
            names = ("loss_equals_one_device", "update_equals_one_device", "replicas_equal")
            checks += [validity.does_not_apply(name, reason) for name in names]
            return
        checks += [validity.loss_check(training, reference, loss), validity.update_check(training, reference)]
        for _ in range(STEPS_BEFORE_REPLICAS_CHECK - 1):
            self.step()
        checks.append(validity.replicas_check(training))
        if case.num_hosts > 1:
            checks.append(ranks.ranks_check(training, self.peers))

    def _all_shards(self, batch: Batch) -> Sequence[Batch]:
        """Return the batches of all replicas of all hosts; those of other hosts are drawn here."""
        case, classes = self.case, self.network.classes
        if case.num_hosts == 1:
            return validity.replicas_of(self.strategy, batch)
        return [
            inputs.synthetic_batch(case, self.size, classes, replica, self.task) for replica in range(case.replicas)
        ]

    def warm_through(self) -> None:
        """Wait for hot GPUs to cool down, then take untimed steps until their times have settled.

        Raises:
            CaseFailedError: A loss or an output is not finite.
        """
        findings = self.findings
        if len(self._gpus):
            findings.phases.enter("cooling")
        self._observer = Observer(self._gpus)
        self._observer.cool(self.options.max_cooling_seconds)
        findings.phases.enter("warming")
        floor, ceiling = self.case.warmup_steps, self.options.max_warmup_steps
        ceiling = timing.default_ceiling(floor) if ceiling is None else ceiling
        gather = self.peers.gather
        warmup = timing.warm_up(self.step, floor, ceiling, self._report, lambda mean: max(gather("warm-up", mean)))
        losses = [self.figures["loss_first"], *warmup.losses]
        findings.checks.append(validity.finite_check(f"{self._quantity}_finite_before_timing", losses))
        if self._witness is not None:
            findings.checks += self._witness.checks(losses)
        require(findings.checks, self.peers)
        self._warm_step_seconds = warmup.step_seconds
        settled = {"warmup_settled": warmup.settled}
        self.figures |= {"warmup_steps": warmup.steps, "warmup_seconds": warmup.seconds, **settled}

    def time_steps(self) -> None:
        """Time steps while observing the devices; then measure input, latency and bandwidth between hosts.

        Raises:
            CaseFailedError: A loss or an output is not finite.
        """
        case, findings, peers = self.case, self.findings, self.peers
        per_wait = self._steps_per_wait()
        compared = self.next_batch if isinstance(self.next_batch, ComparedInput) else None
        if compared is not None:
            synthetic = replace(case, data=Data.SYNTHETIC)
            on_device = inputs.batch_source(synthetic, self.size, self.network.classes, self.strategy, self.task)
            compared.prepare(self.step, lambda: self.workload.step(on_device()), case.num_steps)
        findings.phases.enter("timing")
        if case.num_hosts > 1:  # ranks leave an all-reduce at the same time, once the last has arrived
            meet = transfers.sum_over_replicas(self.strategy, 1)
            peaks.wait_for(meet())  # trace it, and connect the ranks, before its timing matters
            peaks.wait_for(meet())

        def start() -> None:
            self._observer.start()
            if compared is not None:
                compared.waited_seconds = 0.0

        least = case.min_seconds or 0.0
        interval = timing.take_steps(self.step, case.num_steps, self._report, least, on_start=start, per_wait=per_wait)
        telemetry = self._observer.stop()
        findings.telemetry = replace(telemetry, device_memory_peak_bytes=devices.device_memory_peak_bytes(case))
        findings.gpus = self._observer.gpus
        steps, seconds = interval.step_seconds, interval.seconds
        examples = case.global_batch * len(steps)
        if compared is not None:
            self.figures["input_limit"] = compared.result(interval, examples)
        findings.checks.append(validity.finite_check(f"{self._quantity}_finite_while_timing", interval.losses))
        require(findings.checks, peers)
        if case.num_hosts > 1:
            parts = ranks.rank_parts(peers, self.samples_per_step, interval)
            seconds = max(rank.seconds for rank in parts)
            bandwidth = ranks.bus_bytes_per_second(self.strategy, case.replicas)
            self.figures |= {"ranks": parts, "all_reduce_bytes_per_second": bandwidth}
        elif isinstance(self.workload, Inference):
            self.figures["latency"] = self.workload.latency(self.next_batch(), case.num_steps)
        if case.data is not Data.SYNTHETIC:
            copied = inputs.bytes_per_example(self.task, self.size, self.network.classes) * examples
            self.figures["host_bytes_per_second"] = copied / seconds
        self.figures |= {
            "samples_per_second": self.samples_per_step * len(steps) / seconds,
            "samples": self.samples_per_step * len(steps),
            "seconds": seconds,
            "num_steps": len(steps),
            "step_seconds": steps,
            "step_p50_seconds": timing.percentile(steps, 0.50),
            "step_p95_seconds": timing.percentile(steps, 0.95),
            "step_cv": timing.coefficient_of_variation(steps),
            "step_drift": timing.drift(steps),
            "lead_p50_seconds": timing.percentile(interval.lead_seconds, 0.50),
            "steps_per_wait": per_wait,
            "loss_last": interval.losses[-1],
        }

    def _steps_per_wait(self) -> int:
        """Return the number of timed steps per wait; more than 1 only if the host can run several steps ahead of a GPU.

        On several GPUs a launch waits for the all-reduce, and with input from the host for the next batch.
        """
        case, asked = self.case, self.options.steps_per_wait
        if asked is not None:
            return asked
        runs_ahead = case.device is Device.GPU and case.replicas == 1 and case.data is Data.SYNTHETIC
        return timing.steps_per_wait(self._warm_step_seconds) if runs_ahead else 1

    def described(self) -> Measurement:
        """Return the figures of a record, including the device's peak rates unless the options exclude them."""
        case, network, options = self.case, self.network, self.options
        rate = self.figures["samples_per_second"]
        limits = limit_fields(case, self.model, self.samples_per_step, rate, options.peaks, options.known_peaks)
        return Measurement(
            **self.figures,
            **limits,
            unit=network.unit,
            replicas=case.replicas,
            batch_per_gpu=case.batch_per_gpu,
            global_batch=case.global_batch,
            image_size=self.size if network.image_size else None,
            sequence_length=self.size if network.sequence_length else None,
            attention=network.attention,
            parameters_trainable=_count(self.model.trainable_weights),
            parameters_total=_count(self.model.weights),
            communication=devices.communication_of(case) if case.num_hosts > 1 else None,
        )


def require(checks: list[Check], peers: Peers) -> None:
    """Raise unless every validity check passed on every host.

    Args:
        checks: So far; replaced by the checks that all hosts agree on.
        peers: The other hosts.

    Raises:
        CaseFailedError: `not_finite` if values are not finite, `invalid` if they are wrong.
    """
    checks[:] = ranks.agree(peers, checks)
    failed = {check.name for check in checks if check.passed is False}
    if not failed:
        return
    peers.finish()  # all hosts have the same checks
    not_finite = {name for name in failed if "_finite_" in name}
    wrong = failed - not_finite - {"weights_change", "loss_changes"}  # NaN changes nothing
    status = Status.NOT_FINITE if not_finite and not wrong else Status.INVALID
    raise CaseFailedError(status, validity.failures(checks))


def refuse_unsupported(case: Case, network: Network) -> None:
    """Raise for cases that cannot be measured, before anything is built."""
    if refusal := validity.keras_refusal(keras_version(), case.replicas):
        raise CaseFailedError(Status.UNSUPPORTED, refusal)
    if refused := case_refusal(case, network):
        raise CaseFailedError(Status.UNSUPPORTED, refused.text)


def _count(variables: Sequence[Variable]) -> int:
    return sum(math.prod(map(int, variable.shape)) for variable in variables)
