"""Specifications that contradict each other: within a GPU, and against the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results.audit.series import Severity, TableFinding
from results.reference.gpus import compute_capability, gpu_key, specifications

TOLERANCE = 0.03
"""Relative difference that rounding explains; the derivations below hold to 1.2 % on all 28 GPUs of the reference."""

CLOCK_RANGE = 1.21
"""Ratio of the clocks that two sources quote for one GPU: 1.203 on the RTX 4090 Laptop, by its power setting."""

CLOCKED = (
    "fp32",
    "fp16_tensor_fp16_accumulate",
    "fp16_tensor_fp32_accumulate",
    "tf32_tensor",
    "boost_clock",
    "tensor_clock",
)
"""Quantities that follow a clock."""

PIN_RATES = {"GDDR": (5.0, 34.0), "HBM": (0.9, 10.0)}
"""Gbit/s per pin, lowest and highest: GDDR5 to GDDR7, HBM to HBM3E. Source: JEDEC JESD212, 232, 250, 239, 235, 238."""

WIDEST_GDDR_BUS = 512
"""Bits; every HBM stack has 1024."""


@dataclass(frozen=True)
class Architecture:
    """What one multiprocessor has.

    Attributes:
        cores: FP32 cores, each 2 FLOP per cycle.
        tensor_cores: Tensor (matrix) cores.
        tensor_flop: Dense FP16 FLOP per cycle of all its tensor cores, with FP16 accumulation.
    """

    cores: int
    tensor_cores: int
    tensor_flop: int


ARCHITECTURES = {
    "7.0": Architecture(64, 8, 1024),  # Volta
    "7.5": Architecture(64, 8, 1024),  # Turing
    "8.0": Architecture(64, 4, 2048),  # GA100
    "8.6": Architecture(128, 4, 1024),  # GA10x
    "8.9": Architecture(128, 4, 1024),  # Ada
    "9.0": Architecture(128, 4, 4096),  # Hopper
    "12.0": Architecture(128, 4, 1024),  # GB20x
    "gfx908": Architecture(64, 4, 1024),  # CDNA1
}
"""By compute capability. Source: NVIDIA's architecture whitepapers V100 to Blackwell, AMD's CDNA whitepaper."""

QUANTITIES = {
    "multiprocessors": ("multiprocessors", "sm", "sms", "sm_or_cu"),
    "cores": ("cores", "cuda_cores", "cuda_cores_or_sp"),
    "tensor_cores": ("tensor_cores",),
    "memory": ("memory", "memory_gb", "vram_gb", "vram"),
    "memory_bus": ("memory_bus", "bus_bits"),
    "memory_bandwidth": ("memory_bandwidth", "bandwidth", "bandwidth_gb_s", "memory_bandwidth_gb_s"),
    "fp32": ("fp32", "fp32_tflops"),
    "fp16_tensor_fp32_accumulate": (
        *("fp16_tensor_fp32_accumulate", "fp16_tensor_dense_fp32acc_tflops", "fp16_tflops", "tensor_tflops"),
    ),
    "tf32_tensor": ("tf32_tensor", "tf32_tflops", "tf32_tensor_dense_tflops"),
    "power": ("power", "tdp_w", "tdp", "power_watts"),
    "fp16_tensor_fp16_accumulate": ("fp16_tensor_fp16_accumulate", "fp16_tensor_dense_fp16acc_tflops"),
    "nvlink_both_directions": ("nvlink_both_directions", "nvlink_gb_s_bidir"),
    "boost_clock": ("boost_clock", "boost_mhz"),
    "tensor_clock": ("tensor_clock", "boost_mhz_for_tensor_figures"),
}
"""Headings by quantity of `reference/gpu_specs.csv`."""


def is_specification_table(headings: Sequence[str]) -> bool:
    """Return whether a table is one of GPUs and their figures: a GPU per row, or a quantity per row."""
    long = {"gpu", "quantity", "value"} <= set(headings)
    known = sum(any(alias in headings for alias in aliases) for aliases in QUANTITIES.values())
    return "gpu" in headings and "model" not in headings and (long or known >= 2)


def specification_findings(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[TableFinding]:
    """Compare each figure with the reference, and the figures of each GPU with each other."""
    figures = _read_figures(headings, rows)
    found = []
    for gpu, quantities in figures.items():
        found += _against_reference(gpu, quantities)
        found += _within_card(gpu, quantities)
    return found


Figures = dict[str, tuple[float, int]]  # quantity → value and row


def _read_figures(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    quantity_of = {alias: name for name, aliases in QUANTITIES.items() for alias in aliases}
    long = {"quantity", "value"} <= set(headings)
    for number, row in enumerate(rows):
        cells = dict(zip(headings, row, strict=False))
        pairs = {cells["quantity"]: cells["value"]} if long else cells
        for heading, text in pairs.items():
            quantity = heading if long else quantity_of.get(heading, "")
            match = re.fullmatch(r"([\d.,]+) ?[A-Za-z/]*", text.strip())
            if quantity and match and (value := _number(match[1])) is not None:
                found.setdefault(cells["gpu"].strip(), {})[quantity] = (value, number)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _against_reference(gpu: str, figures: Figures) -> list[TableFinding]:
    reference = specifications().get(gpu_key(gpu) or "", {})
    found = []
    for quantity, (value, row) in figures.items():
        known = reference.get(quantity)
        if known is None or abs(value / known - 1) <= TOLERANCE:
            continue
        severity, why = _difference(quantity, value / known)
        message = f"{gpu}: {quantity} {value:g}, but the reference has {known:g}: {why}"
        found.append(TableFinding("specification", severity, (row,), message))
    return found


def _difference(quantity: str, ratio: float) -> tuple[Severity, str]:
    if "tensor" in quantity and abs(ratio / 2 - 1) <= TOLERANCE:
        return Severity.NOTE, "exactly twice: the figure with sparsity, which does not apply to training"
    if quantity in CLOCKED and 1 / CLOCK_RANGE <= ratio <= CLOCK_RANGE:
        return Severity.NOTE, "a figure at another clock or power setting"
    return Severity.SUSPECT, "another figure"


def _within_card(gpu: str, figures: Figures) -> list[TableFinding]:
    """Derive each figure of a GPU from its others, as far as the GPU is known, and compare."""
    architecture = ARCHITECTURES.get(compute_capability(gpu_key(gpu) or ""))
    values = {name: value for name, (value, _) in figures.items()}
    found = []
    for derivation in (_peaks, _tensor_peaks, _parts, _tensor_formats):
        for quantity, expected, how in derivation(values, architecture):
            found += _compared(gpu, quantity, expected, how, figures)
    return found + _memory_traffic(gpu, figures)


Derived = tuple[str, float, str]  # quantity, what it should be, by what arithmetic


def _peaks(values: Mapping[str, float], _: Architecture | None) -> Iterator[Derived]:
    """FP32: 2 FLOP per core and cycle, one fused multiply-add. Source: NVIDIA whitepapers."""
    if {"cores", "boost_clock", "fp32"} <= values.keys():
        cores, clock = values["cores"], values["boost_clock"]
        yield "fp32", cores * 2 * clock / 1e6, f"{cores:g} cores × 2 × {clock:g} MHz"


def _tensor_peaks(values: Mapping[str, float], architecture: Architecture | None) -> Iterator[Derived]:
    """Dense FP16 of the tensor cores, at the clock that tensor peaks are quoted at where it is another one."""
    clock = values.get("tensor_clock", values.get("boost_clock"))
    quantity = "fp16_tensor_fp16_accumulate"
    if architecture and clock and {"multiprocessors", quantity} <= values.keys():
        count, flop = values["multiprocessors"], architecture.tensor_flop
        how = f"{count:g} multiprocessors × {flop} × {clock:g} MHz"
        yield quantity, count * flop * clock / 1e6, how


def _parts(values: Mapping[str, float], architecture: Architecture | None) -> Iterator[Derived]:
    count = values.get("multiprocessors")
    if architecture is None or count is None:
        return
    for quantity, each in (("cores", architecture.cores), ("tensor_cores", architecture.tensor_cores)):
        if quantity in values:
            yield quantity, count * each, f"{count:g} multiprocessors × {each}"


def _tensor_formats(values: Mapping[str, float], _: Architecture | None) -> Iterator[Derived]:
    """TF32 is half of FP16; FP32 accumulation runs at the full rate or, on GeForce, at half of it."""
    full, half = values.get("fp16_tensor_fp16_accumulate"), values.get("fp16_tensor_fp32_accumulate")
    if half and "tf32_tensor" in values:
        yield "tf32_tensor", half / 2, f"half of FP16 {half:g}"
    if full and half:
        expected = full if half > 0.75 * full else full / 2
        yield "fp16_tensor_fp32_accumulate", expected, f"all or half of FP16 with FP16 accumulation, {full:g}"


def _compared(gpu: str, quantity: str, expected: float, how: str, figures: Figures) -> list[TableFinding]:
    value, row = figures[quantity]
    off = max(value / expected, expected / value) if value and expected else float("inf")
    if off <= 1 + TOLERANCE:
        return []
    severity = Severity.NOTE if "MHz" in how and off <= CLOCK_RANGE else Severity.SUSPECT
    message = f"{gpu}: {quantity} {value:g}, but {how} is {expected:.4g}"
    return [TableFinding("specification", severity, (row,), message)]


def _memory_traffic(gpu: str, figures: Figures) -> list[TableFinding]:
    """Check that bandwidth over bus width is a rate that a pin of such memory has."""
    if not {"memory_bus", "memory_bandwidth"} <= figures.keys() or not figures["memory_bus"][0]:
        return []
    (bus, _), (bandwidth, row) = figures["memory_bus"], figures["memory_bandwidth"]
    kind = "GDDR" if bus <= WIDEST_GDDR_BUS else "HBM"
    low, high = PIN_RATES[kind]
    rate = bandwidth * 8 / bus
    if low <= rate <= high:
        return []
    message = f"{gpu}: {bandwidth:g} GB/s over {bus:g} bit is {rate:.1f} Gbit/s per pin; {kind} has {low:g} to {high:g}"
    return [TableFinding("specification", Severity.SUSPECT, (row,), message)]
