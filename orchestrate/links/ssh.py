"""The command line of every ssh that is started here: options, host keys, jump hosts.

OpenSSH honours the user's configuration and agent; only what a program needs, and what `hosts.yml` sets, is added. An
option on the command line wins over the configuration, so nothing else may stand there.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from collections.abc import Mapping

from orchestrate.inventory.addresses import HostKeys, SSHAddress

CONNECT_TIMEOUT_SECONDS = 10
CONFIGURATION_SECONDS = 20.0
"""`ssh -G` answers in milliseconds, unless a `Match exec` of the user's hangs."""

MAX_HOPS = 8
"""A chain of jump hosts that is longer is a loop in the configuration."""

OPTIONS = (
    "-oBatchMode=yes",  # never ask: a question would wait for ever
    f"-oConnectTimeout={CONNECT_TIMEOUT_SECONDS}",
    "-oServerAliveInterval=5",  # a dead link is noticed within 20 s; a false alarm costs a reconnection, no more
    "-oServerAliveCountMax=3",
    "-oLogLevel=ERROR",
)
"""Of every ssh, those to jump hosts included."""

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
    words = ["ssh", *flags, *OPTIONS, NO_MASTER, *key_options(keys)]
    return [
        *words,
        *(_proxy(login, keys) or _jump(login)),
        *_place(login),
        "--",
        login.target,
        *([] if remote is None else [remote]),
    ]


def key_options(keys: HostKeys) -> list[str]:
    """Return the options for host keys; none: the ssh configuration alone decides."""
    if keys.policy is None or keys.file is None:
        return []
    file = keys.file.replace("%", "%%")  # ssh reads % as the beginning of a token
    known = f'-oUserKnownHostsFile="{file}"'
    return [known, "-oHashKnownHosts=no", f"-oStrictHostKeyChecking={_STRICTNESS[keys.policy]}", "-oCheckHostIP=no"]


def hops(login: SSHAddress) -> list[SSHAddress]:
    """Return the jump hosts on the way, the nearest to us first."""
    chain: list[SSHAddress] = []
    here = login
    while len(chain) < MAX_HOPS and (hop := _hop_before(here)) is not None:
        chain.insert(0, hop)
        here = hop
    return chain


def entrance(login: SSHAddress) -> str | None:
    """Name what all connections on this way go through first: a jump host or a proxy command; None: there is none."""
    chain = hops(login)
    if chain:
        first = configuration(chain[0])
        return f"{first.get('hostname')}:{first.get('port')}"
    command = configuration(login).get("proxycommand")
    return None if command == "none" else command


@functools.cache
def configuration(login: SSHAddress) -> Mapping[str, str]:
    """Return what the ssh configuration says about a destination, by lower-case keyword; empty: ssh refuses it."""
    try:
        done = subprocess.run(
            ["ssh", "-G", "-T", *_jump(login), *_place(login), "--", login.target],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CONFIGURATION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}  # the connection itself will say why
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {keyword: value for keyword, _, value in pairs}


def _hop_before(login: SSHAddress) -> SSHAddress | None:
    """Return the last jump host before a destination."""
    before, _, last = (login.jump or configuration(login).get("proxyjump", "none")).rpartition(",")
    parts = _HOP.fullmatch(last)
    if last == "none" or parts is None:
        return None
    target = f"{parts['user'] or ''}{parts['host'].strip('[]')}"
    if target.rpartition("@")[2] == login.target.rpartition("@")[2]:
        return None  # `Host *` names the jump host for itself too, which ssh ignores
    port = None if parts["port"] is None else int(parts["port"])
    return SSHAddress(target=target, port=port, ssh_config=login.ssh_config, jump=before or None)


_HOP = re.compile(r"(?:ssh://)?(?P<user>[^@]+@)?(?P<host>\[[^]]+\]|[^:@]+)(?::(?P<port>[0-9]+))?/?")


def _place(login: SSHAddress) -> list[str]:
    config = [] if login.ssh_config is None else ["-F", login.ssh_config]
    return [*config, *([] if login.port is None else ["-p", str(login.port)])]


def _jump(login: SSHAddress) -> list[str]:
    return [] if login.jump is None else ["-J", login.jump]


def _proxy(login: SSHAddress, keys: HostKeys) -> list[str]:
    """Go through the jump hosts by commands of our own, because ssh hands none of its options to them."""
    command: str | None = None
    for hop in hops(login) if key_options(keys) else ():
        proxy = [] if command is None else [f"-oProxyCommand={command}"]
        words = ["ssh", *OPTIONS, NO_MASTER, *key_options(keys), *proxy, *_place(hop)]
        quoted = shlex.join(word.replace("%", "%%") for word in words)
        command = f"{quoted} -W '[%h]:%p' -- {shlex.quote(hop.target)}"
    return [] if command is None else [f"-oProxyCommand={command}"]
