"""What a step asks of a GPU: `python -m studies.null_gpu_counts [--seconds=N] [PATTERN]` writes it to `counts.csv`.

A process with null GPUs imports TensorFlow once and forks a child for each case, which takes the case's steps as a
repeat does, without its validity checks, and counts. Cases that are in the table already are not counted again: remove
their rows first. PATTERN is part of a row's key, e.g. `resnet50,fp16`.
"""

import argparse
import contextlib
import csv
import ctypes
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results.schema import DEVICE_MODEL
from tests.support import PROJECT
from tests.support.null_gpu import environment

TABLE = PROJECT / "tests" / "real" / "null_gpu" / "counts.csv"
KEY = ("model", "precision", "mode", "gpus", "xla", "data", "batch")
COUNTS = (
    *("launches", "library_calls", "h2d", "h2d_bytes", "d2h", "d2h_bytes", "d2d", "d2d_bytes", "peer", "peer_bytes"),
    *("waits", "waits_of_dispatching_thread", "all_reduces", "all_reduced_bytes", "gradient_bytes", "peak_mib"),
)
"""Of one step of all replicas; the last two of one replica, and the peak of TensorFlow's allocator for the small batch."""

WAITS = ("cuCtxSynchronize", "cuStreamSynchronize", "cudaStreamSynchronize", "cuEventSynchronize", "sync.copy")
STEPS, WARM_STEPS = 4, 3
FEW_STEPS = (
    *(f"--num_steps={STEPS}", f"--warmup_steps={WARM_STEPS}", f"--max_warmup_steps={WARM_STEPS}"),
    *("--notelemetry", "--nopeaks", "--memory_growth", "--output=unused"),
)
"""Flags; the last of equal ones counts."""

SLOW_KERNEL_US, INPUT_SECONDS = 300, 2
"""With TFRecords, steps begin later and run slower than the input, so that its buffer is full at the first and the last."""

IMAGES, SEQUENCES = 8, 2
"""Batches of the table: its counts, but the peak, are the same for larger ones."""

TRANSFORMERS = ("bert_large", "gpt2_small")
NETWORKS = (
    *("resnet50", "resnet152", "inception_v3", "googlenet", "vgg16", "bert_large", "vit_b16", "gpt2_small"),
    *("resnet50_v1.5", "alexnet", "efficientnet_b0", "resnet152_v1.5", "inception_v4", "efficientnet_v2_s"),
)

Row = dict[str, str]


def keys() -> Iterator[Row]:
    """Name the rows of the table; counting all of them takes most of a day."""
    for data, precision, gpus in itertools.product(("host", "tfrecord"), ("fp32", "fp16"), (1, 2)):
        yield _key("resnet50", precision, "train", gpus, "off", data)
    precisions = ("fp32", "tf32", "fp16", "bf16")
    for xla, gpus, mode in itertools.product(("off", "replica"), (1, 2, 4, 8), ("infer", "train")):
        for model, precision in itertools.product(NETWORKS, precisions):
            yield _key(model, precision, mode, gpus, xla)
    figures = [("all_reduce", "fp32", gpus) for gpus in (2, 4, 8)]
    figures += [(name, "fp32", 1) for name in ("memory_add", "host_to_device", "device_to_host")]
    figures += [("matrix_product", arithmetic, 1) for arithmetic in ("fp64", *precisions)]
    for name, arithmetic, gpus in figures:
        yield _key(DEVICE_MODEL, arithmetic, name, gpus, "off", "none")


def _key(model: str, precision: str, mode: str, gpus: int, xla: str, data: str = "synthetic") -> Row:
    batch = 0 if model == DEVICE_MODEL else SEQUENCES if model in TRANSFORMERS else IMAGES
    return dict(zip(KEY, (model, precision, mode, str(gpus), xla, data, str(batch)), strict=True))


def flags(key: Row) -> list[str]:
    """Return the command line of a row's case."""
    case = [f"--model={key['model']}", f"--num_gpus={key['gpus']}", *FEW_STEPS]
    own = ("precision", "mode", "xla", "data") if key["model"] != DEVICE_MODEL else ()
    return [*case, *(f"--{name}={key[name]}" for name in own), *([f"--batch_size={key['batch']}"] if own else [])]


