"""Cases without a network, which measure the devices themselves: `--model=device`, and with `--deep_check`.

The deep check is an acceptance test of two minutes: each device alone, then all together under load, then the
all-reduce over all of them and the CPU. `orchestrate/deep_check.py` judges it. Cases of several GPUs compare these
by the same products, over all hosts.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import tensorflow as tf

from results.schema import Case, Check, Device, DeviceResult, Status
from results.schema.health import GPUFacts
from tfbench.devices import device_memory_peak_bytes, first_device, with_loaded_libraries
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
from tfbench.flags import Options
from tfbench.keras_versions import Strategy, Tensor
from tfbench.machine.host import LOOP_STEPS, loop_seconds
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer
from tfbench.measuring import validity
from tfbench.peers import Peers
from tfbench.roofline import peaks, transfers

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


def measure_devices(case: Case, strategy: Strategy, findings: Findings, options: Options, gpus: GPUs) -> None:
    """Measure the devices of a case.

    Args:
        case: Only its device, number of replicas and `deep_check` matter.
        strategy: Over these replicas.
        findings: Filled.
        options: How to measure it.
        gpus: Observed during the measurement, of a deep check under load; the null object on a CPU.

    Raises:
        CaseFailedError: A check failed: a device gives wrong results. What was measured is kept.
    """
    if case.deep_check:
        _check_deeply(case, strategy, findings, gpus)
    else:
        _measure_first(case, strategy, findings, options, gpus)
    if findings.environment is not None:
        findings.environment = with_loaded_libraries(findings.environment)
    if any(check.passed is False for check in findings.checks):
        raise CaseFailedError(Status.INVALID, validity.failures(findings.checks))


def _measure_first(case: Case, strategy: Strategy, findings: Findings, options: Options, gpus: GPUs) -> None:
    """Measure the first device of a case, and the all-reduce over all of them."""
    observer = Observer(gpus)
    observer.cool(options.max_cooling_seconds)
    observer.start()
    device = first_device(case)
    transfers.connect(strategy)
    products = [product_of(arithmetic, device) for arithmetic in peaks.ARITHMETIC]
    findings.device_results += [result for result, _ in products]
    findings.checks += [check for _, check in products]
    findings.device_results += [peaks.memory_add(device), *transfers.host_transfers(device)]
    _all_reduce(case, strategy, findings)
    findings.telemetry = replace(observer.stop(), device_memory_peak_bytes=device_memory_peak_bytes(case))
    findings.gpus = observer.gpus


def _all_reduce(case: Case, strategy: Strategy, findings: Findings) -> None:
    if case.num_gpus > 1:
        findings.device_results += transfers.all_reduce(strategy)
        findings.checks.append(transfers.all_reduce_check(strategy))


def _check_deeply(case: Case, strategy: Strategy, findings: Findings, gpus: GPUs) -> None:
    """Measure each device of a case alone, then all of them together, and the host."""
    on_gpus = case.device is Device.GPU
    devices = [f"GPU:{place}" for place in range(case.num_gpus)] if on_gpus else [PROCESSOR]
    kinds = ["fp32", "tf32", "fp16"] if on_gpus else ["fp32"]
    transfers.connect(strategy)
    for place, device in enumerate(devices):
        findings.checks.append(replace(peaks.product_check("fp32", device), name=f"product_of_device_{place}"))
        alone = [result for kind in kinds for result in sustained_products(kind, [device], ALONE_SECONDS)]
        alone += [peaks.memory_add(device), *(transfers.host_transfers(device) if on_gpus else [])]
        findings.device_results += [replace(result, gpu=place) for result in alone]
    observer = Observer(gpus)
    observer.start()
    for kind in kinds:
        findings.device_results += sustained_products(kind, devices, LOAD_SECONDS / len(kinds))
    findings.telemetry = observer.stop()
    findings.gpus = observer.gpus
    if on_gpus:
        _all_reduce(case, strategy, findings)
        findings.device_results += [product_of("fp32", PROCESSOR)[0], peaks.memory_add(PROCESSOR)]
    seconds = loop_seconds()
    loop = DeviceResult(metric="python_loop", unit="1/s", amount=LOOP_STEPS, seconds=seconds)
    findings.device_results.append(replace(loop, value=LOOP_STEPS / seconds))


def with_product_rates(case: Case, gpus: Sequence[GPUFacts], peers: Peers) -> list[GPUFacts]:
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


def product_of(arithmetic: str, device: str) -> tuple[DeviceResult, Check]:
    """Measure and check one kind of matrix product; if the device lacks it, the result has a reason instead."""
    name = f"product_{arithmetic}"
    with peaks.tf32_for(arithmetic):
        if arithmetic == "tf32" and not peaks.tf32_observed(device):
            wanted = DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic=arithmetic)
            reason = "the device does not round as TF32 does: that needs a GPU of compute capability 8.0 or more"
            return peaks.unsupported(wanted, reason), validity.does_not_apply(name, reason)
        result = peaks.matrix_product(arithmetic, device)
        if result.value is None:
            return result, validity.does_not_apply(name, result.reason or "not measured")
        return result, peaks.product_check(arithmetic, device)


def sustained_products(arithmetic: str, devices: Sequence[str], seconds: float) -> list[DeviceResult]:
    """Multiply matrices on several devices at once, and return one result per device; none if they lack TF32.

    A call chains many products, so that no device waits until Python has served the others.

    Args:
        arithmetic: One of `ARITHMETIC`.
        devices: e.g. `["GPU:0", "GPU:1"]`.
        seconds: Duration.
    """
    wanted = [
        DeviceResult(metric="sustained_product", unit="FLOP/s", arithmetic=arithmetic, gpu=place)
        for place in range(len(devices))
    ]
    size = SUSTAINED_SIZES[devices[0].partition(":")[0]]

    def seconds_per_product(chain: tuple[Callable[[], Tensor], int]) -> float:
        call, products = chain
        return statistics.fmean(peaks.rounds_of(call, SECONDS_BETWEEN_WAITS, sys.maxsize, seconds)) / products

    with peaks.tf32_for(arithmetic):
        if arithmetic == "tf32" and not peaks.tf32_observed(devices[0]):
            return []
        try:
            chains = [_chain(size, arithmetic, device) for device in devices]
            with ThreadPoolExecutor(len(devices)) as pool:
                timed = list(pool.map(seconds_per_product, chains))
        except peaks.FAILURES as error:
            return [peaks.unsupported(result, error) for result in wanted]
    return [peaks.with_figures(result, size, 2.0 * size**3, [each]) for result, each in zip(wanted, timed, strict=True)]


def _chain(size: int, arithmetic: str, device: str) -> tuple[Callable[[], Tensor], int]:
    """Return a function that computes products for about `SECONDS_BETWEEN_WAITS`, and their number."""
    bound = math.sqrt(3.0 / size)  # variance 1 / size: powers of the matrix neither grow nor vanish
    with tf.device(device):
        factor = tf.cast(
            tf.random.stateless_uniform([size, size], (size, 1), -bound, bound), peaks.ARITHMETIC[arithmetic]
        )
    once = peaks.seconds_of_one_call(peaks.product_call(factor, device), [device])
    products = min(MOST_CHAINED, max(1, round(SECONDS_BETWEEN_WAITS / max(once, 1e-6))))
    chain = peaks.product_call(factor, device, products)
    peaks.wait_for(chain())
    return chain, products
