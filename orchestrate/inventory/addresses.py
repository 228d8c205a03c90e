"""How a host is reached: the address of a Docker engine, or of an sshd, checked with the file's line at hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from orchestrate.text import plain_text, shown
from orchestrate.yaml_files import Document, is_file, resolve_path


@dataclass(frozen=True, kw_only=True)
class HostKeys:
    """Which host keys ssh accepts.

    Attributes:
        policy: `strict`: those of `file`; `accept-new`: also those of hosts that `file` does not know, which are added
            to it; None: what the ssh configuration accepts, and those of `file`.
        file: The fleet's known-hosts file, which may not exist yet; None: there is no fleet.
    """

    policy: str | None = None
    file: str | None = None


AS_CONFIGURED = HostKeys()
"""Those that the ssh configuration accepts."""


@dataclass(frozen=True, kw_only=True)
class DockerAddress:
    """How to reach a Docker engine.

    Attributes:
        scheme: `unix`, `ssh` or `tcp`.
        target: Path of the socket; ssh destination; `host:port`.
        port: ssh port; None: as the ssh configuration says.
        socket: Path of the engine's socket on an ssh host.
        ssh_config: ssh configuration file; None: the user's own.
        tls: Paths of CA, certificate and key for tcp; None there: plain tcp, which the user has allowed.
        via: `sudo`: only root may use the engine, for unix and ssh; None: this user may.
    """

    scheme: str
    target: str
    port: int | None = None
    socket: str = "/var/run/docker.sock"
    ssh_config: str | None = None
    tls: tuple[str, str, str] | None = None
    via: str | None = None

    @property
    def login(self) -> SSHAddress:
        """Return where ssh goes, for `ssh` addresses."""
        return SSHAddress(target=self.target, port=self.port, ssh_config=self.ssh_config)


@dataclass(frozen=True, kw_only=True)
class SSHAddress:
    """Where ssh goes.

    Attributes:
        target: ssh destination: an alias of the ssh configuration, or `user@host`.
        port: None: as the ssh configuration says.
        ssh_config: ssh configuration file; None: the user's own.
        jump: Where ssh goes first, as `ssh -J` takes it; None: as the ssh configuration says.
    """

    target: str
    port: int | None = None
    ssh_config: str | None = None
    jump: str | None = None


def is_reached_one_way(document: Document, path: tuple[str, ...], entry: dict[str, Any]) -> bool:
    """Return whether an entry says in exactly one way how its host is reached; mistakes go to the document."""
    docker, ssh, process = entry.get("docker"), entry.get("ssh"), entry.get("process")
    ways = (docker is not None) + (ssh is not None) + (process is True)
    if ways == 1 or (ways == 0 and not document.is_whole(path)):  # it may be what was reported already
        return ways == 1
    document.problem(
        path,
        f"host {plain_text(path[-1], 80)}: set exactly one of docker, ssh and process. "
        f"Received: docker: {shown(docker)}, ssh: {shown(ssh)}, process: {shown(process)}. "
        "Examples: docker: ssh://bench@10.0.0.11, ssh: root@203.0.113.7:22044",
    )
    return False


def docker_address(
    document: Document, path: tuple[str, ...], entry: dict[str, Any], folder: Path
) -> DockerAddress | None:
    """Read where a host's Docker engine is; None: it names none, or none that can be used.

    Args:
        document: Takes the mistakes.
        path: Of the host.
        entry: Its settings.
        folder: Paths are relative to it.
    """
    url, where, name = entry.get("docker"), (*path, "docker"), plain_text(path[-1], 80)
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        hint = _with_brackets(url) or plain_text(str(error), 100)
        document.problem(where, f"host {name}: docker is not an address: {hint}. Received: {shown(url)}")
        return None
    if parts.password is not None:
        document.problem(where, f"host {name}: docker must not hold a password. Use an ssh key or agent")
        return None
    if _is_clean(parts, url):
        if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
            return DockerAddress(scheme="unix", target=parts.path)
        if parts.scheme == "ssh" and parts.hostname and not parts.netloc.startswith(("-", "@")):
            return _through_ssh(document, path, parts, entry, folder)
        if parts.scheme == "tcp" and parts.hostname and port and "@" not in parts.netloc and parts.path in ("", "/"):
            return _by_tcp(document, path, parts, entry, folder)
    example = "Examples: unix:///var/run/docker.sock, ssh://bench@10.0.0.11:2222, tcp://10.0.0.21:2376"
    document.problem(
        where,
        f"host {name}: docker must be the address of a Docker engine. Received: {shown(url)}. "
        f"{_with_brackets(url) or example}",
    )
    return None


_BARE_IPV6 = re.compile(
    r"(?P<user>(?:ssh://|tcp://)?(?:[^@/]*@)?)(?P<address>[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)"
)


def _with_brackets(text: str) -> str | None:
    """Say how to write an IPv6 address that lacks its brackets; None: it is none."""
    found = _BARE_IPV6.fullmatch(text)
    return f"An IPv6 address needs brackets: {found['user']}[{found['address']}]" if found else None


def _meant_by(text: str) -> str:
    """Say what to write instead of a text that is no ssh destination."""
    bare = text.removeprefix("ssh://")
    if bare != text and _SSH_DESTINATION.fullmatch(bare):
        return f"Write ssh: {bare}. For a host with a Docker engine, write docker: {text}"
    return _with_brackets(text) or "Example: root@203.0.113.7:22044"


def _is_clean(parts: SplitResult, url: str) -> bool:
    """Refuse what would be ignored: queries, fragments, and the white space that `urlsplit` drops silently."""
    host = parts.netloc.rpartition("@")[2]
    return (
        not ({"?", "#"} & set(url))
        and all(character.isprintable() and not character.isspace() for character in url)
        and not host.startswith("-")
        and not host.endswith(":")
        and parts.port != 0
    )


def _by_tcp(
    document: Document, path: tuple[str, ...], parts: SplitResult, entry: dict[str, Any], folder: Path
) -> DockerAddress | None:
    name, insecure, tls = plain_text(path[-1], 80), entry.get("insecure") is True, entry.get("tls")
    if not tls and not insecure:
        document.problem(
            (*path, "docker"),
            f"host {name}: tcp:// without TLS gives anyone on the network control of the machine. "
            "Add tls: {ca: …, cert: …, key: …}, use ssh://, or set insecure: true",
        )
    if tls and insecure:
        document.problem(
            (*path, "insecure"), f"host {name}: insecure: true and tls exclude each other. Remove one of them"
        )
    if not isinstance(tls, dict):
        return DockerAddress(scheme="tcp", target=parts.netloc)
    ca, cert, key = (_file(document, (*path, "tls", part), tls.get(part), folder) for part in ("ca", "cert", "key"))
    if ca is None or cert is None or key is None:
        return None
    return DockerAddress(scheme="tcp", target=parts.netloc, tls=(ca, cert, key))


def _through_ssh(
    document: Document, path: tuple[str, ...], parts: SplitResult, entry: dict[str, Any], folder: Path
) -> DockerAddress:
    """Build an ssh address; the host keeps its letters' case, because it may be an alias."""
    netloc = parts.netloc.rpartition(":")[0] if parts.port else parts.netloc
    named, in_path = entry.get("docker_socket"), parts.path.rstrip("/")
    if named is not None and in_path:
        document.problem(
            (*path, "docker_socket"),
            f"host {plain_text(path[-1], 80)}: docker already contains a socket: {shown(in_path)}. Remove one of them",
        )
    return DockerAddress(
        scheme="ssh",
        target=netloc.replace("[", "").replace("]", ""),
        port=parts.port,
        socket=str(named or in_path or DockerAddress.socket),
        ssh_config=_file(document, (*path, "ssh_config"), entry.get("ssh_config"), folder),
    )


