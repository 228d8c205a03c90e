"""Probe: what software and hardware this is, of which records keep a part only. No TensorFlow is imported."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "nvlink.txt": ("nvidia-smi", "nvlink", "--status"),
    "lscpu.txt": ("lscpu",),
}
"""What is kept as it is printed, by file."""

TELLING = ("TF_", "CUDA_", "NCCL_", "NVIDIA_", "XLA_", "OMP_", "KERAS_")
"""Beginnings of the names of environment variables that may change a figure."""


def main() -> int:
    """Ask, and write what was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for what programs print")
    options = parser.parse_args()
    printed = {file: _print_into(options.folder / file, command) for file, command in COMMANDS.items()}
    names = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
    ).stdout.splitlines() if shutil.which("nvidia-smi") else []  # fmt: skip
    packages = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    software = {
        "python": sys.version,
        "kernel": platform.release(),
        "operating_system": _operating_system(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(TELLING)},
        "packages": dict(sorted(packages.items(), key=lambda item: str(item[0]).lower())),
        "files": printed,
    }
    (options.folder / "software.json").write_text(json.dumps(software, indent=1) + "\n", encoding="utf-8")
    figure = {"name": "gpus_of_the_driver", "value": len(names), "unit": "GPUs"}
    details = {"gpus": names, "packages": len(packages), "files": printed}
    options.output.write_text(json.dumps({"figures": [figure], "details": details}), encoding="utf-8")
    return 0


def _print_into(file: Path, command: tuple[str, ...]) -> str:
    """Keep what a program prints; say whether there is such a program."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not on the PATH"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=40)
    file.write_text(done.stdout + done.stderr, encoding="utf-8")
    return f"exit code {done.returncode}"


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


if __name__ == "__main__":
    sys.exit(main())
