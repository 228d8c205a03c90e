"""Addresses of hosts: of a Docker engine, or of an sshd."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from orchestrate.text import shown


@dataclass(frozen=True, kw_only=True)
class HostKeys:
    """Which host keys ssh accepts.

    Attributes:
        policy: `strict`: those in `file`; `accept-new`: also those of unknown hosts, which are added to `file`; None:
            those that the ssh configuration accepts, and those in `file`.
        file: The fleet's known-hosts file, which may not exist yet; None: no fleet.
    """

    policy: Literal["strict", "accept-new"] | None = None
    file: str | None = None


AS_CONFIGURED = HostKeys()
"""Accepts the keys that the ssh configuration accepts."""


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


@dataclass(frozen=True, kw_only=True)
class DockerAddress(SSHAddress):
    """The address of a Docker engine, which is an ssh destination if the scheme is `ssh`.

    Attributes:
        target: Path of the socket; ssh destination; `host:port`.
        scheme: `unix`, `ssh` or `tcp`.
        socket: Path of the engine's socket on an ssh host.
        tls: Paths of CA, certificate and key for tcp; None: plain tcp, which the user has allowed.
    """

    scheme: str
    socket: str = "/var/run/docker.sock"
    tls: tuple[str, str, str] | None = None


_DESTINATION = (
    r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])(?::(?P<port>[0-9]{1,5}))?"
)
_SSH_DESTINATION = re.compile(_DESTINATION)
_DOCKER_URL = re.compile(rf"unix://(?P<file>/[^\s?#]+)|(?P<scheme>ssh|tcp)://{_DESTINATION}(?P<path>/[^\s?#]*)?")
_PASSWORD = re.compile(r"[a-z]+://[^/@]*:[^/@]*@.*")


def _match(pattern: re.Pattern[str], text: object) -> re.Match[str] | None:
    found = pattern.fullmatch(text) if isinstance(text, str) and text.isprintable() else None
    return found if found and 1 <= int(found["port"] or 22) <= 65_535 else None


def _login(found: re.Match[str]) -> SSHAddress:
    return SSHAddress(
        target=(found["user"] or "") + found["host"].strip("[]"), port=int(found["port"]) if found["port"] else None
    )


def docker_address(url: object) -> DockerAddress:
    """Parse the address of a Docker engine.

    Args:
        url: `unix:///…`, `ssh://user@host:port/socket` or `tcp://host:port`. The case of an ssh host is kept, because
            it may be an alias.

    Raises:
        ValueError: It is something else; with what to write.
    """
    if isinstance(url, str) and _PASSWORD.fullmatch(url):
        raise ValueError("docker must not hold a password. Use an ssh key or agent")
    found = _match(_DOCKER_URL, url)
    if found and found["file"]:
        return DockerAddress(scheme="unix", target=found["file"])
    if found and found["scheme"] == "ssh":
        login, socket = _login(found), (found["path"] or "").rstrip("/") or DockerAddress.socket
        return DockerAddress(scheme="ssh", target=login.target, port=login.port, socket=socket)
    if found and found["port"] and not found["user"] and found["path"] in (None, "/"):
        return DockerAddress(scheme="tcp", target=f"{found['host']}:{found['port']}")
    examples = "Examples: unix:///var/run/docker.sock, ssh://bench@10.0.0.11:2222, tcp://[2001:db8::1]:2376"
    raise ValueError(f"docker must be the address of a Docker engine. Received: {shown(url)}. {examples}")


def ssh_address(text: object) -> SSHAddress:
    """Parse the address of a host without an engine: `user@host:port`, or an alias of the ssh configuration.

    Raises:
        ValueError: It is something else; with what to write.
    """
    if found := _match(_SSH_DESTINATION, text):
        return _login(found)
    what = "ssh must be user@host:port or an alias of the ssh configuration, without ssh://"
    raise ValueError(f"{what}. Received: {shown(text)}. Examples: root@203.0.113.7:22044, root@[2001:db8::1]:22")
