"""The lines that a repeat prints while it works, and how they are read back.

Standard library only, because this file also runs in every container. Lines are for people first:

    tfbench: state compiling
    step     10   12.3 images/s   81.2 ms   loss 7.012
    tfbench: state timing

A reader that finds none of them loses the live display, nothing else: results travel in the record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STEPS_PER_LINE = 10
"""A line every so many steps, as tf_cnn_benchmarks does by default."""

STATES = ("starting", "building", "checking", "compiling", "warming", "timing", "writing")


@dataclass(frozen=True)
class Step:
    """A finished step and the throughput since the last line.

    Attributes:
        phase_step: Steps taken in this phase, from 1.
        samples_per_second: Over the steps since the line before.
    """

    phase_step: int
    samples_per_second: float
    unit: str


@dataclass(frozen=True)
class State:
    """A phase of the repeat, one of `STATES`."""

    name: str


def state_line(name: str) -> str:
    """Return the line that announces a phase."""
    return f"tfbench: state {name}"


def step_line(step: int, samples_per_second: float, unit: str, step_seconds: float, loss: float) -> str:
    """Return the line that reports a step.

    Args:
        step: Steps taken in this phase, from 1.
        samples_per_second: Over the steps since the line before.
        unit: What a sample is, e.g. `images`.
        step_seconds: Mean duration of those steps.
        loss: Of the last of them.
    """
    return f"step {step:6d}  {samples_per_second:10.1f} {unit}/s  {step_seconds * 1000:9.1f} ms  loss {loss:.4f}"


_STATE = re.compile(rf"tfbench: state ({'|'.join(STATES)})\s*$")
_STEP = re.compile(r"step +(\d{1,9}) +(\d{1,12}\.\d) (\w{1,20})/s ")


def parse_line(line: str) -> Step | State | None:
    """Read a line back; None when it is some other output."""
    if match := _STATE.match(line):
        return State(match[1])
    if match := _STEP.match(line):
        return Step(int(match[1]), float(match[2]), match[3])
    return None
