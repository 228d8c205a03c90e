"""A recommendation as tables and sentences."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from results.cells import value_text
from results.digits import significant
from results.evidence import Basis
from results.fleets import FleetRate
from results.grid import Grid
from results.recommend import Choice, Question, break_even_lines, needed_memory_gib, precision_line

LABELS = {
    Basis.MEASURED: "measured by tfbench in these runs",
    Basis.PUBLISHED: "PUBLISHED by others, not measured here; one run each, so no interval",
    Basis.BOUND: "upper bound by memory bandwidth, never measured",
}


def advice_grid(question: Question, choices: Sequence[Choice]) -> Grid:
    """Return the choices as a table, best first; what is excluded says why."""
    rows = []
    for rank, choice in enumerate(choices, 1):
        rows.append(
            [
                "" if choice.excluded else str(rank),
                choice.subject if choice.subject == choice.gpu else f"{choice.subject} ({choice.gpu})",
                choice.offer.name,
                f"{choice.offer.usd_per_gpu_hour:.3f}",
                ("≤ " if choice.basis is Basis.BOUND else "") + value_text(choice.samples_per_second, choice.interval),
                str(choice.basis),
                ("≥ " if choice.basis is Basis.BOUND else "") + significant(choice.usd_per_million),
                significant(choice.hours_per_million),
                "" if choice.wins_below is None else f"{choice.wins_below:.3f}",
                choice.excluded,
            ]
        )
    columns = ["rank>", "GPU", "offer", "$/GPU-h>", "samples/s>", "basis", "$/million>", "h/million>", "wins below $>"]
    title = f"{_mix(question)} {question.precision} on {question.count} GPU{'s' if question.count > 1 else ''}"
    return Grid(title, [*columns, "left out"], rows, _notes(choices)).without_empty_columns()


def advice_lines(question: Question, choices: Sequence[Choice], rates: Sequence[FleetRate]) -> list[str]:
    """Say the answer, how it was reached, and where it flips: workload, memory, budget and precision, by data."""
    lines = []
    ranked = [choice for choice in choices if not choice.excluded]
    needed = needed_memory_gib(question)
    if needed is not None:
        lines.append(f"memory: {needed:.1f} GiB per GPU at least, for activations alone" if question.memory_gib is None
                     else f"memory: {needed:g} GiB per GPU asked for")  # fmt: skip
    if not ranked:
        return [*lines, "no choice answers this: see `left out`, or measure with `python -m orchestrate run`"]
    best = ranked[0]
    offer = f" ({best.offer.name})" if best.offer.name else ""
    lines.append(
        f"rent {best.subject}{offer}: {significant(best.usd_per_million)} USD and "
        f"{significant(best.hours_per_million)} hours per million samples, {best.basis}"
    )
    precision = precision_line(question, rates, best)
    return [*lines, *break_even_lines(choices), *([precision] if precision else [])]


def advice_json(question: Question, choices: Sequence[Choice], rates: Sequence[FleetRate]) -> str:
    """Return question, choices and sentences as JSON."""
    document = {
        "question": dataclasses.asdict(question),
        "choices": [dataclasses.asdict(choice) for choice in choices],
        "answer": advice_lines(question, choices, rates),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _mix(question: Question) -> str:
    if len(question.mix) == 1:
        return next(iter(question.mix))
    return " + ".join(f"{share:.0%} {model}" for model, share in question.mix.items())


def _notes(choices: Sequence[Choice]) -> list[str]:
    bases = dict.fromkeys(choice.basis for choice in choices)
    settings = dict.fromkeys(f"{choice.basis}: {choice.setting}" for choice in choices)
    dates = [choice.offer.retrieved_on for choice in choices if choice.offer.retrieved_on]
    notes = [f"{basis}: {LABELS[basis]}" for basis in bases] + list(settings)
    if dates:
        notes.append("prices are dated examples; put yours into a CSV and name it with --prices")
    return notes
