"""The Docker SDK's client, with a limit on the time and bytes of every exchange with an engine.

An engine may be broken or hostile, and the SDK does not protect against that. Our own parts, each with the test that
shows why it is necessary, in `tests/unit/orchestrate/test_engine_client.py` unless another is named:

* Sockets: the SDK's timeouts restart with every byte, and `pull` has none (`test_an_engine_that_drips_…`); it reads
  answers of any size (`test_an_answer_without_end_…`), and parses a long message for hours (`test_a_message_…`).
* The adapter: the SDK decompresses answers, guesses charsets and follows redirects (`test_a_header_…`,
  `test_a_redirect_…`), and the environment can override `tls.ca` (`tests/real/faults/test_refused_connections.py`).
* The tunnel: with the SDK's `ssh://`, a broken link looks like the end of a log, or blocks forever
  (`tests/real/faults/test_cut_connections.py`).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import requests.adapters
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException
from urllib3.connection import HTTPConnection

from orchestrate.connections.tunnel import Tunnel
from orchestrate.engines.base import NotThere
from orchestrate.engines.bounded import MALFORMED, LimitedPool, TLSSocket, within
from orchestrate.errors import HostError, LaunchFailed, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, DockerAddress, HostKeys
from orchestrate.text import plain_text, read_json
from results.schema import Status

__all__ = ["APIError", "EngineClient", "EngineLink", "Kind", "NoGPUs", "NoMemoryLock", "document"]

T = TypeVar("T")

ANSWER_SECONDS = 60
"""Time limit of a request and its answer; for a stream of logs, the longest silence."""

MAX_ANSWER_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 64 << 10
"""Maximum length of a message about a pull, a build or a push."""

RECONNECT_SECONDS = 120.0
"""How long a host that has answered before is retried."""

LONGEST_DELAY_SECONDS = 10.0
MAX_CONNECTIONS = 32
"""Size of the connection pool of an engine: a log per worker slot, and other requests."""

NEWEST_API = (1, 51)
"""Newest supported version of the engine's API; older engines are addressed with their own."""

LIBPOD = "/v4.0.0/libpod"
"""Path of Podman's native API, in a version that every Podman since 4.0 supports."""

KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""TCP keep-alive, which detects a dead link after 75 s, even while waiting for the next line of a log."""

MAX_QUOTED = 300
"""Maximum length of an engine's message in a cause, in characters."""

MAX_READ = 4000
"""Characters at the end of an engine's message that are searched for known errors, which runtimes print last."""


LISTS_DEVICES_API = (1, 50)
"""Version of the API from which on `/info` lists CDI devices.
Source: version history of the Docker Engine API, v1.50, `DiscoveredDevices`."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What differs between engines that have Docker's API: the only place that knows Podman.

    Attributes:
        name: `docker` or `podman`.
        resolves_tags: Whether it can query a registry for the digest of a tag without a pull.
        only_cdi: Whether GPUs are given by CDI only, because it ignores requests by capabilities.
        lists_devices: Whether its report about itself lists CDI devices.
        makes_folders: Whether a missing folder of the host that is mounted is created, by Docker's API.
    """

    name: str = "docker"
    resolves_tags: bool = True
    only_cdi: bool = False
    lists_devices: bool = True
    makes_folders: bool = False


PODMAN = Kind(name="podman", resolves_tags=False, only_cdi=True, lists_devices=False, makes_folders=True)


class NoGPUs(LaunchFailed):
    """The engine cannot provide these GPUs."""


class NoMemoryLock(LaunchFailed):
    """The engine is not allowed to lift the limit on locked memory."""


class NoSpace(LaunchFailed):
    """The host's disk has no space left."""


