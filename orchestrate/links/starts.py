"""Starts of connections: a few at a time through a jump host, and again where an sshd dropped them.

An sshd drops new connections while many are not authenticated yet: 30 % of them from the 10th on, all from the 100th on
(`MaxStartups 10:30:100`). Through a jump host, all hosts of a fleet meet at one sshd.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from orchestrate.inventory.addresses import SSHAddress
from orchestrate.links.refusals import Dropped
from orchestrate.links.ssh import entrance

AT_A_TIME = 6
"""Connections that one jump host has to authenticate at a time: below 10, since others use it too."""

TURN_SECONDS = 5.0
"""A start that takes longer waits for the host behind: it does not keep others from the jump host."""

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 8.0
RETRIES = 8
"""About 40 s in all, more than an sshd gives a connection to a loaded jump host to log in before it is dropped."""

T = TypeVar("T")


class Turns:
    """Lets a number of starts go on at a time.

    Args:
        at_a_time: The number.
        seconds: After this time a start counts no more.
    """

    def __init__(self, at_a_time: int = AT_A_TIME, seconds: float = TURN_SECONDS) -> None:
        self._at_a_time = at_a_time
        self._seconds = seconds
        self._changed = threading.Condition()
        self._begun: dict[object, float] = {}

    @contextlib.contextmanager
    def turn(self) -> Iterator[Callable[[], None]]:
        """Wait for a turn, which ends with the context, or when the function that it gives is called."""
        start = object()
        with self._changed:
            while (seconds := self._wait_seconds()) > 0:
                self._changed.wait(seconds)
            self._begun[start] = time.monotonic()

        def end() -> None:
            with self._changed:
                if self._begun.pop(start, None) is not None:
                    self._changed.notify()

        try:
            yield end
        finally:
            end()

    def _wait_seconds(self) -> float:
        """Return how long until a start counts no more; 0: there is a free turn."""
        oldest_counted = time.monotonic() - self._seconds
        counted = [began for began in self._begun.values() if began > oldest_counted]
        return 0.0 if len(counted) < self._at_a_time else min(counted) - oldest_counted


@functools.cache
def _turns_of(entrance: str) -> Turns:
    """Return the turns of a jump host; it counts all connections of this process, whatever they are for."""
    return Turns()


@contextlib.contextmanager
def starting(login: SSHAddress) -> Iterator[Callable[[], None]]:
    """Wait for a turn to start a connection; call what it gives as soon as the connection stands."""
    through = entrance(login)
    if through is None:
        yield lambda: None
        return
    with _turns_of(through).turn() as opened:
        yield opened


def delays() -> Iterator[float]:
    """Yield the seconds to wait before each further try; random, so that hosts do not come back all at once."""
    for number in range(RETRIES):
        yield random.uniform(0.5, 1.5) * min(FIRST_DELAY_SECONDS * 2**number, LONGEST_DELAY_SECONDS)


def persist(start: Callable[[], T]) -> T:
    """Start a connection, again where an sshd dropped it.

    Raises:
        Dropped: Each time.
    """
    for delay in delays():
        with contextlib.suppress(Dropped):
            return start()
        time.sleep(delay)
    return start()
