"""The case without a network, which measures the devices themselves: `--model=device`."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from results.schema import Case, Check, DeviceResult, Status
from tfbench.environment import with_loaded_libraries
from tfbench.flags import Options
from tfbench.keras_types import Strategy
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer, cool_gpus
from tfbench.measuring import validity
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.roofline.peaks import ARITHMETIC, matrix_product, memory_add, product_check, tf32_observed, unsupported
from tfbench.roofline.sums import device_memory_peak_bytes, first_device
from tfbench.roofline.transfers import all_reduce, all_reduce_check, connect, host_transfers


def measure_devices(case: Case, strategy: Strategy, findings: Findings, options: Options, gpus: GPUs) -> None:
    """Measure the first device of a case, and the all-reduce over all its devices.

    Args:
        case: Only its device and number of replicas matter.
        strategy: Over these replicas.
        findings: Filled.
        options: How to measure it.
        gpus: Observed during the measurement; the null object on a CPU.

    Raises:
        CaseFailedError: A check failed: a device gives wrong results.
    """
    cooling = cool_gpus(gpus, options.max_cooling_seconds)
    observer = Observer(gpus)
    observer.start()
    device = first_device(case)
    connect(strategy)
    for arithmetic in ARITHMETIC:
        result, check = product_of(arithmetic, device)
        findings.device_results.append(result)
        findings.checks.append(check)
    findings.device_results += [memory_add(device), *host_transfers(device)]
    if case.num_gpus > 1:
        findings.device_results += all_reduce(strategy)
        findings.checks.append(all_reduce_check(strategy))
    findings.telemetry = replace(observer.stop(cooling), device_memory_peak_bytes=device_memory_peak_bytes(case))
    findings.gpus = observer.gpus
    conclude(findings)


def conclude(findings: Findings) -> None:
    """Add the loaded libraries to what was found.

    Raises:
        CaseFailedError: A check failed.
    """
    if findings.environment is not None:
        findings.environment = with_loaded_libraries(findings.environment)
    if any(check.passed is False for check in findings.checks):
        raise CaseFailedError(Status.INVALID, validity.failures(findings.checks))


def product_of(arithmetic: str, device: str) -> tuple[DeviceResult, Check]:
    """Measure and check one kind of matrix product; if the device lacks it, the result has a reason instead."""
    name = f"product_{arithmetic}"
    tf.config.experimental.enable_tensor_float_32_execution(arithmetic == "tf32")
    try:
        if arithmetic == "tf32" and not tf32_observed(device):
            wanted = DeviceResult(metric="matrix_product", unit="FLOP/s", arithmetic=arithmetic)
            reason = "the device does not round as TF32 does: that needs a GPU of compute capability 8.0 or more"
            return unsupported(wanted, reason), validity.does_not_apply(name, reason)
        result = matrix_product(arithmetic, device)
        if result.value is None:
            return result, validity.does_not_apply(name, result.reason or "not measured")
        return result, product_check(arithmetic, device)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(False)
