"""How fast bytes move between host and device, and between devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from results.schema import Check, DeviceResult
from tfbench.keras_types import Strategy, Tensor
from tfbench.measuring.validity import within
from tfbench.roofline.peaks import (
    MisplacedError,
    measured,
    require_devices,
    seconds_per_call,
    unsupported,
    wait_for,
)

TRANSFER_ELEMENTS = 2**26
"""float32 elements of a transfer between host and device: 256 MiB."""

ALL_REDUCE_BYTES = {"CPU": (2**20, 2**24), "GPU": (2**20, 2**24, 2**28)}
"""Sizes of an all-reduced tensor: 1 MiB shows what a start costs, the largest what the links carry."""

CHAINED = 16
"""All-reduces of one call: Python's share of a call, some 0.3 ms, is then below 0.03 ms of each."""

CHAINED_ROUNDS = 5
"""Of such calls: 256 MiB over PCIe take 0.7 s a call."""

CONNECTING_ELEMENTS = {"CPU": (1,), "GPU": (1, 2**24)}
"""Of the first all-reduces. NCCL connects its trees and its rings when it first uses them: small and large sums."""

CHECKED_ELEMENTS = 1000


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
            require_devices([on_host, on_device], ["CPU:0", device])
            there = measured(to_device, size, float(size), seconds_per_call(lambda: tf.identity(on_host), [device]))
        with tf.device("CPU:0"):
            back = measured(to_host, size, float(size), seconds_per_call(lambda: tf.identity(on_device), ["CPU:0"]))
    except (tf.errors.OpError, MisplacedError) as error:
        return [unsupported(wanted, error) for wanted in (to_device, to_host)]
    return [there, back]


def connect(strategy: Strategy) -> None:
    """Make the connections between a strategy's devices; call it before anything large is built.

    NCCL makes its communicator at the first all-reduce and asks the driver for memory then. Left to the first step,
    TensorFlow's allocator may hold all of it, and NCCL ends with "unhandled cuda error".

    Args:
        strategy: Over the case's replicas; of several hosts all ranks call this at the same time.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    for elements in CONNECTING_ELEMENTS[device_kind(strategy)]:
        wait_for(sum_over_replicas(strategy, elements)())


def all_reduce(strategy: Strategy) -> list[DeviceResult]:
    """Measure the sum of a tensor over the devices of a strategy, at several sizes.

    The value is bus bandwidth: bytes × 2 (n − 1) / n over the seconds of one all-reduce, which is what each link
    carries in a ring, whatever the number of devices. One call does `CHAINED` of them.

    Args:
        strategy: Over two devices at least; it decides what moves the bytes (NCCL on GPUs). One per process:
            TensorFlow numbers the all-reduces of a second one from the start again.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    count = strategy.num_replicas_in_sync
    devices = strategy.extended.worker_devices
    found = []
    for size in ALL_REDUCE_BYTES[device_kind(strategy)]:
        wanted = DeviceResult(metric="all_reduce", unit="B/s", devices=count, size=size, chained=CHAINED)
        try:
            rounds = seconds_per_call(sum_over_replicas(strategy, size // 4, CHAINED), devices, CHAINED_ROUNDS)
            found.append(measured(wanted, size, bus_bytes(size, count), [seconds / CHAINED for seconds in rounds]))
        except (tf.errors.OpError, MisplacedError) as error:
            found.append(unsupported(wanted, error))
    return found


def bus_bytes(size: int, count: int) -> float:
    """Return what each link of a ring of `count` devices carries for an all-reduce of `size` bytes."""
    return size * 2.0 * (count - 1) / count


def all_reduce_check(strategy: Strategy) -> Check:
    """Check that every device gets the sum of all: replica r holds r + 1, so the sum is n (n + 1) / 2."""
    count = strategy.num_replicas_in_sync
    wanted = count * (count + 1) / 2.0
    parts = sum_over_replicas(strategy, CHECKED_ELEMENTS, CHAINED)()
    worst = max(float(np.abs(part.numpy() - wanted).max()) for part in parts) / wanted
    return within("all_reduce", worst, 0.0, f"the sum of 1 to {count} on every one of {count} devices")


def sum_over_replicas(strategy: Strategy, elements: int, times: int = 1) -> Callable[[], list[Tensor]]:
    """Return what all-reduces float32 elements and gives each replica's sum.

    Args:
        strategy: Over the replicas.
        elements: Of the tensor.
        times: All-reduces of one call, one after another.
    """
    parts = []
    for replica, device in enumerate(strategy.extended.worker_devices):
        with tf.device(device):
            parts.append(tf.fill([elements], float(replica + 1)))
    remaining = iter(parts)
    values = strategy.experimental_distribute_values_from_function(lambda _: next(remaining))
    start = all_reduces(strategy, times)
    return lambda: list(strategy.experimental_local_results(start(values)))


def all_reduces(strategy: Strategy, times: int) -> Callable[[object], object]:
    """Return a function of all replicas' tensors that adds them up several times and gives the last sums.

    Each time the same tensors, so that the sums stay finite and nothing but all-reduces takes time: to add up sums
    would need a scaling pass over memory. None is excluded, since a collective operation has state, and they stay in
    order, since all of a device use its ordering token.

    Args:
        strategy: Over the replicas.
        times: All-reduces of one call.
    """

    def of_replica(tensor: Tensor) -> Tensor:
        own = tf.identity(tensor)  # on the replica's device: what comes into a function is on none, and refused
        context = tf.distribute.get_replica_context()
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, own) for _ in range(times)][-1]

    call: Callable[[object], object] = tf.function(
        lambda tensors: strategy.run(of_replica, args=(tensors,)), autograph=False
    )
    return call


def device_kind(strategy: Strategy) -> str:
    """Return `CPU` or `GPU`."""
    return str(tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type)
