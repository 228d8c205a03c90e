"""Probe: does a step's call return before the step is done, in which share of it is the GPU busy, and what turns layouts?

The second from TensorFlow's own profiler, because NVIDIA's are on few machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from results.schema import Case, Device, Precision
from tfbench.setup import gpu_settings

WARMUP, STEPS = 10, 20
"""Steps until memory has grown and algorithms are chosen; and steps of each kind that are timed."""

PROFILED = 10
"""Steps under the profiler: thousands of events each."""

LAYOUT_KERNELS = ("transpose", "nchwtonhwc", "nhwctonchw", "swapdimension")
"""Parts of the names of kernels that only turn a tensor's layout, in lower case; TensorFlow's and cuDNN's."""

Event = tuple[str, float, float]
"""Name of a kernel or copy, its start and its duration in seconds."""


def main() -> int:
    """Measure, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="googlenet")
    parser.add_argument("--precision", choices=list(Precision), default="fp32")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--image_size", type=int)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    options = parser.parse_args()
    case = Case(
        model=options.model,
        precision=Precision(options.precision),
        batch_per_gpu=options.batch_size,
        image_size=options.image_size,
        device=Device(options.device),
    )
    step = build(case)
    for _ in range(WARMUP):
        wait(step())
    returned, done = alone(step)
    begin = time.perf_counter()
    for _ in range(STEPS):
        last = step()
    wait(last)
    in_row = (time.perf_counter() - begin) / STEPS
    share = statistics.median(a / b for a, b in zip(returned, done, strict=True))
    figures = {
        "call_share": (100 * share, "% of the step until its call returns"),
        "call": (1000 * statistics.median(returned), "ms"),
        "step_alone": (1000 * statistics.median(done), "ms"),
        "step_in_a_row": (1000 * in_row, "ms"),
    }
    more, details = timeline(profiled(step))
    document = {"figures": figures | more, "details": {"case": case.name, **details}}
    note = ", ".join(f"{name} {value:.1f} {unit}" for name, (value, unit) in more.items())
    print(json.dumps({**document, "note": note}))  # noqa: T201
    return 0


def build(case: Case) -> Callable[[], Any]:
    """Return what takes a training step as a benchmark does, with one replica, and returns what the step leaves."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for name, value in gpu_settings(case).items():
        os.environ.setdefault(name, value)
    if case.device is Device.GPU:
        from tfbench.machine.cuda_libraries import prepare_gpu_libraries

        prepare_gpu_libraries()
    from tfbench.machine.host import cpu_limit
    from tfbench.models import NETWORKS
    from tfbench.setup.devices import configure, create_strategy, threads_for
    from tfbench.training.inputs import batch_source
    from tfbench.training.step import Training
    from tfbench.training.tasks import TASKS

    configure(case, threads_for(cpu_limit()))
    network, strategy = NETWORKS[case.model], create_strategy(case)
    size, task = network.size(case), TASKS[network.task]
    training = Training(case, network.build(case.batch_norm, size, strategy), strategy, task=task)
    next_batch = batch_source(case, size, network.classes, strategy, task)
    return lambda: training.step(next_batch())


def alone(step: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Take steps one by one; return the seconds until each call returned, and until each step was done."""
    returned, done = [], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        left = step()
        returned.append(time.perf_counter() - begin)
        wait(left)
        done.append(time.perf_counter() - begin)
    return returned, done


def wait(left: Any) -> None:
    """Wait for what a step leaves."""
    import tensorflow as tf

    for tensor in tf.nest.flatten(left, expand_composites=True):
        tensor.numpy()


def profiled(step: Callable[[], Any]) -> list[Event]:
    """Take steps under the profiler; return what ran on the first GPU."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(PROFILED):
            left = step()
        wait(left)
        tf.profiler.experimental.stop()
        for file in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(file.read_bytes())
    return list(gpu_events(space.planes))


def gpu_events(planes: Iterable[Any]) -> Iterable[Event]:
    """Yield the events on the streams of the first GPU.

    Lines that the profiler derives (steps, modules, operations) repeat the streams' events and are skipped.
    """
    for plane in planes:
        for line in plane.lines if plane.name.startswith("/device:GPU:0") else ():
            for event in line.events if line.name.startswith("Stream") else ():
                start = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                yield plane.event_metadata[event.metadata_id].name, start, event.duration_ps * 1e-12


def timeline(events: Sequence[Event]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sum up the events of one GPU: figures, and the copies and largest kernels; empty without events, as on a CPU."""
    if not events:
        return {}, {}
    ordered = sorted(events, key=lambda event: event[1])
    busy, longest_gap, end = 0.0, 0.0, ordered[0][1]
    kernels: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    for name, start, seconds in ordered:
        longest_gap = max(longest_gap, start - end)
        busy += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
        if name.lower().startswith("mem"):
            copies[name] += 1
        else:
            kernels[name] += seconds  # type: ignore[assignment]
    total = sum(kernels.values()) or 1.0
    turning = sum(seconds for name, seconds in kernels.items() if any(part in name.lower() for part in LAYOUT_KERNELS))
    figures = {
        "busy": (100 * busy / (end - ordered[0][1]), "% of the time"),
        "layout": (100 * turning / total, "% of kernel time"),
        "longest_gap": (1000 * longest_gap, "ms"),
        "kernels": ((len(ordered) - copies.total()) / PROFILED, "per step"),
    }
    largest = {name[:120]: seconds / total for name, seconds in kernels.most_common(20)}
    return figures, {"copies_per_step": {name: n / PROFILED for name, n in copies.items()}, "largest": largest}


if __name__ == "__main__":
    sys.exit(main())
