"""What this device can do at best, measured in the process that measured the network."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

from results.schema import Precision

MATRIX_SIZES = (512, 1024, 2048, 4096, 8192)
"""Larger ones are tried until a product takes `ENOUGH_SECONDS`: a small one does not fill a large device."""

ENOUGH_SECONDS = 0.02
MEASURE_SECONDS = 0.2
ROUNDS = 3

COPY_ELEMENTS = {"CPU": 2**24, "GPU": 2**27}
"""float32 elements of each of two arrays: together 128 MiB and 1 GiB, larger than caches."""

_DTYPES = {
    Precision.FP32: tf.float32,
    Precision.TF32: tf.float32,
    Precision.FP16: tf.float16,
    Precision.BF16: tf.bfloat16,
}


def matrix_flops_per_second(precision: Precision, device: str) -> float | None:
    """Measure n × n matrix products: 2 n³ operations each, the best of a few rounds and sizes.

    Args:
        precision: Decides the data type; TF32 is on or off as the process has it.
        device: e.g. `GPU:0`.

    Returns:
        Operations per second; None where that fails, usually because the device's memory is full.
    """
    best = 0.0
    for size in MATRIX_SIZES:
        try:
            seconds = _seconds_per_product(size, precision, device)
        except tf.errors.OpError:  # memory is full, or the library refuses: the measurement itself is done
            return best or None
        best = max(best, 2.0 * size**3 / seconds)
        if seconds > ENOUGH_SECONDS:
            break
    return best


def memory_bytes_per_second(device: str) -> float | None:
    """Measure a += b over arrays far larger than any cache: two are read and one is written (as in STREAM).

    In place, because fresh memory on a CPU would cost a page fault per page.

    Args:
        device: e.g. `GPU:0`.

    Returns:
        Bytes per second, read and written; None where that fails, usually because the device's memory is full.
    """
    elements = COPY_ELEMENTS[device.partition(":")[0]]
    try:
        with tf.device(device):
            total = tf.Variable(tf.zeros([elements]), trainable=False)
            term = tf.Variable(tf.ones([elements]), trainable=False)

            @tf.function
            def add() -> tf.Tensor:
                return total.assign_add(term)[:1]

            return 3.0 * 4.0 * elements / _seconds(add)
    except tf.errors.OpError:  # memory is full, or the library refuses: the measurement itself is done
        return None


def _seconds_per_product(size: int, precision: Precision, device: str) -> float:
    with tf.device(device):
        factor = tf.cast(tf.random.stateless_uniform([size, size], (size, 1)) / size, _DTYPES[precision])

        @tf.function
        def product() -> tf.Tensor:
            return tf.matmul(factor, factor)

        return _seconds(product)


def _seconds(work: Callable[[], tf.Tensor]) -> float:
    """Return the seconds per call in the best of a few rounds; calls follow each other without waiting."""
    _wait_for(work())
    begin = time.perf_counter()
    _wait_for(work())
    once = time.perf_counter() - begin
    calls = max(1, round(MEASURE_SECONDS / ROUNDS / max(once, 1e-6)))
    best = once
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            last = work()
        _wait_for(last)
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


def _wait_for(result: tf.Tensor) -> None:
    """Wait by reading one number.

    Not inside of what is timed: a compiler would compute that one number only.
    """
    tf.reshape(result, [-1])[0].numpy()


def tf32_observed(device: str) -> bool:
    """Multiply 1 + 2⁻¹² by 1: float32 keeps the sum, TF32's 10 bits of mantissa round it to 1.

    Args:
        device: e.g. `GPU:0`.
    """
    with tf.device(device):
        product = tf.matmul(tf.fill([256, 256], 1.0 + 2.0**-12), tf.eye(256))
        return bool(tf.reduce_all(product == 1.0))
