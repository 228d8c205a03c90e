"""Where the time of a repeat went: each phase is announced when it begins, and measured until the next one does."""

from __future__ import annotations

import sys
import time

from results.schema import Phase
from results.schema.progress import state_line


class Phases:
    """Measures one phase after another; one that is entered twice counts once, with both times added up."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        self._name: str | None = None
        self._began = (0.0, 0.0)

    def enter(self, name: str) -> None:
        """End the phase before and begin the next, with a line on stderr.

        Args:
            name: One of `results.schema.progress.STATES`.
        """
        self._end()
        self._name, self._began = name, _now()
        print(state_line(name), file=sys.stderr, flush=True)  # noqa: T201 (progress is this program's stderr)

    def ended(self) -> list[Phase]:
        """Return the phases that have ended, in the order in which each began first."""
        return [Phase(name=name, seconds=wall, cpu_seconds=cpu) for name, (wall, cpu) in self._spent.items()]

    def _end(self) -> None:
        if self._name is not None:
            wall, cpu = self._spent.get(self._name, (0.0, 0.0))
            now = _now()
            self._spent[self._name] = wall + now[0] - self._began[0], cpu + now[1] - self._began[1]


def _now() -> tuple[float, float]:
    """Return the time and the processor time of all threads of this process, in seconds."""
    return time.perf_counter(), time.process_time()
