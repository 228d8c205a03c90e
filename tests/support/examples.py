"""How many of the examples that are drawn or made a test takes: `TFBENCH_TEST_EXAMPLES` is `few`, unset or `all`."""

import os

SHARE = {"few": 20, "all": 1}.get(os.environ.get("TFBENCH_TEST_EXAMPLES", ""), 4)
"""Divisor of the number of examples: `make test-fast` takes few, `make test-all` takes all."""


def examples(count: int) -> int:
    """Return how many of `count` examples to take; at least five."""
    return max(5, count // SHARE)
