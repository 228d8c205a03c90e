"""What this device can do at best, measured in the process that measured the network."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from results.schema import Check, DeviceResult, Precision
from tfbench.timing import percentile
from tfbench.types import Tensor
from tfbench.validity import within

MATRIX_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
"""Larger ones are tried until a product takes `ENOUGH_SECONDS`: a small one does not fill a large device."""

ENOUGH_SECONDS = 0.05
MEASURE_SECONDS = 0.4
ROUNDS = 20

COPY_ELEMENTS = {"CPU": 2**26, "GPU": 2**27}
"""float32 elements of each of two arrays, together 512 MiB and 1 GiB: the start of a call is below 1 % of it."""

ARITHMETIC = {
    "fp64": tf.float64,
    "fp32": tf.float32,
    "tf32": tf.float32,
    "fp16": tf.float16,
    "bf16": tf.bfloat16,
    "int8": tf.int8,
}
"""Kinds of matrix products and the type of their factors; int8 adds up in int32."""

PRODUCT_LIMITS = {"fp64": 1e-12, "fp32": 1e-5, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2, "int8": 0.0}
"""Largest relative difference from NumPy's fp64 product of the same factors: a few roundings of each type."""

CHECKED_ROWS = 256


def matrix_flops_per_second(precision: Precision, device: str) -> float | None:
    """Return the best rate of matrix products, in operations per second; see `matrix_product`.

    Args:
        precision: Decides the data type; TF32 is on or off as the process has it.
        device: e.g. `GPU:0`.

    Returns:
        None where that fails, usually because the device's memory is full.
    """
    return matrix_product(precision, device).value


def memory_bytes_per_second(device: str) -> float | None:
    """Return the memory bandwidth in bytes per second, read and written; see `memory_add`."""
    return memory_add(device).value


def matrix_product(arithmetic: str, device: str) -> DeviceResult:
    """Measure n × n matrix products: 2 n³ operations each, the size with the best rate.

    Args:
        arithmetic: One of `ARITHMETIC`; TF32 is on or off as the process has it.
        device: e.g. `GPU:0`.
    """
    unit = "OP/s" if arithmetic == "int8" else "FLOP/s"
    best = DeviceResult(metric="matrix_product", unit=unit, arithmetic=arithmetic, reason="no size was tried")
    for size in MATRIX_SIZES:
        try:
            rounds = seconds_per_call(_product(_factor(size, arithmetic, device), arithmetic, device))
        except (tf.errors.OpError, TypeError, ValueError) as error:
            return best if best.value else unsupported(best, error)
        found = measured(best, size, 2.0 * size**3, rounds)
        if best.value is None or (found.value or 0.0) > best.value:
            best = found
        if min(rounds) > ENOUGH_SECONDS:
            break
    return best


def product_check(arithmetic: str, device: str) -> Check:
    """Compare a product with NumPy's in fp64: |C − C_numpy| / |C_numpy|, Frobenius norms.

    Raises:
        OpError: The device has no such product.
    """
    factor = _factor(CHECKED_ROWS, arithmetic, device)
    wanted = np.asarray(tf.cast(factor, tf.float64).numpy())
    wanted = wanted @ wanted
    product = _product(factor, arithmetic, device)()
    difference = float(np.linalg.norm(tf.cast(product, tf.float64).numpy() - wanted) / np.linalg.norm(wanted))
    detail = f"{CHECKED_ROWS} × {CHECKED_ROWS} matrices, against NumPy's product in fp64"
    return within(f"product_{arithmetic}", difference, PRODUCT_LIMITS[arithmetic], detail)


