"""HTTP to an engine, against a server on a unix socket that sends exactly what it is given."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.errors import HostError, LaunchFailed
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.launchers.container import ContainerSpec
from orchestrate.launchers.docker import http as engine_http
from orchestrate.launchers.docker.engine import ContainerEngine
from orchestrate.launchers.docker.http import BadAnswer, EngineHTTP, Refused
from orchestrate.launchers.docker.log_frames import MAX_HELD_BYTES, stamped_lines, unframed

PING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK"


def answer(document: object, status: int = 200) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d Word\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end


class Script:
    """A server that gives its answers in turn; `None` closes the connection instead, and so does the last one.

    Attributes:
        requests: First lines of what was asked.
        connections: How many were made.
    """

    def __init__(self, path: Path, answers: list[bytes | None]) -> None:
        self.path = path
        self.answers = answers
        self.requests: list[str] = []
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while self.answers:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection, connection.makefile("rb") as stream:
                    self._answer(connection, stream)

    def _answer(self, connection: socket.socket, stream: BinaryIO) -> None:
        while self.answers:
            line = stream.readline()
            if not line:
                return
            length = 0
            while (header := stream.readline().strip().lower()) != b"":
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            stream.read(length)
            self.requests.append(line.decode().strip())
            reported = self.answers.pop(0)
            if reported is None:
                return
            connection.sendall(reported)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Script, EngineHTTP]]]:
    """Return what starts a script and connects to it."""
    folder = Path(tempfile.mkdtemp(prefix="tfb-http-"))
    started: list[tuple[Script, EngineHTTP]] = []

    def start(*answers: bytes | None) -> tuple[Script, EngineHTTP]:
        script = Script(folder / f"{len(started)}.sock", [PING, *answers])
        engine = EngineHTTP(DockerAddress(scheme="unix", target=str(script.path)))
        started.append((script, engine))
        engine.connect()
        return script, engine

    yield start
    for script, engine in started:
        engine.close()
        script.close()
    shutil.rmtree(folder)


def test_requests_share_one_connection_and_name_the_version(serve):
    script, engine = serve(answer({"a": 1}), b"HTTP/1.1 204 No Content\r\n\r\n", chunked(b"x", b"y"), answer([]))
    assert engine.ask("GET", "/info") == {"a": 1}
    assert engine.ask("POST", "/containers/create", {"name": "a b"}, {"Image": "i"}) is None
    assert b"".join(engine.stream("/containers/x/logs")) == b"xy"
    assert engine.ask("GET", "/containers/json") == []
    assert script.connections == 1
    assert script.requests[1:3] == ["GET /v1.41/info HTTP/1.1", "POST /v1.41/containers/create?name=a+b HTTP/1.1"]


def test_a_connection_that_the_engine_closed_is_made_again(serve):
    script, engine = serve(answer(1), None, answer(2))
    assert engine.ask("GET", "/info") == 1
    with pytest.raises(http.client.RemoteDisconnected):
        engine.ask("GET", "/info")
    assert engine.ask("GET", "/info") == 2
    assert script.connections == 2


def test_a_refusal_keeps_the_connection_and_the_words(serve):
    script, engine = serve(answer({"message": "No such container: x"}, 404), answer(1))
    with pytest.raises(Refused, match="No such container: x") as caught:
        engine.ask("GET", "/containers/x/json")
    assert caught.value.status == 404
    assert engine.ask("GET", "/info") == 1
    assert script.connections == 1


@pytest.mark.parametrize(
    "reported",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a": 1}',
        chunked(b'{"a": 1}', end=b""),
        chunked(b'{"a": 1}', end=b"ff\r\nhalf"),
    ],
)
def test_an_answer_that_was_cut_off_is_not_taken_for_a_whole_one(serve, reported):
    _, engine = serve(reported)
    with pytest.raises(http.client.HTTPException):
        engine.ask("GET", "/info")


def test_a_stream_that_was_cut_off_gives_its_pieces_and_then_the_error(serve):
    _, engine = serve(chunked(b"one", b"two", end=b""))
    stream = engine.stream("/containers/x/logs")
    seen = b""
    with pytest.raises(http.client.IncompleteRead):
        for piece in stream:
            seen += piece
    assert seen == b"onetwo"


def test_a_reader_that_leaves_early_gives_its_connection_up(serve):
    script, engine = serve(chunked(b"one", b"two"), answer(1))
    stream = engine.stream("/containers/x/logs")
    assert next(stream)
    stream.close()
    assert engine.ask("GET", "/info") == 1
    assert script.connections == 2


def test_an_answer_without_end_is_refused(serve, monkeypatch):
    monkeypatch.setattr(engine_http, "MAX_ANSWER_BYTES", 1000)
    _, engine = serve(chunked(b"[" * 999, b"[" * 999))
    with pytest.raises(BadAnswer, match="larger than 1000 bytes"):
        engine.ask("GET", "/info")


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000])
def test_what_is_not_json_is_refused(serve, body):
    _, engine = serve(chunked(body))
    with pytest.raises(BadAnswer, match="not JSON"):
        engine.ask("GET", "/info")


@pytest.mark.parametrize(
    ("reported", "asked"), [(b"1.24", "1.24"), (b"1.50", "1.50"), (b"1.99", "1.51"), (b"2.0", "1.51")]
)
def test_an_engine_is_asked_in_a_version_that_both_know(serve, reported, asked, monkeypatch):
    monkeypatch.setitem(globals(), "PING", PING.replace(b"1.41", reported))
    script, engine = serve(answer(1))
    engine.ask("GET", "/info")
    assert script.requests[1] == f"GET /v{asked}/info HTTP/1.1"


def test_what_is_no_engine_is_said_to_be_none(serve, monkeypatch):
    monkeypatch.setitem(globals(), "PING", PING.replace(b"Api-Version", b"Server"))
    with pytest.raises(BadAnswer, match="not a Docker engine"):
        serve()


def frame(data: bytes, stream: int = 1) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


@given(
    st.lists(st.binary(max_size=30), max_size=6),
    st.lists(st.integers(1, 20), min_size=1, max_size=30),
)
def test_frames_are_read_however_they_are_cut(contents, cuts):
    data = b"".join(map(frame, contents))
    pieces, at = [], 0
    while at < len(data):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(data[at : at + size])
        at += size
    assert b"".join(unframed(pieces)) == b"".join(contents)


def test_lines_come_with_their_stamps_and_only_later_ones():
    stamps = [f"2026-01-01T00:00:0{n}.000000000Z" for n in range(3)]
    log = [frame(f"{stamp} line \x1b[31m{n}\n".encode()) for n, stamp in enumerate(stamps)]
    assert list(stamped_lines(log, stamps[0])) == [(stamps[1], "line 1"), (stamps[2], "line 2")]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_that_comes_in_several_frames_is_one_line_without_the_stamps_in_it(size: int):
    """As Podman sends what a program writes in pieces, here mixed with what it writes to stderr."""
    stamps = [f"2026-01-01T00:00:00.00000000{n}Z" for n in range(7)]
    log = b"".join(
        [
            frame(f"{stamps[0]} whole\n".encode()),
            frame(f"{stamps[1]} devices:".encode()),
            frame(f"{stamps[2]} a warning\n".encode(), stream=2),
            frame(f"{stamps[3]} nvidia0".encode()),
            frame(f"{stamps[4]} \n".encode()),
            frame(f"{stamps[5]} \n".encode()),
            frame(f"{stamps[6]} last\n".encode()),
        ]
    )
    pieces = [log[at : at + size] for at in range(0, len(log), size)]
    expected = [
        (stamps[0], "whole"),
        (stamps[2], "a warning"),
        (stamps[4], "devices:nvidia0"),
        (stamps[5], ""),
        (stamps[6], "last"),
    ]
    assert list(stamped_lines(pieces, "")) == expected
    # Read again from the middle, what was shown is not shown twice, also if the engine starts within a line.
    assert list(stamped_lines(pieces, stamps[4])) == expected[3:]
    later = frame(f"{stamps[4]} \n".encode()) + frame(f"{stamps[6]} last\n".encode())
    assert list(stamped_lines([later], stamps[4])) == [expected[4]]


def test_text_that_looks_like_no_stamp_stays_in_its_line():
    log = [frame(b"2026-01-01T00:00:00.000000000Z one "), frame(b"without a stamp\n")]
    assert list(stamped_lines(log, "")) == [("2026-01-01T00:00:00.000000000Z", "one without a stamp")]


def test_a_frame_without_end_is_not_held_in_memory():
    header = struct.pack(">BxxxL", 1, (1 << 32) - 1)
    held = 0

    def pieces() -> Iterator[bytes]:
        nonlocal held
        yield header + b"2026-01-01T00:00:00.000000000Z "
        for _ in range(100):
            yield b"x" * MAX_HELD_BYTES
            held += MAX_HELD_BYTES
        yield b"\n"

    (line,) = stamped_lines(pieces(), "")
    assert held == 100 * MAX_HELD_BYTES
    assert len(line[1]) <= 2000


@pytest.fixture
def engine_of(tmp_path) -> Iterator[Callable[..., tuple[Script, ContainerEngine]]]:
    """Return what starts a script and gives an engine that speaks to it."""
    folder = Path(tempfile.mkdtemp(prefix="tfb-http-"))
    started: list[tuple[Script, ContainerEngine]] = []

    def start(*answers: bytes) -> tuple[Script, ContainerEngine]:
        script = Script(folder / f"{len(started)}.sock", [PING, *answers])
        started.append((script, ContainerEngine(DockerAddress(scheme="unix", target=str(script.path)))))
        return started[-1]

    yield start
    for script, engine in started:
        engine.close()
        script.close()
    shutil.rmtree(folder)


IN_USE = (
    'creating container storage: the container name "x" is already in use by 5bcf. You have to remove that container'
)


@pytest.mark.parametrize("status", [409, 500])
def test_a_taken_name_is_one_whatever_the_engine_calls_it(engine_of, status):
    _, engine = engine_of(answer({"message": IN_USE}, status), answer({"State": {"Status": "running"}}))
    assert engine.create(ContainerSpec(image="i", name="x")) is False


def test_a_refusal_with_no_container_of_that_name_is_a_failed_start(engine_of):
    _, engine = engine_of(
        answer({"message": "no space left on device"}, 500), answer({"message": "no such container"}, 404)
    )
    with pytest.raises(LaunchFailed, match="disk is full"):
        engine.create(ContainerSpec(image="i", name="x"))


@pytest.mark.parametrize("status", [404, 500])
def test_a_container_that_the_engine_refuses_to_start_is_removed(engine_of, status):
    refusal = {"message": "exec: no-such-program: executable file not found in $PATH"}
    script, engine = engine_of(answer(refusal, status), b"HTTP/1.1 204 No Content\r\n\r\n")
    with pytest.raises(HostError, match="executable file not found"):
        engine.start("x")
    assert [line.partition("?")[0] for line in script.requests[1:]] == [
        "POST /v1.41/containers/x/start HTTP/1.1",
        "DELETE /v1.41/containers/x",
    ]
