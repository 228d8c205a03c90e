"""From the record of a deep check to the figures that are judged."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrate.accepting.figures import ARITHMETIC, GPUFigures, HostFigures
from results.schema import Device, DeviceObservation, DeviceResult, Record

PRODUCT_CHECK = "product_of_device_"
"""Name of the check of a device's products, before its place."""


def figures_of(record: Record) -> HostFigures:
    """Return what a deep check's record says of its host.

    Products are those under load, of all devices together; without them, those of the device alone.
    """
    origin, on_gpus = record.origin, record.case.device is Device.GPU
    fleet, host = (origin.fleet, origin.host) if origin else ("-", "-")
    results = [result for result in record.device_results if result.value is not None]
    own = [result for result in results if result.gpu is None or not on_gpus]
    sums = [result for result in results if result.metric == "all_reduce"]
    return HostFigures(
        fleet=fleet,
        host=host,
        gpus=tuple(_gpu(seen, record, results) for seen in _observed(record)) if on_gpus else (),
        all_reduce_bytes_per_second=_best(of_all for of_all in sums if of_all.peer is None),
        pairs=_pairs(sums, record),
        cpu_products=_last(own, "matrix_product", "fp32") or _last(own, "sustained_product", "fp32"),
        cpu_loop_seconds=_inverse(_last(own, "python_loop")),
        cpu_memory_bytes_per_second=_last(own, "memory_add"),
        disk_bytes_per_second=_last(own, "disk_read"),
    )


def _pairs(sums: Iterable[DeviceResult], record: Record) -> dict[tuple[int, int], float]:
    """Return the all-reduces of two GPUs by their indices; a place that nothing is known of stays out."""
    index_of = {seen.place: seen.index for seen in _observed(record)}
    found = {}
    for result in sums:
        pair = [index_of.get(place) for place in (result.gpu, result.peer) if place is not None]
        if len(pair) == 2 and None not in pair and result.value is not None:
            first, second = sorted(index for index in pair if index is not None)
            found[first, second] = result.value
    return found


def _observed(record: Record) -> list[DeviceObservation]:
    """Return what the driver said of each GPU; of those that it said nothing of, their names alone."""
    if record.device_observations:
        return record.device_observations
    gpus = record.environment.gpus if record.environment else []
    return [DeviceObservation(place=place, index=gpu.index, name=gpu.name) for place, gpu in enumerate(gpus)]


def _gpu(seen: DeviceObservation, record: Record, results: list[DeviceResult]) -> GPUFigures:
    own = [result for result in results if result.gpu == seen.place]
    checks = record.validity.checks if record.validity else []
    right = next((check.passed for check in checks if check.name == f"{PRODUCT_CHECK}{seen.place}"), None)
    products = {kind: value for kind in ARITHMETIC if (value := _last(own, "sustained_product", kind)) is not None}
    return GPUFigures(
        index=seen.index,
        name=seen.name,
        products=products,
        memory_bytes_per_second=_last(own, "memory_add"),
        to_device_bytes_per_second=_last(own, "host_to_device"),
        to_host_bytes_per_second=_last(own, "device_to_host"),
        pcie_generation=seen.pcie_generation,
        pcie_width=seen.pcie_width,
        pcie_width_max=seen.pcie_width_max,
        clock_mhz=seen.clock_mean_mhz,
        clock_max_mhz=seen.clock_max_mhz,
        power_watts=seen.power_mean_watts,
        power_limit_watts=seen.power_limit_watts,
        power_limit_default_watts=seen.power_limit_default_watts,
        temperature_celsius=seen.temperature_max_celsius,
        throttle_power_share=seen.throttle_power_share,
        throttle_thermal_share=seen.throttle_thermal_share,
        throttle_hardware_share=seen.throttle_hardware_share,
        ecc_uncorrected_errors=seen.ecc_uncorrected_errors,
        row_remap_failed=seen.row_remap_failed,
        row_remap_pending=seen.row_remap_pending,
        xid_errors=tuple(seen.xid_errors) if seen.xid_known else None,
        products_right=right,
    )


def _last(results: Iterable[DeviceResult], metric: str, arithmetic: str | None = None) -> float | None:
    """Return the last figure of a metric: what is measured under load comes after what is measured alone."""
    values = [result.value for result in results if (result.metric, result.arithmetic) == (metric, arithmetic)]
    return values[-1] if values else None


def _best(results: Iterable[DeviceResult]) -> float | None:
    return max((result.value for result in results if result.value is not None), default=None)


def _inverse(rate: float | None) -> float | None:
    """Return the seconds of the loop of which a rate of steps is known."""
    return 1e6 / rate if rate else None
