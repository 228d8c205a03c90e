"""The workload of one process: network, step and batches, and the validity checks of its first step."""

from __future__ import annotations

import gc
import math
import statistics
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from results.schema import BatchNorm, Case, Check, InputLimit, Mode, Status
from results.schema.networks import Network
from tfbench import models
from tfbench.environment import with_loaded_libraries
from tfbench.flags import Options
from tfbench.inference import Inference
from tfbench.keras_types import Model, Strategy, Tensor
from tfbench.machine.nvml import GPUs
from tfbench.measuring import validity
from tfbench.measuring.timing import Step, TimedSteps, take_steps, wait_for_loss
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.peers.links import Alone
from tfbench.ranks import Ranks, agree, check_software, ranks_check
from tfbench.roofline.sums import forget_memory_peak
from tfbench.training.inputs import BATCHES_AHEAD, batch_source, synthetic_batch
from tfbench.training.step import Training
from tfbench.training.tasks import TASKS, Batch, Task
from tfbench.training.tfrecords import PREFETCHED_BATCHES, DataSet, open_data_set, tfrecord_source

STEP_RATIO_LIMIT = 1.1
"""A real step this many times as long as a synthetic one waits for input; noise and copies may explain less."""

DRAINING_STEPS = PREFETCHED_BATCHES + BATCHES_AHEAD + 2
"""Untimed real steps after synthetic ones: batches prepared meanwhile would make the input look faster."""


class WaitingSource:
    """A source of batches that measures the time spent waiting for them.

    Attributes:
        seconds: Waited since the last `reset`.
    """

    def __init__(self, next_batch: Callable[[], Batch]) -> None:
        self._next_batch = next_batch
        self.seconds = 0.0

    def __call__(self) -> Batch:
        """Return the next batch."""
        begin = time.perf_counter()
        batch = self._next_batch()
        self.seconds += time.perf_counter() - begin
        return batch

    def reset(self) -> None:
        """Reset the time."""
        self.seconds = 0.0


