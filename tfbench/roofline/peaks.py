"""Peak rates of a device, measured in the process that measured the network."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from results.schema import Check, DeviceResult
from tfbench.keras_versions import Tensor
from tfbench.measuring.timing import percentile
from tfbench.measuring.validity import within

MATRIX_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
"""Sizes to try once each, until a product takes `ENOUGH_SECONDS`: a small one does not fill a large device."""

ENOUGH_SECONDS = {"CPU": 0.005, "GPU": 0.02}
"""By kind of device: a launch costs a GPU a share of a short product, and a CPU next to nothing."""

NEARLY_BEST = 0.8
"""Sizes whose first product reaches this share of the best rate are measured in full."""

MEASURE_SECONDS = 0.4
ROUNDS = 20

PEAK_SECONDS = 0.2
"""Time limit for the rounds of one size next to a network: large products on a CPU would take much longer."""

FEWEST_ROUNDS = 5

COPY_ELEMENTS = {"CPU": 2**26, "GPU": 2**27}
"""float32 elements of each of two arrays, together 512 MiB or 1 GiB: the overhead of a call is below 1 %."""

ARITHMETIC = {
    "fp64": tf.float64,
    "fp32": tf.float32,
    "tf32": tf.float32,
    "fp16": tf.float16,
    "bf16": tf.bfloat16,
}
"""Kinds of matrix products, with the type of their factors."""

PRODUCT_LIMITS = {"fp64": 1e-12, "fp32": 1e-5, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}
"""Limit of the relative difference from NumPy's fp64 product of the same factors: a few roundings of each type."""

CHECKED_ROWS = 256

TF32_PROBE = 1.0 + 2.0**-12
"""Representable in float32, with 23 bits of mantissa; TF32, with 10 bits, rounds it to 1."""

MAX_REASON_LENGTH = 300
"""Maximum length of a reason; TensorFlow's messages can contain a whole graph."""


class MisplacedError(Exception):
    """TensorFlow computed on another device than the one under test."""


FAILURES = (tf.errors.OpError, MisplacedError)
"""Memory is full, a library returned an error, or the device has no kernel."""


def matrix_product(arithmetic: str, device: str, most_seconds: float = math.inf) -> DeviceResult:
    """Measure n × n matrix products of 2 n³ operations at increasing sizes, and return the best rate.

    Args:
        arithmetic: One of `ARITHMETIC`; TF32 is on or off as the process has it.
        device: e.g. `GPU:0`.
        most_seconds: Time limit for the rounds of one size, of which at least `FEWEST_ROUNDS` run.
    """
    wanted = DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic=arithmetic)
    best = unsupported(wanted, "no size was tried")
    tried: list[tuple[int, Callable[[], Tensor], float]] = []
    for size in MATRIX_SIZES:
        try:
            factor = matrix_factor(size, arithmetic, device)
            require_devices(factor, [device])  # otherwise each call would copy it
            with strict_placement():
                call = product_call(factor, device)
                seconds = seconds_of_one_call(call, [device])
        except (*FAILURES, TypeError, ValueError) as error:
            best = unsupported(wanted, error)
            break
        tried.append((size, call, seconds))
        if seconds > ENOUGH_SECONDS[device.partition(":")[0]]:
            break
    most = max((size**3 / seconds for size, _, seconds in tried), default=0.0)
    for size, call, seconds in tried:  # measure in full those that came near the best rate
        if size**3 / seconds < NEARLY_BEST * most:
            continue
        rounds = functools.partial(rounds_of, call, seconds, most_seconds=most_seconds)
        with strict_placement():
            found = measured(wanted, size, 2.0 * size**3, rounds)  # fails without memory for several calls at once
        best = max(found, best, key=lambda result: result.value or 0.0)
    return best


def product_check(arithmetic: str, device: str) -> Check:
    """Compare a product with NumPy's in fp64: |C − C_numpy| / |C_numpy|, Frobenius norms.

    Args:
        arithmetic: One of `ARITHMETIC`.
        device: e.g. `GPU:0`.

    Raises:
        OpError: The device does not support this product.
    """
    factor = matrix_factor(CHECKED_ROWS, arithmetic, device)
    wanted = np.asarray(tf.cast(factor, tf.float64).numpy())
    wanted = wanted @ wanted
    with strict_placement():
        product = product_call(factor, device)().numpy()
    difference = float(np.linalg.norm(product.astype(np.float64) - wanted) / np.linalg.norm(wanted))
    detail = f"{CHECKED_ROWS} × {CHECKED_ROWS} matrices, against NumPy's product in fp64"
    return within(f"product_{arithmetic}", difference, PRODUCT_LIMITS[arithmetic], detail)


