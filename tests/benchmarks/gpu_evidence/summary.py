"""The summary: a line per step, rewritten after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.gpu_evidence.folder import FORMAT, Folder, write_atomically, write_json
from tests.benchmarks.gpu_evidence.steps import Outcome, Step

COLUMNS = ("step", "answer", "power", "utilisation", "seconds", "note", "question")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One step of the plan.

    Attributes:
        result: What its result file holds; None: not run yet.
    """

    step: Step
    result: dict[str, Any] | None


def write_summary(folder: Folder, lines: Sequence[Line], machine: dict[str, Any]) -> None:
    """Write `summary.json`, then `summary.md`."""
    done = sum(line.result is not None for line in lines)
    document = {
        "format": FORMAT,
        "machine": machine,
        "done": done,
        "total": len(lines),
        "outcomes": _counts(lines),
        "steps": [line.result or {"step": line.step.name, "outcome": None} for line in lines],
    }
    write_json(folder.path / "summary.json", document)
    write_atomically(folder.path / "summary.md", _markdown(lines, machine, done))


def answer(result: dict[str, Any] | None) -> str:
    """Return a step's outcome in a few words: a figure with its unit, or the word and why."""
    if result is None:
        return "not run yet"
    if result["outcome"] == Outcome.FIGURE:
        figure = result["figures"][0]
        limit = figure.get("limit")
        bound = f" (limit {limit:.4g})" if limit is not None else ""
        return f"{number(figure['value'])} {figure['unit']}{bound}"
    if result["outcome"] == Outcome.FAILED:
        return f"failed: {result['cause']}"
    return str(result["outcome"])


def number(value: float) -> str:
    """Return a number with four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _counts(lines: Sequence[Line]) -> dict[str, int]:
    counts = dict.fromkeys([str(outcome) for outcome in Outcome], 0)
    for line in lines:
        if line.result is not None:
            counts[line.result["outcome"]] += 1
    return counts


def _markdown(lines: Sequence[Line], machine: dict[str, Any], done: int) -> str:
    gpus = ", ".join(machine["gpus"]) or "none: figures are of a CPU at reduced sizes and say nothing about a GPU"
    counts = ", ".join(f"{count} {name}" for name, count in _counts(lines).items() if count)
    head = [
        "# GPU evidence",
        "",
        f"{done} of {len(lines)} steps done: {counts}. GPUs: {gpus}.",
        f"Version: {', '.join(_versions(lines)) or 'none yet'}. README.md explains the files.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * len(COLUMNS),
    ]
    return "\n".join([*head, *(_row(line) for line in lines)]) + "\n"


def _versions(lines: Sequence[Line]) -> list[str]:
    """Return the versions that steps were measured with: more than one means that code changed in between."""
    return sorted(
        {line.result["version"] for line in lines if line.result and line.result["outcome"] == Outcome.FIGURE}
    )


def _row(line: Line) -> str:
    result = line.result or {}
    details = result.get("details", {})
    power, utilisation = details.get("power_mean_watts"), details.get("flops_utilisation")
    cells = [
        line.step.name,
        answer(line.result),
        f"{power:.0f} W" if power is not None else "",
        f"{utilisation:.1%}" if utilisation is not None else "",
        f"{result['seconds']:.0f}" if result else "",
        result.get("note") or (result.get("cause") if result.get("outcome") != Outcome.FAILED else "") or "",
        line.step.question,
    ]
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