class InputComparison:
    """Takes synthetic steps before and after the timed real ones, so that drift affects both alike.

    Args:
        real: Source of real batches.
        real_step: Takes one step with a real batch.
        synthetic_step: Takes one step with a batch on the device.
        steps: Number of timed steps; as many synthetic ones are taken, half before and half after.
    """

    def __init__(self, real: WaitingSource, real_step: Step, synthetic_step: Step, steps: int) -> None:
        self._real, self._synthetic_step = real, synthetic_step
        self._half = -(-steps // 2)
        take_steps(synthetic_step, 1)  # the first step with its batch may trace
        self._seconds = take_steps(synthetic_step, self._half).step_seconds
        take_steps(real_step, DRAINING_STEPS)

    def start(self) -> None:
        """Begin to count the waits for real batches; call at the start of the timed steps."""
        self._real.reset()

    def result(self, timed: TimedSteps, data_set: DataSet, images: int) -> InputLimit:
        """Take the second half and compare; call immediately after the timed steps.

        Args:
            timed: The real steps.
            data_set: Their source.
            images: Number of images in them.
        """
        waited = self._real.seconds
        self._seconds += take_steps(self._synthetic_step, self._half).step_seconds
        synthetic = statistics.median(self._seconds)
        ratio = statistics.median(timed.step_seconds) / synthetic
        return InputLimit(
            synthetic_step_seconds=synthetic,
            step_ratio=ratio,
            limit=STEP_RATIO_LIMIT,
            limited=ratio > STEP_RATIO_LIMIT,
            wait_share=min(1.0, waited / timed.seconds),
            read_bytes_per_second=images * data_set.bytes_per_image / timed.seconds,
            files=len(data_set.files),
        )


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """What one process measures, and its tools.

    Attributes:
        case: What to measure.
        network: The case's.
        strategy: Over the case's replicas.
        options: How to measure it.
        gpus: Observed while timing; the null object on a CPU.
        peers: The other hosts that train the case.
        make_training: Creates the step; tests replace it to inject faults.
    """

    case: Case
    network: Network
    strategy: Strategy
    options: Options = field(default_factory=Options)
    gpus: GPUs = field(default_factory=lambda: GPUs(0))
    peers: Ranks = field(default_factory=Alone)
    make_training: Callable[..., Training] = Training

    @property
    def size(self) -> int:
        """Return the size of an example in pixels or tokens."""
        return self.case.size(self.network)

    @property
    def task(self) -> Task:
        """Return the network's task."""
        return TASKS[self.network.task]

    @property
    def samples_per_step(self) -> int:
        """Return the samples of one step in the network's unit, over all replicas of all hosts."""
        return self.case.global_batch * (self.size if self.network.unit == "tokens" else 1)

    @property
    def quantity(self) -> str:
        """Return what a step reports to the host, as named in checks."""
        return "outputs" if self.case.mode is Mode.INFER else "loss"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A network that is ready for its first step.

    Attributes:
        model: The Keras model.
        workload: Training or inference with it.
        next_batch: Returns a step's batches, one per replica.
        data_set: Source of real batches; None: they are synthetic.
        seconds: Time taken to build it.
    """

    model: Model
    workload: Training | Inference
    next_batch: Callable[[], Batch]
    data_set: DataSet | None
    seconds: float

    def step(self) -> Sequence[Tensor]:
        """Start a step with the next batch; see `tfbench.measuring.timing.Step`."""
        return self.workload.step(self.next_batch())


def build(repeat: Repeat) -> Built:
    """Build the network, its step and its batches.

    Raises:
        CaseFailedError: The data set is missing, empty or damaged.
    """
    case, network, strategy = repeat.case, repeat.network, repeat.strategy
    folder = repeat.options.data_dir
    data_set = None if folder is None else open_data_set(folder, network.classes)
    begin = time.perf_counter()
    model = models.build(network, typing.cast(BatchNorm, case.batch_norm), repeat.size, strategy)
    workload: Training | Inference
    if case.mode is Mode.INFER:
        workload = Inference(case, model, strategy)
    else:
        workload = repeat.make_training(case, model, strategy, task=repeat.task)
    next_batch: Callable[[], Batch]
    if data_set is None:
        next_batch = batch_source(case, repeat.size, network.classes, strategy, repeat.task)
    else:
        next_batch = WaitingSource(tfrecord_source(case, data_set, repeat.size, strategy))
    seconds = time.perf_counter() - begin
    return Built(model=model, workload=workload, next_batch=next_batch, data_set=data_set, seconds=seconds)


STEPS_BEFORE_REPLICAS_CHECK = 3
"""Number of steps after which the weights of several replicas are compared."""

MAX_SKIPPED_STEPS = 16
"""Maximum number of first steps that loss scaling may skip: it has then fallen from 2¹⁵ below 1."""


@dataclass(frozen=True)
class FirstStep:
    """The first step.

    Attributes:
        loss: Over the global batch; of inference, the mean of all outputs.
        compile_seconds: Time taken by tracing, compiling and the step itself.
        witness: Weights from before the step; None: inference.
    """

    loss: float
    compile_seconds: float
    witness: validity.LearningWitness | None = None


def check_first_step(repeat: Repeat, built: Built, findings: Findings) -> FirstStep:
    """Trace, compile and take the first step, and compare several replicas with one device.

    Args:
        repeat: What is measured.
        built: Its network.
        findings: Receives the checks and the loaded libraries.

    Raises:
        CaseFailedError: A validity check failed, or the hosts have loaded different libraries.
    """
    if isinstance(built.workload, Inference):
        first = _first_inference(built.workload, built.next_batch(), findings)
    else:
        first = _first_training(repeat, built, built.workload, findings)
    require(findings.checks, repeat.peers)
    if findings.environment is not None:
        findings.environment = with_loaded_libraries(findings.environment)
        check_software(repeat.peers, findings.environment)
    gc.collect()  # free tensors of the checks, which reference cycles may hold
    forget_memory_peak(repeat.case)
    return first


def require(checks: list[Check], peers: Ranks) -> None:
    """Raise unless every validity check passed on every host.

    Args:
        checks: So far; replaced by the checks that all hosts agree on.
        peers: The other hosts.

    Raises:
        CaseFailedError: `not_finite` if values are not finite, `invalid` if they are wrong.
    """
    checks[:] = agree(peers, checks)
    failed = [check for check in checks if check.passed is False]
    if not failed:
        return
    peers.finish()  # all hosts have the same checks
    finite = [check.name for check in failed if "_finite_" in check.name]
    others = {check.name for check in failed} - {
        *finite,
        "weights_change",
        "loss_changes",
    }  # NaN changes nothing
    not_finite = bool(finite) and not others
    raise CaseFailedError(Status.NOT_FINITE if not_finite else Status.INVALID, validity.failures(checks))


def _first_inference(inference: Inference, batch: Batch, findings: Findings) -> FirstStep:
    findings.phases.enter("compiling")
    begin = time.perf_counter()
    first = FirstStep(wait_for_loss(inference.step(batch)), time.perf_counter() - begin)
    findings.phases.enter("checking")
    findings.checks.extend(inference.checks(batch))
    if math.isfinite(first.loss):
        findings.checks.append(validity.output_check(first.loss))
    return first


def _first_training(repeat: Repeat, built: Built, training: Training, findings: Findings) -> FirstStep:
    case, batch, checks = repeat.case, built.next_batch(), findings.checks
    reference = None
    if (case.replicas > 1 or case.accumulate > 1) and case.all_reduce:
        findings.phases.enter("checking")
        reference = validity.OneDeviceReference(training, _all_shards(repeat, batch))
    witness = validity.LearningWitness(training)
    findings.phases.enter("compiling")
    begin = time.perf_counter()
    first = FirstStep(wait_for_loss(training.step(batch)), time.perf_counter() - begin, witness)
    findings.phases.enter("checking")
    checks.append(validity.finite_check("loss_finite_at_first", [first.loss]))
    if math.isfinite(first.loss):
        checks.append(validity.untrained_loss_check(first.loss, repeat.task.untrained_loss(repeat.network.classes)))
    for _ in range(MAX_SKIPPED_STEPS):
        if training.was_updated():
            break
        training.step(batch)
    checks.append(validity.gradients_check(training))
    if reference is None:
        reason = "one replica" if case.all_reduce else "no all-reduce was asked for"
        names = ("loss_equals_one_device", "update_equals_one_device", "replicas_equal")
        checks.extend(validity.does_not_apply(name, reason) for name in names)
        return first
    checks.append(validity.loss_check(training, reference, first.loss))
    checks.append(validity.update_check(training, reference))
    for _ in range(STEPS_BEFORE_REPLICAS_CHECK - 1):
        training.step(built.next_batch())
    checks.append(validity.replicas_check(training) if case.replicas > 1 else validity.does_not_apply("replicas_equal"))
    if case.num_hosts > 1:
        checks.append(ranks_check(training, repeat.peers))
    return first


def _all_shards(repeat: Repeat, batch: Batch) -> Sequence[Batch]:
    """Return the batches of all replicas of all hosts; those of other hosts are drawn here."""
    case, network = repeat.case, repeat.network
    if case.num_hosts == 1:
        return validity.replicas_of(repeat.strategy, batch)
    return [
        synthetic_batch(case, repeat.size, network.classes, replica, repeat.task) for replica in range(case.replicas)
    ]