def memory_add(device: str, most_seconds: float = math.inf) -> DeviceResult:
    """Measure a += b over arrays far larger than any cache: two reads and one write (as in STREAM).

    In place, because on a CPU fresh memory would cost a page fault per page.

    Args:
        device: e.g. `GPU:0`.
        most_seconds: Time limit for all rounds, of which at least `FEWEST_ROUNDS` run.
    """
    elements = COPY_ELEMENTS[device.partition(":")[0]]

    def rounds() -> list[float]:
        with tf.device(device):
            total = tf.Variable(tf.zeros([elements]), trainable=False)
            term, done = tf.Variable(tf.ones([elements]), trainable=False), tf.zeros([1])

        def add() -> Tensor:
            # Not a slice of the sum, which would share its memory, so that the next addition would copy all of it.
            with tf.control_dependencies([total.assign_add(term, read_value=False)]):
                return tf.identity(done)

        with strict_placement():
            return seconds_per_call(on_device(add, device), [device], most_seconds=most_seconds)

    return measured(DeviceResult(metric="memory_add", unit="B/s"), 4 * elements, 3.0 * 4.0 * elements, rounds)


def measured(wanted: DeviceResult, size: int, amount: float, rounds: Callable[[], list[float]]) -> DeviceResult:
    """Return a result with its figures, or why it has none: never a 0.

    Args:
        wanted: The result without figures.
        size: Rows of a matrix, or bytes of an array.
        amount: Operations or bytes of one call.
        rounds: Measures the seconds per call of each round.
    """
    try:
        return with_figures(wanted, size, amount, rounds())
    except FAILURES as error:
        return unsupported(wanted, error)


def with_figures(wanted: DeviceResult, size: int, amount: float, seconds: list[float]) -> DeviceResult:
    """Return a result with the figures of its rounds; see `measured`."""
    p50, p95 = percentile(seconds, 0.50), percentile(seconds, 0.95)
    timed = dataclasses.replace(wanted, seconds=min(seconds), p50_seconds=p50, p95_seconds=p95)
    return dataclasses.replace(timed, size=size, amount=amount, value=amount / min(seconds))


def unsupported(wanted: DeviceResult, why: Exception | str) -> DeviceResult:
    """Return a result without a figure, with the reason."""
    reason = why if isinstance(why, str) else f"{type(why).__name__}: {str(why).splitlines()[0] if str(why) else ''}"
    return dataclasses.replace(wanted, reason=reason[:MAX_REASON_LENGTH])


def seconds_per_call(
    work: Callable[[], Tensor], devices: Sequence[str], rounds: int = ROUNDS, most_seconds: float = math.inf
) -> list[float]:
    """Return the seconds per call of a few rounds; calls within a round are not waited for.

    Args:
        work: Starts the work, and returns one or several tensors that exist once it is finished.
        devices: Expected device of each of these tensors, e.g. `["GPU:0"]`.
        rounds: Number of rounds.
        most_seconds: Time limit, which reduces the rounds to no fewer than `FEWEST_ROUNDS`.

    Raises:
        MisplacedError: A tensor is on another device.
    """
    return rounds_of(work, seconds_of_one_call(work, devices), rounds, most_seconds)


def seconds_of_one_call(work: Callable[[], Tensor], devices: Sequence[str]) -> float:
    """Return the seconds of the second call; in the first one it is traced and the device selects its kernel.

    Args:
        work: See `seconds_per_call`.
        devices: Likewise.

    Raises:
        MisplacedError: A tensor is on another device.
    """
    first = work()
    require_devices(first, devices)
    wait_for(first)
    begin = time.perf_counter()
    wait_for(work())
    return time.perf_counter() - begin


def rounds_of(
    work: Callable[[], Tensor], once: float, rounds: int = ROUNDS, most_seconds: float = math.inf
) -> list[float]:
    """Return the seconds per call of each round of work that has run at least once.

    Args:
        work: See `seconds_per_call`.
        once: Seconds of one call.
        rounds: Number of rounds.
        most_seconds: Time limit, which reduces the rounds to no fewer than `FEWEST_ROUNDS`.
    """
    calls = max(1, round(MEASURE_SECONDS / ROUNDS / max(once, 1e-6)))
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < rounds and (len(seconds) < FEWEST_ROUNDS or time.perf_counter() < began + most_seconds):
        begin = time.perf_counter()
        for _ in range(calls):
            last = work()
        wait_for(last)
        seconds.append((time.perf_counter() - begin) / calls)
    return seconds


