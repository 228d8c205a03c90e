"""Builds ssh command lines: options, host keys, jump hosts, shared connections.

OpenSSH honours the user's configuration, without what is meant for a person at a terminal: each command reads a
file of ours that includes the user's configuration between options that a program needs.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchestrate.inventory.addresses import HostKeys, SSHAddress

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

_STRICTNESS = {"strict": "yes", "accept-new": "accept-new"}


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
    command = ssh_command(login, keys)
    try:
        settings = _answer([*command[:1], "-G", *command[1:]])
        path = next(
            (line.partition(" ")[2] for line in settings.splitlines() if line.startswith("controlpath ")), "none"
        )
        if path == "none":
            return None
        _answer([*command[:1], "-O", "check", *command[1:]])
    except (OSError, subprocess.SubprocessError):
        return None
    return path


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
        f"StrictHostKeyChecking {_STRICTNESS[keys.policy]}",
        "CheckHostIP no",
    ]