def ssh_address(document: Document, path: tuple[str, ...], entry: dict[str, Any], folder: Path) -> SSHAddress | None:
    """Read where a host without an engine is: `user@host:port`, or an alias of the ssh configuration.

    Arguments and result as for `docker_address`.
    """
    text = entry.get("ssh")
    if not isinstance(text, str):
        return None
    parts = _SSH_DESTINATION.fullmatch(text)
    port = int(parts["port"]) if parts and parts["port"] else None
    if parts is None or port == 0 or (port or 1) > 65_535:
        document.problem(
            (*path, "ssh"),
            f"host {plain_text(path[-1], 80)}: ssh must be user@host:port or an alias of the ssh configuration. "
            f"Received: {shown(text)}. {_meant_by(text)}",
        )
        return None
    target = f"{parts['user'] or ''}{parts['host'].strip('[]')}"
    return SSHAddress(
        target=target, port=port, ssh_config=_file(document, (*path, "ssh_config"), entry.get("ssh_config"), folder)
    )


_SSH_DESTINATION = re.compile(
    r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\])(?::(?P<port>[0-9]{1,5}))?"
)


def _file(document: Document, path: tuple[str, ...], named: object, folder: Path) -> str | None:
    """Return the path of a file that must exist; None: none was named."""
    if not isinstance(named, str):
        return None
    file = resolve_path(named, folder)
    if not is_file(file):
        host, key = path[path.index("hosts") + 1], ".".join(path[path.index("hosts") + 2 :])
        document.problem(path, f"host {plain_text(host, 80)}: {key}: no such file: {plain_text(str(file), 300)}")
    return str(file)
