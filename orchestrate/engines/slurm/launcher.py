"""Runs repeats as tasks of Slurm job arrays, submitted all at once and followed by polling the queue.

Slurm and the shared folder hold the state of a run: if the controller dies, jobs continue and nothing is lost. The
agent on the login host runs Slurm's commands and reads the shared folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from orchestrate import loop
from orchestrate.engines.base import Ending, OnTurn, OutputLine, Poller, Progress, QueueLauncher, Turn, always_running
from orchestrate.engines.slurm import answers
from orchestrate.engines.slurm.answers import UNLISTED, QueueStates, SlurmState, Task
from orchestrate.engines.slurm.script import batch_script, job_name, make_arrays
from orchestrate.engines.ssh.channel import Channel, shared_channel
from orchestrate.errors import CancelledInQueue, HostError, LaunchFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job
from orchestrate.project import PROJECT
from orchestrate.text import Lines, plain_text, whole_number
from results.schema import Status
from results.schema.record_json import MAX_RECORD_BYTES

COMMAND_SECONDS = 120.0
"""Time limit of a command, which hangs if the shared folder is gone or the scheduler is busy."""

POLL_BYTES = 8 << 20
"""Limit for files of repeats per poll; once exceeded, the remaining repeats wait for the next poll."""

SETTLE_SECONDS = 30.0
"""Longest wait for a job's last file after its end: shared folders show new files with a delay."""

END_SECONDS = 60.0
"""Slurm kills a cancelled job after 30 seconds (KillWait)."""

TIDY_SECONDS = 5.0
"""Slurm lists a job as running for a moment after its last file is written."""

SQUEUE = ("squeue", "--noheader", "--me", "--array", "--states=all", f"--format={answers.STATES_FORMAT}")
NOTHING_ELSE = {"cancel": [], "cancel_options": [], "over": False, "limit_seconds": COMMAND_SECONDS}
"""What is asked of an agent unless something else is."""

NOT_BEGUN = {*answers.WAITING, UNLISTED.name, "CANCELLED"}


