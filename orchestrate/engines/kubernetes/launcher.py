"""Runs each repeat as a Job of a Kubernetes cluster, created when a worker slot is free.

A Job's name is its lock. The record is printed as the last lines of the pod's log, because the files of an ended
container cannot be read. A log stream can end early: only the pod's state shows that a benchmark has ended.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import anyio.to_thread

from orchestrate import loop
from orchestrate.engines.base import Ending, OnTurn, OutputLine, Poller, Turn, always_running
from orchestrate.engines.bounded import malformed_as_error
from orchestrate.engines.invocation import JOB_LABEL
from orchestrate.engines.kubernetes.api import KubernetesCluster, NameTaken, Pod, Refused
from orchestrate.engines.kubernetes.manifests import job_manifest, object_name, run_selector, to_yaml
from orchestrate.engines.kubernetes.nodes import NoNode, fleet_facts, stated_facts
from orchestrate.engines.kubernetes.pods import Running, RunView, Waiting
from orchestrate.engines.pulls import Progress
from orchestrate.errors import CancelledInQueue, LaunchFailed, Lost
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import wanted_images, with_named_digest
from orchestrate.planning.plan import Job
from orchestrate.text import plain_text
from results.schema import Status
from results.schema.progress import MAX_RECORD_LINES, RecordReader
from results.schema.record_json import MAX_RECORD_BYTES
from results.text import counted

PULL_PATIENCE_SECONDS = 300.0
"""How long pulling an image may fail for reasons that may be transient."""

POLL_SECONDS = 2.0
"""Interval between queries of the Jobs and pods of a run."""

MINUTE_SECONDS = 60.0
REMOVAL_SECONDS = 120.0
"""Longest wait for the deletion of an earlier Job of the same name."""


class KubernetesLauncher:
    """Starts benchmarks in one namespace of a cluster; all worker slots of a fleet share it.

    Args:
        host: Settings of the fleet; `host.queue` specifies the cluster.
    """

    def __init__(self, host: Host) -> None:
        if not isinstance(host.queue, KubernetesQueue):
            raise ValueError(f"fleet {host.fleet} is not on Kubernetes")
        self._host = host
        self._queue = host.queue
        self._cluster = KubernetesCluster(host.queue)
        self._watched: tuple[Poller, RunView] | None = None
        self._logs: dict[str, _Log] = {}
        self._cancelled: set[str] = set()
        self._digests: dict[str, str] = {}
        self._progress_at = time.monotonic()

    @malformed_as_error("the cluster")
    def probe(self) -> Facts:
        """See `Launcher.probe`; reads the labels of the nodes."""
        facts = self._node_facts()
        named = bool(self._host.image or self._host.variants)
        if facts.gpus and not named and not (facts.driver and all(gpu.compute_capability for gpu in facts.gpus)):
            raise LaunchFailed(
                "the nodes have no labels of their driver and compute capability. Set variant: in hosts.yml, or "
                "install NVIDIA's GPU feature discovery",
                Status.UNSUPPORTED,
            )
        images = wanted_images(self._host, facts, read_variants())
        return dataclasses.replace(facts, images=tuple(map(with_named_digest, images)))

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`; nodes pull images themselves."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.submit`; `start` creates the Jobs, so that there is at most one per worker slot."""
        if jobs:
            self._watch(jobs[0])

    @malformed_as_error("the cluster")
    def start(self, job: Job) -> bool:
        """See `Launcher.start`."""
        self._watch(job)
        if job.case.num_hosts > 1:
            raise LaunchFailed(
                "a training step across several hosts does not run on Kubernetes. Use a fleet of hosts, or Slurm",
                Status.UNSUPPORTED,
            )
        manifest = job_manifest(job, self._host, self._queue, self._digests.get(job.origin.image or ""))
        deadline = time.monotonic() + REMOVAL_SECONDS
        while True:
            try:
                self._cluster.create_job(manifest)
                return False
            except NameTaken:
                found = self._cluster.job(object_name(job))
            if found is None:
                continue  # it was deleted in between
            if not found.belongs_to(job):
                raise LaunchFailed(
                    f"a Job named {object_name(job)} exists, but it does not belong to this run. Remove it"
                )
            if not found.deleted:
                return True
            if time.monotonic() > deadline:
                raise Lost(f"an earlier Job {object_name(job)} was not deleted in time: its node may be lost")
            time.sleep(1.0)

    @malformed_as_error("the cluster")
    def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`."""
        poller, view = self._watch(job)
        log = self._logs.setdefault(job.id, _Log(RecordReader(MAX_RECORD_BYTES)))
        patience = _Patience(self._queue.pending_minutes * MINUTE_SECONDS)
        begun, missed, name = False, 0, object_name(job)

        def note(line: str) -> None:
            self._progress_at = time.monotonic()  # one stream may last as long as the repeat
            on_line(line)

        while True:
            loop.wait_for(poller.wait())
            state, pod = view.state(name), view.pod_of(name)
            if state is None:
                missed += not poller.trouble
                # A query that was in flight when the Job was created does not show it.
                state = Waiting("waiting for a pod") if missed < 2 else _GONE
            started = begun or isinstance(state, Running) or (isinstance(state, Ending) and state.exit_code is not None)
            if job.id in self._cancelled and not started:
                self._cluster.delete_job(name)
                raise CancelledInQueue
            if isinstance(state, Waiting):
                on_turn(Turn(waiting=True, node=pod.node if pod else None, reason=state.reason))
                failure = patience.lost(state, self._progress_at)
                if failure is not None:
                    return Ending(exit_code=None, failure=failure)
            elif isinstance(state, Running):
                begun = True
                self._progress_at = time.monotonic()
                on_turn(Turn(waiting=False, node=state.node))
                if pod is not None:
                    log.take(self._cluster.follow_log(pod.name), note)
            else:
                self._progress_at = time.monotonic()
                return self._ended(job, pod, state, log, on_line, on_turn)

    def collect(self, job: Job) -> bytes | None:
        """See `Launcher.collect`; the record is in the last lines of the pod's log."""
        log = self._logs.get(job.id)
        if log is None:
            return None
        payload = log.record.payload()
        if payload is None and log.record.begun and not log.cut_short:
            raise LaunchFailed("its record is incomplete: the end of the pod's log is missing", Status.BAD_RESULT)
        return payload

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`; `follow` reads the log to its end, including the record."""
        self._cluster.delete_job(object_name(job))

    def cancel_waiting(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.cancel_waiting`; each slot deletes its own Job, even one that is being created now."""
        self._cancelled.update(job.id for job in jobs)
        if self._watched is not None:
            self._watched[0].hurry()

    def clear(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.clear`; lists the Jobs first, because most repeats have none."""
        there = set(self.running(jobs[0].origin.run_id)) if jobs else set()
        for job in jobs:
            if job.id in there:
                self.remove(job)

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`."""
        self._cluster.delete_job(object_name(job))
        self._logs.pop(job.id, None)
        if self._watched is not None:
            self._watched[1].forget(object_name(job))

    @malformed_as_error("the cluster")
    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        there = self._cluster.jobs(run_selector(run_id))
        return [job.annotations[JOB_LABEL] for job in there if JOB_LABEL in job.annotations]

    def manifests(self, jobs: Sequence[Job]) -> list[str]:
        """See `QueueLauncher.manifests`; YAML for `kubectl apply`."""
        return [to_yaml(job_manifest(job, self._host, self._queue)) for job in jobs]

    def close(self) -> None:
        """See `Launcher.close`."""
        if self._watched is not None:
            self._watched[0].close()
        self._cluster.close()

    def _node_facts(self) -> Facts:
        """Return the facts of the nodes, or those in hosts.yml if no node exists now or listing them is forbidden."""
        selector = ",".join(f"{key}={value}" for key, value in self._queue.node_selector.items())
        wants_gpus = self._host.wants_gpus
        stated = self._queue.gpus_per_node is not None and bool(self._host.image or self._host.variants)
        try:
            return fleet_facts(self._cluster.nodes(selector), self._queue, wants_gpus=wants_gpus)
        except Refused as error:
            if not stated:
                raise Refused(
                    f"{error.cause}. If you may not list nodes, set gpus_per_node: and variant: in hosts.yml"
                ) from error
        except NoNode:
            if not stated:
                raise
        return stated_facts(self._queue, wants_gpus=wants_gpus)

    def _watch(self, job: Job) -> tuple[Poller, RunView]:
        """Return the poller and the view of the run's Jobs, created by the first call; a launcher serves one run."""
        if self._watched is None:
            view = RunView(self._cluster, run_selector(job.origin.run_id))
            self._watched = (
                Poller(
                    f"the cluster of fleet {self._host.fleet}",
                    functools.partial(anyio.to_thread.run_sync, view.poll),
                    POLL_SECONDS,
                ),
                view,
            )
        return self._watched

    def _ended(
        self, job: Job, pod: Pod | None, ending: Ending, log: _Log, on_line: OutputLine, on_turn: OnTurn
    ) -> Ending:
        """Read the rest of the log, and keep the digest of the image's tag."""
        if pod is not None and ending.exit_code is not None:
            on_turn(Turn(waiting=False, node=ending.node))
            if log.record.payload() is None:
                log.take(self._cluster.log_end(pod.name, MAX_RECORD_LINES * 4), on_line)
        log.cut_short = ending.failure is not None or ending.exit_code is None
        if ending.image_digest and job.origin.image:
            self._digests.setdefault(job.origin.image, ending.image_digest)
        return ending


@dataclass
class _Log:
    """The output of one repeat; no line is read twice when a broken stream is reopened."""

    record: RecordReader
    stamp: str = ""
    cut_short: bool = False

    def take(self, lines: Iterable[str], on_line: OutputLine) -> None:
        """Pass on lines that have not been read yet."""
        before = self.stamp
        for line in lines:
            stamp, _, text = line.partition(" ")
            if self.record.take(text) or (before and stamp <= before):
                continue
            self.stamp = max(self.stamp, stamp)
            on_line(plain_text(text))


@dataclass
class _Patience:
    """Measures how long a repeat has been unable to start.

    Attributes:
        pending_seconds: How long a repeat may remain unscheduled.
    """

    pending_seconds: float
    since: float | None = None

    def lost(self, state: Waiting, progress_at: float) -> tuple[Status, str] | None:
        """Return why waiting should end; None: it may continue.

        Args:
            state: The current state.
            progress_at: When a repeat of the fleet last ran: nodes occupied by our own repeats are not missing.
        """
        now = time.monotonic()
        if state.failure is None:
            self.since = None
            return None
        self.since = now if self.since is None else self.since
        if not state.transient:
            return state.failure
        since = self.since if state.scheduled else max(self.since, progress_at)
        limit = PULL_PATIENCE_SECONDS if state.scheduled else self.pending_seconds
        if now - since < limit:
            return None
        status, cause = state.failure
        return status, f"after {counted(f'{limit / MINUTE_SECONDS:g}', 'minute')}: {cause}"


_GONE = Ending(exit_code=None, failure=(Status.LOST, "its Job is gone: somebody deleted it"))
