"""Builds ssh command lines: options, host keys, jump hosts, shared connections; and explains why ssh has failed.

OpenSSH honours the user's configuration, without what is meant for a person at a terminal: each command reads a
file of ours that includes the user's configuration between options that a program needs.
"""

from __future__ import annotations

import atexit
import functools
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchestrate.errors import Dropped, Unreachable
from orchestrate.inventory.addresses import HostKeys, SSHAddress
from orchestrate.text import plain_text

NAME_PREFIX = "ssh "
"""Begins the name of a host that is reached by ssh, in messages."""

CONNECT_TIMEOUT_SECONDS = 10
CHECK_SECONDS = 10.0
"""Time limit of a question to a shared connection."""

OPTIONS = (
    "IgnoreUnknown *",  # options that this OpenSSH does not have yet
    "BatchMode yes",  # a prompt would wait forever
    f"ConnectTimeout {CONNECT_TIMEOUT_SECONDS}",
    "ServerAliveInterval 5",  # a dead link is detected within 20 s; a false alarm costs one reconnection
    "ServerAliveCountMax 3",
    "LogLevel ERROR",
    "ControlMaster no",  # it might outlive us or end too early
    # Hosts may be rented from anybody: they get no access to this machine, to the user's keys or to other machines.
    "ForwardAgent no",
    "ForwardX11 no",
    "ForwardX11Trusted no",
    "GSSAPIDelegateCredentials no",
    "ClearAllForwardings yes",
    "Tunnel no",
    # What a program would stumble over.
    "PermitLocalCommand no",
    "RemoteCommand none",
    "RequestTTY no",
    "SessionType default",
    "ForkAfterAuthentication no",
    "StdinNull no",
    "ExitOnForwardFailure no",
)
"""Precede the user's configuration: ssh uses the first of repeated options."""

LAST_OPTIONS = ("SendEnv -*",)
"""Follow the user's configuration: environment variables may be secrets. `-*` removes those that it names."""

OWN_CONNECTION = "-oControlPath=none"
"""Uses no shared connection of the user."""


def ssh_command(login: SSHAddress, keys: HostKeys, *flags: str, remote: str | None = None) -> list[str]:
    """Return an ssh command line that connects, or uses a shared connection of the user.

    Args:
        login: The ssh address.
        keys: Host keys that it accepts, also of jump hosts.
        flags: Placed first, because ssh uses the first of repeated options.
        remote: Command for the login shell; None: none.
    """
    port = [] if login.port is None else ["-p", str(login.port)]
    words = ["ssh", *flags, "-F", _with_keys(login.ssh_config, keys), *port, "--", login.target]
    return words if remote is None else [*words, remote]


def shared_connection(login: SSHAddress, keys: HostKeys) -> str | None:
    """Return the socket of the connection that the user shares (ControlMaster) and has opened, or None."""
    try:
        settings = _answer(ssh_command(login, keys, "-G"))
        path = re.search("(?m)^controlpath (.+)$", settings)
        if path is None or path[1] == "none":
            return None
        _answer(ssh_command(login, keys, "-O", "check"))
    except (OSError, subprocess.SubprocessError):
        return None
    return path[1]


def _answer(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_SECONDS, check=True
    )
    return done.stdout


