"""The Docker SDK's client, with a limit on the time and bytes of every exchange with an engine.

An engine may be broken or hostile, and the SDK does not protect against that. Our own parts, each with the test that
shows why it is necessary, in `tests/unit/orchestrate/test_engine_client.py` unless another is named:

* Sockets: the SDK's timeouts restart with every byte, and `pull` has none (`test_an_engine_that_drips_…`); it reads
  answers of any size (`test_an_answer_or_a_frame_…`), and parses a long message for hours (`test_a_message_…`).
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
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import requests
import requests.adapters
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException

from orchestrate.engines.base import NotThere
from orchestrate.engines.bounded import MALFORMED, LimitedPool, TLSSocket
from orchestrate.errors import HostError, LaunchFailed, Unreachable
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.text import plain_text, read_json
from results.schema import Status

__all__ = ["APIError", "EngineClient", "NoGPUs", "NoMemoryLock", "NoSpace", "engine_pool", "explained"]

ANSWER_SECONDS = 60
"""Time limit of a request and its answer; for a stream of logs, the longest silence."""

MAX_ANSWER_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 64 << 10
"""Maximum length of a message about a pull, a build or a push."""

MAX_CONNECTIONS = 32
"""Size of the connection pool of an engine: a log per worker slot, and other requests."""

NEWEST_API = (1, 51)
"""Newest supported version of the engine's API; older engines are addressed with their own."""

KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""TCP keep-alive, so that no NAT or VPN drops an idle link silently: `stop` would be lost with it."""

MAX_QUOTED = 300
"""Maximum length of an engine's message in a cause, in characters."""

MAX_READ = 4000
"""Characters at the end of an engine's message that are searched for known errors, which runtimes print last."""


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


def engine_pool(address: DockerAddress, socket_path: str | None = None) -> urllib3.HTTPConnectionPool:
    """Return the connections to an engine.

    Args:
        address: Of the engine.
        socket_path: Of the local end of a tunnel to it; None: it has none.

    Raises:
        OSError: A file of `tls` cannot be read or used.
    """
    path = socket_path or (address.target if address.scheme == "unix" else None)
    if path is not None:
        return LimitedPool("engine", socket_path=path, maxsize=MAX_CONNECTIONS)
    where = urlsplit(f"//{address.target}")
    host, port = where.hostname or "", where.port
    alive = [(socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in KEEP_ALIVE.items() if hasattr(socket, name)]
    usual = urllib3.connection.HTTPConnection.default_socket_options
    options: dict[str, Any] = {
        "maxsize": MAX_CONNECTIONS,
        "socket_options": [*usual, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *alive],
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
        is_podman: Whether it is Podman, which has Docker's API and differs in a few answers.
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
        self._version = "{}.{}".format(*min((major, minor), NEWEST_API))
        self.is_podman = "Libpod-Api-Version" in response.headers

    def _result(self, response: requests.Response, json: bool = False, binary: bool = False) -> Any:  # noqa: ANN401
        """Parse an answer within the limits of `read_json`."""
        if not json:
            return super()._result(response, json, binary)  # type: ignore[misc]
        self._raise_for_status(response)  # type: ignore[attr-defined]
        return read_json(response.text, MAX_ANSWER_BYTES)

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


# -- errors ------------------------------------------------------------------------------------------------------

TRANSPORT_ERRORS = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""Exceptions of failed and broken connections, including those of `requests` and `ssl`."""


@contextlib.contextmanager
def explained(address: DockerAddress) -> Iterator[None]:
    """Convert every exception of an exchange with an engine into an error of its host, with a remedy.

    Raises:
        Unreachable: The connection failed.
        NotThere, LaunchFailed: The engine refused, or its answer is malformed.
    """
    try:
        yield
    except APIError as error:
        message = plain_text(str(error.explanation or error), MAX_READ)
        raise (NotThere(message[:MAX_QUOTED]) if error.status_code == 404 else launch_refusal(message)) from error
    except (Unreachable, *TRANSPORT_ERRORS, requests.exceptions.RequestException) as error:
        raise Unreachable(f"{address.scheme}://{address.target}: {_transport_problem(error, address)}") from error
    except (*MALFORMED, DockerException) as error:
        message = plain_text(f"{type(error).__name__}: {error}", MAX_QUOTED)
        raise LaunchFailed(f"the engine's answer is malformed: {message}") from error


def _transport_problem(error: BaseException, address: DockerAddress) -> str:
    """Return why an engine could not be reached, with a remedy if it is known."""
    if isinstance(error, Unreachable):
        return error.cause
    causes = list(_chain(error))
    for kind, remedy in _SOCKET_REMEDIES.items():
        if any(isinstance(cause, kind) for cause in causes):
            return remedy
    if address.scheme == "ssh" and any(isinstance(cause, _CUT_OFF) for cause in causes):
        return (
            f"the engine's socket {address.socket} does not answer on that host. Is Docker "
            "installed there, and may this user use it (sudo usermod -aG docker USER)? Else set docker_socket:"
        )
    message = plain_text(str(error), MAX_READ)
    for sign, remedy in _TLS_REMEDIES.items():
        if sign in message:
            return remedy
    if root := next((cause for cause in causes if isinstance(cause, OSError) and cause.errno), None):
        message = plain_text(str(root), MAX_QUOTED)
    elif any(isinstance(cause, urllib3.exceptions.ProtocolError) for cause in causes):
        message = "the connection broke"
    return message[:MAX_QUOTED] or type(error).__name__


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
    " alert ": "the host refused our certificate: missing, expired or from another CA. Check tls.cert and tls.key",
    "KEY_VALUES_MISMATCH": "tls.key is not the key of tls.cert",
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

_NO_TLS = "the host requires TLS. Add tls: {ca: …, cert: …, key: …}"

_REFUSALS: dict[str, tuple[type[LaunchFailed], Status, str]] = {
    "HTTP request to an HTTPS server": (LaunchFailed, Status.UNREACHABLE, _NO_TLS),
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
