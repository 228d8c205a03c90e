"""HTTP to a Docker engine: kept connections over a unix socket or TLS, and every answer bounded.

A fleet's controller asks six times for each repeat. The SDK's way of asking (requests on urllib3) takes about 1 ms of
CPU for each, the standard library 0.2 ms; at a thousand hosts that is the difference.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from urllib.parse import quote, urlencode, urlsplit

from orchestrate.inventory.addresses import DockerAddress

TIMEOUT_SECONDS = 60
"""Longest silence of the engine before a request is given up; a silent benchmark only renews its log stream."""

MAX_ANSWER_BYTES = 16 << 20
MAX_MESSAGE_BYTES = 64 << 10
CHUNK_BYTES = 64 << 10

NEWEST_API = (1, 51)
"""The newest version of the engine's API that this was written for; an older engine is asked in its own."""

LISTS_DEVICES_API = (1, 50)
"""From this version on `/info` lists the devices that CDI offers.
Source: version history of the Docker Engine API, v1.50, `DiscoveredDevices`."""

LIBPOD = "/v4.0.0/libpod"
"""Where Podman has its own API, next to Docker's; every Podman since 4.0 answers in this version."""

TRANSPORT_ERRORS = (OSError, http.client.HTTPException)
"""What a connection that cannot be made, or breaks, raises; those of `ssl` and time-outs are among them."""


class Refused(Exception):
    """The engine answered, and said no.

    Attributes:
        status: Of HTTP, 400 and above.
        message: In the engine's words, as they came.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class BadAnswer(Refused):
    """The engine answered something that is none of its answers."""

    def __init__(self, message: str) -> None:
        super().__init__(0, message)


class EngineHTTP:
    """Asks one engine; from several threads at a time, each request on a connection of its own.

    Args:
        address: Where the engine is.
        socket_path: Of a unix socket that leads there, for `ssh` addresses.

    Attributes:
        api: Version of the API in which it is asked, since `connect`.
        is_podman: It is Podman, which answers as a Docker engine, with differences.
    """

    def __init__(self, address: DockerAddress, socket_path: str | None = None) -> None:
        self._address = address
        self._socket_path = socket_path or (address.target if address.scheme == "unix" else None)
        self._idle: list[http.client.HTTPConnection] = []
        self._tls: ssl.SSLContext | None = None
        self._prefix = ""
        self.api = (0, 0)
        self.is_podman = False

    def connect(self) -> None:
        """Make a first connection, and agree on a version of the API.

        Raises:
            OSError, http.client.HTTPException: It cannot be made.
            Refused: Whoever answers there is no engine that can be asked.
        """
        with self._exchange("GET", "/_ping") as response:
            _read(response, MAX_MESSAGE_BYTES)
            reported = response.getheader("Api-Version", "")
            self.is_podman = response.getheader("Libpod-Api-Version") is not None
        try:
            major, minor = map(int, reported.split("."))
        except ValueError as error:
            raise BadAnswer("the server there is not a Docker engine: it sends no Api-Version") from error
        self.api = min((major, minor), NEWEST_API)
        self._prefix = "/v{}.{}".format(*self.api)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        document: object = None,
        *,
        seconds: float = TIMEOUT_SECONDS,
        api: str | None = None,
    ) -> object:
        """Make a request and return the JSON of its answer; None: it has none.

        Args:
            method: Of HTTP.
            path: Below the version of the API.
            query: What stands behind the `?`.
            document: Body of the request, as JSON; None: it has none.
            seconds: Longest silence before the request is given up.
            api: Instead of the version that was agreed on, e.g. `LIBPOD`.

        Raises:
            Refused: The engine said no, or nothing that can be understood.
        """
        body = None if document is None else json.dumps(document).encode()
        with self._exchange(method, self._target(path, query, api), body, seconds) as response:
            answer = _read(response, MAX_ANSWER_BYTES)
            if not response.isclosed() and response.read(1):
                raise BadAnswer(f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
        try:
            return json.loads(answer) if answer else None
        except (ValueError, RecursionError) as error:
            raise BadAnswer("the engine's answer is not JSON") from error

    def stream(self, path: str, query: Mapping[str, str] | None = None) -> Generator[bytes, None, None]:
        """Yield an answer in pieces, as they come; a reader that leaves early closes the connection.

        Raises:
            OSError, http.client.HTTPException: The connection broke before the answer's end.
            Refused: The engine said no.
        """
        with self._exchange("GET", self._target(path, query)) as response:
            while piece := response.read1(CHUNK_BYTES):
                yield piece
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            response.read()  # nothing is left, but only now the connection can be used again

    def _target(self, path: str, query: Mapping[str, str] | None, api: str | None = None) -> str:
        target = (self._prefix if api is None else api) + quote(path)
        return f"{target}?{urlencode(query)}" if query else target

    @contextlib.contextmanager
    def _exchange(
        self, method: str, target: str, body: bytes | None = None, seconds: float = TIMEOUT_SECONDS
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and give its answer; the connection is kept when the answer was read to its end."""
        connection = self._take(seconds)
        keep = False
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            if response.status >= 400:
                message = _read(response, MAX_MESSAGE_BYTES)
                keep = response.isclosed()
                raise Refused(response.status, _message(message))
            yield response
            keep = response.isclosed()
        finally:
            if keep and connection.sock is not None:
                self._idle.append(connection)
            else:
                connection.close()

    def _take(self, seconds: float) -> http.client.HTTPConnection:
        """Return a connection that stands, or one that will be made with the first request."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._new()
                break
            if not _was_closed(connection.sock):
                break
            connection.close()
        if connection.timeout != seconds:
            connection.timeout = seconds
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
        return connection

    def _new(self) -> http.client.HTTPConnection:
        if self._socket_path is not None:
            return _UnixConnection(self._socket_path)
        where = urlsplit(f"//{self._address.target}")
        if self._address.tls is None:
            return http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_SECONDS)
        if self._tls is None:
            self._tls = _tls_context(*self._address.tls)
        return http.client.HTTPSConnection(where.hostname or "", where.port, timeout=TIMEOUT_SECONDS, context=self._tls)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """See `http.client.HTTPConnection.connect`."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        self.sock = connection


def _tls_context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """Trust this CA and nobody else, whatever the environment says, and show this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(ca)
    context.load_cert_chain(certificate, key)
    return context


def _was_closed(connection: socket.socket) -> bool:
    """Return whether the other side has ended an idle connection: then there is something to read."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _read(response: http.client.HTTPResponse, limit_bytes: int) -> bytes:
    """Read an answer up to a limit; `http.client` itself would take one that was cut off for a whole one."""
    data = response.read(limit_bytes)
    if response.length and len(data) < limit_bytes:
        raise http.client.IncompleteRead(data, response.length)
    return data


def _message(body: bytes) -> str:
    """Return what the engine says in an answer that refuses."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip()
