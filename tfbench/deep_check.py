"""A two-minute acceptance test of a machine: `--model=device --deep_check`.

Measures each device alone, then all together under load for 20 s, then the all-reduce over all of them and the CPU.
`orchestrate/checks` judges the figures. Cases of several GPUs compare these by the same products, over all hosts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import tensorflow as tf

from results.schema import Case, Check, Device, DeviceResult
from results.schema.health import GPUFacts
from tfbench.device_case import conclude, product_of
from tfbench.keras_types import Strategy, Tensor
from tfbench.machine.host import LOOP_STEPS, loop_seconds
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer
from tfbench.outcomes.findings import Findings
from tfbench.peers.links import Alone, Peers
from tfbench.roofline.peaks import (
    ARITHMETIC,
    MisplacedError,
    measured,
    memory_add,
    product_call,
    product_check,
    seconds_of_one_call,
    tf32_observed,
    unsupported,
    wait_for,
)
from tfbench.roofline.transfers import (
    all_reduce,
    all_reduce_check,
    connect,
    host_transfers,
)

LOAD_SECONDS = 20.0
"""Duration of the load on all devices together: long enough for a GPU with too little cooling to throttle."""

ALONE_SECONDS = 0.5
"""Duration of each kind of product on each device alone."""

COMPARED_SECONDS = 0.5
"""Duration of the products that compare the GPUs of a case."""

PROCESSOR = "CPU:0"

SUSTAINED_SIZES = {"CPU": 1024, "GPU": 8192}
"""Rows of the matrices: enough to fill a GPU; on a CPU a product takes milliseconds."""

SECONDS_BETWEEN_WAITS = 0.05
MOST_CHAINED = 64


def deep_check(case: Case, strategy: Strategy, findings: Findings, gpus: GPUs) -> None:
    """Measure each device of a case alone, then all of them together.

    Args:
        case: Only its device and number of replicas matter.
        strategy: Over these replicas.
        findings: Filled, with a check of each device's products.
        gpus: Observed under load; the null object on a CPU.

    Raises:
        CaseFailedError: A device gives wrong results; what was measured is kept.
    """
    on_gpus = case.device is Device.GPU
    devices = [f"GPU:{place}" for place in range(case.num_gpus)] if on_gpus else [PROCESSOR]
    kinds = [kind for kind in ("fp32", "tf32", "fp16") if on_gpus or kind == "fp32"]
    connect(strategy)
    for place, device in enumerate(devices):
        findings.checks.append(_right(place, device))
        for kind in kinds:
            findings.device_results += _of(place, _products(kind, [device], ALONE_SECONDS))
        findings.device_results += _of(place, [memory_add(device), *(host_transfers(device) if on_gpus else [])])
    observer = Observer(gpus)
    observer.start()
    for kind in kinds:
        findings.device_results += _products(kind, devices, LOAD_SECONDS / len(kinds))
    findings.telemetry = observer.stop()
    findings.gpus = observer.gpus
    if case.num_gpus > 1 and on_gpus:
        findings.device_results += all_reduce(strategy)
        findings.checks.append(all_reduce_check(strategy))
    findings.device_results += _of_the_host(on_gpus)
    conclude(findings)


def with_product_rates(case: Case, gpus: Sequence[GPUFacts], peers: Peers | Alone) -> list[GPUFacts]:
    """Let all GPUs of a case multiply matrices at once, and add rates to the facts of those on this host.

    Step times cannot show which GPU is slow: all replicas wait for it.

    Args:
        case: Its precision is that of the products.
        gpus: Facts of those on this host; without enough memory they get no rates.
        peers: The other hosts; each of them calls this at the same time.
    """
    devices = [f"GPU:{gpu.place}" for gpu in gpus]
    results = sustained_products(case.precision, devices, COMPARED_SECONDS) if devices and case.replicas > 1 else []
    rates = [result.value / 1e12 for result in results if result.value is not None]
    rates = rates if len(rates) == len(gpus) else []
    every = [rate for of_rank in peers.gather("products", rates) for rate in of_rank]
    if not rates or len(every) < 2:
        return list(gpus)
    median = statistics.median_high(every)  # of two the faster: their mean would hide a GPU that is 18 % slower
    return [
        replace(gpu, product_teraflops_per_second=rate, product_median_teraflops_per_second=median)
        for gpu, rate in zip(gpus, rates, strict=True)
    ]


def _right(place: int, device: str) -> Check:
    """Check the products of one device, in a check named after it."""
    found = product_check("fp32", device)
    return replace(found, name=f"product_of_device_{place}")


def _products(kind: str, devices: Sequence[str], seconds: float) -> list[DeviceResult]:
    tf.config.experimental.enable_tensor_float_32_execution(kind == "tf32")
    try:
        if kind == "tf32" and not tf32_observed(devices[0]):
            return []
        return sustained_products(kind, devices, seconds)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)


def _of(place: int, results: Sequence[DeviceResult]) -> list[DeviceResult]:
    """Return the results, marked with the device that they were measured on."""
    return [replace(result, gpu=place) for result in results]


def _of_the_host(on_gpus: bool) -> list[DeviceResult]:
    """Measure the CPU; if it is the device under test, only a loop of Python code."""
    seconds = loop_seconds()
    rate = LOOP_STEPS / seconds
    loop = DeviceResult(metric="python_loop", unit="1/s", amount=LOOP_STEPS, seconds=seconds, value=rate)
    return [loop, product_of("fp32", PROCESSOR)[0], memory_add(PROCESSOR)] if on_gpus else [loop]


def sustained_products(arithmetic: str, devices: Sequence[str], seconds: float) -> list[DeviceResult]:
    """Multiply matrices on several devices at once, and return one result per device.

    Args:
        arithmetic: `fp32`, `tf32` or `fp16`; the process's TF32 switch applies.
        devices: e.g. `["GPU:0", "GPU:1"]`.
        seconds: Duration.
    """
    wanted = [
        DeviceResult(metric="sustained_product", unit="FLOP/s", arithmetic=arithmetic, gpu=place)
        for place in range(len(devices))
    ]
    size = SUSTAINED_SIZES[devices[0].partition(":")[0]]
    try:
        chains = [_chain(size, arithmetic, device) for device in devices]
        with ThreadPoolExecutor(len(devices)) as pool:
            timed = list(pool.map(lambda chain: _seconds_per_product(chain, seconds), chains))
    except (tf.errors.OpError, MisplacedError) as error:
        return [unsupported(result, error) for result in wanted]
    return [measured(result, size, 2.0 * size**3, [each]) for result, each in zip(wanted, timed, strict=True)]


def _chain(size: int, arithmetic: str, device: str) -> tuple[Callable[[], Tensor], int]:
    """Return a call of many products, so that no device waits until Python has served the others, and their number."""
    bound = math.sqrt(3.0 / size)  # variance 1 / size: powers of the matrix neither grow nor vanish
    with tf.device(device):
        factor = tf.cast(tf.random.stateless_uniform([size, size], (size, 1), -bound, bound), ARITHMETIC[arithmetic])
    seconds = seconds_of_one_call(product_call(factor, device), [device])
    products = min(MOST_CHAINED, max(1, round(SECONDS_BETWEEN_WAITS / max(seconds, 1e-6))))
    chain = product_call(factor, device, products)
    wait_for(chain())
    return chain, products


def _seconds_per_product(chain: tuple[Callable[[], Tensor], int], seconds: float) -> float:
    call, products = chain
    count, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        wait_for(call())
        count += products
    return spent / count
