"""Formats and parses the progress lines that a repeat prints.

Standard library only, because this file also runs in every container. Progress lines are readable by people:

    tfbench: state compiling
    step     10   12.3 images/s   81.2 ms
    tfbench: state timing

Only the live display depends on them; results are in the record.

If an engine returns a container's output but not its files, the record itself is printed at the end, compressed,
numbered and with a checksum, in lines short enough that no pipe or log driver splits them:

    tfbench: record 1/2 9f86d081884c7d65 eJztvVtzo0q2LvrXzD…
    tfbench: record 2/2 9f86d081884c7d65 …
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

STEPS_PER_LINE = 10
"""Steps between two lines: the default of tf_cnn_benchmarks."""

STATES = ("starting", "building", "checking", "compiling", "cooling", "warming", "timing", "peaks", "writing")


@dataclass(frozen=True)
class Step:
    """A finished step and the throughput since the previous line.

    Attributes:
        phase_step: Steps taken in this phase, from 1.
        samples_per_second: Mean over the steps since the previous line.
    """

    phase_step: int
    samples_per_second: float
    unit: str


def state_line(name: str) -> str:
    """Format the line printed at the start of a phase."""
    return f"tfbench: state {name}"


def step_line(step: int, samples_per_second: float, unit: str, step_seconds: float) -> str:
    """Format the line printed after a step.

    Args:
        step: Steps taken in this phase, from 1.
        samples_per_second: Mean over the steps since the previous line.
        unit: What a sample is, e.g. `images`.
        step_seconds: Mean duration of those steps.
    """
    return f"step {step:6d}  {samples_per_second:10.1f} {unit}/s  {step_seconds * 1000:9.1f} ms"


_STATE = re.compile(rf"tfbench: state ({'|'.join(STATES)})\s*$")
_STEP = re.compile(r"step +(\d{1,9}) +(\d{1,12}\.\d) (\w{1,20})/s ")


def parse_line(line: str) -> Step | str | None:
    """Parse a line: a step, or the phase that begins, one of `STATES`; None: it is other output."""
    if match := _STATE.match(line):
        return match[1]
    if match := _STEP.match(line):
        return Step(int(match[1]), float(match[2]), match[3])
    return None


RECORD_CHARACTERS = 3000
"""Characters of a record per line, so that a line fits the 4096 bytes that a pipe writes atomically."""

MAX_RECORD_LINES = 4000
"""Enough for the largest record, even if incompressible."""

_RECORD = re.compile(r"tfbench: record (\d{1,4})/(\d{1,4}) ([0-9a-f]{16}) ([A-Za-z0-9+/=]{1,3000})\s*$")


def record_lines(payload: bytes) -> Iterator[str]:
    """Encode a record in lines."""
    packed, digest = base64.b64encode(zlib.compress(payload, 9)).decode("ascii"), _digest(payload)
    parts = re.findall(f".{{1,{RECORD_CHARACTERS}}}", packed)
    for number, part in enumerate(parts, 1):
        yield f"tfbench: record {number}/{len(parts)} {digest} {part}"


class RecordReader:
    """Assembles a record from untrusted lines, in any order and with duplicates.

    Args:
        limit_bytes: Maximum decompressed size.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._digest = ""
        self._parts: dict[int, str] = {}

    def take(self, line: str) -> bool:
        """Read a line; False: it is not part of a record. A new record replaces the previous one."""
        match = _RECORD.search(line)  # other output may have no line end
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= MAX_RECORD_LINES:
            return False
        if match[3] != self._digest:
            self._digest, self._parts = match[3], {}
        self._parts[int(match[1])] = match[4]
        return True

    @property
    def begun(self) -> bool:
        """Whether a part was received."""
        return bool(self._parts)

    def payload(self) -> bytes | None:
        """Return the record, up to one byte over the limit; None: parts are missing or the checksum is wrong."""
        packed = "".join(part for _, part in sorted(self._parts.items()))
        try:
            unpacked = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), self._limit_bytes + 1)
        except (binascii.Error, zlib.error):
            return None
        return unpacked if len(unpacked) > self._limit_bytes or _digest(unpacked) == self._digest else None


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:16]
