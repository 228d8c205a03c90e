"""What the driver says of each GPU by itself after it was under load."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pynvml

from results.schema import DeviceObservation
from tfbench.machine import gpu_samples
from tfbench.machine.boards import Visible, offered
from tfbench.machine.gpu_samples import Sample, Samples
from tfbench.machine.nvml import GPUs
from tfbench.machine.xid import kernel_messages, short_bus_id, xid_errors


def observations(gpus: GPUs, samples: Samples) -> list[DeviceObservation]:
    """Describe each GPU of a case, in its order.

    Args:
        gpus: Still open.
        samples: Of each, taken under load.
    """
    messages = kernel_messages() if len(gpus) else None
    errors = None if messages is None else xid_errors(messages)
    pairs = zip(gpus.devices, samples, strict=False)
    return [_observation(place, device, taken, errors) for place, (device, taken) in enumerate(pairs)]


def _observation(
    place: int, device: Visible, samples: Sequence[Sample], errors: dict[str, list[int]] | None
) -> DeviceObservation:
    board = device.board.handle
    rows = offered(pynvml.nvmlDeviceGetRemappedRows, board)
    ecc = offered(
        pynvml.nvmlDeviceGetTotalEccErrors, board, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    )
    limit = offered(pynvml.nvmlDeviceGetEnforcedPowerLimit, board)
    usual = offered(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, board)
    bus = None if device.board.bus_id is None else short_bus_id(device.board.bus_id)
    return DeviceObservation(
        place=place,
        index=device.board.index,
        name=device.name,
        clock_mean_mhz=_mean([sample.sm_clock_mhz for sample in samples]),
        clock_max_mhz=offered(pynvml.nvmlDeviceGetMaxClockInfo, board, pynvml.NVML_CLOCK_SM),
        power_mean_watts=_mean([sample.power_watts for sample in samples]),
        power_limit_watts=None if limit is None else limit / 1000,
        power_limit_default_watts=None if usual is None else usual / 1000,
        temperature_max_celsius=max(
            (sample.temperature_celsius for sample in samples if sample.temperature_celsius is not None), default=None
        ),
        throttle_power_share=gpu_samples.reason_share([samples], gpu_samples.POWER_REASONS),
        throttle_thermal_share=gpu_samples.reason_share([samples], gpu_samples.THERMAL_REASONS),
        throttle_hardware_share=gpu_samples.reason_share([samples], gpu_samples.HARDWARE_REASONS),
        pcie_generation=gpu_samples.extreme([samples], "pcie_generation", max),
        pcie_width=gpu_samples.extreme([samples], "pcie_width", max),
        pcie_width_max=offered(pynvml.nvmlDeviceGetMaxPcieLinkWidth, board),
        ecc_uncorrected_errors=ecc,
        row_remap_pending=None if rows is None else bool(rows[2]),
        row_remap_failed=None if rows is None else bool(rows[3]),
        xid_known=errors is not None and bus is not None,
        xid_errors=(errors or {}).get(bus or "", []),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
