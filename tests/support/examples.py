"""How many examples a test draws at random: all of them, or few in the loop of a developer (`make test-fast`)."""

from __future__ import annotations

import os

FEW_OF = 20
"""One in this many is drawn where `TFBENCH_TEST_EXAMPLES=few`."""


def examples(count: int) -> int:
    """Return how many of `count` examples to draw; never fewer than five."""
    few = os.environ.get("TFBENCH_TEST_EXAMPLES") == "few"
    return max(5, count // FEW_OF) if few else count
