"""Specifications that contradict each other: within a card, and against the reference."""

from __future__ import annotations

import re
from collections.abc import Sequence

from results.findings import Finding, Severity
from results.reference import gpu_key, specifications

TOLERANCE = 0.03
"""Relative difference that rounding and clock variants explain; the formula below holds to 1.2 % on 27 cards."""

CLOCK_RANGE = 1.2
"""Ratio of the clocks that two peaks of one card are quoted at: 1.155 on the H100 NVL."""

QUANTITIES = {
    "multiprocessors": ("multiprocessors", "sm", "sms", "sm_or_cu"),
    "cores": ("cores", "cuda_cores", "cuda_cores_or_sp"),
    "tensor_cores": ("tensor_cores",),
    "memory": ("memory", "memory_gb", "vram_gb", "vram"),
    "memory_bus": ("memory_bus", "bus_bits"),
    "memory_bandwidth": ("memory_bandwidth", "bandwidth", "bandwidth_gb_s", "memory_bandwidth_gb_s"),
    "fp32": ("fp32", "fp32_tflops"),
    "fp16_tensor_fp32_accumulate": ("fp16_tensor_dense_fp32acc_tflops", "fp16_tflops", "tensor_tflops"),
    "tf32_tensor": ("tf32_tensor", "tf32_tflops", "tf32_tensor_dense_tflops"),
    "power": ("power", "tdp_w", "tdp", "power_watts"),
    "boost_clock": ("boost_clock", "boost_mhz", "boost_mhz_for_tensor_figures"),
}
"""Headings by quantity of `reference/gpu_specs.csv`."""


def is_specification_table(headings: Sequence[str]) -> bool:
    """Tell whether a table is one of GPUs and their figures: a GPU per row, or a quantity per row."""
    long = {"gpu", "quantity", "value"} <= set(headings)
    known = sum(any(alias in headings for alias in aliases) for aliases in QUANTITIES.values())
    return "gpu" in headings and "model" not in headings and (long or known >= 2)


def specification_findings(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Finding]:
    """Compare each figure with the reference, and the figures of each card with each other."""
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


def _against_reference(gpu: str, figures: Figures) -> list[Finding]:
    reference = specifications().get(gpu_key(gpu) or "", {})
    found = []
    for quantity, (value, row) in figures.items():
        known = reference.get(quantity)
        if known is None or abs(value / known - 1) <= TOLERANCE:
            continue
        sparse = "tensor" in quantity and abs(value / known / 2 - 1) <= TOLERANCE
        why = "exactly twice, the figure with sparsity, which training does not have" if sparse else "another figure"
        message = f"{gpu}: {quantity} {value:g}, the reference says {known:g}: {why}"
        found.append(Finding("specification", Severity.NOTE if sparse else Severity.SUSPECT, (row,), message))
    return found


def _within_card(gpu: str, figures: Figures) -> list[Finding]:
    """Check that cores × 2 × clock is the FP32 peak, and that TF32 is half of FP16.

    Source: 2 FLOP per core and cycle (one fused multiply-add), NVIDIA whitepapers.
    """
    found = []
    if {"cores", "boost_clock", "fp32"} <= figures.keys():
        (cores, _), (clock, _), (peak, row) = (figures[name] for name in ("cores", "boost_clock", "fp32"))
        expected = cores * 2 * clock / 1e6
        # Data-centre cards quote their tensor peak, and the clock with it, lower than their FP32 peak.
        if not 1 / CLOCK_RANGE <= peak / expected <= CLOCK_RANGE:
            message = f"{gpu}: FP32 {peak:g} TFLOP/s, but {cores:g} cores × 2 × {clock:g} MHz is {expected:.1f}"
            found.append(Finding("specification", Severity.SUSPECT, (row,), message))
    if {"fp16_tensor_fp32_accumulate", "tf32_tensor"} <= figures.keys():
        (half, _), (tf32, row) = figures["fp16_tensor_fp32_accumulate"], figures["tf32_tensor"]
        if abs(half / tf32 / 2 - 1) > TOLERANCE:
            message = f"{gpu}: TF32 {tf32:g} is not half of FP16 {half:g} TFLOP/s"
            found.append(Finding("specification", Severity.SUSPECT, (row,), message))
    return found
