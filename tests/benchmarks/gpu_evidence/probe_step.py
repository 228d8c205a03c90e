"""Probe: does a step's call return before the step is done, and where do its output and its variables lie?"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.benchmarks.gpu_evidence.one_training import build, parse


def main() -> int:
    """Measure, and write what was seen."""
    options = parse(__doc__)
    import tensorflow as tf

    probed = build(options)

    def outputs() -> list[Any]:
        return list(tf.nest.flatten(probed.step(), expand_composites=True))

    for _ in range(3):  # trace, compile, and what loss scaling skips
        first = outputs()
        _wait(first)
    returned, done = _alone(outputs, options.steps)
    in_row = _in_a_row(outputs, options.steps)
    elsewhere = Counter(
        f"{tensor.dtype.name} on {_short(tensor.backing_device)}"
        for tensor in probed.captured()
        if tensor.dtype != tf.resource and not tensor.backing_device.endswith(probed.device)
    )
    host_variables = Counter(
        _short(tensor.device)
        for tensor in probed.captured()
        if tensor.dtype == tf.resource and not tensor.device.endswith(probed.device)
    )
    places = sorted({_short(tensor.backing_device) for tensor in first})
    share = statistics.median(a / b for a, b in zip(returned, done, strict=True))
    figures = [
        {"name": "call_share", "value": 100 * share, "unit": "% of the step until its call returns"},
        {"name": "call", "value": 1000 * statistics.median(returned), "unit": "ms"},
        {"name": "step_alone", "value": 1000 * statistics.median(done), "unit": "ms"},
        {"name": "step_in_a_row", "value": 1000 * in_row, "unit": "ms"},
    ]
    details = {
        "case": probed.case.name,
        "replica_on": probed.device,
        "outputs_on": places,
        "outputs_elsewhere": sum(not tensor.backing_device.endswith(probed.device) for tensor in first),
        "variables_elsewhere": dict(host_variables),
        "constants_elsewhere": dict(elsewhere),
    }
    note = f"output on {', '.join(places)}, {sum(host_variables.values())} variables not on {probed.device}"
    document = {"figures": figures, "details": details, "note": note}
    options.output.write_text(json.dumps(document), encoding="utf-8")
    return 0


def _alone(outputs: Callable[[], list[Any]], steps: int) -> tuple[list[float], list[float]]:
    """Take steps one by one; return the seconds until each call returned, and until each step was done."""
    returned, done = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        tensors = outputs()
        returned.append(time.perf_counter() - begin)
        _wait(tensors)
        done.append(time.perf_counter() - begin)
    return returned, done


def _in_a_row(outputs: Callable[[], list[Any]], steps: int) -> float:
    """Take steps without waiting in between; return the seconds of one."""
    begin = time.perf_counter()
    for _ in range(steps):
        tensors = outputs()
    _wait(tensors)
    return (time.perf_counter() - begin) / steps


def _wait(tensors: list[Any]) -> None:
    for tensor in tensors:
        tensor.numpy()


def _short(device: str) -> str:
    return device.rpartition("/device:")[2]


if __name__ == "__main__":
    sys.exit(main())
