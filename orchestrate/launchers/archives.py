"""What comes from a host as a stream of bytes: read in memory, with a bound, never by the paths in it.

The tar reader is our own, on purpose: a crafted archive sends Python's `tarfile` backwards for ever (CVE-2025-8194)
or into unbounded recursion, and only the first regular file is wanted, under whatever name.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from results.schema.record_json import MAX_RECORD_BYTES

BLOCK_BYTES = 512
_REGULAR = (b"0", b"\0")
_ABOUT_THE_NEXT = (b"x", b"g", b"L", b"K")  # extended headers and long names: skipped, because names do not matter


def read_bounded(chunks: Iterable[bytes], limit_bytes: int) -> bytes:
    """Read chunks up to a limit; what is beyond is not read."""
    buffer = io.BytesIO()
    for chunk in chunks:
        buffer.write(chunk[: limit_bytes - buffer.tell()])
        if buffer.tell() >= limit_bytes:
            break
    return buffer.getvalue()


def only_file(archive: bytes) -> bytes | None:
    """Return the content of the first entry of a tar archive, if that is a regular file, whatever its name claims.

    Returns:
        At most `MAX_RECORD_BYTES` + 1 bytes. None: the entry is no regular file, or there is none. What is malformed or
        cut off is returned as it came, to be judged as a bad record rather than as none.

    Source: POSIX.1-1988 ustar header blocks.
    """
    offset = 0
    while offset + BLOCK_BYTES <= len(archive):
        header, start = archive[offset : offset + BLOCK_BYTES], offset + BLOCK_BYTES
        if not any(header):
            return None
        size, kind = _size(header[124:136]), header[156:157]
        if size is None:
            break
        if kind in _REGULAR:
            wanted = min(size, MAX_RECORD_BYTES + 1)
            content = archive[start : start + wanted]
            return content if len(content) == wanted else archive[: MAX_RECORD_BYTES + 1]
        if kind not in _ABOUT_THE_NEXT:
            return None
        offset = start + -(-size // BLOCK_BYTES) * BLOCK_BYTES
    return archive[: MAX_RECORD_BYTES + 1]


def _size(field: bytes) -> int | None:
    """Read a size in octal digits; None: it is something else, e.g. a negative number in base 256."""
    digits = field.strip(b" \0")
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else None
