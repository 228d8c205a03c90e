"""Sets the number of random examples per test, reduced in `make test-fast`."""

import os

FEW_OF = 20
"""Divisor of the number of examples with `TFBENCH_TEST_EXAMPLES=few`."""


def examples(count: int) -> int:
    """Return how many of `count` examples to draw; at least five."""
    few = os.environ.get("TFBENCH_TEST_EXAMPLES") == "few"
    return max(5, count // FEW_OF) if few else count
