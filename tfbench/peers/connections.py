"""Connections between the ranks of a case: exchanged values, heartbeats and failures.

One TCP connection from every rank to the chief, with one JSON object per line. TensorFlow's collectives carry the
gradients, but wait minutes for a dead peer and do not report why it died. Nothing secret is sent, and nothing received
is executed; like TensorFlow's own ports, these require a trusted network.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from results.schema import Status
from tfbench.failures import CaseFailedError, Failure
from tfbench.peers.cluster import TFCluster

BEAT_SECONDS = 2.0
SILENCE_SECONDS = 20.0
"""A rank that is silent for this long has died, hangs or has lost its network.

Every rank sends heartbeats from a thread of its own, so that long steps and compilations do not matter. They begin with
the first gather: on a machine with many GPUs, the driver's start blocks every thread for longer than this.
"""

CONNECT_SECONDS = 300.0
"""Time limit for the ranks to connect: they may be started minutes apart."""

HELLO_SECONDS = 5.0
RETRY_SECONDS = 0.5
LAST_WORDS_SECONDS = 0.3
"""Delay between the last message and the end of the process, so that it is read before the connection breaks."""

MAX_LINE_BYTES = 4 * 1024 * 1024
FINISHED = "finished"

OnLoss = Callable[[Failure], None]
"""Ends this process with a record; called from another thread, because the main one may be blocked in a collective."""


class Alone:
    """The peers of a single-host case: none."""

    rank = 0
    size = 1

    def gather(self, what: str, value: object) -> list[Any]:
        """See `Peers.gather`."""
        return [value]

    def finish(self) -> None:
        """See `Peers.finish`."""

    def report_failure(self, outcome: Failure) -> None:
        """See `Peers.report_failure`."""

    def await_loss(self) -> None:
        """See `Peers.await_loss`."""


class Peers:
    """The other ranks of a case.

    Attributes:
        rank: Of this process.
        size: Number of ranks.

    Args:
        cluster: All ranks.
        case: Name of the case: all must have been started for the same one.
        on_loss: Called once if another rank has failed or is silent.
    """

    def __init__(self, cluster: TFCluster, case: str, on_loss: OnLoss) -> None:
        self.cluster, self.rank, self.size = cluster, cluster.rank, len(cluster.addresses)
        self._case = case
        self._on_loss = on_loss
        self._links: dict[int, _Link] = {}
        self._changed = threading.Condition()
        self._given: defaultdict[int, dict[int, Any]] = defaultdict(dict)
        self._complete: dict[int, list[Any]] = {}
        self._gathers = 0
        self._began = False
        self._over = False
        self._losing = False

    def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Wait until all ranks have connected.

        Raises:
            CaseFailedError: `lost`: one did not connect; `unsupported`: one was started for another case.
        """
        deadline = time.monotonic() + seconds
        if self.rank == 0:
            self._accept_all(deadline, seconds)
        else:
            self._links[0] = self._reach_chief(deadline, seconds)
        for rank, link in self._links.items():
            threading.Thread(target=self._listen, args=(rank, link), name=f"peer {rank}", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def gather(self, what: str, value: object) -> list[Any]:
        """Exchange a value with all ranks; all must call this with the same names in the same order.

        Args:
            what: Name of the value, to detect ranks that are out of step.
            value: Any JSON value.

        Returns:
            The values by rank.
        """
        with self._changed:
            number = self._gathers
            self._gathers += 1
            message = {"gather": number, "what": what, "value": value}
            if self.rank == 0:
                self._take(0, message)
            else:
                self._links[0].send(message)
            self._changed.wait_for(lambda: number in self._complete)
            return self._complete.pop(number)

    def finish(self) -> None:
        """Wait until all ranks are done; afterwards they may disconnect."""
        self.gather(FINISHED, None)
        time.sleep(LAST_WORDS_SECONDS)

    def report_failure(self, outcome: Failure) -> None:
        """Send this rank's failure to the other ranks, which then end with its cause, unless all are done."""
        if self._over:
            return
        self._over = True
        self._tell_all({"failed": {"rank": self.rank, "status": str(outcome.status), "cause": outcome.cause}})
        time.sleep(LAST_WORDS_SECONDS)

    def close(self) -> None:
        """Close the connections to the other ranks."""
        self._over = True
        for link in self._links.values():
            link.close()

    def await_loss(self) -> None:
        """Wait until the lost rank is known, after TensorFlow has reported a loss.

        Returns only if it remains unknown: as soon as it is known, this process ends.
        """
        if self._losing or not self._over:
            time.sleep(SILENCE_SECONDS + BEAT_SECONDS + LAST_WORDS_SECONDS)

    def _accept_all(self, deadline: float, seconds: float) -> None:
        host, port = self.cluster.control
        with _server(host, port) as server:
            while len(self._links) < self.size - 1:
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = [self.cluster.name(rank) for rank in range(1, self.size) if rank not in self._links]
                    cause = f"{', '.join(missing)} did not connect within {seconds:g} s"
                    self.report_failure(Failure(Status.LOST, cause))
                    raise CaseFailedError(Status.LOST, cause)
                server.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    self._welcome(_Link(server.accept()[0]))

    def _welcome(self, link: _Link) -> None:
        """Accept a connection that introduces itself as a rank; close any other."""
        hello = link.first(HELLO_SECONDS)
        rank = hello.get("hello")
        if type(rank) is not int or not 0 < rank < self.size or rank in self._links:
            link.close()
            return
        if (hello.get("case"), hello.get("addresses")) != (self._case, list(self.cluster.addresses)):
            cause = (
                f"{self.cluster.name(rank)} was started for case {str(hello.get('case'))[:200]!r} and another one "
                f"for {self._case!r}, or with other addresses: start all ranks with the same flags and cluster"
            )
            link.send({"failed": {"rank": 0, "status": str(Status.UNSUPPORTED), "cause": cause}})
            link.close()
            self.report_failure(Failure(Status.UNSUPPORTED, cause))
            raise CaseFailedError(Status.UNSUPPORTED, cause)
        link.send({"welcome": rank})
        self._links[rank] = link

    def _reach_chief(self, deadline: float, seconds: float) -> _Link:
        host, port = self.cluster.control
        while True:
            with contextlib.suppress(OSError):
                link = _Link(socket.create_connection((host, port), timeout=HELLO_SECONDS))
                link.send({"hello": self.rank, "case": self._case, "addresses": list(self.cluster.addresses)})
                answer = link.first(max(HELLO_SECONDS, deadline - time.monotonic()))
                if answer.get("welcome") == self.rank:
                    return link
                link.close()  # a proxy without a backend accepts, then closes
                if "failed" in answer:
                    outcome = self._failure(answer["failed"])
                    raise CaseFailedError(outcome.status, outcome.cause)
            if time.monotonic() > deadline:
                raise CaseFailedError(
                    Status.LOST, f"{self.cluster.name(0)} did not answer at port {port} within {seconds:g} s"
                )
            time.sleep(RETRY_SECONDS)

    def _beat(self) -> None:
        while not self._over:
            time.sleep(BEAT_SECONDS)
            self._tell_all({"beat": self.rank})

    def _tell_all(self, message: dict[str, Any]) -> None:
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):  # the reader detects a broken link
                link.send(message)

    def _listen(self, rank: int, link: _Link) -> None:
        """Receive from a rank until it disconnects; if that is too early, end this process.

        Reading continues after the end: closing a connection with unread data would discard the last messages sent.
        """
        try:
            while True:
                self._hear(rank, link.receive(SILENCE_SECONDS if self._began else CONNECT_SECONDS))
        except _Gone as error:
            self._lose(Failure(Status.LOST, f"{self.cluster.name(rank)} {error}"), except_rank=rank)

    def _hear(self, rank: int, message: dict[str, Any]) -> None:
        if "failed" in message:
            self._lose(self._failure(message["failed"]), except_rank=rank)
        elif "all" in message:
            with self._changed:
                self._complete_gather(message)
        elif "gather" in message and self.rank == 0:
            with self._changed:
                self._take(rank, message)

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        """As the chief, store a rank's value, and send all values once they are complete."""
        given = self._given[message["gather"]]
        given[rank] = message
        if len(given) < self.size:
            return
        del self._given[message["gather"]]
        names = {item["what"] for item in given.values()}
        if len(names) > 1:
            raise _Gone(f"is out of step: the ranks gather {', '.join(sorted(names))} at the same time")
        values = [given[peer]["value"] for peer in range(self.size)]
        everything = {"all": message["gather"], "what": message["what"], "values": values}
        self._tell_all(everything)
        self._complete_gather(everything)

    def _complete_gather(self, message: dict[str, Any]) -> None:
        self._began = True
        self._over = self._over or message["what"] == FINISHED
        self._complete[message["all"]] = message["values"]
        self._changed.notify_all()

    def _failure(self, reported: dict[str, Any]) -> Failure:
        """Parse another rank's failure; the input is not trusted."""
        try:
            status, rank, cause = Status(reported["status"]), int(reported["rank"]), str(reported["cause"])[:2000]
            said = cause if cause.startswith("rank ") else f"{self.cluster.name(rank)}: {cause}"
            return Failure(Status.LOST if status is Status.OK else status, said)
        except (KeyError, ValueError, TypeError, IndexError):
            return Failure(Status.LOST, "another rank failed without giving a reason")

    def _lose(self, outcome: Failure, except_rank: int) -> None:
        with self._changed:
            if self._over:
                return
            self._over = self._losing = True
        message = {"failed": {"rank": self.rank, "status": str(outcome.status), "cause": outcome.cause}}
        for rank, link in self._links.items():
            if rank != except_rank:
                with contextlib.suppress(OSError):
                    link.send(message)
        time.sleep(LAST_WORDS_SECONDS)
        self._on_loss(outcome)


