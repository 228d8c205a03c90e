"""An ssh host in a network namespace, connected by virtual interfaces that tests can cut."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.engines.processes import find_program, missing
from tests.support.engines.servers import SshHost

NEAR, FAR = "198.18.77.1", "198.18.77.2"
"""Addresses in the range for tests of network devices (RFC 2544), which is not routed."""


def wires_missing() -> str | None:
    """Return why network namespaces are not available; None: they are."""
    if absent := missing("ip", "iptables"):
        return absent
    probe = f"tfbprobe{os.getpid()}"
    made = _ip("netns", "add", probe, check=False)
    if made.returncode != 0:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    _ip("netns", "delete", probe)
    return None


class Wire:
    """A network between this machine and a namespace; use as a context manager.

    Attributes:
        namespace: Namespace of the far end.
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
        """Silently drop all packets in both directions."""
        for chain in ("INPUT", "OUTPUT"):
            self._iptables("-A", chain, "-j", "DROP")

    def mend(self) -> None:
        """Stop dropping packets."""
        self._iptables("-F")

    def _iptables(self, *words: str) -> None:
        _ip("netns", "exec", self.namespace, find_program("iptables") or "iptables", *words)


def make_far_host(folder: Path, remote_socket: Path, wire: Wire) -> SshHost:
    """Return an sshd at the far end of a wire."""
    enter = [find_program("ip") or "ip", "netns", "exec", wire.namespace]
    return SshHost(folder, remote_socket, "tfbench-far", enter=enter, address=FAR)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [find_program("ip") or "ip", *words]
    return subprocess.run(command, check=check, capture_output=True, text=True)
