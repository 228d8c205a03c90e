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


@dataclass
class Moment:
    """A moment in the talk of a client with its engine.

    Attributes:
        request: Pattern of the request, e.g. `POST /containers/create`.
        after: Once the engine has carried out the request, before the client hears of it; else before the engine sees it.
        act: Called once, while the request is held.
        reached: Set when `act` has been called.
    """

    request: str
    after: bool
    act: Callable[[], None]
    reached: bool = False

    def interfere(self) -> None:
        self.reached = True
        self.act()


class Relay:
    """A socket that leads to an engine's; use as a context manager.

    Args:
        path: The socket to make.
        target: The engine's.
        answer: Gives the whole HTTP answer to a request, such as `GET /info`, or None to ask the engine.

    Attributes:
        moment: When to interfere next; None: never.
    """

    def __init__(self, path: Path, target: Path, answer: Callable[[str], bytes | None] = lambda request: None) -> None:
        self.url = f"unix://{path}"
        self.moment: Moment | None = None
        self._target, self._answer = target, answer
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
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        held: list[Moment] = []
        with client, socket.socket(socket.AF_UNIX) as engine, contextlib.suppress(OSError):
            engine.connect(str(self._target))
            back = threading.Thread(target=self._pump_back, args=(engine, client, held), daemon=True)
            back.start()
            while data := client.recv(CHUNK_BYTES):
                if found := _REQUEST.match(data):
                    request = f"{found[1].decode()} {found[2].decode()}"
                    if (answer := self._answer(request)) is not None:
                        client.sendall(answer)
                        continue
                    moment = self.moment
                    if moment and not moment.reached and re.match(moment.request, request):
                        if not moment.after:
                            moment.interfere()
                            return
                        held.append(moment)
                engine.sendall(data)
            engine.shutdown(socket.SHUT_WR)
            back.join()

    def _pump_back(self, engine: socket.socket, client: socket.socket, held: list[Moment]) -> None:
        with contextlib.suppress(OSError):
            while data := engine.recv(CHUNK_BYTES):
                if held:
                    held.pop().interfere()
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def http_answer(body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    """Return a whole HTTP answer with a body."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