def may_be_a_peers(error: Exception) -> bool:
    """Return whether an exception may be TensorFlow's report that another rank is gone."""
    names = {kind.__name__ for kind in type(error).__mro__}
    of_the_network = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "OSError"}
    return bool(names & of_the_network) or "ollective" in str(error)


class _Gone(Exception):
    """A rank is lost; the message continues a sentence that begins with its name."""


class _Link:
    """A connection for JSON objects, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._lines = connection, connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send one object.

        Raises:
            OSError: The connection is broken.
        """
        with self._sending:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait for the next object.

        Raises:
            _Gone: None came in time, the connection ended, or the message is not JSON.
        """
        try:
            self._connection.settimeout(seconds)  # also for sending: a peer that does not read hangs
            line = self._lines.readline(MAX_LINE_BYTES)
        except TimeoutError as error:
            raise _Gone(f"sent nothing for {seconds:g} s: it hangs, or its network is cut") from error
        except (OSError, ValueError) as error:  # ValueError: closed here
            raise _Gone(f"is gone: its connection broke ({error})") from error
        if not line:
            raise _Gone("is gone: its process has ended")
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise _Gone("sent an unexpected message") from error

    def first(self, seconds: float) -> dict[str, Any]:
        """Wait for the first object; return an empty one if none came."""
        try:
            return self.receive(seconds)
        except _Gone:
            return {}

    def close(self) -> None:
        """Close the connection, also for a thread that is reading from it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._connection.close()


def _server(host: str, port: int) -> socket.socket:
    """Listen for the other ranks on the chief's address.

    On all addresses if it is a name, which may resolve to another one on this machine, or if this machine does not have
    the address, because the network translates it.
    """
    try:
        try:
            return _listen_on(host, port)
        except socket.gaierror:
            return _listen_on("127.0.0.1" if host == "localhost" else "", port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return _listen_on("", port)
    except OSError as error:
        raise CaseFailedError(
            Status.UNSUPPORTED, f"the chief cannot listen for the other ranks on port {port}: {error.strerror}"
        ) from error


def _listen_on(host: str, port: int) -> socket.socket:
    """Listen on an IPv4 or IPv6 address; empty: on all addresses of both, if the machine has both.

    Raises:
        gaierror: It is not an address.
        OSError: The address or port cannot be used.
    """
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True)
    numeric = socket.AI_NUMERICHOST | socket.AI_PASSIVE
    family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=numeric)[0]
    return socket.create_server(address, family=family, backlog=64)
