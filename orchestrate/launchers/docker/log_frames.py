"""The engine's log stream, read as it comes: frames of stdout and stderr, and the stamped lines in them.

Nothing is held back but the piece of a header or of a line: a host may announce a frame of 4 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrate.text import MAX_LINE_LENGTH, plain_text

HEADER_BYTES = 8
"""Stream number, three zeros, and the length of what follows, big-endian."""

MAX_HELD_BYTES = MAX_LINE_LENGTH * 4


def unframed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what is in the frames, in pieces as they come.

    Source: Docker Engine API, "Attach to a container", stream format.
    """
    rest, left = b"", 0  # left: bytes of the current frame that are still to come
    for piece in pieces:
        data, at = rest + piece, 0
        while at < len(data):
            if left:
                part = data[at : at + left]
                yield part
                at, left = at + len(part), left - len(part)
            elif len(data) - at < HEADER_BYTES:
                break
            else:
                left = int.from_bytes(data[at + 4 : at + HEADER_BYTES], "big")
                at += HEADER_BYTES
        rest = data[at:]


def stamped_lines(pieces: Iterable[bytes], after: str) -> Iterator[tuple[str, str]]:
    """Yield time stamp and text of each whole line that is later than `after`; the text is safe to print."""
    rest = b""
    for piece in unframed(pieces):
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[:MAX_HELD_BYTES]
        for line in lines:
            stamp, _, text = line.decode("utf-8", "replace").partition(" ")
            if stamp > after:
                yield stamp, plain_text(text)
