"""How fast bytes move: within a device, between host and device, and between devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from results.schema import Check, DeviceResult
from tfbench.peaks import COPY_ELEMENTS, measured, seconds_per_call, unsupported
from tfbench.types import Strategy, Tensor
from tfbench.validity import within

TRANSFER_ELEMENTS = 2**26
"""float32 elements of a transfer between host and device: 256 MiB."""

ALL_REDUCE_BYTES = {"CPU": (2**20, 2**24), "GPU": (2**20, 2**24, 2**28)}
"""Sizes of an all-reduced tensor: 1 MiB shows what a start costs, the largest what the links carry."""

CHECKED_ELEMENTS = 1000


def memory_copy(device: str) -> DeviceResult:
    """Measure a copy within a device's memory: an array is read and one is written."""
    wanted = DeviceResult(metric="memory_copy", unit="B/s")
    if device.startswith("CPU"):
        return unsupported(wanted, "TensorFlow copies on a CPU into fresh memory only, and would time page faults")
    elements = COPY_ELEMENTS["GPU"]
    try:
        with tf.device(device):
            source = tf.ones([elements])
            copy = tf.function(lambda: tf.raw_ops.DeepCopy(x=source))
            return measured(wanted, 4 * elements, 2.0 * 4.0 * elements, seconds_per_call(copy))
    except tf.errors.OpError as error:
        return unsupported(wanted, error)


def host_transfers(device: str) -> list[DeviceResult]:
    """Measure copies from the host's memory to a device and back, as TensorFlow does them.

    The host's side is pageable memory: pinned memory is faster, and not what a user's own arrays are.
    """
    to_device = DeviceResult(metric="host_to_device", unit="B/s")
    to_host = DeviceResult(metric="device_to_host", unit="B/s")
    if device.startswith("CPU"):
        return [unsupported(wanted, "the host's memory is the device's own") for wanted in (to_device, to_host)]
    size = 4 * TRANSFER_ELEMENTS
    try:
        with tf.device("CPU:0"):
            on_host = tf.ones([TRANSFER_ELEMENTS])
        with tf.device(device):
            on_device = tf.ones([TRANSFER_ELEMENTS])
            there = measured(to_device, size, float(size), seconds_per_call(lambda: tf.identity(on_host)))
        with tf.device("CPU:0"):
            back = measured(to_host, size, float(size), seconds_per_call(lambda: tf.identity(on_device)))
    except tf.errors.OpError as error:
        return [unsupported(wanted, error) for wanted in (to_device, to_host)]
    return [there, back]


def all_reduce(strategy: Strategy) -> list[DeviceResult]:
    """Measure the sum of a tensor over the devices of a strategy, at several sizes.

    The value is bus bandwidth: bytes × 2 (n − 1) / n over the seconds of one all-reduce, which is what each link
    carries in a ring, whatever the number of devices.

    Args:
        strategy: Over two devices at least; it decides what moves the bytes (NCCL on GPUs). One per process:
            TensorFlow numbers the all-reduces of a second one from the start again.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    count = strategy.num_replicas_in_sync
    kind = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type
    found = []
    for size in ALL_REDUCE_BYTES[kind]:
        wanted = DeviceResult(metric="all_reduce", unit="B/s", devices=count, size=size)
        try:
            rounds = seconds_per_call(sum_over_replicas(strategy, size // 4))
            found.append(measured(wanted, size, bus_bytes(size, count), rounds))
        except tf.errors.OpError as error:
            found.append(unsupported(wanted, error))
    return found


def bus_bytes(size: int, count: int) -> float:
    """Return what each link of a ring of `count` devices carries for an all-reduce of `size` bytes."""
    return size * 2.0 * (count - 1) / count


def all_reduce_check(strategy: Strategy) -> Check:
    """Check that every device gets the sum of all: replica r holds r + 1, so the sum is n (n + 1) / 2."""
    count = strategy.num_replicas_in_sync
    wanted = count * (count + 1) / 2.0
    parts = sum_over_replicas(strategy, CHECKED_ELEMENTS)()
    worst = max(float(np.abs(part.numpy() - wanted).max()) for part in parts) / wanted
    return within("all_reduce", worst, 0.0, f"the sum of 1 to {count} on every one of {count} devices")


def sum_over_replicas(strategy: Strategy, elements: int) -> Callable[[], list[Tensor]]:
    """Return what starts one all-reduce of float32 elements and gives each replica's sum."""
    parts = []
    for replica, device in enumerate(strategy.extended.worker_devices):
        with tf.device(device):
            parts.append(tf.fill([elements], float(replica + 1)))
    remaining = iter(parts)
    values = strategy.experimental_distribute_values_from_function(lambda _: next(remaining))

    def of_replica(tensor: Tensor) -> Tensor:
        own = tf.identity(tensor)  # on the replica's device: what comes into a function is on none, and refused
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

    start = tf.function(lambda tensors: strategy.run(of_replica, args=(tensors,)))
    return lambda: list(strategy.experimental_local_results(start(values)))