@dataclass
class _Repeat:
    """What is known of a repeat.

    Attributes:
        task: Its place in the queue; None: it was not submitted.
        was_there: Whether it was found in the queue or in the shared folder.
        is_followed: Whether a worker slot follows it.
        cutter: Splits its output into lines.
        lines: Lines of its output that were not passed on yet.
        state: As Slurm reported it last.
        status: The file written at the end of its batch script.
        quiet_since: When Slurm stopped reporting it as running or waiting; monotonic seconds.
        ending: How it ended, also without having started; None: it has not.
        ends: Whether the next poll cancels it.
        is_cancelled: Whether it was cancelled unless it had started.
    """

    task: Task | None = None
    was_there: bool = False
    is_followed: bool = False
    cutter: Lines = field(default_factory=Lines)
    lines: list[str] = field(default_factory=list)
    state: SlurmState = UNLISTED
    status: bytes | None = None
    record: bytes | None = None
    quiet_since: float | None = None
    ending: Ending | None = None
    ends: bool = False
    is_cancelled: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether it has run or written output."""
        return self.status is not None or self.cutter.taken > 0 or self.state.name not in NOT_BEGUN

    def note(self, reported: SlurmState) -> None:
        """Take its state in the queue, after its files."""
        if reported is not UNLISTED:
            self.state = reported
        if reported.waits and self.status is None:
            self.ending = answers.ending_of_pending(reported)
            self.ends |= self.ending is not None
            return
        ended = (self.status or b"").startswith(b"code 0\n")  # Slurm may list it as running for a moment
        if reported.is_active:
            self.quiet_since = None
        else:
            self.quiet_since = self.quiet_since or time.monotonic()
            explained = self.status is not None or reported.name in answers.ENDINGS
            ended |= explained or (self.is_cancelled and not self.has_begun)
            ended |= time.monotonic() - self.quiet_since >= SETTLE_SECONDS
        if ended:
            self.lines += self.cutter.end()
            self.ending = dataclasses.replace(answers.ending(reported, self.status), record=self.record)


class SlurmLauncher(QueueLauncher):
    """Starts benchmarks through Slurm; its state belongs to the loop, and other threads add and remove whole repeats.

    Args:
        host: Settings of the fleet.
        queue: Settings of its queue.
        channel: Replaces the channel to the login host in tests.
    """

    def __init__(self, host: Host, queue: SlurmQueue, channel: Channel | None = None) -> None:
        self._host = host
        self._queue = queue
        finds = "" if queue.login is None else "sbatch"
        self._channel = channel or shared_channel(queue.login, host.host_keys, finds=finds)
        self._poller = Poller(f"Slurm of fleet {host.fleet}", self._poll, float(queue.poll_seconds))
        self._submitting, self._surveying = anyio.Lock(), anyio.Lock()
        self._run_id: str | None = None
        self._arrays = 0
        self._last_array: int | None = None
        self._repeats: dict[str, _Repeat] = {}
        self._removals: set[str] = set()

    def probe(self) -> Facts:
        """See `Launcher.probe`; reads what Slurm reports about the partition, without querying a node."""
        questions = (["--version"], ["--noheader", "--Node", f"--format={answers.NODES_FORMAT}"])
        asked = (self._channel.run(["sinfo", *words], {}, COMMAND_SECONDS) for words in questions)
        try:
            version, nodes = map(loop.wait_for, asked)
        except LaunchFailed as error:
            raise Unreachable(error.cause) from error
        if loop.wait_for(self._ask("survey")).get("usable") is not True:
            folder = self._queue.shared_folder
            raise LaunchFailed(f"shared_folder {folder} does not exist or is not writable. Create it")
        return answers.facts_of(self._host, self._queue, version, nodes)

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`; jobs pull images themselves."""

    def start(self, job: Job) -> bool:
        """See `Launcher.start`; submits only a repeat that is retried, because `submit` has submitted the others."""
        if job.id not in self._repeats:
            self.submit([job])
        return self._repeats[job.id].was_there

    def submit(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.submit`; what Slurm refuses has ended."""
        if jobs:
            loop.wait_for(self._submit(jobs))

    async def _submit(self, jobs: Sequence[Job]) -> None:
        async with self._submitting:
            await self._survey(jobs[0].origin.run_id)
            for array in make_arrays([job for job in jobs if job.id not in self._repeats]):
                try:
                    if array[0].case.num_hosts > 1 and self._queue.container == "apptainer":
                        several = "on Slurm, a training step across several hosts requires container: none or pyxis"
                        raise LaunchFailed(several, Status.UNSUPPORTED)
                    number = await self._submit_array(array)
                except LaunchFailed as error:
                    refused = Ending(exit_code=None, failure=(error.status, error.cause))
                    self._repeats.update((job.id, _Repeat(ending=refused)) for job in array)
                else:
                    self._repeats.update((job.id, _Repeat((number, index))) for index, job in enumerate(array))

    async def _submit_array(self, array: Sequence[Job]) -> int:
        """Submit an array and return its job id.

        Raises:
            LaunchFailed: Slurm rejected it.
            Unreachable: The login host does not answer.
        """
        self._arrays += 1
        if self._removals:  # before, because a request may be sent twice
            await self._ask("survey")
        answer = await self._ask(
            "submit",
            number=self._arrays,
            script=batch_script(array, self._host, self._queue, PROJECT),
            jobs="\n".join(job.id for job in array),
            options=[] if self._last_array is None else [f"--dependency=afterany:{self._last_array}"],
        )
        if (number := answers.submitted_id(printed := str(answer.get("output")))) is None:
            # A site that swallows the id: what it may have accepted must not run unseen.
            known = {repeat.task[0] for repeat in self._repeats.values() if repeat.task is not None}
            unseen = {array for array, _ in _states(await self._ask("survey"))} - known
            await self._ask("survey", cancel=list(map(str, unseen)))
            raise LaunchFailed(f"sbatch printed no job id: {plain_text(printed, 400).strip()}")
        self._last_array = max(number, self._last_array or 0)
        return number

    def cancel_waiting(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.cancel_waiting`; Slurm skips tasks that have started in the meantime."""
        for job in jobs:
            if (repeat := self._repeats.get(job.id)) is not None:
                repeat.is_cancelled = True
        waiting = self._tasks(job.id for job in jobs)
        loop.wait_for(self._ask("survey", cancel=answers.task_lists(waiting), cancel_options=["--state=PENDING"]))
        self._poller.hurry()

    def clear(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.clear`."""
        if jobs:
            loop.wait_for(self._clear(jobs[0].origin.run_id, [job.id for job in jobs]))

    async def _clear(self, run_id: str, names: Sequence[str]) -> None:
        await self._survey(run_id)
        tasks = self._tasks(names)
        with anyio.move_on_after(END_SECONDS):
            while tasks:
                states = _states(await self._ask("survey", cancel=answers.task_lists(tasks)))
                tasks = [task for task in tasks if answers.state_of(states, task).is_active]
                await anyio.sleep(1.0 if tasks else 0)
        self._removals.update(names)
        await self._ask("survey")
        for name in names:
            self._repeats.pop(name, None)

    def manifests(self, jobs: Sequence[Job]) -> list[str]:
        """See `QueueLauncher.manifests`."""
        return [batch_script(array, self._host, self._queue, PROJECT) for array in make_arrays(jobs)]

    async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`."""
        repeat = self._repeats.setdefault(job.id, _Repeat())
        repeat.is_followed = True
        try:
            while (ended := repeat.ending) is None:
                await self._poller.wait()
                if repeat.ending is None:
                    # A container without output waits too: its node may be pulling the image.
                    silent = self._queue.container != "none" and not repeat.cutter.taken
                    waits, node = silent or not repeat.state.name or repeat.state.waits, repeat.state.node
                    on_turn(Turn(waiting=waits, node=node, trouble=self._poller.trouble))
                lines, repeat.lines = repeat.lines, []
                for line in lines:
                    on_line(line)
        finally:
            repeat.is_followed = False
        if repeat.is_cancelled and not repeat.has_begun:
            self._repeats.pop(job.id, None)
            raise CancelledInQueue(job.id)
        return ended

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`; the next poll does it for all repeats at once."""
        if job.id in self._repeats:
            self._repeats[job.id].ends = True
        self._poller.hurry()

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`; the next poll does it for all repeats at once."""
        self._removals.add(job.id)
        self._repeats.pop(job.id, None)

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        loop.wait_for(self._survey(run_id))
        there = (name for name, repeat in self._repeats.items() if repeat.was_there)
        return sorted(name for name in there if name.startswith(f"{self._host.key}."))

    def close(self) -> None:
        """See `Launcher.close`; removes the files of a finished run."""
        if self._run_id is not None:
            with contextlib.suppress(HostError):  # `resume` and `stop` find the rest
                loop.wait_for(self._tidy())

    async def _tidy(self) -> None:
        """Remove the files of repeats, and the run's folder if no files or active jobs of it remain.

        A completing job writes nothing more, but may be listed for as long as the cluster's epilog runs or its node
        does not respond.
        """
        ends_at, may_write = time.monotonic() + TIDY_SECONDS, True
        while may_write and time.monotonic() < ends_at:
            states = _states(await self._ask("survey")).values()
            may_write = any(state.is_active and state.name != "COMPLETING" for state in states)
            await (anyio.sleep(1.0) if may_write else self._ask("survey", over=True))

    # -- the cluster -------------------------------------------------------------------------------------------

    async def _ask(self, do: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401
        """Ask the agent about the run's jobs and folder, of which it first ends and removes what is no longer needed.

        Raises:
            Unreachable: The login host or Slurm does not answer.
            LaunchFailed: Slurm rejected what was submitted.
        """
        removals, name = set(self._removals), job_name(self._run_id or "", self._host)
        folder, squeue = f"{self._queue.shared_folder}/{name}", [*SQUEUE, f"--name={name}"]
        about = {"folder": folder, "removals": sorted(removals), "squeue": squeue, **NOTHING_ELSE, **request}
        try:
            answer = await self._channel.answer(do, seconds=3 * COMMAND_SECONDS, **about)
        except LaunchFailed as error:
            if do == "submit":
                raise
            raise Unreachable(error.cause) from error
        self._removals -= removals
        return answer

    def _tasks(self, names: Iterable[str]) -> list[Task]:
        repeats = [self._repeats[name] for name in names if name in self._repeats]
        return [repeat.task for repeat in repeats if repeat.task is not None]

    async def _survey(self, run_id: str) -> None:
        """Find a run's pending, running and ended repeats on the cluster, once."""
        async with self._surveying:
            if self._run_id is not None:
                return
            self._run_id = run_id
            try:
                self._note_found(await self._ask("survey"))
            except HostError:
                self._run_id = None
                raise

    def _note_found(self, answer: Mapping[str, Any]) -> None:
        states = _states(answer)
        arrays, begun, ended = (answer.get(key) for key in ("arrays", "begun", "ended"))
        for number, array in sorted(arrays.items()) if isinstance(arrays, dict) else ():
            self._arrays = max(self._arrays, whole_number(number) or 0)
            jobs, printed = map(str, array) if isinstance(array, list) and len(array) == 2 else ("", "")
            job_id = answers.submitted_id(printed)
            for index, job in enumerate(jobs.split()):
                task = None if job_id is None else (job_id, index)
                if answers.state_of(states, task).is_active:  # else it ended without a result while no controller ran
                    self._repeats[job] = _Repeat(task, was_there=True)
            self._last_array = max(job_id or 0, self._last_array or 0) or None
        for job in str(ended or "").split():
            self._repeats.setdefault(job, _Repeat()).was_there = True
        self._removals |= set(str(begun or "").split()) - self._repeats.keys()

    async def _poll(self) -> None:
        """Update all followed repeats, and cancel and remove others, in one request for any number of repeats."""
        repeats = dict(self._repeats)  # threads add and remove some
        followed = {name: repeat for name, repeat in repeats.items() if repeat.is_followed}
        offsets = [(name, repeat.cutter.taken) for name, repeat in followed.items() if repeat.status is None]
        answer = await self._ask(
            "poll",
            cancel=answers.task_lists(self._tasks(name for name, repeat in repeats.items() if repeat.ends)),
            followed=sorted(offsets, key=lambda item: item[1]),  # the quietest first: POLL_BYTES may not last for all
            limit_bytes=POLL_BYTES,
            limit_record_bytes=MAX_RECORD_BYTES + 1,
        )
        found = answer.get("repeats")
        for name, files in found.items() if isinstance(found, dict) else ():
            if (repeat := followed.get(name)) is not None and isinstance(files, list) and len(files) == 3:
                log, status, record = (None if text is None else self._channel.decode(text) for text in files)
                repeat.lines += repeat.cutter.cut(log or b"")
                repeat.status, repeat.record = status, record
        states = _states(answer)
        for repeat in followed.values():
            repeat.note(answers.state_of(states, repeat.task))


def _states(answer: Mapping[str, Any]) -> QueueStates:
    return answers.read_states(str(answer.get("states")))
