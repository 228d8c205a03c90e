"""Stands between a Docker client and its engine on a unix socket: sees each request, and can interfere."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 16
_REQUEST = re.compile(rb"(GET|HEAD|POST|PUT|DELETE) /v[\d.]+(\S+) HTTP/1\.1\r\n")


@dataclass(frozen=True)
class Moment:
    """A moment in the talk of a client with its engine.

    Attributes:
        request: Pattern of the request, e.g. `POST /containers/create`.
        after: After the engine has carried it out and before the client is reported; else before the engine sees it.
        count: At the how manyth such request.
    """

    request: str
    after: bool = False
    count: int = 1


class Relay:
    """A socket that leads to an engine's; use as a context manager.

    Args:
        path: The socket to make.
        target: The engine's.
        moment: When to call `act`; None: never.
        act: Called once, while the request is held; what came of it is not reported to the client.
        answer: Gives the whole HTTP answer to a request, such as `GET /info`, or None to ask the engine.
    """

    def __init__(
        self,
        path: Path,
        target: Path,
        *,
        moment: Moment | None = None,
        act: Callable[[], None] = lambda: None,
        answer: Callable[[str], bytes | None] = lambda request: None,
    ) -> None:
        self.url = f"unix://{path}"
        self.reached = threading.Event()
        self._target = target
        self._moment = moment
        self._act = act
        self._answer = answer
        self._seen = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        held = threading.Event()
        with client, engine, contextlib.suppress(OSError):
            engine.connect(str(self._target))
            back = threading.Thread(target=self._pump_back, args=(engine, client, held), daemon=True)
            back.start()
            while data := client.recv(CHUNK_BYTES):
                if found := _REQUEST.match(data):
                    request = f"{found[1].decode()} {found[2].decode()}"
                    if (answer := self._answer(request)) is not None:
                        client.sendall(answer)
                        continue
                    if self._is_moment(request):
                        if not self._moment_after:
                            self._interfere()
                            return
                        held.set()
                engine.sendall(data)
            engine.shutdown(socket.SHUT_WR)
            back.join()

    @property
    def _moment_after(self) -> bool:
        return self._moment is not None and self._moment.after

    def _is_moment(self, request: str) -> bool:
        if self._moment is None or self.reached.is_set() or not re.match(self._moment.request, request):
            return False
        with self._lock:
            self._seen += 1
            return self._seen == self._moment.count

    def _interfere(self) -> None:
        self._act()
        self.reached.set()

    def _pump_back(self, engine: socket.socket, client: socket.socket, held: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := engine.recv(CHUNK_BYTES):
                if held.is_set():
                    held.clear()
                    self._interfere()
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def http_answer(body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    """Return a whole HTTP answer with a body."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
