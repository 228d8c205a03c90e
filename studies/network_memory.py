"""Peak memory of training steps: `python -m studies.network_memory [NETWORK …]`, on null GPUs of 256 GiB.

Writes to `results/reference/networks.csv` two numbers per network and precision: the line through the peaks of
TensorFlow's allocator for two batches. Then it counts the training cases of `SUITES` that
`results/reference/memory.csv` lacks. The workspaces that cuDNN asks for are in neither, nor is the CUDA context.
"""

import csv
import dataclasses
import sys
from collections.abc import Iterator

from orchestrate.suites import read_suite
from results.reference import FOLDER
from results.reference.networks import length_of
from results.schema import Case, Device, Precision
from results.schema.networks import NETWORKS
from studies.null_gpu_counts import FEW_STEPS, Counter

BATCHES = {Precision.FP16: (64, 256), Precision.FP32: (64, 128)}
IMAGES_PER_SEQUENCE = 8
"""Batches of sequences are smaller by this factor."""

SUITES = ("standard", "published", "aime", "transformers")
KEY = ("model", "precision", "sequence_length", "xla", "num_gpus", "batch_per_gpu")


def suite_cases() -> Iterator[Case]:
    """Name the training cases of the suites on one GPU and on two, in fp32 and fp16: tf32 and bf16 take as much."""
    cases = {case.name: case for suite in SUITES for case in read_suite(suite).cases_on(Device.GPU)}
    for case in cases.values():
        if case.num_gpus <= 2 and case.precision in BATCHES:
            yield case


def key_of(case: Case) -> tuple[str, ...]:
    """Return the first columns of a case's row; length 0: images."""
    return tuple(str(length_of(case) if name == "sequence_length" else getattr(case, name)) for name in KEY)


def peak_mib(counter: Counter, case: Case) -> float:
    """Return the allocator's peak on one GPU in MiB."""
    return float(counter.count([*case.flags(), *FEW_STEPS])["peak_bytes"]) / 2**20


def write_lines(counter: Counter, chosen: list[str]) -> None:
    """Write the columns of the chosen networks to `networks.csv`."""
    path = FOLDER / "networks.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["model"] not in chosen:
            continue
        for precision, batches in BATCHES.items():
            low, high = (batch // (IMAGES_PER_SEQUENCE if row["sequences"] == "1" else 1) for batch in batches)
            case = Case(model=row["model"], precision=precision)
            first, second = (peak_mib(counter, dataclasses.replace(case, batch_per_gpu=batch)) for batch in (low, high))
            sample = (second - first) / (high - low)
            row[f"memory_{precision}_mib"] = f"{first - low * sample:.0f}"
            row[f"memory_sample_{precision}_mib"] = f"{sample:.4g}"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def count_suites(counter: Counter) -> None:
    """Add the cases that the table lacks."""
    path = FOLDER / "memory.csv"
    with path.open(encoding="utf-8", newline="") as file:
        peaks = {tuple(row[name] for name in KEY): row["peak_mib"] for row in csv.DictReader(file)}
    for case in suite_cases():
        if key_of(case) in peaks:
            continue
        peaks[key_of(case)] = f"{peak_mib(counter, case):.0f}"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*KEY, "peak_mib"))
            writer.writerows((*key, peak) for key, peak in peaks.items())


def main(chosen: list[str]) -> None:
    """Count the chosen networks, or all, then what is missing of the suites."""
    counter = Counter()
    write_lines(counter, chosen or list(NETWORKS))
    count_suites(counter)
    counter.close()


if __name__ == "__main__":
    main(sys.argv[1:])
