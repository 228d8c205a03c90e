"""What the warnings of a table mean: one line for each code, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

MEANINGS: dict[str, str] = {
    "above_bandwidth": "more than the memory bandwidth allows unless caches held the activations; raise the batch",
    "above_peak": "too close to the device's peak for a whole network; measure again on an idle machine",
    "drift": "steps became slower or faster while timing: heat, or too short a warm-up; raise warmup_steps",
    "ecc_errors": "uncorrected memory errors while timing; replace the card (nvidia-smi -q -d ECC)",
    "energy_differs": "energy by counter and by sampled power differ; time for longer (min_seconds: 60)",
    "gpu_shared": "other processes used the GPUs; nvidia-smi names them",
    "gpu_unusable": "a GPU of this host does not answer; run tfbench doctor there, restart the machine",
    "high_cv": "steps vary more than an idle machine's; end other processes, or time for longer (min_seconds)",
    "hot_start": "a GPU was hot when warm-up began, and a hot GPU clocks lower; let it cool down",
    "input_limited": "the device waited for its input; use data: synthetic, more CPUs or a faster disk",
    "mig_slice": "measured on a MIG slice, not on the whole card",
    "ptx_jit": "this TensorFlow has no code for the card; the driver compiled it. Use an image built for it",
    "row_remap_failed": "a faulty row of a GPU's memory could not be replaced; replace the card",
    "row_remap_pending": "a faulty row of a GPU's memory waits for the next reset; reset the GPU",
    "tf32_not_as_asked": "TF32 was not switched as the precision requires; check NVIDIA_TF32_OVERRIDE and the card",
    "power_cap": "the power limit is set below the card's default (nvidia-smi -q -d POWER)",
    "throttled_hardware": "a power brake or another hardware slowdown held clocks down (nvidia-smi -q -d PERFORMANCE)",
    "throttled_power": "the power limit held clocks down (nvidia-smi -q -d POWER)",
    "throttled_thermal": "heat held clocks down; check fans and airflow",
    "warmup_not_settled": "step times still changed when warm-up ended; raise warmup_steps",
}
"""By code: what a reader should know, and what to do. A test holds it to the codes in `tfbench`."""

_CODE = re.compile(r"[a-z0-9_]+")


def warning_notes(warnings: Iterable[str | None]) -> list[str]:
    """Explain each code once, in alphabetical order.

    Args:
        warnings: Cells of the column: codes with a comma between them, some with a count: `drift (2 of 3)`.
    """
    codes = {match[0] for text in warnings if text for part in text.split(",") if (match := _CODE.match(part.strip()))}
    return [f"{code}: {MEANINGS[code]}" for code in sorted(codes) if code in MEANINGS]
