"""The command line: look, judge, print, and end with the verdict's exit code.

    python -m tfbench.doctor [--device=gpu|cpu] [--format=text|json]

Exit codes: 0 ready; 1 a bug; 2 bad flags; 3 doubtful: cases run, and their numbers may be too low; 4 not ready.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time

from tfbench.doctor.facts import Facts, read_facts
from tfbench.doctor.findings import EXIT_CODES, Finding, verdict_line, verdict_of
from tfbench.doctor.gpu_checks import check_gpus
from tfbench.doctor.machine_checks import check_machine
from tfbench.doctor.software_checks import check_software
from tfbench.doctor.text import render
from tfbench.outcomes.record_file import utc_now

DOCTOR_VERSION = 1
"""Of the JSON. Keys are added without a new version, and never renamed."""


def judge(facts: Facts) -> list[Finding]:
    """Return all findings, the software's first: what stops everything comes before what slows one GPU down."""
    return [*check_software(facts), *check_gpus(facts.driver), *check_machine(facts)]


def as_json(facts: Facts, findings: list[Finding], started_at: str, seconds: float) -> str:
    """Write everything as one JSON object."""
    verdict = verdict_of(findings)
    document = {
        "doctor_version": DOCTOR_VERSION,
        "verdict": verdict,
        "summary": verdict_line(findings),
        "exit_code": EXIT_CODES[verdict],
        "started_at": started_at,
        "seconds": round(seconds, 1),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "facts": dataclasses.asdict(facts),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tfbench.doctor",
        description="Checks whether this machine is fit for a benchmark, in two minutes at most: driver, GPUs, CUDA "
        "libraries, TensorFlow, and settings that cost speed, each with the command that fixes it.",
        epilog="exit codes: 0 ready, 3 doubtful (numbers may be too low), 4 not ready",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device", choices=("gpu", "cpu"), default="gpu", help="what cases will run on (default: %(default)s)"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json goes to scripts (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    started_at, begin = utc_now(), time.monotonic()
    facts = read_facts(options.device)
    findings = judge(facts)
    if options.format == "json":
        sys.stdout.write(as_json(facts, findings, started_at, time.monotonic() - begin))
    else:
        sys.stdout.write(render(facts, findings))
    return EXIT_CODES[verdict_of(findings)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
