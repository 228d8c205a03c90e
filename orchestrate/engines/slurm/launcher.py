"""Runs repeats as tasks of Slurm job arrays, submitted all at once and followed by polling the queue.

Slurm and the shared folder hold the state of a run: if the controller dies, jobs continue and nothing is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrate.engines.base import Ending, OnTurn, OutputLine, Turn, always_running
from orchestrate.engines.polling import Poller
from orchestrate.engines.pulls import Progress
from orchestrate.engines.slurm import commands
from orchestrate.engines.slurm.answers import (
    ACTIVE,
    ENDINGS,
    WAITING,
    SlurmAnswer,
    SlurmState,
    Task,
    ending,
    ending_of_pending,
    facts_of,
    read_answer,
    submitted_id,
    task_ranges,
)
from orchestrate.engines.slurm.script import Array, batch_script, job_name, make_arrays, run_root
from orchestrate.errors import CancelledInQueue, HostError, LaunchFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job
from orchestrate.text import Lines, plain_text, whole_number
from results.schema import Status

PROJECT = Path(__file__).resolve().parents[3]

SETTLE_SECONDS = 30.0
"""Longest wait for a job's last file after its end: shared folders show new files with a delay."""

_MULTI_HOST = ("none", "pyxis")
_ONE_HOST_ONLY = (
    "on Slurm, a training step across several hosts requires container: none or pyxis",
    Status.UNSUPPORTED,
)

END_SECONDS = 60.0
"""Slurm kills a cancelled job after 30 seconds (KillWait)."""


@dataclass
class _Track:
    """A repeat that a worker slot follows.

    Attributes:
        offset: Bytes of its output that were passed on.
        cutter: Splits its output into lines.
        begun: Whether it has run or written output.
        status: The file written at the end of its batch script.
        quiet_since: When Slurm stopped reporting it as running or waiting; monotonic seconds.
    """

    task: Task | None
    offset: int = 0
    cutter: Lines = field(default_factory=Lines)
    lines: list[str] = field(default_factory=list)
    begun: bool = False
    state: SlurmState | None = None
    status: bytes | None = None
    record: bytes | None = None
    quiet_since: float | None = None
    ending: Ending | None = None


