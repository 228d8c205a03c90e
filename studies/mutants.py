"""Moves each stated limit of tfbench and shows whether a test notices: `python -m studies.mutants`.

Works on a copy of the project. A mutant survives if the tests of its topic still pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import PROJECT

TESTS = tuple(f"tests/unit/tfbench/test_{topic}.py" for topic in ("limits", "host", "setup"))
COPIED = ("tfbench", "results", "orchestrate", "containers", "studies", "tests", "docs")

MUTANTS = (
    ("measuring/timing.py", "AGREEMENT = 0.01", "AGREEMENT = 0.015"),
    ("measuring/timing.py", "AGREEMENT = 0.01", "AGREEMENT = 0.005"),
    ("measuring/timing.py", "done.steps >= floor and", "done.steps > floor and"),
    ("measuring/timing.py", "CEILING_FACTOR = 5", "CEILING_FACTOR = 6"),
    ("measuring/soft_warnings.py", "HOST_LEAD_SHARE, MAX_HOST_LEAD_SECONDS = 0.25", "HOST_LEAD_SHARE, MAX_HOST_LEAD_SECONDS = 0.5"),
    ("measuring/soft_warnings.py", "= 0.25, 2e-3", "= 0.25, 3e-3"),
    ("measuring/soft_warnings.py", "ENERGY_DIFFERENCE_LIMIT = 0.1", "ENERGY_DIFFERENCE_LIMIT = 0.2"),
    ("measuring/soft_warnings.py", "UTILISATION_LIMIT = 0.95", "UTILISATION_LIMIT = 1.0"),
    ("measuring/soft_warnings.py", "{Device.GPU: 0.02, Device.CPU: 0.10}", "{Device.GPU: 0.03, Device.CPU: 0.10}"),
    ("measuring/soft_warnings.py", "{Device.GPU: 0.02, Device.CPU: 0.10}", "{Device.GPU: 0.02, Device.CPU: 0.15}"),
    ("measuring/soft_warnings.py", "{Device.GPU: 0.02, Device.CPU: 0.05}", "{Device.GPU: 0.03, Device.CPU: 0.05}"),
    ("measuring/soft_warnings.py", "{Device.GPU: 0.02, Device.CPU: 0.05}", "{Device.GPU: 0.02, Device.CPU: 0.06}"),
    ("measuring/soft_warnings.py", "other_cpu_share, MAX_IDLE_UTILISATION", "other_cpu_share, 2 * MAX_IDLE_UTILISATION"),
    ("measuring/validity.py", "UNTRAINED_LIMIT = math.log(4.0)", "UNTRAINED_LIMIT = math.log(5.0)"),
    ("measuring/validity.py", "Precision.FP32: 5e-3, Precision.TF32: 2e-2", "Precision.FP32: 1e-2, Precision.TF32: 2e-2"),
    ("measuring/validity.py", "XLA_FACTOR = 10.0", "XLA_FACTOR = 20.0"),
    ("inference.py", "Precision.FP16: 1e-2, Precision.BF16: 5e-2", "Precision.FP16: 2e-2, Precision.BF16: 5e-2"),
    ("machine/telemetry.py", "LEAST_COVERAGE = 0.9", "LEAST_COVERAGE = 0.5"),
    ("machine/telemetry.py", "ru_maxrss * 1024", "ru_maxrss"),
    ("machine/host.py", "_USED = (0, 1, 2, 7)", "_USED = (0, 2)"),
    ("machine/host.py", "(others - (cpus - limit)) / limit", "others / cpus"),
    ("machine/host.py", "STANDARD_ERRORS = 4.0", "STANDARD_ERRORS = 0.0"),
    ("machine/host.py", '"avx512f": 512', '"avx512f": 256'),
    ("failures.py", "NEARLY_FULL_BYTES = 2**30", "NEARLY_FULL_BYTES = 2**29"),
    ("doctor/checks.py", "MIN_CPUS_PER_GPU = 3.0", "MIN_CPUS_PER_GPU = 2.0"),
    ("doctor/checks.py", "MIN_MEMORY_BYTES = 4_000_000_000", "MIN_MEMORY_BYTES = 3_000_000_000"),
    ("doctor/checks.py", "MIN_SHM_BYTES = 1 << 30", "MIN_SHM_BYTES = 1 << 29"),
    ("settings.py", '"TF_GPU_THREAD_MODE": "gpu_private"', '"TF_GPU_THREAD_MODE": "gpu_shared"'),
    ("../results/schema/health.toml", 'throttle_thermal_share"\nlimit = 0.05', 'throttle_thermal_share"\nlimit = 0.1'),
    ("../results/schema/health.toml", 'throttle_hardware_share"\nlimit = 0.05\nreject = 0.5', 'throttle_hardware_share"\nlimit = 0.05\nreject = 0.6'),
    ("../results/schema/health.toml", "limit = 0.1\n", "limit = 0.15\n"),
    ("../results/schema/health.toml", "limit = 0.02", "limit = 0.03"),
    ("../results/schema/health.toml", "limit = 50.0", "limit = 55.0"),
    ("../results/schema/health.toml", "limit = 65.0", "limit = 70.0"),
    ("../results/schema/health.py", "MAX_IDLE_BYTES = 1 << 30", "MAX_IDLE_BYTES = 2 << 30"),
)  # fmt: skip
"""File below tfbench/, text, and what replaces it."""


def copy_project(folder: Path) -> None:
    """Copy what tests need into a folder."""
    for name in COPIED:
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "measured"))
    shutil.copy(PROJECT / "pyproject.toml", folder)


def main() -> int:
    """Print the survivors; return 1 if there are any."""
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        copy_project(copy)
        assert _passes(copy), "the tests fail without a mutant"
        for file, text, replacement in MUTANTS:
            path = copy / "tfbench" / file
            original = path.read_text(encoding="utf-8")
            assert original.count(text) == 1, f"{file}: {text!r} must occur once"
            path.write_text(original.replace(text, replacement), encoding="utf-8")
            survived = _passes(copy)
            path.write_text(original, encoding="utf-8")
            sys.stdout.write(f"{'SURVIVED' if survived else 'killed  '} {file} {replacement}\n")
            sys.stdout.flush()
            survivors += [replacement] if survived else []
    sys.stdout.write(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} killed\n")
    return int(bool(survivors))


def _passes(folder: Path) -> bool:
    """Return whether the tests pass on a copy of the project."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *TESTS]
    variables = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **variables}, capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
