# ruff: noqa: T201 (a script prints its result)
"""What a repeat of the quick suite saves by what another one of its host and run has found out: alternating A/B.

    python -m tests.benchmarks.repeat_minutes [--pairs 3] [--model googlenet]

A measures the limits of the device itself, B is given those of the first A (`--known_peaks`). Prints for each pair the
ratio B / A of processor time (which other work on the machine hardly changes) and of time by the clock, and the share of
timed steps; then what Keras's import of pandas and the garbage collector cost at the start, which repeats do without.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMPORTS = {
    "with pandas": "import tensorflow, keras",
    "without": "import sys; sys.modules['pandas'] = None; import tensorflow, keras",
    "without, and without collecting garbage": (
        "import gc, sys; gc.disable(); sys.modules['pandas'] = None; import tensorflow, keras"
    ),
}


def main() -> None:
    """Measure pairs and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--model", default="googlenet")
    options = parser.parse_args()
    known: list[str] = []
    for _ in range(options.pairs):
        seconds, processor, share = {}, {}, {}
        for name, flags in (("A", []), ("B", known)):
            record, seconds[name], processor[name] = measured(options.model, flags if name == "B" else [])
            figures = record["measurement"]
            share[name] = figures["seconds"] / seconds[name]
            if not known:
                known.append(f"--known_peaks={figures['peak_flops_per_second']},{figures['peak_bytes_per_second']}")
        print(
            f"B / A: processor {processor['B'] / processor['A']:.2f}, clock {seconds['B'] / seconds['A']:.2f}; "
            f"share of timed steps {share['A']:.0%} -> {share['B']:.0%}",
            flush=True,
        )
    spent: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(options.pairs):
        for name, program in IMPORTS.items():
            spent[name].append(processor_seconds([sys.executable, "-c", program]))
    medians = {name: statistics.median(values) for name, values in spent.items()}
    print(", ".join(f"import {name}: {seconds:.2f} s of processor time" for name, seconds in medians.items()))


def measured(model: str, flags: list[str]) -> tuple[dict, float, float]:
    """Run one repeat of the quick suite; return its record, its seconds by the clock and of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        timing = ("--batch_size=4", "--warmup_steps=3", "--num_steps=10", "--min_seconds=15")
        command = [sys.executable, "-m", "tfbench", f"--model={model}", "--device=cpu", *timing, *flags]
        begin = time.perf_counter()
        processor = processor_seconds([*command, f"--output={output}"])
        return json.loads(output.read_text()), time.perf_counter() - begin, processor


def processor_seconds(command: list[str]) -> float:
    """Run a command; return the processor time of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
