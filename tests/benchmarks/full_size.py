# ruff: noqa: T201 (a script prints its result)
"""Train networks at their published size on this CPU: two logical replicas through the validity gates.

    python -m tests.benchmarks.full_size [--models=bert_large,vgg16] [--precisions=fp32,bf16] [--batch_size=1]

A line per network and precision says how it ended, what the gates measured, and the network's size and work. It shows
that a network trains rightly, not how fast: a few steps of a tiny batch. BERT-Large needs about 16 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from results.runs.reading import from_json
from results.schema import Record
from tfbench.models import NETWORKS

GATES = ("update_equals_one_device", "loss_equals_one_device", "replicas_equal")


def trained(model: str, precision: str, options: argparse.Namespace) -> Record:
    """Run tfbench in a process of its own; return its record."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        command = [
            *(sys.executable, "-m", "tfbench", f"--model={model}", f"--precision={precision}", "--device=cpu"),
            *("--num_gpus=2", f"--batch_size={options.batch_size}", "--warmup_steps=0"),
            *(f"--num_steps={options.steps}", "--nopeaks", f"--output={output}"),
        ]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
        return from_json(output.read_bytes())


def reported(record: Record) -> str:
    """Write a record as one line."""
    case = record.case
    checks = {check.name: check for check in (record.validity.checks if record.validity else [])}
    gates = ", ".join(f"{name} {checks[name].value:.2g}" for name in GATES if name in checks and checks[name].passed)
    begin = f"{case.model:18s} {case.precision} {case.optimizer:9s} {record.status}"
    if record.measurement is None:
        return f"{begin}: {record.cause}"
    m = record.measurement
    memory = (record.telemetry.host_memory_peak_bytes or 0) / 2**30 if record.telemetry else 0.0
    return (
        f"{begin}; {gates}; loss {m.loss_first:.4f} -> {m.loss_last:.4f}; {m.parameters_trainable:,} trained of "
        f"{m.parameters_total:,}; {(m.flops_per_sample or 0) / 1e9:.3f} GFLOP/{m.unit[:-1]}; {memory:.1f} GiB"
    )


def main() -> int:
    """Return 1 when a network did not train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    failed = 0
    for model in options.models.split(","):
        for precision in options.precisions.split(","):
            record = trained(model, precision, options)
            print(reported(record), flush=True)
            failed += record.measurement is None
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
