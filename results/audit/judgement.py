"""Is a table plausible? All rules over one file, ours or a published one, and what of it could not be read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results.audit.claims import Claim, Reading, read_throughputs
from results.audit.copies import copy_findings
from results.audit.limits import limit_findings
from results.audit.patterns import pattern_findings
from results.audit.scaling_audit import scaling_findings
from results.audit.series import Severity, TableFinding
from results.audit.sources_compared import source_findings
from results.audit.texts import Decimal
from results.grid import Grid

ORDER = [Severity.IMPOSSIBLE, Severity.SUSPECT, Severity.NOTE]

SHOWN_ROWS = 12
"""Rows that a finding lists in the printed table; JSON has them all."""

SHOWN_UNREAD = 20
"""Unread cells that the printed table lists; JSON has them all."""

ENOUGH_READ = 0.8
"""Share of the cells with a text that must have been read before `no findings` means anything."""


@dataclass(frozen=True)
class Audit:
    """What an audit found, and how much of the file was read.

    Attributes:
        findings: Worst first; every cell that could not be read is a note.
        reading: Cells of the tables of throughputs.
    """

    findings: list[TableFinding]
    reading: Reading

    @property
    def read_enough(self) -> bool:
        """Whether enough was read to judge the file."""
        return self.reading.share_read >= ENOUGH_READ


def audit_file(path: Path, decimal: Decimal | None = None) -> Audit:
    """Audit all tables of a file.

    Args:
        path: Tables of throughputs, as CSV, TSV or Markdown.
        decimal: The decimal mark, where the numbers themselves leave it open.

    Raises:
        NotATable: The file holds no throughputs.
    """
    reading = read_throughputs(path, decimal)
    found = [*claim_findings(reading.claims), *_unread(reading)]
    found.sort(key=lambda finding: (ORDER.index(finding.severity), finding.rule, finding.rows))
    return Audit(found, reading)


def claim_findings(claims: Sequence[Claim], reference: Sequence[Claim] | None = None) -> list[TableFinding]:
    """Apply all rules to throughputs.

    Args:
        claims: Of one file.
        reference: Trusted measurements; None for the published ones that come with tfbench.
    """
    return [
        *pattern_findings(claims),
        *limit_findings(claims),
        *scaling_findings(claims),
        *copy_findings(claims),
        *source_findings(claims, reference),
    ]


def findings_to_json(findings: Sequence[TableFinding]) -> str:
    """Return findings as a JSON list of objects with `rule`, `severity`, `rows` and `message`."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1, ensure_ascii=False) + "\n"


def reading_lines(audited: Audit) -> list[str]:
    """State how much of the file was read, and what was excluded."""
    reading = audited.reading
    cells, blank = len(reading.claims) + len(reading.unread), f", {reading.blank} without a number"
    lines = [f"{len(reading.claims)} of {cells} cells with a throughput were read{blank if reading.blank else ''}"]
    if reading.ignored:
        lines.append(f"columns not used: {', '.join(reading.ignored)}")
    if not audited.read_enough:
        lines.append(
            f"too little could be read to judge this file (under {ENOUGH_READ * 100:.0f} %): "
            "an absence of findings proves nothing"
        )
    return lines


def audit_grid(path: Path, audited: Audit) -> Grid:
    """Return findings as a table; rows are counted from 0, below the heading."""
    unread = [finding for finding in audited.findings if finding.rule == "unread_cell"]
    hidden = unread[SHOWN_UNREAD:]
    shown = [finding for finding in audited.findings if finding not in hidden]
    rows = [[finding.severity, finding.rule, _rows_text(finding.rows), finding.message] for finding in shown]
    counts = [f"{sum(f.severity is s for f in audited.findings)} {s}" for s in ORDER]
    more = [f"{len(hidden)} more cells could not be read; --format json lists them all"] if hidden else []
    counted = ["rows are counted from 0 below the heading"] if rows else []
    notes = [", ".join(counts), *more, *reading_lines(audited), *counted]
    return Grid(f"Audit of {path.name}", ["severity", "rule", "rows", "what"], rows, notes)


def _unread(reading: Reading) -> list[TableFinding]:
    return [
        TableFinding("unread_cell", Severity.NOTE, (cell.row,), f"column {cell.column!r}: {cell.text!r}: {cell.reason}")
        for cell in reading.unread
    ]


def _rows_text(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:SHOWN_ROWS]))
    return f"{shown}, … ({len(rows)})" if len(rows) > SHOWN_ROWS else shown
