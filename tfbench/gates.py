"""The first step of a repeat, and the gates that it has to pass before anything is timed."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from results.schema import Check, Status
from tfbench.environment import with_loaded_libraries
from tfbench.inference.forward import Inference
from tfbench.measuring import validity
from tfbench.measuring.timing import wait_for_loss
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.ranks import Ranks, agree, check_software, ranks_check
from tfbench.roofline.sums import forget_memory_peak
from tfbench.training.inputs import synthetic_batch
from tfbench.training.step import Training
from tfbench.training.tasks import Batch
from tfbench.workload import Built, Repeat

STEPS_BEFORE_REPLICAS_CHECK = 3
"""Steps after which the weights of several replicas are compared."""

MAX_SKIPPED_STEPS = 16
"""First steps that loss scaling may skip: from 2¹⁵ it has then fallen below 1."""


@dataclass(frozen=True)
class First:
    """The first step.

    Attributes:
        loss: Over the global batch; of inference the mean of all outputs.
        compile_seconds: What tracing, compiling and that step took.
        witness: Of what training changes; None: nothing is trained.
    """

    loss: float
    compile_seconds: float
    witness: validity.LearningWitness | None = None


def gate(repeat: Repeat, built: Built, findings: Findings) -> First:
    """Trace, compile and take the first step, and compare several replicas with one device.

    Args:
        repeat: What is measured.
        built: Its network.
        findings: Gets the checks, and the libraries that are loaded by now.

    Raises:
        CaseFailedError: A gate failed, or the hosts have loaded different libraries.
    """
    if isinstance(built.workload, Inference):
        first = _first_inference(built.workload, built.next_batch(), findings)
    else:
        first = _first_training(repeat, built, built.workload, findings)
    require(findings.checks, repeat.peers)
    if findings.environment is not None:
        findings.environment = with_loaded_libraries(findings.environment)
        check_software(repeat.peers, findings.environment)
    gc.collect()  # tensors of the gates, which cycles may hold, are not what the steps need
    forget_memory_peak(repeat.case)
    return first


def require(checks: list[Check], peers: Ranks) -> None:
    """Go on only when no gate failed, on any host.

    Args:
        checks: So far; become those that all hosts agree on.
        peers: The other hosts.

    Raises:
        CaseFailedError: `not_finite` where numbers are not, `invalid` where they are wrong.
    """
    checks[:] = agree(peers, checks)
    failed = [check for check in checks if check.passed is False]
    if not failed:
        return
    peers.finish()  # all know
    only_finite = all("_finite_" in check.name for check in failed)
    raise CaseFailedError(Status.NOT_FINITE if only_finite else Status.INVALID, validity.failures(checks))


def _first_inference(inference: Inference, batch: Batch, findings: Findings) -> First:
    findings.phases.enter("compiling")
    begin = time.perf_counter()
    first = First(wait_for_loss(inference.step(batch)), time.perf_counter() - begin)
    findings.phases.enter("checking")
    findings.checks.extend([*inference.checks(batch), validity.output_check(first.loss)])
    return first


def _first_training(repeat: Repeat, built: Built, training: Training, findings: Findings) -> First:
    case, batch, checks = repeat.case, built.next_batch(), findings.checks
    reference = None
    if (case.replicas > 1 or case.accumulate > 1) and case.all_reduce:
        findings.phases.enter("checking")
        reference = validity.OneDeviceReference(training, _all_shards(repeat, batch))
    witness = validity.LearningWitness(training)
    findings.phases.enter("compiling")
    begin = time.perf_counter()
    first = First(wait_for_loss(training.step(batch)), time.perf_counter() - begin, witness)
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
    """Return the batches of all replicas of all hosts; those of other hosts are drawn here, too."""
    case, network = repeat.case, repeat.network
    if case.num_hosts == 1:
        return validity.replicas_of(repeat.strategy, batch)
    return [
        synthetic_batch(case, repeat.size, network.classes, replica, repeat.task, repeat.options.seed)
        for replica in range(case.replicas)
    ]
