"""What cases are called in a report: in words, and only by what distinguishes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from results.table.columns import CASE_COLUMNS
from results.table.comparable import differing, setting_text
from results.table.fleets import FleetRate

EFFORT = ("warmup_steps", "num_steps", "min_seconds")
"""Columns of how long was measured: `setting_text` leaves them out, but cases may differ in nothing else."""


def case_name(rates: Sequence[FleetRate], rate: FleetRate, *, known: Collection[str] = ()) -> str:
    """Name a case by what the cases at hand do not have in common, always by its network.

    Args:
        rates: The cases at hand.
        rate: One of them.
        known: Columns that the reader knows already.

    Returns:
        For example `resnet50, training, fp16, 4 GPUs`.
    """
    return ", ".join(part for part in (rate.case.model, setting_name(rates, rate, known=known)) if part)


def setting_name(rates: Sequence[FleetRate], rate: FleetRate, *, known: Collection[str] = ()) -> str:
    """Name what a case does not have in common with the cases at hand, without its network; may be empty."""
    varying = [name for name in differing(rates, CASE_COLUMNS) if name not in known]
    text = setting_text(rate, without=["model", *(name for name in CASE_COLUMNS if name not in varying)])
    effort = [f"{name.replace('_', ' ')} {rate.named(name)}" for name in EFFORT if name in varying]
    return ", ".join(part for part in (text, *effort) if part)
