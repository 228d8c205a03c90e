"""A recommendation as tables and as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results.digits import significant
from results.grid import Grid
from results.recommend.evidence import Basis, Evidence
from results.recommend.headlines import headline, label, reasons
from results.recommend.ranking import Choice, Verdict
from results.recommend.summaries import summary
from results.table.cells import fleet_notes, value_text

LABELS = {
    Basis.MEASURED: "measured by tfbench in these runs",
    Basis.PUBLISHED: "PUBLISHED by others, not measured here; one run each, so no interval",
    Basis.BOUND: "≤: an upper bound from memory bandwidth and arithmetic; neither measured nor predicted",
}


def advice_grid(verdict: Verdict, several: Sequence[Verdict] = ()) -> Grid:
    """Return the choices as a table, best first; what has no rank says why."""
    rows = []
    rank = itertools.count(1)
    for choice in verdict.choices:
        most, least = ("≤ ", "≥ ") if choice.basis is Basis.BOUND else ("", "")
        rows.append(
            [
                "" if choice.excluded else str(next(rank)),
                choice.subject if choice.subject == choice.gpu else f"{choice.subject} ({choice.gpu})",
                choice.offer.name if choice.offer else "no price known",
                f"{choice.usd_per_hour:.3f}" if choice.usd_per_hour else "",
                most + value_text(choice.samples_per_second, choice.evidence.interval)
                if choice.samples_per_second
                else _elsewhere(choice.evidence),
                choice.evidence.batch,
                least + significant(choice.usd_per_million) if choice.usd_per_million else "",
                least + significant(choice.hours_per_million) if choice.hours_per_million else "",
                "" if choice.wins_below is None else f"{choice.wins_below:.3f}",
                choice.excluded,
            ]
        )
    columns = ["rank>", "GPU", "offer", "$/h>", "samples/s>", "batch>", "$/million>", "h/million>", "wins below $>"]
    title = label(verdict, several or [verdict])
    return Grid(title, [*columns, "why it has no rank"], rows, _notes(verdict)).without_empty_columns()


def explain_grid(verdict: Verdict, several: Sequence[Verdict] = ()) -> Grid:
    """Return the evidence behind a verdict: each figure with its source, and each price."""
    rows = []
    for item in dict.fromkeys(choice.evidence.subject for choice in verdict.choices):
        choices = [choice for choice in verdict.choices if choice.subject == item]
        evidence = choices[0].evidence
        rows += [[item, str(evidence.basis), source] for source in evidence.sources or (evidence.reason,)]
        for choice in choices:
            if choice.offer:
                source = ", ".join(part for part in (choice.offer.name, choice.offer.source) if part)
                rows.append([item, "price", f"{choice.offer.usd_per_gpu_hour:.3f} USD per GPU-hour: {source}"])
    return Grid(f"Evidence: {label(verdict, several or [verdict])}", ["GPU", "what", "from"], rows)


def advice_json(verdicts: Sequence[Verdict], precisions: Sequence[Sequence[str]]) -> str:
    """Return questions, choices and sentences as JSON.

    Args:
        verdicts: In the order of their questions.
        precisions: Sentences about other precisions, of each verdict.
    """
    parts = [
        {
            "question": dataclasses.asdict(verdict.question),
            "basis": verdict.group.basis,
            "mode": verdict.group.mode,
            "setting": verdict.group.setting,
            "choices": [choice_json(choice) for choice in verdict.choices],
            "answer": [headline(verdict), *reasons(verdict), *lines],
            "remarks": list(verdict.group.remarks),
        }
        for verdict, lines in zip(verdicts, precisions, strict=True)
    ]
    document = {
        "answer": summary(verdicts),
        "verdicts": parts,
        "choices": [choice for part in parts for choice in part["choices"]],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def choice_json(choice: Choice) -> dict[str, Any]:
    """Return a choice as plain data; an interval as its two ends."""
    interval = choice.evidence.interval
    return {
        "basis": choice.basis,
        "subject": choice.subject,
        "gpu": choice.gpu,
        "offer": dataclasses.asdict(choice.offer) if choice.offer else None,
        "samples_per_second": choice.samples_per_second,
        "ci95": [interval.low, interval.high] if interval else None,
        "batch": choice.evidence.batch,
        "usd_per_hour": choice.usd_per_hour,
        "usd_per_million": choice.usd_per_million,
        "hours_per_million": choice.hours_per_million,
        "wins_below": choice.wins_below,
        "excluded": choice.excluded,
        "elsewhere": [{"samples_per_second": rate, "setting": text} for rate, text in choice.evidence.elsewhere],
        "sources": list(choice.evidence.sources),
    }


def _elsewhere(item: Evidence) -> str:
    rates = [rate for rate, _ in item.elsewhere]
    if not rates:
        return ""
    low, high = significant(min(rates), 4), significant(max(rates), 4)
    return f"({low})" if low == high else f"({low} to {high})"


def _notes(verdict: Verdict) -> list[str]:
    bases = dict.fromkeys(c.basis for c in verdict.choices if c.samples_per_second or c.evidence.elsewhere)
    notes = [f"{basis}: {LABELS[basis]}" for basis in bases]
    if verdict.group.setting and verdict.group.evidence:
        notes.append(f"setting: {verdict.group.setting}")
    notes += verdict.group.remarks
    # Hosts of different prices are offers of their own here, so that nothing is said about their mean.
    notes += fleet_notes([replace(item.rate, prices={}) for item in verdict.group.evidence if item.rate])
    for choice in {choice.subject: choice for choice in verdict.choices if choice.evidence.elsewhere}.values():
        each = " | ".join(f"{significant(rate, 4)} with {text}" for rate, text in choice.evidence.elsewhere)
        notes.append(f"({choice.subject}): {each}")
    if any(choice.offer and choice.offer.retrieved_on for choice in verdict.choices):
        notes.append("prices are dated examples; to use your own, pass a CSV with --prices")
    if any(
        c.offer and (c.offer.gpus_per_host or 0) > verdict.question.count and c.usd_per_hour for c in verdict.ranked
    ):
        notes.append("×N: a host with N GPUs, rented as a whole")
    return notes
