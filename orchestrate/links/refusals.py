"""Why ssh or sudo failed: one line for a person, with a remedy where the reason is known."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from orchestrate.errors import Dropped, Unreachable
from orchestrate.links.ssh import read_key
from orchestrate.text import plain_text
from results.program import command_line

MAX_SAID = 500
"""Most that is quoted of ssh, in characters."""


def ssh_failure(target: str, errors: bytes, exit_code: int) -> Unreachable:
    """Explain in one line why ssh ended, with a remedy if the reason is known.

    Args:
        target: Where it went.
        errors: What it wrote on stderr.
        exit_code: Of ssh.

    Returns:
        A `Dropped` where another try may do.
    """
    text = errors.decode("utf-8", "replace")
    if changed := _changed_key(text):
        return Unreachable(f"ssh {target}: {changed}")
    said = _said(text) or f"exit code {exit_code}"
    remedy = next((remedy for sign, remedy in _remedies().items() if sign in said), None)
    cause = f"ssh {target}: {said}" + (f" {remedy}" if remedy else "")
    if _DROPPED.search(said) and not any(sign in said for sign in _FINAL):
        return Dropped(cause if remedy else f"{cause} {_BUSY}")
    return Unreachable(cause)


def sudo_failure(where: str, errors: bytes, exit_code: int) -> Unreachable:
    """Explain in one line why an engine cannot be reached by sudo.

    Args:
        where: `ssh` and a destination, or `this machine`.
        errors: What sudo and docker wrote on stderr.
        exit_code: Of the command.
    """
    said = _said(errors.decode("utf-8", "replace")) or f"exit code {exit_code}"
    remedy = next((remedy for sign, remedy in _SUDO_REMEDIES.items() if sign in said), None)
    return Unreachable(f"{where}: sudo docker: {said}" + (f" {remedy}" if remedy else ""))


def _said(text: str) -> str:
    lines = [plain_text(line, 300).strip() for line in text.splitlines()]
    return plain_text(" ".join(line for line in lines if line and not set(line) <= {"@"}), MAX_SAID)


def _changed_key(text: str) -> str | None:
    """Explain a host key that is not the known one, by both fingerprints; None: it is not that."""
    offered, known, where = _OFFERED.search(text), _OFFENDING.search(text), _WHERE.search(text)
    if offered is None or known is None or where is None:
        return None
    path, number, machine = known["file"], int(known["line"]), where["where"]
    forget = shlex.join(["ssh-keygen", "-R", machine, "-f", path])
    return plain_text(
        f"REMOTE HOST IDENTIFICATION HAS CHANGED: {machine} offers the {offered['kind']} key {offered['fingerprint']}, "
        f"but {path}:{number} has {_known_key(path, number) or 'another key'}. If this address was given to another "
        f"machine, as is usual with rented ones, forget the old key: {forget}, then remember the new one: "
        f"{command_line('orchestrate', 'check --trust-new')}. Otherwise compare the key before you replace it: "
        "somebody may be intercepting the connection",
        2_000,
    )


def _known_key(path: str, number: int) -> str | None:
    """Describe the key of a line of a known-hosts file."""
    try:
        key = read_key(Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[number - 1])
    except (OSError, IndexError):
        return None
    return None if key is None else f"the {key.kind} key {key.fingerprint}"


_OFFERED = re.compile(r"fingerprint for the (?P<kind>\S+) key sent by the remote host is\s+(?P<fingerprint>\S+?)\.?\s")
_OFFENDING = re.compile(r"Offending \S+ key in (?P<file>.+):(?P<line>\d+)\s")
_WHERE = re.compile(r"ost key for (?P<where>\S+) has changed and you have requested strict checking")

_DROPPED = re.compile(
    r"kex_exchange_identification|ssh_exchange_identification|during banner exchange|"
    r"Connection (?:closed|reset) by (?:\S+ )+port \d+"
)
"""How it looks when an sshd closes a connection before the login; later it is `Connection to … closed` and the like."""

_FINAL = (
    "Host key verification failed",
    "Permission denied",
    "Could not resolve",
    "connect to host",
    "stdio forwarding failed",
    "Too many authentication failures",
)
"""Of a jump host, or of the host: the connection that ends next to it ends for this reason."""

_BUSY = "Its sshd drops connections while many are being opened (MaxStartups), or refuses this address"


def _remedies() -> dict[str, str]:
    return {
        "Host key verification failed": "To see the key's fingerprint and remember it in a known_hosts file next to "
        f"hosts.yml: {command_line('orchestrate', 'check --trust-new')}",
        "Permission denied": "Add your key to the host, or name it in ~/.ssh/config (IdentityFile)",
        "Could not resolve": "Check the name in hosts.yml",
        "Connection refused": "Check the port, and that sshd runs there",
    }


_ALLOW = (
    "To allow it without a password, run `sudo visudo -f /etc/sudoers.d/tfbench` on that host and add: "
    "USER ALL=(root) NOPASSWD: /usr/bin/docker"
)
_NO_ENGINE = "Is Docker running there? Else set docker_socket:"
_SUDO_REMEDIES = {
    "password is required": _ALLOW,
    "terminal is required": _ALLOW,
    "must have a tty": "Remove requiretty for this user from the host's sudoers",
    "not allowed to execute": _ALLOW,
    "not in the sudoers": _ALLOW,
    "may not run sudo": _ALLOW,
    "docker: command not found": "Install the Docker CLI there",
    "sudo: command not found": "Install sudo there, or remove docker_via",
    "sudo: not found": "Install sudo there, or remove docker_via",
    "dial-stdio": "The Docker CLI there must be 18.09 or newer",
    "Cannot connect to the Docker daemon": _NO_ENGINE,
    "failed to open the raw stream": _NO_ENGINE,
}
"""By signs of sudo's and docker's words, the first that fits."""
