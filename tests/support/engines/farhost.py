"""An ssh host at the other end of a wire that can be cut: a network namespace with a pair of virtual interfaces."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.engines.processes import find_program, missing
from tests.support.engines.servers import SshHost

NEAR, FAR = "198.18.77.1", "198.18.77.2"
"""Of the range for tests of network devices (RFC 2544): on no real network."""


def wires_missing() -> str | None:
    """Say why no wire can be made here; None when it can."""
    if absent := missing("ip", "iptables"):
        return absent
    probe = f"tfbprobe{os.getpid()}"
    made = _ip("netns", "add", probe, check=False)
    if made.returncode != 0:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    _ip("netns", "delete", probe)
    return None


class Wire:
    """Two ends of a network, ours and one in a namespace of its own; use as a context manager.

    Attributes:
        namespace: Of the far end.
    """

    def __init__(self) -> None:
        self.namespace = f"tfb{os.getpid()}"
        self._near = f"tfb{os.getpid()}n"

    def __enter__(self) -> Wire:
        far = f"tfb{os.getpid()}f"
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._near, "type", "veth", "peer", "name", far, "netns", self.namespace)
        _ip("address", "add", f"{NEAR}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        for words in (
            ["address", "add", f"{FAR}/30", "dev", far],
            ["link", "set", far, "up"],
            ["link", "set", "lo", "up"],
        ):
            _ip("-netns", self.namespace, *words)
        return self

    def __exit__(self, *_: object) -> None:
        _ip("link", "delete", self._near, check=False)
        _ip("netns", "delete", self.namespace, check=False)

    def drop_packets(self) -> None:
        """Let every packet disappear without a word, both ways."""
        for chain in ("INPUT", "OUTPUT"):
            self._iptables("-A", chain, "-j", "DROP")

    def mend(self) -> None:
        """Let packets through again."""
        self._iptables("-F")

    def _iptables(self, *words: str) -> None:
        _ip("netns", "exec", self.namespace, find_program("iptables") or "iptables", *words)


def make_far_host(folder: Path, remote_socket: Path, wire: Wire) -> SshHost:
    """Prepare an sshd at the far end of a wire."""
    enter = [find_program("ip") or "ip", "netns", "exec", wire.namespace]
    return SshHost(folder, remote_socket, "tfbench-far", enter=enter, address=FAR)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [find_program("ip") or "ip", *words]
    return subprocess.run(command, check=check, capture_output=True, text=True)
