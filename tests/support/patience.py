"""Limits of waiting that grow with a slow or busy machine."""

import functools
import subprocess
import sys
import time

LEAST_SECONDS = 60.0
"""Shortest limit of a test that proves that something ends: a busy machine may stop a process for many seconds."""

STARTS, START_SECONDS = 3, 0.04
"""Starts of Python that are timed, and the time of one on an idle machine with two cores of 2023."""


@functools.cache
def slowness() -> float:
    """Return how many times longer than usual this machine takes to start Python now; at least 1."""
    began = time.monotonic()
    for _ in range(STARTS):
        subprocess.run([sys.executable, "-S", "-c", "import json, subprocess"], check=True)
    return max(1.0, (time.monotonic() - began) / (STARTS * START_SECONDS))


def patience(seconds: float = LEAST_SECONDS) -> float:
    """Return how long to wait for something that takes less than this on an idle machine, in seconds."""
    return max(LEAST_SECONDS, seconds) * slowness()
