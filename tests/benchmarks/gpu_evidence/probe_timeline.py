"""Probe: in which share of a step does the GPU compute, what does it copy, and what turns layouts?

By TensorFlow's own profiler, because NVIDIA's are on few machines.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_evidence.one_training import build, parse
from tests.benchmarks.gpu_evidence.timeline import gpu_events, sum_up

WARMUP = 10
"""Steps until memory has grown and algorithms are chosen."""

PROFILED = 10
"""Steps under the profiler: thousands of events each."""


def main() -> int:
    """Measure, and write what was seen."""
    options = parse(__doc__)
    import tensorflow as tf

    probed = build(options)

    def take(steps: int) -> None:
        for _ in range(steps):
            outputs = tf.nest.flatten(probed.step(), expand_composites=True)
        for output in outputs:
            output.numpy()

    take(WARMUP)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        take(PROFILED)
        tf.profiler.experimental.stop()
        space = _read(Path(folder))
    options.output.write_text(json.dumps(_document(space, probed.case.name)), encoding="utf-8")
    return 0


def _document(space: Any, case: str) -> dict[str, Any]:
    timeline = sum_up(gpu_events(space))
    if timeline is None:
        planes = [plane.name for plane in space.planes]
        return {"outcome": "failed", "cause": f"the profiler saw no GPU stream (libcupti?), only the planes {planes}"}
    figures = [
        {"name": "busy", "value": 100 * timeline.busy, "unit": "% of the time"},
        {"name": "layout", "value": 100 * timeline.layout, "unit": "% of kernel time"},
        {"name": "longest_gap", "value": 1000 * timeline.longest_gap, "unit": "ms"},
        {"name": "kernels", "value": timeline.kernels / PROFILED, "unit": "per step"},
        {"name": "step", "value": 1000 * timeline.seconds / PROFILED, "unit": "ms, profiled"},
    ]
    copies = {name: count / PROFILED for name, count in timeline.copies.items()}
    note = (
        f"{100 * timeline.layout:.1f} % of kernel time turns layouts; {timeline.kernels / PROFILED:.0f} kernels a step"
    )
    details = {"case": case, "copies_per_step": copies, "largest": timeline.largest}
    return {"figures": figures, "details": details, "note": note}


def _read(folder: Path) -> Any:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for file in folder.rglob("*.xplane.pb"):
        space.MergeFromString(file.read_bytes())
    return space


if __name__ == "__main__":
    sys.exit(main())
