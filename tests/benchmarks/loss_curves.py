# ruff: noqa: T201 (a script prints its result)
"""Compare loss curves of two TensorFlow versions: the same seed, the same weights and data, step by step.

    python -m tests.benchmarks.loss_curves --other=…/bin/python [--models=bert_large,resnet50_v1.5] [--steps=50]

`--other` is the interpreter of another virtual environment with TensorFlow, absl-py and nvidia-ml-py. Prints both curves'
ends and the largest relative difference of any step; exit code 1 when it is above the tolerance.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from results.runs.reading import from_json
from results.schema import Record
from tfbench.models import NETWORKS

TOLERANCE = 1e-4
"""Largest relative difference of a loss at any step: rounding, which training magnifies from step to step."""

REPOSITORY = Path(__file__).parents[2]


def curve(python: str, model: str, options: argparse.Namespace) -> Record:
    """Train with one interpreter; return the record."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        command = [
            *(python, "-m", "tfbench", f"--model={model}", "--device=cpu", f"--precision={options.precision}"),
            *(f"--batch_size={options.batch_size}", "--warmup_steps=0", f"--num_steps={options.steps}"),
            *(f"--seed={options.seed}", "--nopeaks", f"--output={output}"),
        ]
        if options.sequence_length and NETWORKS[model].inputs.sequence_length:
            command.append(f"--sequence_length={options.sequence_length}")
        # Without oneDNN, whose choice of algorithms differs between versions.
        environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
        subprocess.run(command, cwd=REPOSITORY, env=environment, stderr=subprocess.DEVNULL, check=False)
        record = from_json(output.read_bytes())
    if record.measurement is None:
        raise SystemExit(f"{model}: {record.status}: {record.cause}")
    return record


def difference(one: float, other: float) -> float:
    """Return the relative difference; 0 of two that are equal, also where a network has learned its batch to a loss of 0."""
    return 0.0 if one == other else abs(one - other) / max(abs(one), abs(other))


def compare(model: str, options: argparse.Namespace) -> float:
    """Return the largest relative difference of any step's loss."""
    here, there = curve(sys.executable, model, options), curve(options.other, model, options)
    pairs = list(zip(here.measurement.losses, there.measurement.losses, strict=True))
    differences = [difference(one, other) for one, other in pairs]
    for record in (here, there):
        m, e = record.measurement, record.environment
        print(
            f"{model} TensorFlow {e.tensorflow}, Keras {e.keras}: {m.parameters_total:,} parameters, loss "
            f"{m.loss_first:.6f}, {m.losses[0]:.6f} … {m.losses[-1]:.6f} over {len(m.losses)} steps"
        )
    worst = max(range(len(differences)), key=differences.__getitem__)
    print(
        f"{model}: largest relative difference {differences[worst]:.2g}, at step {worst + 1}; "
        f"after 10 steps {max(differences[:10]):.2g}",
        flush=True,
    )
    return differences[worst]


def main() -> int:
    """Return 1 when a curve differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", required=True)
    parser.add_argument("--models", default="bert_large,resnet50_v1.5")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch_size", type=int, default=4, help="of 1 ResNet50 learns its image to a loss of 0")
    parser.add_argument("--sequence_length", type=int, help="of networks that take sequences")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seed", type=int, default=2014)
    options = parser.parse_args()
    return int(max(compare(model, options) for model in options.models.split(",")) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
