"""What the doctor finds, and the verdict that follows from it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.schema.exit_codes import ExitCode


class Level(enum.StrEnum):
    """How much a finding weighs."""

    BLOCKER = "blocker"  # cases cannot run, or their numbers would be worthless
    DOUBT = "doubt"  # they run, and their numbers may be too low or hard to compare
    NOTE = "note"  # good to know; does not count for the verdict


class Verdict(enum.StrEnum):
    """What all findings together mean."""

    READY = "ready"
    DOUBTFUL = "doubtful"
    NOT_READY = "not ready"


EXIT_CODES = {
    Verdict.READY: ExitCode.OK,
    Verdict.DOUBTFUL: ExitCode.SOME_FAILED,
    Verdict.NOT_READY: ExitCode.NO_HOST,
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a person should know before trusting this machine's numbers.

    Attributes:
        code: One word, stable.
        subject: What it is about: `GPU 3 (0000:3B:00.0)`, `TensorFlow`, `CPU`.
        seen: What was seen, with its figures.
        why: Why it matters for a benchmark.
        fix: A command or a step; None: nothing to do.
        gpu_only: Cases on the CPU do not mind.
    """

    level: Level
    code: str
    subject: str
    seen: str
    why: str
    fix: str | None = None
    gpu_only: bool = True


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Return the worst of them."""
    levels = {finding.level for finding in findings}
    if Level.BLOCKER in levels:
        return Verdict.NOT_READY
    return Verdict.DOUBTFUL if Level.DOUBT in levels else Verdict.READY


def verdict_line(findings: Sequence[Finding]) -> str:
    """Sum up in a line: `doubtful: 3 findings`, `not ready: no NVIDIA driver …; CPU cases can run`."""
    verdict = verdict_of(findings)
    if verdict is Verdict.READY:
        return str(verdict)
    if verdict is Verdict.DOUBTFUL:
        count = sum(finding.level is Level.DOUBT for finding in findings)
        return f"{verdict}: {count} finding{'s' if count > 1 else ''}"
    blockers = [finding for finding in findings if finding.level is Level.BLOCKER]
    on_cpu = "; CPU cases can run" if all(finding.gpu_only for finding in blockers) else ""
    return f"{verdict}: {'; '.join(finding.seen for finding in blockers)}{on_cpu}"
