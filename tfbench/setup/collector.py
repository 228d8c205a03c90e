"""Python's cycle collector, which would take a fifth of the processor time until the first timed step."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 20)
"""See `gc.set_threshold`; Python's own are 700, 10 and 10. Importing and tracing make many objects that stay."""


def collect_rarely() -> None:
    """Let the collector come rarely, and pass over all that is there now, which stays."""
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()
