"""Fakes of NVIDIA's driver libraries for any machine, without a GPU.

`build(machine, folder)` compiles `libnvidia-ml.so.1` and `libcuda.so.1` for processes with that folder on
LD_LIBRARY_PATH. TensorFlow cannot use them.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import PROJECT

HERE = Path(__file__).parent
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class FakeSlice:
    """A slice of a GPU in MIG mode."""

    memory_mib: int
    instance_slices: int
    uuid: uuid.UUID
    compute_slices: int | None = None


@dataclass(frozen=True, kw_only=True)
class FakeGPU:
    """One GPU, by default an idle and healthy H100. Power in mW; -1: not supported. `licensed` is for a vGPU."""

    bus_id: str
    uuid: uuid.UUID | str
    name: str = "NVIDIA H100 80GB HBM3"
    lost: int = 0
    major: int = 9
    minor: int = 0
    multiprocessors: int = 132
    memory_total: int = 81559 << 20
    memory_used: int = 500 << 20
    power_limit: int = 700_000
    power_default: int = 700_000
    power_min: int = 200_000
    power_max: int = 700_000
    power: int = 75_000
    temperature: int = 34
    utilisation: int = 0
    clock: int = 345
    clock_max: int = 1980
    application_clock: int = 1980
    ecc: int = 1
    ecc_errors: int = 0
    rows_pending: int = 0
    rows_failed: int = 0
    persistence: int = 1
    compute_mode: int = 0
    mig: int = 0
    generation: int = 5
    generation_max: int = 5
    width: int = 16
    width_max: int = 16
    reasons: int = 1
    processes: int = 0
    first_process: int = 9_999_001  # above all pids of the kernel
    links_up: int = 18
    links_down: int = 0
    island: int = 0
    licensed: int = -1
    slices: Sequence[FakeSlice] = ()


@dataclass(frozen=True, kw_only=True)
class FakeMachine:
    """A driver and its GPUs."""

    gpus: Sequence[FakeGPU]
    driver: str = "550.54.14"
    cuda: int = 12040
    sources: Sequence[str] = field(default=("nvml", "cuda"))


_LIBRARIES = {"nvml": "libnvidia-ml.so.1", "cuda": "libcuda.so.1"}


def two_a4000() -> FakeMachine:
    """Return two workstation GPUs, `GPU-0` and `GPU-1`; the second is busy, power-capped and in a narrow slot."""
    card = {"name": "Fake A4000", "major": 8, "minor": 6, "memory_total": 16000, "power_limit": 140_000}
    workstation = {"clock_max": 2100, "generation": 4, "generation_max": 4, "ecc": -1, "reasons": 0, "links_up": 0}
    idle = {"memory_used": 1000, "power_default": 140_000, "power": 80_000, "temperature": 60, "clock": 1500}
    first = FakeGPU(bus_id="0000:01:00.0", uuid="GPU-0", **card, **workstation, **idle)
    busy = {"memory_used": 2000, "power_default": 200_000, "power": 120_000, "temperature": 61, "clock": 1200}
    second = replace(first, bus_id="0000:02:00.0", uuid="GPU-1", utilisation=87, width=8, **busy)
    return FakeMachine(gpus=(first, second), sources=("nvml",))


def gpu_uuid(index: int) -> uuid.UUID:
    """Return the UUID of a GPU of the fake machine of eight."""
    return uuid.UUID(int=0x8932F937D72C4106C12F20BD9FAED900 + index)


def slice_uuid(index: int) -> uuid.UUID:
    """Return the UUID of a slice of GPU 6 of the fake machine of eight."""
    return uuid.UUID(int=0x8C4C5A27E5085556B2EA7E5494657400 + index)


def eight_h100(lost: int = 2) -> FakeMachine:
    """Return eight H100: GPU 0 is healthy, GPU 3 is lost, and each of the others has another fault."""
    buses = ("18", "2A", "3A", "3B", "86", "AF", "CB", "DB")
    wrong = {
        1: {"power_limit": 400_000},
        2: {"width": 8, "generation": 4},
        3: {"lost": lost},
        4: {"ecc_errors": 3, "rows_pending": 1},
        5: {"processes": 2, "utilisation": 96, "memory_used": 40 * GIB, "temperature": 71, "power": 610_000},
        6: {
            "mig": 1,
            "slices": (
                FakeSlice(memory_mib=9856, instance_slices=1, uuid=slice_uuid(0)),
                FakeSlice(memory_mib=40320, instance_slices=3, uuid=slice_uuid(1)),
                FakeSlice(memory_mib=20096, instance_slices=2, compute_slices=1, uuid=slice_uuid(2)),
            ),
        },
        7: {"links_up": 16, "links_down": 2, "persistence": 0},
    }
    return FakeMachine(
        gpus=[
            FakeGPU(bus_id=f"0000:{bus}:00.0", uuid=gpu_uuid(index), island=index // 4, **wrong.get(index, {}))
            for index, bus in enumerate(buses)
        ]
    )


def build(machine: FakeMachine, folder: Path) -> Path:
    """Compile the driver libraries of a machine into a folder; skip the test without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (gcc) to build the fake NVIDIA driver library")
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "table.h"
    rows = ",\n".join(map(_row, machine.gpus))
    table.write_text(
        f"#define DRIVER {json.dumps(machine.driver)}\n#define CUDA {machine.cuda}\n"
        f"enum {{ COUNT = {len(machine.gpus)} }};\nstatic Gpu gpus[COUNT] = {{\n{rows}\n}};\n"
    )
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f'-DTABLE="{table}"', f"-I{HERE}"]
    for name in machine.sources:
        subprocess.run([compiler, *flags, "-o", folder / _LIBRARIES[name], HERE / f"{name}.c"], check=True)
    return folder


def run_python(driver: Path, *arguments: str, **variables: str) -> Any:
    """Run Python with a built driver, in the repository, and return its JSON output."""
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env={**inherited, "LD_LIBRARY_PATH": str(driver), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _row(gpu: FakeGPU) -> str:
    parts = []
    for item in fields(FakeGPU):
        value = getattr(gpu, item.name)
        if item.name == "uuid":
            text = f"GPU-{value}" if isinstance(value, uuid.UUID) else value
            parts += [f".uuid = {json.dumps(text)}", f".digits = {_digits(value)}"]
        elif item.name == "slices":
            rows = ", ".join(_slice(part) for part in value)
            parts += [f".slice_count = {len(value)}", f".slices = {{{rows or '{0}'}}}"]
        else:
            parts.append(f".{item.name} = {json.dumps(value)}")
    return "  {" + ", ".join(parts) + "}"


def _slice(part: FakeSlice) -> str:
    slices = f"{part.instance_slices}, {part.compute_slices or part.instance_slices}"
    return f'{{"MIG-{part.uuid}", {_digits(part.uuid)}, {part.memory_mib}, {slices}}}'


def _digits(value: uuid.UUID | str) -> str:
    digits = value.bytes if isinstance(value, uuid.UUID) else value.encode().ljust(16, b"\0")
    return "{" + ", ".join(map(str, digits)) + "}"
