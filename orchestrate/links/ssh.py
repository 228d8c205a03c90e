"""The command line of every ssh that is started here: options, host keys, jump hosts.

OpenSSH honours the user's configuration and agent; only what a program needs, and what `hosts.yml` sets, is added. An
option on the command line wins over the configuration, so nothing else may stand there.
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
    "-oBatchMode=yes",  # never ask: a question would wait for ever
    f"-oConnectTimeout={CONNECT_TIMEOUT_SECONDS}",
    "-oServerAliveInterval=5",  # a dead link is noticed within 20 s; a false alarm costs a reconnection, no more
    "-oServerAliveCountMax=3",
    "-oLogLevel=ERROR",
)
"""Of every ssh."""

NO_MASTER = "-oControlMaster=no"
"""A shared connection that we start would outlive us, or end under us."""

OWN_CONNECTION = "-oControlPath=none"
"""For what must notice a dead link. Else a connection that the user shares saves a login, and a second factor."""

_STRICTNESS = {"strict": "yes", "accept-new": "accept-new"}


def ssh_command(login: SSHAddress, keys: HostKeys, *flags: str, remote: str | None = None) -> list[str]:
    """Return the command line of an ssh that makes a connection, or uses one that the user shares.

    Args:
        login: Where it goes.
        keys: Which host keys it accepts, also of jump hosts.
        flags: Stand first: of an option that comes twice, ssh takes the first.
        remote: What it runs there, for the login shell; None: nothing, or what the flags say.
    """
    words = ["ssh", *flags, *OPTIONS, NO_MASTER, *_place(login, keys), "--", login.target]
    return words if remote is None else [*words, remote]


def _place(login: SSHAddress, keys: HostKeys) -> list[str]:
    config = login.ssh_config if keys.policy is None else _with_keys(login.ssh_config, keys)
    return [*([] if config is None else ["-F", config]), *([] if login.port is None else ["-p", str(login.port)])]


@functools.cache
def _with_keys(config: str | None, keys: HostKeys) -> str:
    """Write a configuration file that decides about host keys, also those of jump hosts: ssh hands only files to them.

    Args:
        config: The configuration below it; None: that of the user and of the machine.
        keys: With a policy and a file.
    """
    file = (keys.file or "").replace("%", "%%")  # ssh reads % as the beginning of a token
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
