"""Runs tf_cnn_benchmarks and parses its output. Standard library only, for bare GPU machines.

tf_cnn_benchmarks is not part of this project. With TensorFlow ≥ 2.16 it needs `tf_keras`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "tf_cnn_benchmarks.py"


@dataclass(frozen=True)
class Pairing:
    """Names of a network in both programs."""

    ours: str
    theirs: str
    batch_norm: str = "fused"


PAIRINGS = {
    "resnet50": Pairing("resnet50", "resnet50"),
    "resnet152": Pairing("resnet152", "resnet152"),
    "inception_v3": Pairing("inception_v3", "inception3"),
    "googlenet": Pairing("googlenet", "googlenet", "none"),
    "vgg16": Pairing("vgg16", "vgg16", "none"),
}


def flags(pairing: Pairing, precision: str, batch: int, steps: int, warmup: int, xla: str = "off") -> tuple[str, ...]:
    """Return the flags for one network on one GPU.

    Args:
        precision: `fp32`, `tf32` or `fp16`; the first two differ in `variables` only.
        batch: Images per step.
        steps: Timed steps.
        warmup: Untimed steps.
        xla: `off` or `auto`.
    """
    return (
        *(f"--model={pairing.theirs}", "--device=gpu", "--data_format=NCHW", f"--batch_size={batch}"),
        *(f"--num_batches={steps}", f"--num_warmup_batches={warmup}", f"--use_fp16={precision == 'fp16'}"),
        *(f"--xla={xla == 'auto'}", "--optimizer=momentum", "--variable_update=replicated"),
    )


def cpu_flags(intra_threads: int, inter_threads: int) -> tuple[str, ...]:
    """Return additional flags for a CPU, which override those of `flags`."""
    return (
        *("--device=cpu", "--data_format=NHWC"),
        *(f"--num_intra_threads={intra_threads}", f"--num_inter_threads={inter_threads}"),
    )


def variables(precision: str) -> dict[str, str]:
    """Return environment variables.

    tf_cnn_benchmarks has no switch for TF32, which TensorFlow enables by default, so it is disabled in cuBLAS and cuDNN
    for fp32.

    Source: NVIDIA_TF32_OVERRIDE, cuBLAS documentation, section "Tensor Core Usage".
    """
    return {"TF_USE_LEGACY_KERAS": "1", **({"NVIDIA_TF32_OVERRIDE": "0"} if precision == "fp32" else {})}


def images_per_second(output: str) -> float | None:
    """Parse the rate from the output of a run; None: it has none."""
    found = re.search(r"total images/sec: ([\d.]+)", output)
    return float(found[1]) if found else None


def find_folder(path: Path) -> Path | None:
    """Return the folder of the program within a checkout; None: not found."""
    for folder in (path, path / "scripts" / "tf_cnn_benchmarks"):
        if (folder / PROGRAM).is_file():
            return folder.resolve()
    return None