@functools.cache
def _with_keys(config: str | None, keys: HostKeys) -> str:
    """Write a configuration file, which ssh also applies to jump hosts.

    Args:
        config: The configuration to include; None: that of the user and of the machine.
        keys: Host keys to accept.
    """
    below = ["~/.ssh/config", "/etc/ssh/ssh_config"] if config is None else [str(Path(config).absolute())]
    lines = ["Host *", *OPTIONS, *_of_keys(keys), *(f'Include "{path}"' for path in below), "Host *", *LAST_OPTIONS]
    folder = Path(tempfile.mkdtemp(prefix="tfb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "config").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "config")


def _of_keys(keys: HostKeys) -> list[str]:
    if keys.policy is None:
        return []
    file = (keys.file or "").replace("%", "%%")  # % begins a token
    return [
        f'UserKnownHostsFile "{file}"',
        "HashKnownHosts no",
        f"StrictHostKeyChecking {'yes' if keys.policy == 'strict' else keys.policy}",
        "CheckHostIP no",
    ]


# -- failures of ssh -------------------------------------------------------------------------------------------

MAX_QUOTED = 500
"""Maximum length of a quoted message of ssh, in characters."""


def ssh_failure(name: str, errors: bytes, exit_code: int) -> Unreachable:
    """Explain in one line why ssh ended, with a remedy if the reason is known.

    Args:
        name: `ssh TARGET`.
        errors: Standard error of ssh.
        exit_code: Exit code of ssh.

    Returns:
        A `Dropped` if a retry may succeed.
    """
    text = errors.decode("utf-8", "replace")
    if changed := _changed_key(text):
        return Unreachable(f"{name}: {changed}")
    message = _quoted(text) or f"exit code {exit_code}"
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in message), None)
    cause = f"{name}: {message}" + (f" {remedy}" if remedy else "")
    if _DROPPED.search(message) and not any(sign in message for sign in _FINAL):
        return Dropped(cause if remedy else f"{cause} {_BUSY}")
    return Unreachable(cause)


def own_words(exit_code: int | None, output: bytes) -> str:
    """Explain in one line why a login ended before it ran a command, in the host's own words."""
    said = _quoted(output.decode("utf-8", "replace"))
    return f"the login ended with exit code {exit_code}" + (f". It printed: {said}" if said else " and printed nothing")


def _quoted(text: str) -> str:
    lines = [plain_text(line, 300).strip() for line in text.splitlines()]
    return plain_text(" ".join(line for line in lines if line and not set(line) <= {"@"}), MAX_QUOTED)


def _changed_key(text: str) -> str | None:
    """Return an explanation if ssh failed because of a changed host key, or None."""
    if (said := _CHANGED.search(text)) is None:
        return None
    path, machine = said["file"], said["where"]
    forget = shlex.join(["ssh-keygen", "-R", machine, "-f", path])
    return plain_text(
        f"REMOTE HOST IDENTIFICATION HAS CHANGED: {machine} offers the {said['kind']} key {said['fingerprint']}, "
        f"and {path}:{said['line']} has another key. If this address was given to another machine, as is usual with "
        f"rented ones, forget the old key: {forget}. Otherwise compare the key before you replace it: somebody may be "
        "intercepting the connection",
        2_000,
    )


_CHANGED = re.compile(
    r"fingerprint for the (?P<kind>\S+) key sent by the remote host is\s+(?P<fingerprint>\S+?)\.?\s.*"
    r"Offending \S+ key in (?P<file>[^\n]+):(?P<line>\d+)\s.*"
    r"ost key for (?P<where>\S+) has changed and you have requested strict checking",
    re.DOTALL,
)

_DROPPED = re.compile(
    r"kex_exchange_identification|ssh_exchange_identification|during banner exchange|"
    r"Connection (?:closed|reset) by (?:\S+ )+port \d+"
)
"""Messages for a connection closed before the login; later, it is `Connection to … closed` and the like."""

_FINAL = (
    "Host key verification failed",
    "Permission denied",
    "Could not resolve",
    "connect to host",
    "stdio forwarding failed",
    "Too many authentication failures",
)
"""Messages of the host or a jump host that explain a dropped connection; a retry would not help."""

_BUSY = "Its sshd drops connections while many are being opened (MaxStartups), or refuses this address"


_REMEDIES = {
    "Host key verification failed": "To accept new hosts, set host_keys: accept-new in hosts.yml. To compare the "
    "key's fingerprint, connect once with ssh",
    "Permission denied": "Add your key to the host, or name it in ~/.ssh/config (IdentityFile). For a second factor, "
    "share a connection (ControlMaster auto) and stay logged in",
    "Could not resolve": "Check the name in hosts.yml",
    "Connection refused": "Check the port, and that sshd runs there. After a change, correct it in hosts.yml",
}
