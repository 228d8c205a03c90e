"""Computes the figures of a record from timed steps."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypedDict

import tensorflow as tf

from results.schema import Case, Data, Device
from tfbench.flags import KnownPeaks
from tfbench.keras_types import Model
from tfbench.measuring.soft_warnings import UTILISATION_LIMIT
from tfbench.measuring.timing import TimedSteps
from tfbench.roofline.limits import work_per_sample
from tfbench.roofline.peaks import matrix_flops_per_second, memory_bytes_per_second

PEAK_TRIES = 3


class LimitFields(TypedDict, total=False):
    """Fields of a `Measurement` about the device's peak rates; those that were not measured are absent."""

    flops_per_sample: float | None
    bytes_per_sample: float | None
    fused_bytes_per_sample: float | None
    peak_flops_per_second: float | None
    flops_utilisation: float | None
    peak_bytes_per_second: float | None
    bandwidth_utilisation: float | None
    bandwidth_bound_samples_per_second: float | None
    peaks_reused: bool


def limit_fields(
    case: Case,
    model: Model,
    samples_per_step: int,
    timed: TimedSteps,
    measure_peaks: bool,
    known: KnownPeaks | None = None,
) -> LimitFields:
    """Return the fields about the device's peak rates, which are measured on the first device unless known.

    A known peak that the network itself exceeded is measured again.

    Logical CPU devices share one CPU, so their common peak is that of one.

    Args:
        case: What was measured.
        model: Its network.
        samples_per_step: Over all replicas.
        timed: The timed steps.
        measure_peaks: If false, return only the network's work.
        known: Peak rates measured by an earlier process; None: they are measured.
    """
    work = work_per_sample(model, samples_per_step / case.global_batch)
    step_flops = work.flops(case.mode)
    traffic, fused = work.bytes(case.precision, case.mode), work.fused_bytes(case.precision, case.mode)
    fields: LimitFields = {
        "flops_per_sample": step_flops,
        "bytes_per_sample": traffic,
        "fused_bytes_per_sample": fused,
    }
    if not measure_peaks:
        return fields
    rate = samples_per_step * len(timed.step_seconds) / timed.seconds
    devices = case.replicas if case.device is Device.GPU else case.num_hosts
    device = first_device(case)
    needed = rate * step_flops / devices / UTILISATION_LIMIT
    needed_bytes = rate * fused / devices
    flops: float | None
    bandwidth: float | None
    if known is not None and known.flops_per_second >= needed and known.bytes_per_second >= needed_bytes:
        flops, bandwidth = known.flops_per_second, known.bytes_per_second
        fields["peaks_reused"] = True
    else:
        flops = credible_peak(lambda: matrix_flops_per_second(case.precision, device), needed)
        bandwidth = credible_peak(lambda: memory_bytes_per_second(device), needed_bytes)
    if flops is not None:
        fields["peak_flops_per_second"] = flops * devices
        fields["flops_utilisation"] = rate * step_flops / (flops * devices)
    if bandwidth is not None:
        fields["peak_bytes_per_second"] = bandwidth * devices
        fields["bandwidth_utilisation"] = rate * traffic / (bandwidth * devices)
        fields["bandwidth_bound_samples_per_second"] = bandwidth * devices / fused
    return fields


def credible_peak(measure: Callable[[], float | None], needed: float) -> float | None:
    """Return the best of up to `PEAK_TRIES` measurements of a peak; the first one suffices if it is plausible.

    A peak that the network itself exceeded was measured while another program used the device.

    Args:
        measure: Returns a measurement, or None on failure.
        needed: Minimum plausible value: the rate of the network.
    """
    best = measure()
    for _ in range(PEAK_TRIES - 1):
        if best is None or best >= needed:
            break
        best = max(best, measure() or 0.0)
    return best


def host_bytes_per_second(case: Case, bytes_per_example: int, timed: TimedSteps) -> float | None:
    """Return the rate of input copied from the host to the devices; None if the batch stays on the device."""
    if case.data is Data.SYNTHETIC:
        return None
    return bytes_per_example * case.global_batch * len(timed.step_seconds) / timed.seconds


def device_memory_peak_bytes(case: Case) -> int | None:
    """Return TensorFlow's peak memory on one of the GPUs since `forget_memory_peak`; None on a CPU."""
    if case.device is not Device.GPU:
        return None
    peaks = [tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(case.num_gpus)]
    return int(max(peaks))


def forget_memory_peak(case: Case) -> None:
    """Reset the memory peak: the validity checks hold a second set of gradients for the reference."""
    if case.device is Device.GPU:
        gc.collect()  # the reference's function keeps its constants alive
        for index in range(case.num_gpus):
            tf.config.experimental.reset_memory_stats(f"GPU:{index}")


def first_device(case: Case) -> str:
    """Return the name of the first device of a case."""
    return "GPU:0" if case.device is Device.GPU else "CPU:0"
