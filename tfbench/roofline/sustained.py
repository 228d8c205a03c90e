"""Matrix products that go on for seconds, on several devices side by side: what a device keeps up when it is hot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from results.schema import DeviceResult
from tfbench.keras_versions.types import Tensor
from tfbench.roofline.peaks import (
    MisplacedError,
    matrix_factor,
    measured,
    product_call,
    require_devices,
    unsupported,
    wait_for,
)

SIZES = {"CPU": 1024, "GPU": 8192}
"""Rows of the matrices: they fill a GPU, and a product of a processor takes milliseconds."""

SECONDS_BETWEEN_WAITS = 0.05


def sustained_products(arithmetic: str, devices: Sequence[str], seconds: float) -> list[DeviceResult]:
    """Multiply matrices on devices side by side for a time; one result for each of them.

    Args:
        arithmetic: `fp32`, `tf32` or `fp16`; TF32 is on or off as the process has it.
        devices: e.g. `["GPU:0", "GPU:1"]`.
        seconds: Of each.
    """
    wanted = [
        DeviceResult(metric="sustained_product", unit="FLOP/s", arithmetic=arithmetic, gpu=place)
        for place in range(len(devices))
    ]
    size = SIZES[devices[0].partition(":")[0]]
    try:
        calls = [product_call(matrix_factor(size, arithmetic, device), arithmetic, device) for device in devices]
        for call, device in zip(calls, devices, strict=True):
            first = call()
            require_devices(first, [device])
            wait_for(first)
    except (tf.errors.OpError, MisplacedError) as error:
        return [unsupported(result, error) for result in wanted]
    with ThreadPoolExecutor(len(devices)) as pool:
        timed = list(pool.map(lambda call: _seconds_per_call(call, seconds), calls))
    return [measured(result, size, 2.0 * size**3, [each]) for result, each in zip(wanted, timed, strict=True)]


def _seconds_per_call(call: Callable[[], Tensor], seconds: float) -> float:
    """Call until the time has passed, waiting only now and then, so that the device never waits for us."""
    begin = time.perf_counter()
    wait_for(call())
    together = max(1, round(SECONDS_BETWEEN_WAITS / max(time.perf_counter() - begin, 1e-6)))
    count, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        for _ in range(together):
            last = call()
        wait_for(last)
        count += together
    return spent / count
