"""Multi-host cases: agreeing on checks, comparing weights, software and GPUs, and combining figures of all ranks."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from results.schema import Check, Environment, Rank, Status
from tfbench.failures import CaseFailedError
from tfbench.keras_versions import Strategy, Tensor, components
from tfbench.measuring.timing import TimedSteps
from tfbench.measuring.validity import DIVERGENCE_LIMIT, within, worst
from tfbench.peers import Peers
from tfbench.roofline.peaks import wait_for
from tfbench.roofline.transfers import bus_bytes, device_kind, sum_over_replicas
from tfbench.training.step import Training

ALL_REDUCE_ELEMENTS = 2**24
"""float32 elements of the tensor for the bandwidth measurement: 64 MiB, the size of a network's gradients."""

ALL_REDUCES = {"CPU": 2, "GPU": 10}
"""All-reduces per call, so that the network is measured rather than Python; between CPUs one takes 0.1 s."""

ALL_REDUCE_ROUNDS = 2

SAME_SOFTWARE = ("tfbench", "python", "tensorflow", "keras", "cuda", "cudnn", "cublas", "nccl", "cuda_compat")
"""Software that must be equal on all ranks: otherwise neither would be measured."""


def check_software(peers: Peers, environment: Environment) -> None:
    """Compare the ranks' software and kinds of GPU, of which the record has only the chief's.

    Called before anything is built, and again once libraries are loaded. A lower power limit is no reason to refuse: as
    on a single host, it gives the warning `power_cap`.

    Raises:
        CaseFailedError: `unsupported`: they differ.
    """
    mine = {name: getattr(environment, name) for name in SAME_SOFTWARE}
    mine["GPUs"] = ", ".join(sorted(gpu.name for gpu in environment.gpus)) or None
    chief, *others = peers.gather("software", mine)
    for rank, theirs in enumerate(others, start=1):
        differing = [f"{name} {theirs[name]} instead of {chief[name]}" for name in chief if theirs[name] != chief[name]]
        if differing:
            need = "all hosts need the same image and GPUs"
            raise CaseFailedError(Status.UNSUPPORTED, f"rank {rank} has {', '.join(differing)}: {need}")


def agree(peers: Peers, checks: Sequence[Check]) -> list[Check]:
    """Return the same checks on all ranks: the worst of each."""
    of_ranks = peers.gather("checks", [vars(check) for check in checks])
    return [_worst([Check(**check) for check in same]) for same in zip(*of_ranks, strict=True)]


def _worst(same: Sequence[Check]) -> Check:
    """Return a failed check if there is one, otherwise the one with the largest value."""
    rank = max(range(len(same)), key=lambda index: (same[index].passed is False, same[index].value or 0.0))
    check = same[rank]
    return check if rank == 0 else replace(check, detail=f"rank {rank}: {check.detail}")


def ranks_check(training: Training, peers: Peers) -> Check:
    """Compare all ranks' weights: max |w_r − w_0| / max |w_0|, of the worst variable.

    Digests are compared first, over a connection that is independent of the one checked. Only if they differ, the
    chief's weights are distributed, by an all-reduce to which the others add zeros.
    """
    mine = [components(training.strategy, variable)[0].numpy() for variable in training.variables]
    digests = peers.gather("weights", [hashlib.sha256(values.tobytes()).hexdigest() for values in mine])
    detail = f"weights of {peers.size} hosts after a few steps"
    if all(of_rank == digests[0] for of_rank in digests):
        equal = 0.0 if all(np.isfinite(values).all() for values in mine) else math.nan
        return within("ranks_equal", equal, DIVERGENCE_LIMIT, detail)
    differences = []
    for values in mine:
        own = values * peers.size if peers.rank == 0 else np.zeros_like(values)
        chiefs = _mean_over_replicas(training.strategy, own)
        size = float(np.abs(chiefs).max()) or 1.0
        differences.append(float(np.abs(values - chiefs).max()) / size)
    return within("ranks_equal", worst(peers.gather("divergence", worst(differences))), DIVERGENCE_LIMIT, detail)


def _mean_over_replicas(strategy: Strategy, values: np.ndarray) -> np.ndarray:
    """Average an array over all replicas; those of one rank hold the same."""

    def of_replica() -> Tensor:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, tf.constant(values))

    mean = tf.function(lambda: strategy.run(of_replica), autograph=False)()
    values_of_first: np.ndarray = strategy.experimental_local_results(mean)[0].numpy()
    return values_of_first


def rank_parts(peers: Peers, samples_per_step: int, timed: TimedSteps) -> list[Rank]:
    """Gather each rank's figures of the timed steps.

    Args:
        peers: All ranks.
        samples_per_step: Of all ranks together.
        timed: This rank's steps.
    """
    mine = {"seconds": timed.seconds, "step_p50_seconds": statistics.median(timed.step_seconds)}
    samples = samples_per_step // peers.size * len(timed.step_seconds)
    parts = []
    for rank, (host, reported) in enumerate(zip(peers.cluster.addresses, peers.gather("timed", mine), strict=True)):
        rate = samples / reported["seconds"]
        parts.append(Rank(rank=rank, host=host, samples=samples, samples_per_second=rate, **reported))
    return parts


def bus_bytes_per_second(strategy: Strategy, replicas: int) -> float:
    """Measure the all-reduce of one large tensor over all replicas of all ranks.

    Args:
        strategy: Over the replicas; all ranks call this at the same time.
        replicas: n, of all ranks together.

    Returns:
        Bus bandwidth in bytes per second: bytes × 2 (n − 1) / n over the seconds of one all-reduce, which is the load
            of each link of a ring, independent of the number of replicas. One call does `ALL_REDUCES` of them.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    times = ALL_REDUCES[device_kind(strategy)]
    start = sum_over_replicas(strategy, ALL_REDUCE_ELEMENTS, times)
    wait_for(start())
    begin = time.perf_counter()
    for _ in range(ALL_REDUCE_ROUNDS):
        wait_for(start())
    seconds = (time.perf_counter() - begin) / (ALL_REDUCE_ROUNDS * times)
    return bus_bytes(4 * ALL_REDUCE_ELEMENTS, replicas) / seconds
