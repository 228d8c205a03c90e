"""A host behind the launcher's interface, without any engine; counters make every expected value exact."""

import dataclasses
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from orchestrate.engines.base import Ending, Launcher, OnTurn, OutputLine, Progress, always_running
from orchestrate.errors import HostError
from orchestrate.inventory.hosts import Host
from orchestrate.loop import in_thread
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job
from results.schema import Case, Origin, Record
from results.schema.record_json import to_json
from tests.unit.results.factory import make_record

NOW = datetime.now(UTC).isoformat(timespec="seconds")


def make_job(case: Case, repeat: int = 1, **origin: Any) -> Job:
    """Return a repeat of a case on the host `h` of the fleet `f`."""
    place = {"run_id": "r", "fleet": "f", "host": "h", "launcher": "docker", "repeat": repeat, **origin}
    return Job(id=f"{place['fleet']}.{place['host']}.{case.model}.r{repeat}", case=case, origin=Origin(**place))


def ok_record(case: Case, seconds: float = 2.0) -> Record:
    """Write what a benchmark would, with round numbers."""
    rate = case.global_batch * case.num_steps / seconds
    return dataclasses.replace(make_record(rate, case=case, started_at=NOW), origin=None)


@dataclasses.dataclass
class FakeHost:
    """What a fake host answers and does; one object outlives any number of launchers, as a machine does.

    `failures` are errors that calls raise, by their name.
    """

    facts: Facts | HostError = dataclasses.field(default_factory=Facts)
    payload: Callable[[Job], bytes | None] = lambda job: to_json(ok_record(job.case)).encode()
    ending: Ending = dataclasses.field(default_factory=lambda: Ending(exit_code=0))
    failures: dict[str, HostError] = dataclasses.field(default_factory=dict)
    lines: tuple[str, ...] = ("tfbench: state timing", "step     10        12.3 images/s       81.2 ms  loss 7.0120")
    on_follow: Callable[[Job], None] = lambda job: None
    containers: dict[str, str] = dataclasses.field(default_factory=dict)
    calls: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    stopped: set[str] = dataclasses.field(default_factory=set)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def count(self, call: str) -> int:
        """Count the calls of one kind."""
        return sum(name == call for name, _ in self.calls)


class FakeLauncher(Launcher):
    """Implements `Launcher` on a `FakeHost`."""

    def __init__(self, host: Host, machine: FakeHost) -> None:
        self._host = host
        self._machine = machine

    def probe(self) -> Facts:
        self._note("probe")
        if isinstance(self._machine.facts, HostError):
            raise self._machine.facts
        return self._machine.facts

    def prepare(self, job: Job, on_progress: Progress) -> None:
        self._note("prepare", job)

    def start(self, job: Job) -> bool:
        reattached = job.id in self._machine.containers
        self._note("reattach" if reattached else "start", job)
        self._machine.containers.setdefault(job.id, "running")
        return reattached

    async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        return await in_thread(lambda: self.wait(job, on_line))

    def wait(self, job: Job, on_line: OutputLine) -> Ending:
        for line in self._machine.lines:
            on_line(line)
        self._machine.on_follow(job)
        self._note("follow", job)
        if job.id in self._machine.stopped:
            return Ending(exit_code=143)
        return dataclasses.replace(self._machine.ending, record=self._machine.payload(job))

    def stop(self, job: Job) -> None:
        self._note("stop", job)
        self._machine.stopped.add(job.id)

    def remove(self, job: Job) -> None:
        self._note("remove", job)
        self._machine.containers.pop(job.id, None)

    def running(self, run_id: str) -> list[str]:
        self._note("running")
        return list(self._machine.containers)

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str, job: Job | None = None) -> None:
        with self._machine.lock:
            self._machine.calls.append((call, job.id if job else ""))
        if call in self._machine.failures:
            raise self._machine.failures[call]
