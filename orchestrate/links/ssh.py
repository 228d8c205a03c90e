"""Builds ssh command lines: options, host keys, jump hosts.

OpenSSH honours the user's configuration and agent. Options on the command line override the configuration, so they are
limited to those that a program needs, or that `hosts.yml` sets.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from contextlib import ExitStack
from pathlib import Path

from orchestrate.inventory.addresses import HostKeys, SSHAddress

CONNECT_TIMEOUT_SECONDS = 10
OPTIONS = (
    "-oBatchMode=yes",  # a prompt would wait forever
    f"-oConnectTimeout={CONNECT_TIMEOUT_SECONDS}",
    "-oServerAliveInterval=5",  # a dead link is detected within 20 s; a false alarm costs one reconnection
    "-oServerAliveCountMax=3",
    "-oLogLevel=ERROR",
)
"""Options of every ssh command."""

NO_MASTER = "-oControlMaster=no"
"""Starts no shared connection, which might outlive us or end too early."""

OWN_CONNECTION = "-oControlPath=none"
"""Uses no shared connection of the user, for commands that must detect a dead link. Others save a login by sharing."""

_STRICTNESS = {"strict": "yes", "accept-new": "accept-new"}


def ssh_command(login: SSHAddress, keys: HostKeys, *flags: str, remote: str | None = None) -> list[str]:
    """Return an ssh command line that connects, or uses a shared connection of the user.

    Args:
        login: The ssh address.
        keys: Host keys that it accepts, also of jump hosts.
        flags: Placed first, because ssh uses the first of repeated options.
        remote: Command for the login shell; None: none.
    """
    words = ["ssh", *flags, *OPTIONS, NO_MASTER, *_place(login, keys), "--", login.target]
    return words if remote is None else [*words, remote]


def _place(login: SSHAddress, keys: HostKeys) -> list[str]:
    config = login.ssh_config if keys.policy is None else _with_keys(login.ssh_config, keys)
    return [*([] if config is None else ["-F", config]), *([] if login.port is None else ["-p", str(login.port)])]


@functools.cache
def _with_keys(config: str | None, keys: HostKeys) -> str:
    """Write a configuration file with the host key policy, which ssh applies to jump hosts only if it is in a file.

    Args:
        config: The configuration to include; None: that of the user and of the machine.
        keys: Host keys with a policy and a file.
    """
    file = (keys.file or "").replace("%", "%%")  # % begins a token
    below = ["~/.ssh/config", "/etc/ssh/ssh_config"] if config is None else [str(Path(config).absolute())]
    lines = [
        "Host *",
        f'UserKnownHostsFile "{file}"',
        "HashKnownHosts no",
        f"StrictHostKeyChecking {_STRICTNESS[keys.policy or 'strict']}",
        "CheckHostIP no",
        *(option.removeprefix("-o").replace("=", " ", 1) for option in (*OPTIONS, NO_MASTER)),
        *(f'Include "{path}"' for path in below),
    ]
    folder = Path(_FOLDERS.enter_context(tempfile.TemporaryDirectory(prefix="tfb-")))
    (folder / "config").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "config")


_FOLDERS = ExitStack()
atexit.register(_FOLDERS.close)
