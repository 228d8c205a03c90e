"""Measures copies between host and device, and all-reduces between devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from results.schema import Check, DeviceResult
from tfbench.keras_versions import ReplicaResult, Strategy, Tensor
from tfbench.measuring.validity import within, worst
from tfbench.roofline import peaks

TRANSFER_ELEMENTS = 2**26
"""float32 elements of a transfer between host and device: 256 MiB."""

ALL_REDUCE_BYTES = {"CPU": (2**20, 2**24), "GPU": (2**20, 2**24, 2**28)}
"""Sizes of the all-reduced tensor: 1 MiB shows the latency, the largest the bandwidth."""

CHAINED = 16
"""All-reduces per call: Python's overhead of about 0.3 ms per call is then below 0.03 ms for each."""

CHAINED_ROUNDS = 5
"""Time limit for the rounds of one size: 256 MiB over PCIe take 0.7 s per call."""

CONNECTING_ELEMENTS = {"CPU": (1,), "GPU": (1, 2**24)}
"""Sizes of the first all-reduces: NCCL connects trees at the first small sum and rings at the first large one."""

CHECKED_ELEMENTS = 1000


def host_transfers(device: str) -> list[DeviceResult]:
    """Measure TensorFlow's copies from pinned host memory to a device and back.

    By functions: without one, TensorFlow keeps the first copy of a tensor and copies it only once.
    """
    to_device = DeviceResult(metric="host_to_device", unit="B/s")
    to_host = DeviceResult(metric="device_to_host", unit="B/s")
    if device.startswith("CPU"):
        return [peaks.unsupported(wanted, "the host's memory is the device's own") for wanted in (to_device, to_host)]
    size = 4 * TRANSFER_ELEMENTS

    def copy_back() -> Callable[[], Tensor]:
        with tf.device(device):
            ones = tf.ones([TRANSFER_ELEMENTS])
            peaks.require_devices([ones], [device])
        return peaks.on_device(lambda: tf.identity(ones), "CPU:0")

    def there() -> list[float]:
        # Copied from a device, it is in pinned memory; TensorFlow's other tensors are pageable, and one thread first
        # copies them: on an H100, 9 GB/s to the device were its rate, not the slot's, which copied 45 GB/s back.
        pinned = copy_back()()
        return peaks.seconds_per_call(peaks.on_device(lambda: tf.identity(pinned), device), [device])

    back = peaks.measured(to_host, size, float(size), lambda: peaks.seconds_per_call(copy_back(), ["CPU:0"]))
    return [peaks.measured(to_device, size, float(size), there), back]


def connect(strategy: Strategy) -> None:
    """Connect a strategy's devices; call before anything large is built.

    NCCL creates its communicator at the first all-reduce, and allocates memory from the driver. In the first step,
    TensorFlow's allocator may already hold all memory, and NCCL fails with "unhandled cuda error".

    Args:
        strategy: Over the case's replicas; of several hosts all ranks call this at the same time.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    for elements in CONNECTING_ELEMENTS[device_kind(strategy)]:
        peaks.wait_for(sum_over_replicas(strategy, elements)())


def all_reduce(strategy: Strategy) -> list[DeviceResult]:
    """Measure the all-reduce of a tensor over the devices of a strategy, at several sizes.

    The value is bus bandwidth: bytes × 2 (n − 1) / n over the seconds of one all-reduce, which is the load of each link
    of a ring, independent of the number of devices. One call does `CHAINED` of them.

    Args:
        strategy: Over at least two devices; determines the communication (NCCL on GPUs). Only one per process:
            TensorFlow would restart the numbering of all-reduces for a second one.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    count = strategy.num_replicas_in_sync
    devices = strategy.extended.worker_devices
    results = []
    for size in ALL_REDUCE_BYTES[device_kind(strategy)]:

        def rounds(elements: int = size // 4) -> list[float]:
            call = sum_over_replicas(strategy, elements, CHAINED)
            return [seconds / CHAINED for seconds in peaks.seconds_per_call(call, devices, CHAINED_ROUNDS)]

        wanted = DeviceResult(metric="all_reduce", unit="B/s", devices=count, size=size, chained=CHAINED)
        results.append(peaks.measured(wanted, size, bus_bytes(size, count), rounds))
    return results


def bus_bytes(size: int, count: int) -> float:
    """Return the bytes over each link of a ring of `count` devices for an all-reduce of `size` bytes."""
    return size * 2.0 * (count - 1) / count


def all_reduce_check(strategy: Strategy) -> Check:
    """Check that every device gets the right sum: replica r holds r + 1, so the sum is n (n + 1) / 2."""
    count = strategy.num_replicas_in_sync
    wanted = count * (count + 1) / 2.0
    parts = sum_over_replicas(strategy, CHECKED_ELEMENTS, CHAINED)()
    difference = worst([float(np.abs(part.numpy() - wanted).max()) for part in parts]) / wanted
    return within("all_reduce", difference, 0.0, f"the sum of 1 to {count} on every one of {count} devices")


def sum_over_replicas(strategy: Strategy, elements: int, times: int = 1) -> Callable[[], list[Tensor]]:
    """Return a function that all-reduces a float32 tensor and returns each replica's first `CHECKED_ELEMENTS` sums.

    Each time the same tensors are summed: summing the sums would need a scaling pass over memory to stay finite.
    TensorFlow removes none of the operations, because collectives are stateful, and keeps their order, because those of
    a device share its ordering token.

    Args:
        strategy: Over the replicas.
        elements: Of the tensor.
        times: Consecutive all-reduces per call.
    """
    parts = []
    for replica, device in enumerate(strategy.extended.worker_devices):
        with tf.device(device):
            parts.append(tf.fill([elements], float(replica + 1)))
    remaining = iter(parts)
    values = strategy.experimental_distribute_values_from_function(lambda _: next(remaining))
    first_sums = ReplicaResult(strategy, min(elements, CHECKED_ELEMENTS))

    def of_replica(tensor: Tensor) -> None:
        own = tf.identity(tensor)  # on the replica's device: an argument of the function is on none, and refused
        context = tf.distribute.get_replica_context()
        *_, sums = [context.all_reduce(tf.distribute.ReduceOp.SUM, own) for _ in range(times)]
        first_sums.assign(sums[:CHECKED_ELEMENTS])

    call = tf.function(lambda tensors: strategy.run(of_replica, args=(tensors,)), autograph=False)

    def start() -> list[Tensor]:
        call(values)
        return first_sums.read()

    return start


def device_kind(strategy: Strategy) -> str:
    """Return `CPU` or `GPU`."""
    return str(tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type)
