"""Predicts the training throughput of a GPU from those of similar ones in a table of published figures.

Memory bandwidth bounds most layers of published networks, and arithmetic the others, so throughput grows with
bandwidth^0.6 × arithmetic^0.4 from one GPU to a similar one. The prediction is the geometric mean of what all GPUs of
the table suggest, the most similar ones with the most weight. `python -m studies.predict_held_out` measures the error
for published GPUs that are held out.

Source: Williams, Waterman and Patterson, Roofline, CACM 52 (4), 2009; Nadaraya, On estimating regression, 1964.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping

from results.reference.gpus import PEAKS, specifications
from results.stats import Interval

EXPONENTS = 0.6, 0.4
"""Of bandwidth and arithmetic; a GPU with twice both is twice as fast."""

SIMILAR = 1.5
"""Factor between bandwidths, or arithmetic, at which a GPU has the weight 1 / e."""

REACH = 3.0
"""Largest factor by which bandwidth and arithmetic may differ from those of the most similar GPU."""

WIDTH = 1.25
"""Factor between a prediction and either end of its interval, which holds for at least 90 % of held-out figures."""


def predict(gpu: str, precision: str, figures: Mapping[str, float]) -> Interval | str:
    """Predict the training throughput of one GPU, or return why it is not predicted.

    Args:
        gpu: Name in the reference.
        precision: A key of `PEAKS`.
        figures: Samples per second of single GPUs in one setting, by name.
    """
    own = _specified(gpu, precision)
    if own is None:
        return "its bandwidth or peak is not specified"
    (capability, *speeds), suggested, capabilities = own, list[tuple[float, float]](), set[float]()
    for other, rate in figures.items():
        if (known := _specified(other, precision)) is not None:
            capabilities.add(known[0])
            steps = [math.log(mine / of) for mine, of in zip(speeds, known[1:], strict=True)]
            suggested.append((max(map(abs, steps)), math.log(rate) + sum(map(operator.mul, EXPONENTS, steps))))
    if capability not in capabilities:
        return f"no GPU of compute capability {capability} has a figure in this setting"
    distances, logarithms = zip(*suggested, strict=True)
    if min(distances) > math.log(REACH):
        return f"its bandwidth or arithmetic is more than {REACH:g} times away from all GPUs with a figure"
    weights = [math.exp(-((distance / math.log(SIMILAR)) ** 2)) for distance in distances]
    value = math.exp(statistics.fmean(logarithms, weights))
    return Interval(value, value / WIDTH, value * WIDTH, 0.9)


def _specified(gpu: str, precision: str) -> tuple[float, ...] | None:
    """Return compute capability, bandwidth and peak arithmetic of a GPU; None: one is not specified."""
    known = specifications().get(gpu, {})
    names = ("compute_capability", "memory_bandwidth", PEAKS[precision][0])
    return tuple(known[name] for name in names) if known.keys() >= {*names} else None
