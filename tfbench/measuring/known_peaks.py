"""Limits of a device that an earlier process has measured; without TensorFlow, because flags name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownPeaks:
    """What one device of this machine reached in an earlier process.

    Attributes:
        flops_per_second: Matrix products of the case's precision.
        bytes_per_second: Memory, read and written.
    """

    flops_per_second: float
    bytes_per_second: float
