"""Is a table plausible? All rules over one CSV file, ours or a published one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from results.claims import read_claims, read_rows
from results.findings import Finding, Severity
from results.grid import Grid
from results.limits import limit_findings
from results.patterns import pattern_findings
from results.sources_compared import source_findings
from results.spec_audit import is_specification_table, specification_findings

ORDER = [Severity.IMPOSSIBLE, Severity.SUSPECT, Severity.NOTE]

SHOWN_ROWS = 12
"""Rows that a finding lists in the printed table; JSON has them all."""


def audit(path: Path) -> list[Finding]:
    """Return what is wrong with a table, worst first.

    Args:
        path: CSV of throughputs (long, or with a column per GPU count) or of specifications.

    Raises:
        NotATable: The file holds neither.
    """
    headings, rows = read_rows(path)
    if is_specification_table(headings):
        found = specification_findings(headings, rows)
    else:
        claims = read_claims(path)
        found = [*pattern_findings(claims), *limit_findings(claims), *source_findings(claims)]
    return sorted(found, key=lambda finding: (ORDER.index(finding.severity), finding.rule, finding.rows))


def findings_to_json(findings: Sequence[Finding]) -> str:
    """Return findings as a JSON list of objects with `rule`, `severity`, `rows` and `message`."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1, ensure_ascii=False) + "\n"


def audit_grid(path: Path, findings: Sequence[Finding]) -> Grid:
    """Return findings as a table; rows are counted from 0, below the heading."""
    rows = [[finding.severity, finding.rule, _rows_text(finding.rows), finding.message] for finding in findings]
    counts = [f"{sum(f.severity is s for f in findings)} {s}" for s in ORDER]
    return Grid(f"Audit of {path.name}", ["severity", "rule", "rows", "what"], rows, [", ".join(counts)])


def _rows_text(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:SHOWN_ROWS]))
    return f"{shown}, … ({len(rows)})" if len(rows) > SHOWN_ROWS else shown
