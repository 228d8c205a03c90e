"""The hosts that train one case together, from TensorFlow's `TF_CONFIG`, and the connections between them.

Exchanged values, heartbeats and failures: one TCP connection from every rank to the chief, with one JSON object per
line. TensorFlow's collectives carry the gradients, but wait minutes for a dead peer and do not report why it died.
Nothing secret is sent, and nothing received is executed; like TensorFlow's own ports, these require a trusted network.
"""

from __future__ import annotations

import contextlib
import errno
import json
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from results.schema import Status
from tfbench.failures import CaseFailedError, Failure

VARIABLE = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["10.0.0.11:29500", "10.0.0.12:29500"]}, "task": {"type": "worker", "index": 0}}'
LARGEST_PORT = 65_535


class ClusterError(Exception):
    """`TF_CONFIG` does not describe the hosts of the case; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class TFCluster:
    """The hosts of a case; by default a single one.

    Attributes:
        addresses: `host:port` of each rank, as the others reach it; TensorFlow's collectives listen there.
        rank: Of this process, from 0; rank 0 is the chief, which writes the record.
    """

    addresses: tuple[str, ...] = ("this host",)
    rank: int = 0

    @property
    def control(self) -> tuple[str, int]:
        """Return the host and port on which the chief accepts the other ranks: the port above its own."""
        host, port = split_address(self.addresses[0])
        return host, port + 1

    def name(self, rank: int) -> str:
        """Return a rank's name in messages."""
        return f"rank {rank} ({self.addresses[rank]})"


def read_cluster(num_hosts: int, environment: Mapping[str, str]) -> TFCluster:
    """Read the cluster of a case.

    Args:
        num_hosts: Of the case.
        environment: Environment variables.

    Raises:
        ClusterError: The variable is missing, malformed, or has a different number of hosts.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        if num_hosts > 1:
            raise ClusterError(f"--num_hosts={num_hosts} needs the environment variable {VARIABLE}. Example: {EXAMPLE}")
        return TFCluster()
    try:
        document = json.loads(text)
        cluster, task = dict(document["cluster"]), dict(document.get("task") or {})
    except (ValueError, KeyError, TypeError) as error:
        fault = f"is not a JSON object with 'cluster' and 'task': {error}"
        raise ClusterError(f"{VARIABLE} {fault}. Received: {text[:300]}") from error
    for fault in _faults(cluster, task, num_hosts):
        raise ClusterError(f"{VARIABLE}{fault}. Received: {text[:300]}")
    return TFCluster(addresses=tuple(cluster["worker"]), rank=task["index"]) if num_hosts > 1 else TFCluster()


def _faults(cluster: Mapping[str, Any], task: Mapping[str, Any], num_hosts: int) -> Iterator[str]:
    """Yield what is wrong with a cluster, the most basic first; of a single host, its size only."""
    addresses, rank = cluster.get("worker"), task.get("index")
    if not isinstance(addresses, list) or len(addresses) != num_hosts or set(cluster) != {"worker"}:
        yield f" must list as many addresses as --num_hosts={num_hosts}, all under 'worker'"
    elif num_hosts > 1:
        for address in addresses:
            if not _is_address(address):
                yield f": {address!r} is not host:port with a port of 1 to {LARGEST_PORT - 1}"
        if len(set(addresses)) < num_hosts:
            yield ": an address appears twice"
        if task.get("type") != "worker" or type(rank) is not int or not 0 <= rank < num_hosts:
            yield f": 'task' must be of type 'worker' with an index of 0 to {num_hosts - 1}"
        host, port = TFCluster(addresses=tuple(addresses)).control
        if (host, port) in map(split_address, addresses):
            name = f"[{host}]" if ":" in host else host
            where = f"{name}:{port} is where the chief listens for the others (one above its own port)"
            yield f": {where}. Give ranks on one machine ports that are at least 2 apart"


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`, and remove the brackets of an IPv6 host."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_address(address: object) -> bool:
    match = re.fullmatch(r"(?:\[[^][]+\]|[^][:]+):([0-9]{1,5})", str(address))
    return match is not None and 1 <= int(match[1]) < LARGEST_PORT


BEAT_SECONDS = 2.0
SILENCE_SECONDS = 20.0
"""A rank that is silent for this long has died, hangs or has lost its network.