class _Adapter(requests.adapters.HTTPAdapter):
    """Sends every request to one engine, and ignores headers that change the decoding of its answers."""

    def __init__(self, pool: urllib3.HTTPConnectionPool) -> None:
        super().__init__()
        self._pool = pool

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        """Return the engine's connections."""
        return self._pool

    get_connection = get_connection_with_tls_context  # the name before requests 2.32

    def cert_verify(self, *_: Any) -> None:  # noqa: ANN401
        """Do nothing: the pool trusts only the CA of `hosts.yml`."""

    def build_response(self, req: Any, resp: Any) -> requests.Response:  # noqa: ANN401
        """Decode the answer as UTF-8: 16 MiB may decompress to 16 GiB, and guessing a charset takes minutes."""
        resp.headers.discard("Content-Encoding")
        response = super().build_response(req, resp)
        response.encoding = "utf-8"
        return response

    def close(self) -> None:
        """Close connections."""
        self._pool.close()
        super().close()


def _pool(address: DockerAddress, socket_path: str | None) -> urllib3.HTTPConnectionPool:
    path = socket_path or (address.target if address.scheme == "unix" else None)
    if path is not None:
        return LimitedPool("engine", socket_path=path, maxsize=MAX_CONNECTIONS)
    where = urlsplit(f"//{address.target}")
    alive = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    alive += [(socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in KEEP_ALIVE.items() if hasattr(socket, name)]
    host, port = where.hostname or "", where.port
    options: dict[str, Any] = {
        "maxsize": MAX_CONNECTIONS,
        "socket_options": [*HTTPConnection.default_socket_options, *alive],
    }
    if address.tls is None:
        return LimitedPool(host, port, **options)
    ca, certificate, key = address.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TLSSocket
    context.load_verify_locations(ca)
    context.load_cert_chain(certificate, key)
    return urllib3.HTTPSConnectionPool(host, port, ssl_context=context, **options)


class EngineClient(APIClient):
    """The SDK's client for one engine.

    Attributes:
        kind: What differs between engines.
    """

    def __init__(self, pool: urllib3.HTTPConnectionPool) -> None:
        super().__init__(base_url="http://engine:2375", version="1.24", timeout=ANSWER_SECONDS)
        self.trust_env = False  # ignore ~/.netrc, proxies and CAs of the environment
        self.max_redirects = 0
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.adapters.clear()
        self.mount("http://engine:2375", _Adapter(pool))
        response = self.get(f"{self.base_url}/_ping", timeout=ANSWER_SECONDS)
        self._raise_for_status(response)  # type: ignore[attr-defined]
        try:
            major, minor = map(int, response.headers["Api-Version"].split("."))
        except (KeyError, ValueError) as error:
            raise Unreachable("the server there is not a Docker engine: it sends no Api-Version") from error
        api = min((major, minor), NEWEST_API)
        self._version = "{}.{}".format(*api)
        is_podman = "Libpod-Api-Version" in response.headers
        self.kind = PODMAN if is_podman else Kind(lists_devices=api >= LISTS_DEVICES_API)

    def _result(self, response: requests.Response, json: bool = False, binary: bool = False) -> Any:  # noqa: ANN401
        """Parse an answer within the limits of `read_json`."""
        if not json:
            return super()._result(response, json, binary)  # type: ignore[misc]
        self._raise_for_status(response)  # type: ignore[attr-defined]
        try:
            return read_json(response.text, MAX_ANSWER_BYTES)
        except ValueError as error:
            raise requests.exceptions.InvalidJSONError(str(error)) from error

    def _stream_helper(self, response: requests.Response, decode: bool = False) -> Iterator[Any]:
        """Yield the messages of a stream, one a line; the SDK parses all that has arrived again for every chunk.

        Raises:
            ValueError: A message is too long, or not JSON.
        """
        self._raise_for_status(response)  # type: ignore[attr-defined]
        rest = b""
        for piece in chain(response.raw.stream(MAX_MESSAGE_BYTES), [b"\n"]):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (read_json(line, MAX_MESSAGE_BYTES) for line in lines if line.strip())
            if len(rest) > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message is longer than {MAX_MESSAGE_BYTES >> 10} KiB")

    def open_log(self, name: str, **query: int | str) -> requests.Response:
        """Request a container's log, and return the unread answer; see `log_lines` for why the SDK does not read it."""
        url = f"{self.base_url}/v{self.api_version}/containers/{name}/logs"
        response = self.get(url, params=query, stream=True, timeout=ANSWER_SECONDS)
        self._raise_for_status(response)  # type: ignore[attr-defined]
        return response

    def create_by_podman(self, document: dict[str, Any]) -> None:
        """Create a container with Podman's native API."""
        response = self.post(f"{self.base_url}{LIBPOD}/containers/create", json=document, timeout=ANSWER_SECONDS)
        self._raise_for_status(response)  # type: ignore[attr-defined]


class EngineLink:
    """The connection to one engine: by unix socket, through ssh, or by mutual TLS.

    A host that has answered before is retried for a while. Refusals and malformed answers become errors of this
    project, with the engine's message and a remedy.

    Args:
        address: Of the engine.
        keys: Host keys that ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys = AS_CONFIGURED) -> None:
        self.address = address
        self._tunnel = Tunnel(address, keys) if address.scheme == "ssh" else None
        self._client: EngineClient | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Disconnect from the engine; containers keep running."""
        if self._client is not None:
            self._client.close()
        if self._tunnel is not None:
            with self._lock:
                self._tunnel.close()

    def request(
        self,
        operation: Callable[[EngineClient], T],
        *,
        seconds: float = ANSWER_SECONDS,
        limit_bytes: int = MAX_ANSWER_BYTES,
        again: bool = True,
    ) -> T:
        """Send a request, with retries if the engine has answered before.

        Args:
            operation: Sends the request.
            seconds: Time limit of the request and its answer.
            limit_bytes: Size limit of the answer.
            again: Whether to retry.

        Raises:
            Unreachable: The connection failed, or could not be restored.
            NotThere, LaunchFailed: The engine refused, or its answer is malformed.
        """
        deadline = time.monotonic() + RECONNECT_SECONDS
        delay_seconds = 0.5
        while True:
            try:
                client = self._connect()
                with self.explained(), within(seconds, limit_bytes):
                    return operation(client)
            except Unreachable:
                if not again or self._client is None or time.monotonic() > deadline:
                    raise
            time.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, LONGEST_DELAY_SECONDS)

    def stream(self, operation: Callable[[EngineClient], Iterable[T]]) -> Iterator[T]:
        """Yield the answer to a request in pieces, without a time limit or retries.

        Raises:
            HostError: See `request`.
        """
        client = self._connect()
        with self.explained():
            yield from operation(client)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Convert every exception of an exchange into an error of this host."""
        try:
            yield
        except APIError as error:
            message = plain_text(str(error.explanation or error), MAX_READ)
            raise (NotThere(message[:MAX_QUOTED]) if error.status_code == 404 else launch_refusal(message)) from error
        except requests.exceptions.InvalidJSONError as error:
            raise LaunchFailed("the engine's answer is not JSON") from error
        except (*TRANSPORT_ERRORS, requests.exceptions.RequestException) as error:
            raise Unreachable(explain(error, self.address)) from error
        except (*MALFORMED, DockerException) as error:
            message = plain_text(f"{type(error).__name__}: {error}", MAX_QUOTED)
            raise LaunchFailed(f"the engine's answer is malformed: {message}") from error

    def _connect(self) -> EngineClient:
        """Return a connected client."""
        with self._lock:
            if self._tunnel is not None:
                self._tunnel.ensure()
            if self._client is None:
                try:
                    with within(ANSWER_SECONDS, MAX_ANSWER_BYTES):
                        self._client = EngineClient(
                            _pool(self.address, None if self._tunnel is None else self._tunnel.path)
                        )
                except (*TRANSPORT_ERRORS, *MALFORMED, DockerException) as error:
                    known = None if self._tunnel is None else self._tunnel.problem()
                    raise Unreachable(known or explain(error, self.address)) from error
            return self._client


# -- errors ------------------------------------------------------------------------------------------------------

TRANSPORT_ERRORS = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""Exceptions of failed and broken connections, including those of `requests` and `ssl`."""


