"""Addresses of hosts: of a Docker engine, or of an sshd."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from orchestrate.text import plain_text, shown


@dataclass(frozen=True, kw_only=True)
class HostKeys:
    """Which host keys ssh accepts.

    Attributes:
        policy: `strict`: those in `file`; `accept-new`: also those of unknown hosts, which are added to `file`; None:
            those that the ssh configuration accepts, and those in `file`.
        file: The fleet's known-hosts file, which may not exist yet; None: no fleet.
    """

    policy: str | None = None
    file: str | None = None


AS_CONFIGURED = HostKeys()
"""Accepts the keys that the ssh configuration accepts."""


@dataclass(frozen=True, kw_only=True)
class DockerAddress:
    """The address of a Docker engine.

    Attributes:
        scheme: `unix`, `ssh` or `tcp`.
        target: Path of the socket; ssh destination; `host:port`.
        port: ssh port; None: from the ssh configuration.
        socket: Path of the engine's socket on an ssh host.
        ssh_config: ssh configuration file; None: the user's own.
        tls: Paths of CA, certificate and key for tcp; None: plain tcp, which the user has allowed.
    """

    scheme: str
    target: str
    port: int | None = None
    socket: str = "/var/run/docker.sock"
    ssh_config: str | None = None
    tls: tuple[str, str, str] | None = None

    @property
    def login(self) -> SSHAddress:
        """Return the ssh destination of an `ssh` address."""
        return SSHAddress(target=self.target, port=self.port, ssh_config=self.ssh_config)


@dataclass(frozen=True, kw_only=True)
class SSHAddress:
    """An ssh destination.

    Attributes:
        target: An alias of the ssh configuration, or `user@host`.
        port: None: from the ssh configuration.
        ssh_config: ssh configuration file; None: the user's own.
    """

    target: str
    port: int | None = None
    ssh_config: str | None = None


def docker_address(url: object) -> DockerAddress:
    """Parse the address of a Docker engine.

    Args:
        url: `unix:///…`, `ssh://user@host:port/socket` or `tcp://host:port`. The case of an ssh host is kept, because
            it may be an alias.

    Raises:
        ValueError: It is something else; with what to write.
    """
    received = f"Received: {shown(url)}"
    try:
        parts = urlsplit(url) if isinstance(url, str) else SplitResult("", "", "", "", "")
        port = parts.port
    except ValueError as error:
        raise ValueError(f"docker is not an address: {plain_text(str(error), 100)}. {received}") from error
    if parts.password is not None:
        raise ValueError("docker must not hold a password. Use an ssh key or agent")
    if isinstance(url, str) and _is_clean(parts, url):
        if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
            return DockerAddress(scheme="unix", target=parts.path)
        if parts.scheme == "ssh" and parts.hostname and not parts.netloc.startswith(("-", "@")):
            target = re.sub(r"[\[\]]", "", parts.netloc.rpartition(":")[0] if port else parts.netloc)
            socket = parts.path.rstrip("/") or DockerAddress.socket
            return DockerAddress(scheme="ssh", target=target, port=port, socket=socket)
        if parts.scheme == "tcp" and parts.hostname and port and "@" not in parts.netloc and parts.path in ("", "/"):
            return DockerAddress(scheme="tcp", target=parts.netloc)
    examples = "Examples: unix:///var/run/docker.sock, ssh://bench@10.0.0.11:2222, tcp://[2001:db8::1]:2376"
    raise ValueError(f"docker must be the address of a Docker engine. {received}. {examples}")


def ssh_address(text: object) -> SSHAddress:
    """Parse the address of a host without an engine: `user@host:port`, or an alias of the ssh configuration.

    Raises:
        ValueError: It is something else; with what to write.
    """
    parts = _SSH_DESTINATION.fullmatch(text) if isinstance(text, str) else None
    port = int(parts["port"]) if parts and parts["port"] else None
    if parts is not None and port != 0 and (port or 1) <= 65_535:
        return SSHAddress(target=f"{parts['user'] or ''}{parts['host'].strip('[]')}", port=port)
    what = "ssh must be user@host:port or an alias of the ssh configuration, without ssh://"
    raise ValueError(f"{what}. Received: {shown(text)}. Examples: root@203.0.113.7:22044, root@[2001:db8::1]:22")


_SSH_DESTINATION = re.compile(
    r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])(?::(?P<port>[0-9]{1,5}))?"
)


def _is_clean(parts: SplitResult, url: str) -> bool:
    """Return whether a URL has nothing that would be ignored: query, fragment, white space that `urlsplit` drops."""
    host = parts.netloc.rpartition("@")[2]
    return (
        not ({"?", "#"} & set(url))
        and all(character.isprintable() and not character.isspace() for character in url)
        and not host.startswith("-")
        and not host.endswith(":")
        and parts.port != 0
    )
