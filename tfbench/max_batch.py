"""Searches the largest batch per GPU that fits, each trial in a process of its own.

A process that ran out of memory once does not give all of it back, and on a CPU the kernel may kill it
outright.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from results.schema import Case, Record, Status
from results.schema.record_json import from_dict
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.supervisor import end_with_parent

GRANULARITY = 8
"""Batches are multiples of this, which matrix units like; below it every size is tried."""


TRIAL_SECONDS = 300.0
"""A trial of two steps that takes longer hangs: the deepest network compiles in half of it."""


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """Search by doubling, then by halving the gap.

    Args:
        fits: Whether a batch fits; monotonic.
        start: First guess, at least 1.

    Returns:
        The largest batch that fits, a multiple of `GRANULARITY` above it; 0 where not even 1 does.
    """
    low, high = 0, start
    while fits(high):
        low, high = high, high * 2
    while high - low > (GRANULARITY if high > GRANULARITY else 1):
        middle = (low + high) // 2
        if middle > GRANULARITY:
            middle -= middle % GRANULARITY
        if middle <= low:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def find_max_batch(case: Case) -> int:
    """Search for a case on this machine; each trial trains two steps.

    Raises:
        CaseFailedError: A trial failed for another reason than memory, or not even a batch of 1 fits.
    """
    reasons: list[str] = []
    found = largest_batch(
        lambda batch: _fits(dataclasses.replace(case, batch_per_gpu=batch), reasons), case.batch_per_gpu
    )
    if found == 0:
        raise CaseFailedError(Status.OOM, f"not even a batch of 1 fits: {reasons[-1]}")
    return found


def _fits(case: Case, reasons: list[str]) -> bool:
    """Train two steps in a process of its own.

    Args:
        case: With the batch to try.
        reasons: Gets why it does not fit.

    Raises:
        CaseFailedError: It failed for another reason than memory.
    """
    trial = dataclasses.replace(case, warmup_steps=0, num_steps=2)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        command = [sys.executable, "-m", "tfbench", *trial.flags(), "--nopeaks"]
        command += [f"--max_seconds={TRIAL_SECONDS:g}", f"--output={output}"]
        exit_code = subprocess.run(
            command, stderr=subprocess.DEVNULL, check=False, preexec_fn=end_with_parent
        ).returncode
        try:
            record = from_dict(Record, json.loads(output.read_bytes()))
        except (OSError, ValueError) as error:
            raise CaseFailedError(
                Status.ERROR, f"the trial of batch {trial.batch_per_gpu} died with exit code {exit_code}"
            ) from error
    if record.status not in (Status.OK, Status.OOM):
        raise CaseFailedError(record.status, f"trial of batch {trial.batch_per_gpu}: {record.cause}")
    if record.cause is not None:
        reasons.append(record.cause)
    return _said(trial.batch_per_gpu, record.status is Status.OK)


def _said(batch: int, fits: bool) -> bool:
    words = "fits" if fits else "does not fit"
    print(f"tfbench: batch {batch} {words}", file=sys.stderr, flush=True)  # noqa: T201
    return fits