def memory_add(device: str) -> DeviceResult:
    """Measure a += b over arrays far larger than any cache: two are read and one is written (as in STREAM).

    In place, because fresh memory on a CPU would cost a page fault per page.

    Args:
        device: e.g. `GPU:0`.
    """
    elements = COPY_ELEMENTS[device.partition(":")[0]]
    wanted = DeviceResult(metric="memory_add", unit="B/s")
    try:
        with tf.device(device):
            total = tf.Variable(tf.zeros([elements]), trainable=False)
            term = tf.Variable(tf.ones([elements]), trainable=False)

            done = tf.zeros([1])

            @tf.function
            def add() -> Tensor:
                # Not a slice of the sum: that would share its memory, and the next addition would copy all of it.
                with tf.control_dependencies([total.assign_add(term, read_value=False)]):
                    return tf.identity(done)

            return measured(wanted, 4 * elements, 3.0 * 4.0 * elements, seconds_per_call(add))
    except tf.errors.OpError as error:  # memory is full, or the library refuses
        return unsupported(wanted, error)


def measured(wanted: DeviceResult, size: int, amount: float, rounds: list[float]) -> DeviceResult:
    """Complete a result.

    Args:
        wanted: Says what was measured.
        size: Rows of a matrix, or bytes of an array.
        amount: Operations or bytes of one call.
        rounds: Seconds per call of each round.
    """
    return DeviceResult(
        metric=wanted.metric,
        unit=wanted.unit,
        arithmetic=wanted.arithmetic,
        devices=wanted.devices,
        size=size,
        amount=amount,
        seconds=min(rounds),
        p50_seconds=percentile(rounds, 0.50),
        p95_seconds=percentile(rounds, 0.95),
        value=amount / min(rounds),
    )


def unsupported(wanted: DeviceResult, why: Exception | str) -> DeviceResult:
    """Say why there is no figure; never a 0."""
    reason = why if isinstance(why, str) else f"{type(why).__name__}: {str(why).splitlines()[0] if str(why) else ''}"
    return DeviceResult(
        metric=wanted.metric,
        unit=wanted.unit,
        arithmetic=wanted.arithmetic,
        devices=wanted.devices,
        size=wanted.size,
        reason=reason[:300],
    )


def seconds_per_call(work: Callable[[], Tensor]) -> list[float]:
    """Return the seconds per call of a few rounds; the calls of a round follow each other without waiting.

    Args:
        work: Starts it, and returns a tensor (or several) that exists when it is finished.
    """
    wait_for(work())
    begin = time.perf_counter()
    wait_for(work())
    once = time.perf_counter() - begin
    calls = max(1, round(MEASURE_SECONDS / ROUNDS / max(once, 1e-6)))
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            last = work()
        wait_for(last)
        rounds.append((time.perf_counter() - begin) / calls)
    return rounds


def wait_for(result: Tensor) -> None:
    """Wait by reading one number of each tensor.

    Not inside of what is timed: a compiler would compute that one number only.
    """
    for tensor in tf.nest.flatten(result):
        tf.reshape(tensor, [-1])[0].numpy()


def tf32_observed(device: str) -> bool:
    """Multiply 1 + 2⁻¹² by 1: float32 keeps the sum, TF32's 10 bits of mantissa round it to 1.

    Args:
        device: e.g. `GPU:0`.
    """
    with tf.device(device):
        product = tf.matmul(tf.fill([256, 256], 1.0 + 2.0**-12), tf.eye(256))
        return bool(tf.reduce_all(product == 1.0))


def _factor(size: int, arithmetic: str, device: str) -> Tensor:
    """Draw a square matrix whose product with itself no type here overflows."""
    with tf.device(device):
        if arithmetic == "int8":
            return tf.cast(tf.random.stateless_uniform([size, size], (size, 1), -127, 128, tf.int32), tf.int8)
        return tf.cast(tf.random.stateless_uniform([size, size], (size, 1)) / size, ARITHMETIC[arithmetic])


def _product(factor: Tensor, arithmetic: str, device: str) -> Callable[[], Tensor]:
    with tf.device(device):
        if arithmetic == "int8":
            return tf.function(lambda: tf.linalg.matmul(factor, factor, output_type=tf.int32))
        return tf.function(lambda: tf.matmul(factor, factor))