class Counter:
    """Counts cases one after another; close it.

    Args:
        settings: Of the null GPUs.
    """

    def __init__(self, **settings: object) -> None:
        self._folder = tempfile.TemporaryDirectory()
        before_the_import = {"TF_ENABLE_ONEDNN_OPTS": 0}  # see `gpu_settings`; the others are read later
        set_to = environment(NULLGPU_DEVICES=8, NULLGPU_MEMORY_MIB=262144, **before_the_import, **settings)
        command, pipe = [sys.executable, "-m", "studies.null_gpu_counts", "--serve"], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=PROJECT, env=set_to)

    def count(self, arguments: list[str], small: bool = False, rounds: int = 0, **settings: object) -> dict[str, Any]:
        """Return what the timed steps of a command line asked for: see `_counts`.

        Args:
            arguments: The command line.
            small: Whether to train a small network like that of the command line.
            rounds: Number of times to alternate with a plain loop: `to_plain_loop` is the median ratio of seconds.
            settings: NULLGPU_KERNEL_US, which counts for the timed steps; the others are read at the start.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        if "--data=tfrecord" in arguments:
            arguments = [*arguments, f"--data_dir={self._images()}"]
            settings = {"NULLGPU_KERNEL_US": SLOW_KERNEL_US, **settings}
        variables = {name: str(value) for name, value in settings.items()}
        self._process.stdin.write(json.dumps([arguments, small, rounds, variables]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "problem" in answer:
            raise RuntimeError(f"{' '.join(arguments)}: {answer['problem']}")
        return answer

    def _images(self) -> Path:
        folder = Path(self._folder.name) / "images"
        if not folder.exists():
            command = [sys.executable, "-m", "tfbench.make_dataset", f"--output={folder}", "--images=32", "--shards=2"]
            subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
        return folder

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._folder.cleanup()


def row(key: Row, found: dict[str, Any]) -> Row:
    """Return a line of the table."""
    if key.get("model") == DEVICE_MODEL:
        found = found[f"{key['mode']},{key['precision']}"]
    calls, steps = found["calls"], found["steps"]

    def total(*names: str, part: int = 0) -> int:
        return sum(numbers[part] for name, numbers in calls.items() if name.startswith(names))

    def of_kind(kind: str) -> tuple[int, int]:
        return total(f"copy.{kind}"), total(f"copy.{kind}", part=1)

    values = (
        *(total("launch"), total("library"), *of_kind("h2d"), *of_kind("d2h"), *of_kind("d2d"), *of_kind("peer")),
        *(total(*WAITS), total(*WAITS, part=2), total("ncclAllReduce"), total("ncclAllReduce", part=1)),
    )
    per_step = [f"{value / steps:g}" if value % steps else str(value // steps) for value in values]
    own = (str(found["gradient_bytes"]), f"{found['peak_bytes'] / 2**20:.0f}")
    return key | dict(zip(COUNTS, (*per_step, *own), strict=True))


# ---- inside of a process with null GPUs


def _serve() -> None:
    """Answer each line of stdin, see `Counter.count`, with what the steps of its command line asked for."""
    null = ctypes.CDLL("libcuda.so.1")
    null.nullgpu_counts.restype = ctypes.c_char_p
    from tfbench.settings import collect_rarely

    importlib.import_module("tfbench.repeat")  # with TensorFlow: not in each child
    collect_rarely()
    for line in sys.stdin:
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            os.dup2(2, 1)
            try:
                arguments, small, rounds, variables = json.loads(line)
                os.environ.update(variables)
                answer = _counts(null, arguments, small, rounds)
            except BaseException as error:  # noqa: BLE001 (reported by the parent)
                answer = {"problem": f"{type(error).__name__}: {error}"}
            with os.fdopen(write, "w") as file:
                json.dump(answer, file)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            answer = file.read()
        os.waitpid(child, 0)
        print(answer or '{"problem": "crashed"}', flush=True)  # noqa: T201


class _CountedError(Exception):
    """The steps are counted: nothing that follows them matters."""


def _counts(null: ctypes.CDLL, arguments: list[str], small: bool, rounds: int) -> dict[str, Any]:
    """Take the steps of a command line; return calls with their number, bytes and the dispatching thread's part."""
    from tests.real.training.small import shrink
    from tfbench import repeat
    from tfbench.failures import CaseFailedError
    from tfbench.findings import Findings
    from tfbench.flags import parse
    from tfbench.measuring import timing
    from tfbench.peers import Peers
    from tfbench.settings import gpu_settings

    request = parse(arguments)
    if small:
        shrink(request.case.model)
    os.environ.update(gpu_settings(request.case))
    repeat.require = lambda *_: None  # what was not computed is not right
    repeat.validity.OneDeviceReference = lambda *_: None
    found: dict[str, Any] = {}
    take = timing.take_steps

    def take_counted(*others: Any, **named: Any) -> Any:
        if "on_start" not in named:  # steps with batches on the device, taken to compare
            return take(*others, **named)
        read_loss = timing.wait_for_loss

        def after_the_interval(shares: Any) -> float:
            if not found:
                found.update(json.loads(null.nullgpu_counts()), cpu_seconds=time.process_time() - cpu_before)
            return read_loss(shares)

        timing.wait_for_loss = after_the_interval
        if "--data=tfrecord" in arguments:
            time.sleep(INPUT_SECONDS)
        null.nullgpu_reset()
        cpu_before = time.process_time()
        # An untimed step would be counted; in the table, every step is waited for.
        interval = take(*others, **named | {"on_start": None, "per_wait": 1})
        found["step_seconds"], found["steps"] = interval.step_seconds, len(interval.losses)
        found["lead"] = statistics.median(interval.lead_seconds) / statistics.median(interval.step_seconds)
        if rounds:
            step, count = others[:2]
            found["to_plain_loop"] = statistics.median(
                take(step, count).seconds / _plain_loop_seconds(step, count) for _ in range(rounds)
            )
        found["peak_bytes"] = repeat.devices.device_memory_peak_bytes(request.case)
        variables = getattr(others[0].__self__.workload, "variables", [])
        found["gradient_bytes"] = sum(4 * int(variable.shape.num_elements()) for variable in variables)
        raise _CountedError

    repeat.timing = SimpleNamespace(**{**vars(timing), "take_steps": take_counted})  # warm-up keeps its own
    if device := request.case.model == DEVICE_MODEL:
        _count_figures(null, found)
    with contextlib.suppress(CaseFailedError if device else _CountedError):  # a device's results are wrong
        repeat.run_repeat(request.case, request.options, Findings(), Peers())
    return found


