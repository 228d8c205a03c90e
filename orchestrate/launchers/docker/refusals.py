"""Why an engine could not be asked, or refused: one line for a person, with a remedy where the reason is known."""

from __future__ import annotations

import http.client
from typing import Any

from orchestrate.errors import HostError, LaunchFailed
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.text import plain_text
from results.schema import Status

MAX_SAID = 300
"""Most that is quoted of an engine, in characters."""

MAX_READ = 4000
"""Most that is searched for a known reason, in characters: the reason stands at the end of what runtimes say."""


class NoGPUs(LaunchFailed):
    """The engine says that it has no such GPUs to give."""


class NoMemoryLock(LaunchFailed):
    """The engine has no right to lift the limit of locked memory."""


def explain(error: BaseException, address: DockerAddress) -> str:
    """Explain in one line why an engine could not be reached."""
    where = f"{address.scheme}://{address.target}"
    for item in _chain(error):
        for kind, remedy in _SOCKET_REMEDIES.items():
            if isinstance(item, kind):
                return f"{where}: {remedy}"
        if isinstance(item, _CUT_OFF) and address.scheme == "ssh":
            return (
                f"{where}: the engine's socket {address.socket} does not answer on that host. Is Docker "
                "installed there, and may this user use it (group docker)? Else set docker_socket:"
            )
    said = plain_text(str(error), MAX_SAID)
    for sign, remedy in _TLS_REMEDIES.items():
        if sign in said:
            return f"{where}: {remedy}"
    return f"{where}: {said or type(error).__name__}"


def launch_refusal(said: str) -> HostError:
    """Turn the engine's words into an error with a status and a remedy."""
    whole = plain_text(said, MAX_READ)
    quoted = whole[:MAX_SAID]
    for sign, (status, remedy) in _REFUSALS.items():
        if sign in whole:
            return _KINDS.get(sign, LaunchFailed)(f"{remedy}. The engine reported: {quoted}", status)
    return LaunchFailed(f"the engine refused: {quoted or 'no reason given'}")


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and everything that it wraps: libraries wrap the socket's own reason several times."""
    seen: list[BaseException] = []
    pending: list[Any] = [error]
    while pending:
        item = pending.pop()
        if isinstance(item, BaseException) and item not in seen:
            seen.append(item)
            pending += [*item.args, item.__cause__, item.__context__, getattr(item, "reason", None)]
    return seen


_CUT_OFF = (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)
"""How it looks on our end of a tunnel when nothing listens on the other: by how much of a request was sent by then."""

_SOCKET_REMEDIES: dict[type[BaseException], str] = {
    PermissionError: "permission denied. Join the group `docker` on that host, or use another user",
    FileNotFoundError: "no such socket. Is the Docker engine installed and running?",
    ConnectionRefusedError: "connection refused. Is the Docker engine running there?",
}

_TLS_REMEDIES = {
    "certificate has expired": "its certificate has expired. Renew it on the host",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not from the CA in tls.ca. Check tls.ca and the address",
    "alert unknown ca": "the host does not trust the CA of our certificate. Check tls.cert and tls.key",
    "alert bad certificate": "the host refused our certificate. Check tls.cert and tls.key",
    "alert certificate required": "the host requires a client certificate. Check tls.cert and tls.key",
    "alert certificate expired": "our certificate has expired. Renew tls.cert",
    "KEY_VALUES_MISMATCH": "tls.key is not the key of tls.cert",
    "HTTP request to an HTTPS server": "the host requires TLS. Add tls: {ca: …, cert: …, key: …}",
    "WRONG_VERSION_NUMBER": "the host does not speak TLS on that port",
}

_NO_DATA = (
    "the folder data_dir does not exist on the host, or the engine may not read it. Correct data_dir in hosts.yml, or "
    "copy the data there"
)
_NO_LOCK = "the engine may not raise the limit on locked memory (memlock)"

_REFUSALS = {
    "could not select device driver": (
        Status.NO_GPU,
        "the engine cannot give GPUs to containers. Install the NVIDIA container toolkit there",
    ),
    "unresolvable CDI devices": (
        Status.NO_GPU,
        "the engine does not know this GPU. Install the NVIDIA container toolkit there, and describe the GPUs to it: "
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    "unsatisfied condition: cuda": (
        Status.DRIVER_TOO_OLD,
        "the NVIDIA driver is too old for this image. Choose an older variant or update the driver",
    ),
    "nvidia-container-cli": (Status.NO_GPU, "the NVIDIA container toolkit failed on the host"),
    "bind source path does not exist": (Status.BAD_INPUT, _NO_DATA),
    "statfs ": (Status.BAD_INPUT, _NO_DATA),
    "rlimit type 8": (Status.ERROR, _NO_LOCK),
    "RLIMIT_MEMLOCK": (Status.ERROR, _NO_LOCK),
    "catatonit": (
        Status.ERROR,
        "Podman lacks catatonit, the init process of containers. Install the package catatonit there",
    ),
    "no space left on device": (Status.ERROR, "the host's disk is full. Free some space, or remove old images"),
}

_KINDS: dict[str, type[LaunchFailed]] = {
    "could not select device driver": NoGPUs,
    "unresolvable CDI devices": NoGPUs,
    "rlimit type 8": NoMemoryLock,
    "RLIMIT_MEMLOCK": NoMemoryLock,
}