def document(answer: object) -> dict[str, Any]:
    """Return an answer after checking that it is an object."""
    if not isinstance(answer, dict):
        raise LaunchFailed("the engine's answer is not a JSON object")
    return answer


def explain(error: BaseException, address: DockerAddress) -> str:
    """Return one line on why an engine could not be reached, with a remedy."""
    where = f"{address.scheme}://{address.target}"
    chain = list(_chain(error))
    for kind, remedy in _SOCKET_REMEDIES.items():
        if any(isinstance(item, kind) for item in chain):
            return f"{where}: {remedy}"
    if address.scheme == "ssh" and any(isinstance(item, _CUT_OFF) for item in chain):
        return (
            f"{where}: the engine's socket {address.socket} does not answer on that host. Is Docker "
            "installed there, and may this user use it (sudo usermod -aG docker USER)? Else set docker_socket:"
        )
    message = plain_text(str(error), MAX_READ)
    for sign, remedy in _TLS_REMEDIES.items():
        if sign in message:
            return f"{where}: {remedy}"
    if root := next((item for item in chain if isinstance(item, OSError) and item.errno), None):
        message = plain_text(str(root), MAX_QUOTED)
    elif any(isinstance(item, urllib3.exceptions.ProtocolError) for item in chain):
        message = "the connection broke"
    return f"{where}: {message[:MAX_QUOTED] or type(error).__name__}"


