"""The SDK's client within limits, against a server on a unix socket that sends exactly what it is given."""

import contextlib
import gzip
import io
import json
import shutil
import socket
import struct
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrate import loop
from orchestrate.engines import bounded
from orchestrate.engines.base import Ending, PullLimits
from orchestrate.engines.docker import engine as engine_module
from orchestrate.engines.docker.engine import BEFORE_ALL, DockerEngine, stamped_lines
from orchestrate.engines.docker.launcher import ContainerLauncher
from orchestrate.engines.invocation import container
from orchestrate.errors import HostError, LaunchFailed, Lost, PullFailed, Unreachable
from orchestrate.inventory.addresses import DockerAddress
from results.schema.progress import record_lines
from tests.support.patience import patience
from tests.unit.orchestrate.test_check import host
from tests.unit.orchestrate.test_container import job

Answer = bytes | None | Callable[[socket.socket], None]

STAMP = "2026-01-01T00:00:00.000000000Z"
PING = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


def answer(document: object, status: int = 200, *headers: str) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, pieces)) + end


def frame(data: bytes, stream: int = 1) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


def drips(begin: bytes, each: bytes, pause: float = 0.1) -> Callable[[socket.socket], None]:
    """Send something every `pause` seconds, for ever."""

    def send(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(each)
            time.sleep(pause)

    return send


class Script:
    """A server that gives its answers in turn; `None` closes the connection instead, and so does the last one."""

    def __init__(self, path: Path, answers: list[Answer]) -> None:
        self.path, self.answers = path, answers
        self.requests: list[str] = []
        self.headers: list[bytes] = []
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while self.answers:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while self.answers and (line := stream.readline()):
                length = 0
                while (header := stream.readline().strip().lower()) != b"":
                    self.headers.append(header)
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                stream.read(length)
                self.requests.append(line.decode().strip())
                reported = self.answers.pop(0)
                if reported is None:
                    return
                if callable(reported):
                    reported(connection)
                else:
                    connection.sendall(reported)

    def close(self) -> None:
        self._listener.close()


Serve = Callable[..., tuple[Script, DockerEngine]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return what starts a script and gives an engine that speaks to it; nobody waits for lost hosts."""
    monkeypatch.setattr(bounded, "RECONNECT_SECONDS", 0.001)
    monkeypatch.setattr(bounded, "LONGEST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1)
    folder = Path(tempfile.mkdtemp(prefix="tfb-http-"))
    started: list[tuple[Script, DockerEngine]] = []

    def start(*answers: Answer, ping: bytes = PING) -> tuple[Script, DockerEngine]:
        script = Script(folder / f"{len(started)}.sock", [ping, *answers])
        started.append((script, DockerEngine(DockerAddress(scheme="unix", target=str(script.path)))))
        return started[-1]

    yield start
    for script, engine in started:
        engine.close()
        script.close()
    shutil.rmtree(folder)


def test_requests_share_a_connection_without_cookies_and_name_a_version(serve: Serve):
    first = answer({"a": 1}, 200, "Set-Cookie: a=b")
    ended = answer({"State": {"Status": "exited"}})
    ran = NO_CONTENT, ended, chunked(frame(b"x"), frame(b"y")), NO_CONTENT
    script, engine = serve(first, answer({"Id": "1"}, 201), *ran, answer([]))
    assert engine.info() == {"a": 1} and engine.run("look", container("i"), 1.0) == b"xy"
    assert engine.labelled("l") == []
    assert script.connections == 1
    assert script.headers and not any(b"cookie" in header for header in script.headers)
    assert script.requests[1] == "GET /v1.41/info HTTP/1.1"
    assert script.requests[2].startswith("POST /v1.41/containers/create?name=tfbench-look-")


def test_a_connection_that_the_engine_closed_is_made_again(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded, "RECONNECT_SECONDS", 10.0)
    script, engine = serve(answer({"a": 1}), None, answer({"a": 2}))
    assert (engine.info(), engine.info(), script.connections) == ({"a": 1}, {"a": 2}, 2)


@pytest.mark.parametrize("end", [b"", b"ff\r\nhalf"])
def test_an_answer_that_was_cut_off_is_not_taken_for_a_whole_one(serve: Serve, end: bytes):
    _, engine = serve(chunked(b'{"a": 1}', end=end))
    with pytest.raises(Unreachable, match=r"\.sock: the connection broke$"):
        engine.info()
    _, engine = serve(chunked(frame(f"{STAMP} one\n".encode()), end=end))
    lines = engine.log_lines("x", BEFORE_ALL, follow=True)
    assert next(lines)[1] == "one"
    with pytest.raises(Unreachable):
        next(lines)


@pytest.mark.parametrize(
    ("begin", "each"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"["),
        (chunked(end=b""), chunk(b"[")),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["endless header", "body", "chunks", "interim answers"],
)
def test_an_engine_that_drips_holds_nobody_beyond_the_deadline(serve: Serve, monkeypatch, begin: bytes, each: bytes):
    monkeypatch.setitem(DockerEngine.request.__kwdefaults__, "seconds", 0.5)
    _, engine = serve(drips(begin, each))
    began = time.monotonic()
    with pytest.raises(Unreachable):
        engine.info()
    assert time.monotonic() - began < patience()


@pytest.mark.parametrize(
    ("pause", "limit", "seconds", "said"),
    [
        (0.1, "DEADLINE_SECONDS", 0.6, "not complete after 0.[56]"),
        (60, "STALL_SECONDS", 0.3, "no answer within 0.3 seconds"),
    ],
)
def test_a_pull_that_drips_or_stalls_ends_and_says_why(serve: Serve, monkeypatch, pause, limit, seconds, said: str):
    monkeypatch.setattr(engine_module, limit, seconds)
    _, engine = serve(drips(chunked(end=b""), chunk(b'{"status": "Waiting", "id": "x"}'), pause))
    with pytest.raises(PullFailed, match=said):
        engine.pull("r/i:1", lambda done, total: None)


def test_an_answer_or_a_frame_without_end_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "MAX_ANSWER_BYTES", 100_000)
    endless = drips(chunked(struct.pack(">BxxxL", 1, 1 << 31), end=b""), chunk(b"x" * 99))
    _, engine = serve(chunked(b"[" * 99_999, b"[" * 99_999), endless)
    with pytest.raises(LaunchFailed, match="too large"):
        engine.info()
    with pytest.raises(LaunchFailed, match="longer than 1 MiB"):
        list(engine.log_lines("x", BEFORE_ALL, follow=True))


@pytest.mark.parametrize("piece", [b"0,", b" ", b'"a",'])
@pytest.mark.slow
def test_a_message_without_end_takes_no_time_and_no_memory(serve: Serve, piece: bytes):
    """The SDK parses all that has arrived for each piece: minutes in which no other thread runs."""
    begin = chunked(b'{"status": "Downloading", "a": [', end=b"")
    _, engine = serve(lambda connection: connection.sendall(begin + chunk(piece) * 2_000_000))
    began = time.process_time()
    with pytest.raises(PullFailed, match="64 KiB"):
        engine.pull("r/i@sha256:1", lambda done, total: None)
    assert time.process_time() - began < patience()


def test_an_answer_of_few_bytes_and_many_values_takes_no_memory(serve: Serve):
    _, engine = serve(answer(b"[" + b"{}," * 340_000 + b"{}]"), answer(b"[" + b"{}," * 5_000_000 + b"{}]"))
    tracemalloc.start()
    for said in ("malformed: ValueError: it has more than", "too large"):
        with pytest.raises(LaunchFailed, match=said):
            engine.labelled("tfbench.run=r")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6


def test_a_header_cannot_change_how_an_answer_is_read(serve: Serve):
    """Else a few MB become GB of memory."""
    in_utf7 = answer(b'{"a": "+AGE-"}', 200, "Content-Type: text/html; charset=utf-7")
    _, engine = serve(in_utf7, answer(gzip.compress(b'{"a": 1}'), 200, "Content-Encoding: deflate, gzip"))
    assert engine.info() == {"a": "+AGE-"}
    with pytest.raises(LaunchFailed, match="malformed: JSONDecodeError"):
        engine.info()


@pytest.mark.parametrize("location", ["https://127.0.0.1:1/", "/info"])
def test_a_redirect_is_not_followed(serve: Serve, location: str):
    script, engine = serve(answer({}, 302, f"Location: {location}"), answer({"a": 1}))
    with pytest.raises(HostError, match="redirects"):
        engine.info()
    assert len(script.requests) == 2


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, bytes(range(128, 256))])
def test_nonsense_is_an_error_of_that_host(serve: Serve, body: bytes):
    spoilt = [{"Size": "many"}, {"State": 7}, [7], [7]]
    _, engine = serve(answer(body, 500), *map(answer, spoilt))
    for ask in (engine.info, partial(engine.image_bytes, "r/i:1"), *[partial(engine.state, "x")] * 2):
        with pytest.raises(HostError):
            ask()
    with pytest.raises(HostError):
        engine.labelled("l")


@pytest.mark.parametrize(("reported", "asked"), [(b"1.24", "1.24"), (b"2.0", "1.51")])
def test_an_engine_is_asked_in_a_version_that_both_know(serve: Serve, reported: bytes, asked: str):
    script, engine = serve(answer({}), ping=PING.replace(b"1.41", reported))
    engine.info()
    assert script.requests == ["GET /_ping HTTP/1.1", f"GET /v{asked}/info HTTP/1.1"]


@pytest.mark.parametrize("header", [b"Server: x", b"Api-Version: x", b"Api-Version: " + b"9" * 5000])
def test_what_is_no_engine_is_said_to_be_none(serve: Serve, header: bytes):
    _, engine = serve(ping=PING.replace(b"Api-Version: 1.41", header))
    with pytest.raises(Unreachable, match="not a Docker engine"):
        engine.info()


@pytest.mark.parametrize(
    ("stamp", "since"),
    [
        ("2026-06-01T12:00:00.123456789Z", 1780315200),
        ("2026-06-01T12:00:00.123456789-07:30", 1780342200),  # as Podman, in local time
    ],
)
def test_a_log_is_read_on_from_the_instant_of_its_last_line(serve: Serve, stamp: str, since: int):
    script, engine = serve(chunked(frame(f"{stamp} last\n".encode())))
    (line,) = engine.log_lines("x", (since + 0.123456, "789"), follow=True)
    assert line == ((since + 0.123456, "789"), "last"), "the same instant"
    assert f"since={since}" in script.requests[-1]


def test_a_line_in_several_frames_is_one_line_without_their_stamps():
    """As Podman sends what a program writes in pieces, here mixed with what it writes to stderr; the end as of glibc."""
    said = ["whole\n", "devices:", "a warning\n", "nvidia0", "\n", "\n", "last"]
    stamps = [f"2026-01-01T00:00:00.00000000{n}Z" for n in range(7)]
    frames = [frame(f"{stamp} {words}".encode()) for stamp, words in zip(stamps, said, strict=True)]
    frames[2] = frame(f"{stamps[2]} {said[2]}".encode(), stream=2)
    log = b"".join(frames)
    lines = {0: "whole", 2: "a warning", 4: "devices:nvidia0", 5: "", 6: "last"}
    assert [(stamp[1], line) for stamp, line in stamped_lines(io.BytesIO(log).read)] == [
        (f"00{n}", line) for n, line in lines.items()
    ]


@pytest.mark.parametrize("status", [409, 500])
def test_a_taken_name_is_one_whatever_the_engine_calls_it(serve: Serve, status: int):
    taken = answer({"message": 'creating container storage: the container name "x" is already in use by 5bcf'}, status)
    full, missing = answer({"message": "no space left on device"}, 500), answer({"message": "no such container"}, 404)
    exists = answer({"Config": {"Labels": {"a": "b"}}, "State": {"Status": "exited"}})
    script, engine = serve(taken, exists, exists, taken, exists, full, missing)
    assert engine.start("x", container("i", Labels={"a": "b"})) is True
    with pytest.raises(LaunchFailed, match="does not belong to this run"):
        engine.start("x", container("i", Labels={"a": "c"}))
    with pytest.raises(LaunchFailed, match="disk is full"):
        engine.start("x", container("i"))
    assert script.connections == 1, "a refusal keeps its connection"


def launcher(engine: DockerEngine) -> ContainerLauncher:
    made = ContainerLauncher(host(), PullLimits())
    made._engine = engine
    return made


@pytest.mark.parametrize("gone", [True, False])
def test_a_container_that_somebody_removed_is_lost_and_no_bad_result(serve: Serve, gone: bool):
    refusal, log = answer({"message": "No such container: x"}, 404), chunked(frame(f"{STAMP} last words\n".encode()))
    state = refusal if gone else answer({"State": {"Status": "exited", "ExitCode": 0}})
    _, engine = serve(log, state, log, log)
    lines, it = list[str](), launcher(engine)
    with pytest.raises(Lost, match="removed it") if gone else contextlib.nullcontext():
        assert loop.wait_for(it.follow(job(), lines.append)) == Ending(exit_code=0)
    assert lines == ["last words"], "once, though the log is read again"


def test_a_record_at_the_end_of_a_line_within_which_the_log_broke_is_found(serve: Serve):
    (line,) = record_lines(b"{}")
    parts = [frame(f"{STAMP} {text}".encode()) for text in ("no line end ", f"{line}\n")]  # a line has one time stamp
    exited, whole = answer({"State": {"Status": "exited", "ExitCode": 0}}), chunked(b"".join(parts))
    _, engine = serve(chunked(parts[0]), exited, whole, whole)
    it = launcher(engine)
    assert loop.wait_for(it.follow(job(), print)) == Ending(exit_code=0, record=b"{}")


def test_an_engine_that_drips_after_an_image_was_sent_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    """It has the limits of a pull: messages without end, and silence."""
    monkeypatch.setattr(engine_module, "DEADLINE_SECONDS", 1.0)
    monkeypatch.setattr(engine_module, "STALL_SECONDS", 0.5)
    unpacking = drips(chunked(end=b""), chunk(b'{"stream": "unpacking"}\n'))
    silent = drips(chunked(end=b""), b"", pause=60.0)
    _, engine = serve(unpacking, None, silent)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(PullFailed, match="did not arrive"):
            engine.load(iter([b"an image"]))
        assert time.monotonic() - began < patience()