Every rank sends heartbeats from a thread of its own, so that long steps and compilations do not matter. They count from
its first value on: on a machine with many GPUs, the driver's start blocks every thread for longer than this.
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


class Peers:
    """All ranks of a case; by default a single one, this process.

    Attributes:
        rank: Of this process.
        size: Number of ranks.

    Args:
        cluster: All ranks.
        case: Name of the case: all must have been started for the same one.
        on_loss: Called once if another rank has failed or is silent.
    """

    def __init__(self, cluster: TFCluster = TFCluster(), case: str = "", on_loss: OnLoss = lambda _: None) -> None:
        self.cluster, self.rank, self.size = cluster, cluster.rank, len(cluster.addresses)
        self._started_for = {"case": case, "addresses": list(cluster.addresses)}
        self._on_loss = on_loss
        self._links: dict[int, _Link] = {}
        self._ending = threading.Lock()
        self._over = self._losing = False

    def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Wait until all ranks have connected.

        Raises:
            CaseFailedError: `lost`: one did not connect; `unsupported`: one was started for another case.
        """
        if self.size == 1:
            return
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

        Raises:
            CaseFailedError: `lost`: the ranks are out of step.
        """
        given = {"what": what, "value": value}
        if self.rank > 0:
            self._links[0].send(given)
            values: list[Any] = self._links[0].received.get()["value"]
            return values
        by_rank = [given, *(self._links[rank].received.get() for rank in range(1, self.size))]
        if len(names := {str(message.get("what")) for message in by_rank}) > 1:
            raise CaseFailedError(Status.LOST, f"the ranks are out of step: they gather {', '.join(sorted(names))}")
        values = [message["value"] for message in by_rank]
        self._over = self._over or what == FINISHED
        self._tell_all({"what": what, "value": values})
        return values

    def finish(self) -> None:
        """Wait until all ranks are done; afterwards they may disconnect."""
        self.gather(FINISHED, None)
        time.sleep(LAST_WORDS_SECONDS if self._links else 0.0)

    def report_failure(self, outcome: Failure, *, of_another: bool = False) -> bool:
        """Send a failure to the other ranks, which then end with its cause.

        Returns:
            False: All are done, or a failure was sent before.
        """
        with self._ending:
            if self._over or not self._links:
                return False
            self._over, self._losing = True, of_another
        self._tell_all({"failed": {"rank": self.rank, "status": str(outcome.status), "cause": outcome.cause}})
        time.sleep(LAST_WORDS_SECONDS)
        return True

    def close(self) -> None:
        """Close the connections to the other ranks."""
        self._over = True
        for link in self._links.values():
            link.close()

    def await_loss(self, error: Exception) -> None:
        """Wait until the lost rank is known, if an exception may be TensorFlow's report of a loss.

        Returns only if it remains unknown: as soon as it is known, this process ends.
        """
        if self._links and may_be_a_peers(error) and (self._losing or not self._over):
            time.sleep(SILENCE_SECONDS + BEAT_SECONDS + LAST_WORDS_SECONDS)

    def _accept_all(self, deadline: float, seconds: float) -> None:
        host, port = self.cluster.control
        with _server(host, port) as server:
            while missing := [rank for rank in range(1, self.size) if rank not in self._links]:
                server.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    self._welcome(_Link(server.accept()[0]))
                except TimeoutError as error:
                    names = ", ".join(map(self.cluster.name, missing))
                    raise CaseFailedError(Status.LOST, f"{names} did not connect within {seconds:g} s") from error

    def _welcome(self, link: _Link) -> None:
        """Accept a connection that introduces itself as a rank; close any other."""
        hello = link.first(HELLO_SECONDS)
        rank = hello.pop("hello", None)
        if type(rank) is not int or not 0 < rank < self.size or rank in self._links:
            link.close()
            return
        self._links[rank] = link
        if hello != self._started_for:
            case = f"case {str(hello.get('case'))[:200]!r} and another one for {self._started_for['case']!r}"
            cause = f"{self.cluster.name(rank)} was started for {case}, or with other addresses"
            raise CaseFailedError(Status.UNSUPPORTED, f"{cause}: start all ranks with the same flags and cluster")
        link.send({"welcome": rank})

    def _reach_chief(self, deadline: float, seconds: float) -> _Link:
        host, port = self.cluster.control
        while True:
            with contextlib.suppress(OSError):
                link = _Link(socket.create_connection((host, port), timeout=HELLO_SECONDS))
                link.send({"hello": self.rank, **self._started_for})
                answer = link.first(max(HELLO_SECONDS, deadline - time.monotonic()))
                if answer.get("welcome") == self.rank:
                    return link
                link.close()  # a proxy without a backend accepts, then closes
                if "failed" in answer:
                    outcome = self._failure(answer["failed"])
                    raise CaseFailedError(outcome.status, outcome.cause)
            if time.monotonic() > deadline:
                cause = f"{self.cluster.name(0)} did not answer at port {port} within {seconds:g} s"
                raise CaseFailedError(Status.LOST, cause)
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
        seconds = CONNECT_SECONDS
        try:
            while True:
                message = link.receive(seconds)
                if "failed" in message:
                    self._lose(self._failure(message["failed"]))
                elif "value" in message:
                    seconds = SILENCE_SECONDS
                    self._over = self._over or (self.rank > 0 and message.get("what") == FINISHED)
                    link.received.put(message)
        except _Gone as error:
            self._lose(Failure(Status.LOST, f"{self.cluster.name(rank)} {error}"))

    def _failure(self, reported: dict[str, Any]) -> Failure:
        """Parse another rank's failure; the input is not trusted."""
        try:
            status, rank, cause = Status(reported["status"]), int(reported["rank"]), str(reported["cause"])[:2000]
            said = cause if cause.startswith("rank ") else f"{self.cluster.name(rank)}: {cause}"
            return Failure(Status.LOST if status is Status.OK else status, said)
        except (KeyError, ValueError, TypeError, IndexError):
            return Failure(Status.LOST, "another rank failed without giving a reason")

    def _lose(self, outcome: Failure) -> None:
        if self.report_failure(outcome, of_another=True):
            self._on_loss(outcome)


