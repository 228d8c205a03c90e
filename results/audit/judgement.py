"""Applies all rules to a file, and formats the findings."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from results.audit.claims import ENOUGH_READ, Reading, read_throughputs
from results.audit.copies import copy_findings, multiple_findings
from results.audit.findings import Claim, Severity, TableFinding
from results.audit.references import Reference, limit_findings, source_findings, trusted_reference
from results.audit.scaling import scaling_findings
from results.text import counted
from results.text_table import Grid

RULES = (multiple_findings, limit_findings, scaling_findings, copy_findings)
"""All rules that need no reference; each is a function of claims."""

INDIRECT = ("scaling_out_of_line", "gpu_out_of_line")
"""Rules whose findings are left out if findings of other rules, above a note, have all their rows."""


def audit_file(path: Path, decimal: str | None = None) -> Reading:
    """Audit all tables of a file.

    Args:
        path: Tables of throughputs as CSV, TSV or Markdown.
        decimal: The decimal mark, if the numbers are ambiguous.

    Raises:
        NotATable: The file has no throughputs.
    """
    reading = read_throughputs(path, decimal)
    reading.findings = [*claim_findings(reading.claims), *reading.unread]
    reading.findings.sort(key=lambda finding: ([*Severity].index(finding.severity), finding.rule, finding.rows))
    return reading


def claim_findings(claims: Sequence[Claim], reference: Reference | None = None) -> list[TableFinding]:
    """Apply all rules to the claims of one file.

    Args:
        claims: The claims.
        reference: Trusted measurements; None: published and own ones shipped with tfbench.
    """
    if not claims:
        return []
    found = [finding for rules in RULES for finding in rules(claims)]
    found += source_findings(claims, reference or trusted_reference())
    explained = {row for of in found if of.rule not in INDIRECT and of.severity is not Severity.NOTE for row in of.rows}
    return [of for of in found if of.rule not in INDIRECT or not explained.issuperset(of.rows)]


def findings_to_json(findings: Sequence[TableFinding]) -> str:
    """Return findings as a JSON list of objects with `rule`, `severity`, `rows` and `message`."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1, ensure_ascii=False) + "\n"


def reading_lines(reading: Reading) -> list[str]:
    """Return lines on how much of the file was read."""
    blank = f", {reading.blank} without a number" if reading.blank else ""
    lines = [f"{len(reading.claims)} of {reading.cells} cells with a throughput were read{blank}"]
    if reading.ignored:
        lines.append(f"columns not used: {', '.join(reading.ignored)}")
    if not reading.read_enough:
        lines.append(
            f"too little could be read to judge this file (under {ENOUGH_READ * 100:.0f} %): "
            "an absence of findings proves nothing"
        )
    return lines


def audit_lines(path: Path, audited: Reading) -> list[str]:
    """Return the findings as lines of text: the counts, how much was read, and a line for each finding."""
    grid = audit_grid(path, audited)
    found = [line for severity, rule, rows, what in grid.rows for line in ("", f"{severity}: {rule}, {rows}: {what}")]
    return [f"{path.name}: {grid.notes[0]}", *grid.notes[1:], *found]


def audit_grid(path: Path, audited: Reading) -> Grid:
    """Return the findings as a table; its notes are the counts, how much was read, and what its rows are."""
    counts = Counter(finding.severity for finding in audited.findings)
    texts = [f"{counts[kind]} {kind}" for kind in (Severity.IMPOSSIBLE, Severity.SUSPECT)]
    rows = [[of.severity, of.rule, _rows_text(of.rows), of.message] for of in audited.findings]
    notes = [", ".join([*texts, counted(counts[Severity.NOTE], "note")]), *reading_lines(audited)]
    if rows:
        notes.append("rows are counted from 0 below the heading")
    return Grid(f"Audit of {path.name}", ["severity", "rule", "rows", "what"], rows, notes)


def _rows_text(rows: Sequence[int]) -> str:
    """Return row numbers, neighbours as a range: `rows 0 to 3, 7`."""
    runs = itertools.groupby(enumerate(rows), key=lambda item: item[1] - item[0])
    ranges = [[row for _, row in run] for _, run in runs]
    texts = [f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in ranges]
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(texts)}"
