"""The engine's log stream, read as it comes: frames of stdout and stderr, and the stamped lines in them.

Nothing is held back but the piece of a header or of a line: a host may announce a frame of 4 GB.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrate.text import MAX_LINE_LENGTH, plain_text

HEADER_BYTES = 8
"""Stream number, three zeros, and the length of what follows, big-endian."""

MAX_HELD_BYTES = MAX_LINE_LENGTH * 4

_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{8,18}(Z|[+-]\d\d:\d\d)")
MAX_STAMP_BYTES = 40


@dataclass(frozen=True)
class Part:
    """A piece of a frame.

    Attributes:
        stream: 1 for stdout, 2 for stderr.
        starts: It is the first piece of its frame.
    """

    stream: int
    starts: bool
    data: bytes


def frame_parts(pieces: Iterable[bytes]) -> Iterator[Part]:
    """Yield what is in the frames, in pieces as they come.

    Source: Docker Engine API, "Attach to a container", stream format.
    """
    rest, left, stream, starts = b"", 0, 0, False  # left: bytes of the current frame that are still to come
    for piece in pieces:
        data, at = rest + piece, 0
        while at < len(data):
            if left:
                part = data[at : at + left]
                yield Part(stream, starts, part)
                at, left, starts = at + len(part), left - len(part), False
            elif len(data) - at < HEADER_BYTES:
                break
            else:
                stream, left = data[at], int.from_bytes(data[at + 4 : at + HEADER_BYTES], "big")
                at, starts = at + HEADER_BYTES, True
        rest = data[at:]


def unframed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what is in the frames of both streams, in pieces as they come."""
    return (part.data for part in frame_parts(pieces))


class _Lines:
    """Cuts one stream into lines: every frame begins with a stamp, and may end in the middle of a line.

    Podman makes a frame of each write of a benchmark, Docker of each line, or of each 16 KiB of a long one.
    """

    def __init__(self) -> None:
        self._stamp = ""
        self._head: bytes | None = None
        self._rest = b""

    def take(self, part: Part) -> Iterator[tuple[str, str]]:
        """Yield stamp and text of each line that a piece ends; the stamp is that of the line's last frame."""
        if part.starts:
            self._head = b""
        data = part.data
        if self._head is not None:
            self._head += data
            stamp, space, after = self._head.partition(b" ")
            if not space and len(self._head) < MAX_STAMP_BYTES:
                return  # the stamp is not here whole yet
            data, self._head = self._head, None
            if _STAMP.fullmatch(stamp):
                self._stamp, data = stamp.decode(), after
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:MAX_HELD_BYTES]
        for line in lines:
            yield self._stamp, plain_text(line.decode("utf-8", "replace"))


def stamped_lines(pieces: Iterable[bytes], after: str) -> Iterator[tuple[str, str]]:
    """Yield time stamp and text of each whole line that is later than `after`; the text is safe to print."""
    streams: defaultdict[int, _Lines] = defaultdict(_Lines)
    for part in frame_parts(pieces):
        for stamp, text in streams[min(part.stream, 2)].take(part):
            if stamp > after:
                yield stamp, text