def launch_refusal(message: str) -> HostError:
    """Convert the engine's message into an error with a status and a remedy."""
    whole = plain_text(message, MAX_READ)
    quoted = whole[:MAX_QUOTED]
    for sign, (kind, status, remedy) in _REFUSALS.items():
        if sign in whole:
            return kind(f"{remedy}. The engine reported: {quoted}", status)
    return LaunchFailed(f"the engine refused: {quoted or 'no reason given'}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those it wraps: libraries wrap the socket's error several times."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_CUT_OFF = (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)
"""Errors at this end of a tunnel if nothing listens at the other, depending on how much of a request had been sent."""

_SOCKET_REMEDIES: dict[type[BaseException], str] = {
    PermissionError: "permission denied. On that host: sudo usermod -aG docker USER, or use another user",
    FileNotFoundError: "no such socket. Is the Docker engine installed and running?",
    ConnectionRefusedError: "connection refused. Is the Docker engine running there?",
    TimeoutError: f"no answer within {ANSWER_SECONDS} s",
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
    *(LaunchFailed, Status.BAD_INPUT),
    "the folder data_dir does not exist on the host, or the engine may not read it. Correct data_dir in hosts.yml, or "
    "copy the data there",
)
_NO_LOCK = (NoMemoryLock, Status.ERROR, "the engine may not raise the limit on locked memory (memlock)")
_TOOLKIT = "Install the NVIDIA container toolkit there"
_NO_DEVICE = (NoGPUs, Status.NO_GPU, f"the engine cannot give GPUs to containers. {_TOOLKIT}")
_NO_CDI = (
    *(NoGPUs, Status.NO_GPU),
    f"the engine has no such GPU. {_TOOLKIT}, and generate its list of GPUs: "
    "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
)
_OLD_DRIVER = "the NVIDIA driver is too old for this image. Choose an older variant or update the driver"
_NO_INIT = "Podman lacks catatonit, the init process of containers. Install the package catatonit there"

_REFUSALS: dict[str, tuple[type[LaunchFailed], Status, str]] = {
    "could not select device driver": _NO_DEVICE,
    "unresolvable CDI devices": _NO_CDI,
    "unsatisfied condition: cuda": (LaunchFailed, Status.DRIVER_TOO_OLD, _OLD_DRIVER),
    "nvidia-container-cli": (LaunchFailed, Status.NO_GPU, "the NVIDIA container toolkit failed on the host"),
    "bind source path does not exist": _NO_DATA,
    "statfs ": _NO_DATA,
    "rlimit type 8": _NO_LOCK,
    "RLIMIT_MEMLOCK": _NO_LOCK,
    "catatonit": (LaunchFailed, Status.ERROR, _NO_INIT),
    "no space left on device": (NoSpace, Status.ERROR, "the host's disk is full. Remove old images there"),
}
