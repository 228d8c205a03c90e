"""How far a figure may lie from what it is judged by, each limit with its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orchestrate.accepting.figures import ARITHMETIC, GPUFigures, HostFigures


@dataclass(frozen=True)
class Rate:
    """A figure of which more is better, and its limits.

    Attributes:
        name: As a reader knows it.
        unit: Of the shown figure.
        scale: The figure in `unit`.
        doubt: Share below its mates' median, or its own earlier one, at which it is doubtful.
        of_specification: Share of the specification below which it is doubtful; None: there is none to compare with.
    """

    name: str
    unit: str
    scale: float
    doubt: float
    of_specification: float | None = None


REJECT = 0.25
"""Share below the mates' median at which a GPU is rejected: all replicas wait for the slowest one, so that a machine
loses a quarter of what is paid for."""

FEWEST_MATES = 3
"""Figures of equal GPUs or hosts that have a median worth the name."""

PRODUCT_DOUBT = 0.10
"""Equal cards at their power limit vary by 8 % on average over five clusters (Sinha et al., Not all GPUs are created
equal, SC 2022), which is from the fastest to the slowest: below the median about half of it. Lambda's 39 H100 hosts
differ by 0.07 to 0.63 %."""

MEMORY_DOUBT = 0.05
"""The memory's clock is fixed, so that equal cards differ by less than 1 %; other processes take more."""

COPY_DOUBT = 0.20
"""Copies go through the host's memory, and GPUs of one host may be attached to different sockets (our choice)."""

ALL_REDUCE_DOUBT = 0.15
CPU_DOUBT = 0.20
"""Turbo clocks and other tenants of the machine (our choice)."""

DISK_DOUBT = 0.50
"""Shared storage and caches of a disk: only a disk of another kind differs by half (our choice)."""

PRODUCT_OF_SPECIFICATION = 0.40
"""Share of the specification's FLOP/s. At their power limit honest cards stay below their boost clock; a specification
with sparsity or without accumulation in fp32 is twice as high: this is below either (our choice)."""

MEMORY_OF_SPECIFICATION = 0.65
"""Share of the specification's bandwidth for an addition of two arrays; ECC in GDDR memory takes up to a tenth of it
(our choice)."""

COPY_OF_LINK = 0.25
"""Share of what a link of this width and generation carries: TensorFlow copies from and to pageable memory, so that
only a link that is far slower than it says is doubtful (our choice)."""

LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Of a PCIe lane by generation, after line coding. Source: PCI Express base specifications 1 to 6."""

THROTTLE_DOUBT, THROTTLE_REJECT = 0.05, 0.50
"""Share of the time under load in which heat or a power brake held clocks down; the power limit does so on any card."""

POWER_CAP_DOUBT = 0.98
"""Share of the default power limit below which a card is capped."""

FATAL_XIDS = frozenset({48, 63, 64, 74, 79, 92, 94, 95, 119, 120})
"""Errors after which a card wants a reset or a replacement: double-bit ECC (48), remapped rows (63, 64), NVLink (74),
fallen off the bus (79), many single-bit errors (92), contained and uncontained ECC (94, 95), GSP (119, 120).
Source: NVIDIA, Xid Errors (docs.nvidia.com/deploy/xid-errors)."""

REMAPPED_XIDS = frozenset({63})
"""Of those, what an honest card survives: a row was remapped, as it should be."""

PRODUCTS = {
    arithmetic: Rate(f"{arithmetic} products", "TFLOP/s", 1e-12, PRODUCT_DOUBT, PRODUCT_OF_SPECIFICATION)
    for arithmetic in ARITHMETIC
}
MEMORY = Rate("memory", "GB/s", 1e-9, MEMORY_DOUBT, MEMORY_OF_SPECIFICATION)
TO_DEVICE = Rate("copies to the GPU", "GB/s", 1e-9, COPY_DOUBT, COPY_OF_LINK)
TO_HOST = Rate("copies from the GPU", "GB/s", 1e-9, COPY_DOUBT, COPY_OF_LINK)


def _product(arithmetic: str, gpu: GPUFigures) -> float | None:
    return gpu.products.get(arithmetic)


OF_GPU: tuple[tuple[Rate, Callable[[GPUFigures], float | None]], ...] = (
    *((rate, partial(_product, kind)) for kind, rate in PRODUCTS.items()),
    (MEMORY, lambda gpu: gpu.memory_bytes_per_second),
    (TO_DEVICE, lambda gpu: gpu.to_device_bytes_per_second),
    (TO_HOST, lambda gpu: gpu.to_host_bytes_per_second),
)
"""Rates of a GPU, and where its figures have them."""

OF_HOST: tuple[tuple[Rate, Callable[[HostFigures], float | None]], ...] = (
    (Rate("all-reduce", "GB/s", 1e-9, ALL_REDUCE_DOUBT), lambda host: host.all_reduce_bytes_per_second),
    (Rate("processor products", "GFLOP/s", 1e-9, CPU_DOUBT), lambda host: host.cpu_products),
    (
        Rate("processor, one core", "loops/s", 1.0, CPU_DOUBT),
        lambda host: None if not host.cpu_loop_seconds else 1 / host.cpu_loop_seconds,
    ),
    (Rate("host memory", "GB/s", 1e-9, CPU_DOUBT), lambda host: host.cpu_memory_bytes_per_second),
    (Rate("disk", "MB/s", 1e-6, DISK_DOUBT), lambda host: host.disk_bytes_per_second),
)
"""Rates of a host."""

SPECIFIED = {
    "fp32 products": ("fp32", 1e12),
    "tf32 products": ("tf32_tensor", 1e12),
    "fp16 products": ("fp16_tensor_fp32_accumulate", 1e12),
    "memory": ("memory_bandwidth", 1e9),
}
"""Quantity of `gpu_specs.csv` and its unit, by the name of a rate."""