def may_be_a_peers(error: Exception) -> bool:
    """Return whether an exception may be TensorFlow's report that another rank is gone."""
    names = {kind.__name__ for kind in type(error).__mro__}
    of_the_network = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "OSError"}
    return bool(names & of_the_network) or "ollective" in str(error)


class _Gone(Exception):
    """A rank is lost; the message continues a sentence that begins with its name."""


class _Link:
    """A connection for JSON objects, one per line.

    Attributes:
        received: Messages with a value that were not read yet.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
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
    """Listen for the other ranks on the chief's IPv4 or IPv6 address.

    On all addresses if it is a name, which may resolve to another one on this machine, or if this machine does not have
    the address, because the network translates it.
    """
    numeric = socket.AI_NUMERICHOST | socket.AI_PASSIVE
    for name in ("127.0.0.1" if host == "localhost" else host, ""):
        try:
            if not name and socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True)
            found = socket.getaddrinfo(name or None, port, type=socket.SOCK_STREAM, flags=numeric)
            family, _, _, _, address = found[0]
            return socket.create_server(address, family=family, backlog=64)
        except OSError as error:
            reason = error.strerror
            if error.errno not in (socket.EAI_NONAME, errno.EADDRNOTAVAIL):
                break
    raise CaseFailedError(Status.UNSUPPORTED, f"the chief cannot listen for the other ranks on port {port}: {reason}")