def _plain_loop_seconds(step: Callable[[], Any], count: int) -> float:
    """Return the seconds of `count` steps that nobody times, until the last one's end."""
    import tensorflow as tf

    begin = time.perf_counter()
    for _ in range(count):
        shares = step()
    tf.test.experimental.sync_devices()
    del shares
    return time.perf_counter() - begin


def _count_figures(null: ctypes.CDLL, figures: dict[str, Any]) -> None:
    """Count calls of each figure of a device, of which only the last is waited for, instead of timing them."""
    import tensorflow as tf

    from tfbench.roofline import peaks

    found, measured = {}, peaks.measured

    def count(work: Callable[[], object], *_: object, **__: object) -> list[float]:
        null.nullgpu_reset()
        for _call in range(STEPS):
            work()
        tf.test.experimental.sync_devices()
        found.update(json.loads(null.nullgpu_counts()), steps=STEPS, gradient_bytes=0, peak_bytes=0)
        return [1.0]

    def keep(wanted: Any, *others: Any) -> Any:
        result = measured(wanted, *others)
        figures[f"{wanted.metric},{wanted.arithmetic or 'fp32'}"] = dict(found)
        return result

    peaks.rounds_of, peaks.measured = count, keep
    peaks.tf32_observed = lambda _: True  # what computes nothing rounds nothing


def main() -> int:
    """Count what is missing from the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further case after this time")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return 0
    order = {tuple(key.values()): key for key in keys()}
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = {tuple(line[name] for name in KEY): line for line in csv.DictReader(file)}
    counter, begin, failed = Counter(), time.monotonic(), 0
    for values, key in order.items():
        if values in rows or options.pattern not in ",".join(values) or time.monotonic() - begin > options.seconds:
            continue
        try:
            rows[values] = row(key, counter.count(flags(key)))
        except RuntimeError as error:
            failed += 1
            print(error, file=sys.stderr, flush=True)  # noqa: T201
            continue
        print(*rows[values].values(), sep=",", flush=True)  # noqa: T201
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, (*KEY, *COUNTS), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[known] for known in order if known in rows)
    counter.close()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
