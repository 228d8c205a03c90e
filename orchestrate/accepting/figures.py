"""What a deep check measures of a host and of each of its GPUs; what is not known is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ARITHMETIC = ("fp32", "tf32", "fp16")
"""Kinds of matrix products that a deep check measures."""


@dataclass(frozen=True, kw_only=True)
class GPUFigures:
    """One GPU of a host.

    Attributes:
        index: As its driver numbers it.
        products: Sustained matrix products in FLOP/s, by `ARITHMETIC`.
        memory_bytes_per_second: Read and written.
        to_device_bytes_per_second: Copies from the host's memory; likewise back.
        pcie_generation: Of the link under load; the width in lanes.
        pcie_width_max: Lanes that card and slot could use.
        clock_mhz: Mean of the SM clock under load.
        power_limit_watts: Enforced; the default is what the card is sold with.
        throttle_thermal_share: Share of the samples under load in which heat held the clock down, 0 to 1.
        throttle_hardware_share: Likewise a power brake or another hardware slowdown.
        ecc_uncorrected_errors: Since the driver was loaded.
        row_remap_failed: Whether the card could not replace a faulty row of its memory.
        row_remap_pending: Whether it will do so at the next reset.
        xid_errors: Numbers of the kernel log's Xid errors of this GPU; None: the log cannot be read.
        products_right: Whether the products were those that NumPy computes.
    """

    index: int
    name: str
    products: Mapping[str, float] = field(default_factory=dict)
    memory_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    to_host_bytes_per_second: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    temperature_celsius: float | None = None
    throttle_power_share: float | None = None
    throttle_thermal_share: float | None = None
    throttle_hardware_share: float | None = None
    ecc_uncorrected_errors: int | None = None
    row_remap_failed: bool | None = None
    row_remap_pending: bool | None = None
    xid_errors: tuple[int, ...] | None = None
    products_right: bool | None = None


@dataclass(frozen=True, kw_only=True)
class HostFigures:
    """A host.

    Attributes:
        all_reduce_bytes_per_second: Bus bandwidth over all GPUs.
        pairs: The same over two GPUs, by their indices, the smaller first; empty: not measured.
        cpu_products: fp32 matrix products on all cores, in FLOP/s.
        cpu_loop_seconds: A loop of Python code on one core.
        cpu_memory_bytes_per_second: Read and written.
        disk_bytes_per_second: Reading a large file that is not in memory.
    """

    fleet: str
    host: str
    gpus: tuple[GPUFigures, ...] = ()
    all_reduce_bytes_per_second: float | None = None
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    cpu_products: float | None = None
    cpu_loop_seconds: float | None = None
    cpu_memory_bytes_per_second: float | None = None
    disk_bytes_per_second: float | None = None
