"""The verdicts of a deep check, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from orchestrate.accepting.deep import Checked
from orchestrate.accepting.figures import GPUFigures, HostFigures
from orchestrate.accepting.judging import HostVerdict
from results.grid import Grid


def verdict_grid(checked: Checked) -> Grid:
    """Return a row for each host and each of its GPUs; every finding is a line below."""
    rows, notes = [], []
    for verdict in checked.verdicts:
        figures = checked.figures.get((verdict.fleet, verdict.host))
        rows.append(_host_row(verdict, figures))
        rows += [_gpu_row(gpu, verdict) for gpu in (figures.gpus if figures else ())]
        for found in verdict.findings:
            where = "" if found.gpu is None else f", GPU {found.gpu}"
            notes.append(f"{verdict.fleet}/{verdict.host}{where}: {found.verdict}: {found.figure}: {found.text}")
    columns = ["host", "device", "verdict", "fp32 TFLOP/s>", "tf32 TFLOP/s>", "fp16 TFLOP/s>", "memory GB/s>"]
    columns += ["to GPU GB/s>", "from GPU GB/s>", "link", "clock MHz>", "power W>", "°C>", "all-reduce GB/s>"]
    columns += ["core loops/s>", "disk MB/s>"]
    return Grid("Deep check", columns, rows, notes).without_empty_columns()


def verdicts_json(checked: Checked) -> str:
    """Return the verdicts and the figures as JSON."""
    documents = []
    for verdict in checked.verdicts:
        figures = checked.figures.get((verdict.fleet, verdict.host))
        document: dict[str, Any] = {
            "fleet": verdict.fleet,
            "host": verdict.host,
            "verdict": verdict.verdict,
            "gpus": [{"index": index, "verdict": found} for index, found in verdict.gpus.items()],
            "findings": [dataclasses.asdict(found) for found in verdict.findings],
            "figures": None,
        }
        if figures is not None:
            known = dataclasses.asdict(figures)
            known["pairs"] = [[*pair, value] for pair, value in figures.pairs.items()]
            document["figures"] = known
        documents.append(document)
    return json.dumps({"version": 1, "hosts": documents}, indent=2) + "\n"


def _host_row(verdict: HostVerdict, figures: HostFigures | None) -> list[str]:
    name = f"{verdict.fleet}/{verdict.host}"
    if figures is None:
        return [name, "", verdict.verdict, *[""] * 13]
    loops = None if not figures.cpu_loop_seconds else 1 / figures.cpu_loop_seconds
    return [
        *(name, "processor", str(verdict.verdict), _figure(figures.cpu_products, 1e12), "", ""),
        *(_figure(figures.cpu_memory_bytes_per_second, 1e9), "", "", "", "", "", ""),
        *(
            _figure(figures.all_reduce_bytes_per_second, 1e9),
            _figure(loops, 1),
            _figure(figures.disk_bytes_per_second, 1e6),
        ),
    ]


def _gpu_row(gpu: GPUFigures, verdict: HostVerdict) -> list[str]:
    link = "" if gpu.pcie_width is None else f"{gpu.pcie_generation or '?'} x{gpu.pcie_width}"
    return [
        *("", f"GPU {gpu.index} {gpu.name}", str(verdict.gpus[gpu.index])),
        *(_figure(gpu.products.get(kind), 1e12) for kind in ("fp32", "tf32", "fp16")),
        _figure(gpu.memory_bytes_per_second, 1e9),
        _figure(gpu.to_device_bytes_per_second, 1e9),
        _figure(gpu.to_host_bytes_per_second, 1e9),
        link,
        *(_figure(value, 1) for value in (gpu.clock_mhz, gpu.power_watts, gpu.temperature_celsius)),
        *("", "", ""),
    ]


def _figure(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:,.3g}" if value / unit < 1000 else f"{value / unit:,.0f}"
