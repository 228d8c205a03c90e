"""As much HTTP/1.1 as a Docker engine speaks on its unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

REASONS = {
    200: "OK",
    201: "Created",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    404: "Not Found",
    409: "Conflict",
    500: "Internal Server Error",
    501: "Not Implemented",
}


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        path: Unquoted, without the version's prefix.
        query: Of repeated keys the last.
    """

    method: str
    path: str
    query: dict[str, str]
    body: bytes


class Response:
    """Writes one answer to a connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, status: int, body: bytes = b"", content_type: str = "application/json", **headers: str) -> None:
        """Send a whole answer."""
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", "Api-Version: 1.41", "Server: Docker/20.10.24 (linux)"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if status not in (204, 304):
            lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def send_json(self, document: Any, status: int = 200) -> None:
        """Send an answer as JSON."""
        self.send(status, json.dumps(document, separators=(",", ":")).encode())

    def refuse(self, status: int, message: str) -> None:
        """Send an error as the engine words it."""
        self.send_json({"message": message}, status)

    def begin(self, content_type: str) -> None:
        """Begin an answer that comes in chunks."""
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Type: "
            + content_type.encode()
            + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        """Send a part."""
        if data:
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End an answer that came in chunks."""
        self._writer.write(b"0\r\n\r\n")


Handler = Callable[[Request, Response], Awaitable[None]]


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Answer the requests of one connection, one after another, until the other side closes it."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await handler(await _request(head, reader), Response(writer))
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        pass  # the client has gone, or the engines end
    finally:
        writer.close()


async def _request(head: bytes, reader: asyncio.StreamReader) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    length = 0
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
    parts = urlsplit(target)
    path = unquote(parts.path)
    if path.startswith("/v1."):
        path = path[path.index("/", 1) :]
    body = await reader.readexactly(length) if length else b""
    return Request(method, path, dict(parse_qsl(parts.query)), body)
