"""Host keys as known-hosts files hold them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrate.text import plain_text


@dataclass(frozen=True, kw_only=True)
class HostKey:
    """A line of a known-hosts file.

    Attributes:
        where: The machine in ssh's words, e.g. `[203.0.113.7]:22044`.
        kind: As ssh names it: ED25519, ECDSA, RSA.
        fingerprint: As ssh shows it: `SHA256:…`.
        line: The line itself.
    """

    where: str
    kind: str
    fingerprint: str
    line: str


def read_key(line: str) -> HostKey | None:
    """Read a line; None: it holds no key, e.g. it is a comment."""
    words = [word for word in line.split() if not word.startswith("@")]
    if len(words) < 3 or words[0].startswith("#"):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    kind = words[1].removeprefix("sk-").removeprefix("ssh-").partition("-")[0].partition("@")[0]
    return HostKey(
        where=plain_text(words[0], 300),
        kind=plain_text(kind.upper(), 40),
        fingerprint=f"SHA256:{digest}",
        line=line.strip(),
    )


def read_keys(path: Path) -> list[HostKey]:
    """Return the keys of a known-hosts file; none, where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [key for line in lines if (key := read_key(line)) is not None]


def remember(path: Path, keys: Iterable[HostKey]) -> list[HostKey]:
    """Add keys to a known-hosts file; return those that were not there."""
    known = {key.line for key in read_keys(path)}
    new = [key for key in dict.fromkeys(keys) if key.line not in known]
    if new:
        unfinished = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * unfinished + "".join(f"{key.line}\n" for key in new))
    return new