class SlurmLauncher:
    """Starts benchmarks through Slurm.

    Args:
        host: Settings of the fleet.
        queue: Settings of its queue.
    """

    def __init__(self, host: Host, queue: SlurmQueue) -> None:
        self._host = host
        self._queue = queue
        self._shell = commands.LoginShell(queue.login, host.host_keys)
        self._poller = Poller(f"Slurm of fleet {host.fleet}", self._poll, float(queue.poll_seconds))
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        self._run_id = ""
        self._surveyed = False
        self._arrays: dict[int, list[str]] = {}
        self._tasks: dict[str, Task] = {}
        self._present: set[str] = set()
        self._refused: dict[str, HostError] = {}
        self._highest = 0
        self._last_array: int | None = None
        self._known_arrays: set[int] = set()
        self._tracks: dict[str, _Track] = {}
        self._records: dict[str, bytes | None] = {}
        self._cancel: set[str] = set()
        self._cancelled: set[str] = set()
        self._remove: set[str] = set()

    def probe(self) -> Facts:
        """See `Launcher.probe`; reads what Slurm reports about the partition, without querying a node."""
        lines = self._shell.run(commands.probe(self._queue))
        return facts_of(self._host, self._queue, read_answer(lines))

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`; jobs pull images themselves."""

    def start(self, job: Job) -> bool:
        """See `Launcher.start`; submits only a repeat that is retried, because `submit` has submitted the others."""
        with self._lock:
            reattached = job.id in self._present
            known = reattached or job.id in self._tasks
        if not known and job.id not in self._refused:
            self.submit([job])
        if (refused := self._refused.pop(job.id, None)) is not None:
            raise refused
        return reattached

    def submit(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.submit`."""
        if not jobs:
            return
        with self._submitting:
            self._survey(jobs[0].origin.run_id)
            missing = [job for job in jobs if job.id not in self._present and job.id not in self._tasks]
            if self._queue.container not in _MULTI_HOST:
                self._refused |= {job.id: LaunchFailed(*_ONE_HOST_ONLY) for job in missing if job.case.num_hosts > 1}
                missing = [job for job in missing if job.id not in self._refused]
            for array in make_arrays(missing, self._highest + 1):
                try:
                    number = self._submit_array(array)
                except LaunchFailed as error:
                    self._refused.update(dict.fromkeys((job.id for job in array.jobs), error))
                    continue
                with self._lock:
                    self._note_array(array.number, number, [job.id for job in array.jobs])

    def cancel_waiting(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.cancel_waiting`; Slurm skips tasks that have started in the meantime."""
        with self._lock:
            tasks = [task for job in jobs if (task := self._tasks.get(job.id)) is not None]
            self._cancelled.update(job.id for job in jobs)
        if tasks:
            self._shell.run(commands.cancel(task_ranges(tasks), waiting_only=True))
        self._poller.hurry()

    def clear(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.clear`."""
        if not jobs:
            return
        self._survey(jobs[0].origin.run_id)
        names = {job.id for job in jobs}
        with self._lock:
            tasks = {job: task for job, task in self._tasks.items() if job in names}
        if tasks:
            self._shell.run(commands.cancel(task_ranges(tasks.values())))
            deadline = time.monotonic() + END_SECONDS
            while time.monotonic() < deadline:
                answer = self._query(commands.states(self._name))
                reported = map(answer.state, tasks.values())
                if not any(state is not None and state.name in ACTIVE for state in reported):
                    break
                time.sleep(1.0)
        self._shell.run(commands.remove(self._root, names))
        with self._lock:
            for name in names:
                self._forget(name)

    def manifests(self, jobs: Sequence[Job]) -> list[str]:
        """See `QueueLauncher.manifests`."""
        return [batch_script(array, self._host, self._queue, PROJECT) for array in make_arrays(jobs, 1)]

    def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`."""
        with self._lock:
            track = self._tracks[job.id] = _Track(self._tasks.get(job.id))
        try:
            while True:
                self._poller.wait()
                with self._lock:
                    lines, track.lines = track.lines, []
                    state, ended = track.state, track.ending
                    silent = self._queue.container != "none" and not track.offset
                if ended is None:
                    on_turn(_turn(state, self._poller.trouble, silent=silent))
                for line in lines:
                    on_line(line)
                if ended is not None:
                    return self._end(job, track, ended)
        finally:
            with self._lock:
                del self._tracks[job.id]

    def _end(self, job: Job, track: _Track, ended: Ending) -> Ending:
        if job.id in self._cancelled and not track.begun:
            with self._lock:
                self._forget(job.id)
            raise CancelledInQueue(job.id)
        self._records[job.id] = track.record
        return ended

    def collect(self, job: Job) -> bytes | None:
        """See `Launcher.collect`; the poll that reported the end included the record."""
        return self._records.pop(job.id, None)

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`; the next poll does it for all repeats at once."""
        with self._lock:
            self._cancel.add(job.id)
        self._poller.hurry()

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`; the next poll does it for all repeats at once."""
        with self._lock:
            self._remove.add(job.id)
            self._forget(job.id)

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        self._survey(run_id)
        return sorted(job for job in self._present if job.startswith(f"{self._host.key}."))

    def close(self) -> None:
        """See `Launcher.close`; removes the files of a finished run."""
        self._poller.close()
        if self._surveyed:
            with contextlib.suppress(HostError):  # `resume` and `stop` find the rest
                self._shell.run(commands.tidy(self._root, self._name, self._remove))

    # -- the cluster -------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return job_name(self._run_id, self._host)

    @property
    def _root(self) -> str:
        return run_root(self._run_id, self._host, self._queue)

    def _query(self, script: str) -> SlurmAnswer:
        return read_answer(self._shell.run(script))

    def _survey(self, run_id: str) -> None:
        """Find a run's pending, running and ended repeats on the cluster, once."""
        if self._surveyed:
            return
        self._run_id = run_id
        answer = self._query(commands.survey(self._root, self._name))
        with self._lock:
            for value in answer.values("jobs"):
                number, _, job = value.partition("|")
                if (known := whole_number(number)) is not None:
                    self._arrays.setdefault(known, []).append(job)
            ids: dict[int, list[str]] = {}
            for value in answer.values("id"):
                number, _, line = value.partition("|")
                if (known := whole_number(number)) is not None:
                    ids.setdefault(known, []).append(line)
            # Slurm may still list arrays of an earlier controller whose files are gone.
            self._highest = max([0, *self._arrays, *answer.arrays])
            self._known_arrays = answer.array_ids
            for own, jobs in self._arrays.items():
                if (array := submitted_id(ids.get(own, ())) or answer.arrays.get(own)) is not None:
                    self._note_array(own, array, jobs)
            ended = set(answer.values("ended"))
            for job, task in list(self._tasks.items()):
                state = answer.state(task)
                if job not in ended and (state is None or state.name not in ACTIVE):
                    del self._tasks[job]  # it ended without a result while no controller ran
            self._present = ended | self._tasks.keys()
            self._remove |= set(answer.values("begun")) - self._present
            self._surveyed = True

    def _note_array(self, number: int, array: int, jobs: list[str]) -> None:
        self._arrays[number] = jobs
        self._known_arrays.add(array)
        self._highest = max(self._highest, number)
        self._tasks.update((job, (array, index)) for index, job in enumerate(jobs))
        self._last_array = array if self._last_array is None else max(array, self._last_array)

    def _submit_array(self, array: Array) -> int:
        """Submit an array; after a lost answer, check that it is not in the queue before submitting it again.

        Raises:
            LaunchFailed: Slurm rejected it.
            Unreachable: Slurm does not answer.
        """
        text = batch_script(array, self._host, self._queue, PROJECT)
        names = [job.id for job in array.jobs]
        with self._lock:
            removals, self._remove = self._remove, set()
        script = commands.submit(self._root, array.number, text, names, removals, self._last_array)
        for tries in itertools.count(1):
            try:
                answer = self._query(script)
            except Unreachable:
                if tries == 3:
                    raise
                if (found := self._find_array(array.number)) is not None:
                    return found
                continue
            message = plain_text(" ".join(answer.values("refused")), 400)
            if message:
                break
            if (number := submitted_id(answer.values("submitted")) or self._find_array(array.number)) is not None:
                return number
            printed = plain_text(" ".join([*answer.values("submitted"), *answer.values("notice")]), 400)
            message = f"it printed no job id, and the queue has no such job: {printed or 'nothing'}"
            break
        raise LaunchFailed(f"sbatch refused an array of {len(names)} repeats: {message}", commands.refusal(message))

    def _find_array(self, number: int) -> int | None:
        """Return the job id of an array that may have been submitted, or None."""
        answer = self._query(commands.submitted(self._root, number, self._name))
        found = submitted_id(answer.values("submitted")) or answer.arrays.get(number)
        return found or max(answer.array_ids - self._known_arrays, default=None)

    def _poll(self) -> None:
        """Update all followed repeats, and cancel and remove others, with one script for any number of repeats."""
        with self._lock:
            followed = {job: track.offset for job, track in self._tracks.items() if track.status is None}
            cancels = [task for job in self._cancel if (task := self._tasks.get(job)) is not None]
            removals = set(self._remove)
        script = commands.poll(self._root, self._name, followed, task_ranges(cancels), removals)
        answer = self._query(script)
        now = time.monotonic()
        with self._lock:
            self._remove -= removals
            for job, track in self._tracks.items():
                self._take(job, track, answer, now)

    def _take(self, job: str, track: _Track, answer: SlurmAnswer, now: float) -> None:
        """Update a repeat from the cluster's answer."""
        track.task = self._tasks.get(job, track.task)
        reported = None if track.task is None else answer.state(track.task)
        track.state = reported or track.state
        if reported is not None and reported.name in WAITING:
            if (given_up := ending_of_pending(reported)) is not None:
                self._cancel.add(job)
                track.ending = given_up
            return
        output = answer.files.get(("log", job), b"")
        track.offset += len(output)
        track.lines += track.cutter.cut(output)
        if (status := answer.files.get(("done", job))) is not None:
            track.status = status
            track.record = answer.files.get(("record", job))
        name = "" if reported is None else reported.name
        track.begun |= track.status is not None or bool(track.offset) or name not in ("", "CANCELLED")
        track.quiet_since = None if name in ACTIVE else track.quiet_since or now
        ended = (track.status or b"").startswith(b"code 0\n")  # Slurm may list it as running for a moment
        if track.quiet_since is not None:
            explained = track.status is not None or name in ENDINGS or (job in self._cancelled and not track.begun)
            ended |= explained or now - track.quiet_since >= SETTLE_SECONDS
        if ended:
            track.ending = ending(reported, track.status)

    def _forget(self, job: str) -> None:
        """Discard the state of a repeat, so that the next `start` submits it again."""
        self._tasks.pop(job, None)
        self._present.discard(job)
        self._cancel.discard(job)


def _turn(state: SlurmState | None, trouble: str, *, silent: bool = False) -> Turn:
    """Describe the state of a repeat, which waits until Slurm reports otherwise.

    A container without output counts as waiting too: its node may be pulling the image, which takes none of its time.
    """
    if silent and state is not None and state.name not in WAITING:
        return Turn(waiting=True, node=state.node, reason="its node pulls the image and starts it", trouble=trouble)
    if state is None or state.name in WAITING:
        return Turn(waiting=True, reason="" if state is None else state.reason, trouble=trouble)
    return Turn(waiting=False, node=state.node, trouble=trouble)
