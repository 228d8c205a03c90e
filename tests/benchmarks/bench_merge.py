"""How long merging takes, and how much memory: `python -m tests.benchmarks.bench_merge [RECORDS]`.

Records are made one by one while they are merged, as they would be read one by one; the time to make them is measured
by itself and taken off. The limit asked for is 1,000,000 records within 10 s and 4 GB.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from results.runs.store import StoredRecord
from results.schema import Record
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, make_origin, make_record

MODELS = ("resnet50", "resnet152", "inception_v3", "googlenet")
COUNTS = (1, 2, 4, 8)
PRECISIONS = ("fp32", "fp16")
REPEATS = 5
HOSTS = 25
GIGABYTE = 1e9


def records(count: int) -> Iterator[StoredRecord]:
    """Yield records of many runs: every host, every case of the standard suite, five repeats."""
    templates = [
        make_record(100.0, case=make_case(model, precision=precision, num_gpus=gpus, device="gpu"))
        for model in MODELS
        for precision in PRECISIONS
        for gpus in COUNTS
    ]
    environments = [make_environment(gpus=8, driver=f"5{host % 3}0.54") for host in range(HOSTS)]
    path = Path("records/record.json")
    made = 0
    run = 0
    while True:
        for host in range(HOSTS):
            for repeat in range(1, REPEATS + 1):
                origin = make_origin("a4000" if host % 2 else "a5000", f"node-{host}", repeat, run_id=f"run-{run}")
                for template in templates:
                    if made == count:
                        return
                    yield StoredRecord(path, _like(template, origin, environments[host]))
                    made += 1
        run += 1


def _like(template: Record, origin: object, environment: object) -> Record:
    """Copy a record with another origin, faster than `dataclasses.replace`."""
    record = object.__new__(Record)
    record.__dict__.update(template.__dict__, origin=origin, environment=environment)
    return record


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    started, started_processor = time.perf_counter(), time.process_time()
    made = sum(1 for _ in records(count))
    making_seconds, making_processor = time.perf_counter() - started, time.process_time() - started_processor
    started, started_processor = time.perf_counter(), time.process_time()
    merged = merge_records(records(count))
    seconds = time.perf_counter() - started - making_seconds
    processor_seconds = time.process_time() - started_processor - making_processor
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert merged.table["repeats"].sum() == made == count, "every record must be counted once"
    sys.stdout.write(
        f"{count} records into {len(merged.table)} rows: {seconds:.1f} s, {processor_seconds:.1f} s of processor time, "
        f"peak memory {peak_bytes / GIGABYTE:.2f} GB\n"
    )


if __name__ == "__main__":
    main()