def wait_for(result: Tensor) -> None:
    """Wait by reading one number of each tensor.

    Outside the timed function: inside, a compiler would compute only that number. The number is taken on the tensor's
    own device: elsewhere, TensorFlow would copy the whole tensor first.
    """
    for tensor in tf.nest.flatten(result):
        own = tf.DeviceSpec.from_string(tensor.backing_device)
        with tf.device(f"{own.device_type}:{own.device_index}"):  # of several hosts, the name of a task is refused
            first = tf.reshape(tensor, [-1])[0]
        first.numpy()


def require_devices(result: Tensor, devices: Sequence[str]) -> None:
    """Check that each tensor of a result is on its device.

    TensorFlow silently runs operations without a kernel for the device on the host, where the result stays.

    Raises:
        MisplacedError: A tensor is on another device.
    """
    for tensor, device in zip(tf.nest.flatten(result), devices, strict=True):
        found, asked = (tf.DeviceSpec.from_string(name) for name in (tensor.backing_device, device))
        if (found.device_type, found.device_index) != (asked.device_type, asked.device_index):
            raise MisplacedError(
                f"TensorFlow computed on {found.device_type}:{found.device_index} what was meant for {device}"
            )


@contextlib.contextmanager
def switched(before: bool, switch: Callable[[bool], None], on: bool) -> Iterator[None]:
    """Turn a switch of TensorFlow on or off for a block."""
    switch(on)
    try:
        yield
    finally:
        switch(before)


def strict_placement() -> contextlib.AbstractContextManager[None]:
    """Make TensorFlow fail, instead of using the host, if a device has no kernel for an operation."""
    return switched(tf.config.get_soft_device_placement(), tf.config.set_soft_device_placement, False)


def tf32_for(arithmetic: str) -> contextlib.AbstractContextManager[None]:
    """Allow TF32 for a kind of products only."""
    switches = tf.config.experimental
    before = switches.tensor_float_32_execution_enabled()
    return switched(before, switches.enable_tensor_float_32_execution, arithmetic == "tf32")


def tf32_observed(device: str) -> bool | None:
    """Detect TF32 by a product and a convolution of 1 + 2⁻¹² by the identity: TF32's 10 bits of mantissa round it to 1.

    Args:
        device: e.g. `GPU:0`.

    Returns:
        Whether one of them rounds; None if TensorFlow computed on another device, or the device no number.
    """
    with tf.device(device):
        centre = tf.pad(tf.reshape(tf.eye(64), [1, 1, 64, 64]), [[1, 1], [1, 1], [0, 0], [0, 0]])
        results = [tf.matmul(tf.fill([256, 256], TF32_PROBE), tf.eye(256))]
        # Of a convolution, cuDNN's fastest algorithm may not round although others do.
        results.append(tf.nn.conv2d(tf.fill([8, 16, 16, 64], TF32_PROBE), centre, 1, "SAME"))
    try:
        require_devices(results, [device, device])
    except MisplacedError:
        return None
    # They need not be exactly 1: transform-based algorithms (Winograd, FFT) round in between.
    distances = [np.abs(result.numpy() - 1.0).max() for result in results]
    return None if np.isnan(distances).any() else bool(min(distances) < (TF32_PROBE - 1.0) / 2.0)


def matrix_factor(size: int, arithmetic: str, device: str) -> Tensor:
    """Draw a square matrix whose product with itself does not overflow any type used here."""
    with tf.device(device):
        return tf.cast(tf.random.stateless_uniform([size, size], (size, 1)) / size, ARITHMETIC[arithmetic])


def product_call(factor: Tensor, device: str, times: int = 1) -> Callable[[], Tensor]:
    """Return a function that multiplies a matrix by itself on a device, and the product again by the matrix."""

    def multiply() -> Tensor:
        product = factor
        for _ in range(times):
            product = tf.matmul(product, factor)
        return product

    return on_device(multiply, device)


def on_device(compute: Callable[[], Tensor], device: str) -> Callable[[], Tensor]:
    """Return a function that computes on a device, traced once."""

    @tf.function(autograph=False)
    def placed() -> Tensor:
        with tf.device(device):  # here, because a function is traced outside the scope in which it was created
            return compute()

    start: Callable[[], Tensor] = placed.get_concrete_function()  # `placed` itself warns if there are many
    return start
