"""The command line of the doctor.

    python -m tfbench.doctor [--device=gpu|cpu] [--format=text|json]

Exit codes: 0 ready; 1 a bug; 2 bad flags; 3 warnings: cases run, but their numbers may be too low; 4 not ready.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence

from results.schema.streams import lasting_streams
from tfbench.doctor.checks import DoctorFinding, Level, judge, verdict_line, verdict_of
from tfbench.doctor.facts import DoctorFacts, DriverFacts, read_facts
from tfbench.findings import utc_now
from tfbench.machine.host import MachineFacts

DOCTOR_VERSION = 2
"""Version of the JSON. Keys may be added without a new version; they are never renamed."""


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=os.environ.get("TFBENCH_PROGRAM", "python -m tfbench.doctor"),
        description="Checks whether this machine is fit for a benchmark, in two minutes at most: driver, GPUs, CUDA "
        "libraries, TensorFlow, and settings that cost speed, each with the command that fixes it.",
        epilog="exit codes: 0 ready, 3 warnings (numbers may be too low), 4 not ready",
        allow_abbrev=False,
    )
    usual = " (default: %(default)s)"
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help=f"what cases will run on{usual}")
    parser.add_argument("--format", choices=("text", "json"), default="text", help=f"json goes to scripts{usual}")
    options = parser.parse_args(arguments)
    started_at, begin = utc_now(), time.monotonic()
    facts = read_facts(options.device)
    findings = judge(facts)
    verdict, exit_code = verdict_of(findings)
    document = {
        "doctor_version": DOCTOR_VERSION,
        "verdict": verdict,
        "summary": verdict_line(findings),
        "exit_code": exit_code,
        "started_at": started_at,
        "seconds": round(time.monotonic() - begin, 1),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "facts": dataclasses.asdict(facts),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    sys.stdout.write(text if options.format == "json" else render(facts, findings))
    return exit_code


WIDTH = 120
_MARKS = {Level.BLOCKER: "✗", Level.WARNING: "!", Level.NOTE: "·"}


def render(facts: DoctorFacts, findings: Sequence[DoctorFinding]) -> str:
    """Return the report as text: facts, findings, verdict."""
    lines = [*_machine(facts.machine), *(_driver(facts.driver) if facts.device == "gpu" else ())]
    lines += [*_tensorflow(facts), "", *_findings(findings), f"verdict: {verdict_line(findings)}"]
    return "\n".join(lines) + "\n"


def _machine(machine: MachineFacts) -> Iterator[str]:
    yield (
        f"machine      {machine.cpu_limit:g} of {machine.cpu_count} CPUs, load {machine.load or 0:.1f}, memory "
        f"{_bytes(machine.memory_bytes)} ({_bytes(machine.memory_available_bytes)} free), /dev/shm "
        f"{_bytes(machine.shm_bytes)}, disk {_bytes(machine.disk_free_bytes)} free"
    )


def _driver(driver: DriverFacts) -> Iterator[str]:
    if driver.problem is not None:
        yield f"driver       none ({driver.problem})"
        return
    devices = driver.cuda_problem or f"{_count(driver.cuda_devices)} for this process"
    yield f"driver       {driver.version}, serves CUDA {driver.cuda}; {devices}"
    for gpu in driver.gpus:
        if gpu.problem is not None:
            yield f"{gpu.label:<22} {gpu.problem}"
            continue
        yield f"{gpu.label:<22} {gpu.name}, {_bytes(gpu.memory_bytes)}, cc {gpu.compute_capability or '?'}, {gpu.uuid}"
        power = "?" if gpu.power_watts is None else f"{gpu.power_watts:.0f} of {gpu.power_limit_watts or 0:.0f} W"
        links = f"{gpu.link}; NVLink {gpu.nvlinks_up} up, {gpu.nvlinks_down} down"
        yield f"{'':<22} {power}{gpu.clock_and_temperature}; {links}"
        for part in gpu.slices:
            yield f"{'':<22} slice {part.profile}, {_bytes(part.memory_bytes)}, {part.uuid}"


def _tensorflow(facts: DoctorFacts) -> Iterator[str]:
    trial = facts.trial
    if trial.tensorflow is None:
        yield f"TensorFlow   none ({trial.problem})"
        return
    build = f"for CUDA {trial.cuda}, cuDNN {trial.cudnn}" if trial.cuda else "without CUDA"
    yield f"TensorFlow   {trial.tensorflow} (built {build}), Keras {trial.keras}"
    if trial.right or trial.wrong:
        yield f"             multiplied two matrices correctly on {', '.join(trial.right) or 'no device'}"
    if facts.device == "gpu":
        outcomes = {True: "correct", False: "wrong", None: f"not tried ({trial.all_reduce_reason})"}
        yield f"             sees {_count(trial.gpus or ())}; all-reduce over all GPUs: {outcomes[trial.all_reduce]}"
    if trial.problem:
        yield f"             {trial.problem}"


def _findings(findings: Sequence[DoctorFinding]) -> Iterator[str]:
    """Return the lines of findings, the worst first; a command is never broken."""
    wrap = functools.partial(textwrap.wrap, width=WIDTH, subsequent_indent="    ", break_long_words=False)
    for finding in sorted(findings, key=lambda finding: list(Level).index(finding.level)):
        yield from wrap(f"{_MARKS[finding.level]} {finding.level}: {finding.subject}: {finding.seen}")
        yield from wrap(f"why: {finding.why}", initial_indent="    ")
        if finding.fix:
            yield f"    fix: {finding.fix}"
    if findings:
        yield ""


def _count(gpus: Sequence[str]) -> str:
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"


def _bytes(value: int | None) -> str:
    if value is None:
        return "?"
    return f"{value / (1 << 30):.1f} GiB" if value >= 1 << 30 else f"{value / (1 << 20):.0f} MiB"


if __name__ == "__main__":
    with lasting_streams(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
