"""Counts what a step asks of a null GPU with TensorFlow's layout optimizer and without: `python -m studies.null_gpu_layouts`.

Prints CSV: launches, library calls, transposing kernels and the bytes they read and write, convolutions by cuDNN, matrix products, peak MiB.
"""

import argparse
import csv
import sys
from typing import Any

from studies.null_gpu_counts import FEW_STEPS, IMAGES, NETWORKS, SEQUENCES, TRANSFORMERS, Counter
from tfbench.settings import LAYOUT_OPTIMIZER

LAYOUTS: dict[str, dict[str, int]] = {"default": {}, "nhwc": {LAYOUT_OPTIMIZER: 0}}


def main() -> None:
    """Count every network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precisions", nargs="+", default=["tf32", "bf16"])
    counter, writer = Counter(), csv.writer(sys.stdout, lineterminator="\n")
    names = (
        "launches",
        "library_calls",
        "transposes",
        "transposed_mb",
        "cudnn_convolutions",
        "matrix_products",
        "peak_mib",
    )
    writer.writerow(("model", "precision", "layout", *names))
    for precision in parser.parse_args().precisions:
        for model in NETWORKS:
            batch = SEQUENCES if model in TRANSFORMERS else IMAGES
            case = [f"--model={model}", f"--precision={precision}", f"--batch_size={batch}", *FEW_STEPS]
            for layout, settings in LAYOUTS.items():
                writer.writerow((model, precision, layout, *_figures(counter.count(case, **settings))))
                sys.stdout.flush()
    counter.close()


def _figures(found: dict[str, Any]) -> tuple[float, ...]:
    """Return the figures of one step."""
    calls, steps = found["calls"], found["steps"]

    def total(*names: str, part: int = 0) -> float:
        return float(sum(numbers[part] for name, numbers in calls.items() if name.startswith(names)) / steps)

    products = sum(numbers[0] for name, numbers in calls.items() if name.startswith("cublas") and "emm" in name) / steps
    own = (total("cudnnBackendExecute"), products, found["peak_bytes"] // 2**20)
    return total("launch"), total("library"), total("transpose"), round(total("transpose", part=1) / 1e6, 1), *own


if __name__ == "__main__":
    main()
