"""Runs each repeat as a Job of a Kubernetes cluster, created when a worker slot is free.

A Job's name is its lock. The record is printed as the last lines of the pod's log, because the files of an ended
container cannot be read. A log stream can end early: only the pod's state shows that a benchmark has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from functools import partial

from orchestrate.engines.base import Ending, OnTurn, OutputLine, Poller, Progress, QueueLauncher, Turn, always_running
from orchestrate.engines.bounded import malformed_as_error
from orchestrate.engines.invocation import JOB_LABEL, RUN_LABEL
from orchestrate.engines.kubernetes import api
from orchestrate.engines.kubernetes.manifests import job_manifest, object_name, run_selector
from orchestrate.engines.kubernetes.nodes import NoNode, fleet_facts, stated_facts
from orchestrate.engines.kubernetes.pods import Stuck, read_state, without_pod
from orchestrate.errors import CancelledInQueue, LaunchFailed, Lost
from orchestrate.inventory.hosts import Host
from orchestrate.loop import in_thread
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import wanted_images
from orchestrate.planning.plan import Job
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

WARNINGS = "type=Warning,involvedObject.kind=Job"
_GONE = Ending(exit_code=None, failure=(Status.LOST, "its Job is gone: somebody deleted it"))


@dataclasses.dataclass
class _Repeat:
    """What is known of a repeat whose Job exists.

    Attributes:
        uid: Of its Job, to which its pods belong.
        pod: As last listed. It is the first one, which also explains the end of a repeat after it was deleted: the
            replacement of a lost pod would be another measurement.
        record: Reads the record at the end of its log.
        stamp: Of the last line that was read, so that none is read twice when a broken stream is reopened.
    """

    uid: str
    pod: api.Pod | None = None
    record: RecordReader = dataclasses.field(default_factory=lambda: RecordReader(MAX_RECORD_BYTES))
    stamp: str = ""


class KubernetesLauncher(QueueLauncher):
    """Starts benchmarks in one namespace of a cluster; all worker slots of a fleet share it, for one run.

    Args:
        host: Settings of the fleet; `host.kubernetes` specifies the cluster.
    """

    def __init__(self, host: Host) -> None:
        assert host.kubernetes is not None
        self._host = host
        self._queue = host.kubernetes
        self._cluster = api.KubernetesCluster(host.kubernetes)
        self._poller = Poller(f"the cluster of fleet {host.fleet}", partial(in_thread, self._poll), POLL_SECONDS)
        self._run_id = ""
        self._repeats: dict[str, _Repeat] = {}
        # As of the last poll: Jobs by name, uids of pods, and warnings by Job.
        self._jobs: dict[str, api.KubernetesJob] = {}
        self._present: set[str] = set()
        self._warnings: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self._digests: dict[str, str] = {}
        self._progress_at = time.monotonic()

    @malformed_as_error("the cluster")
    def probe(self) -> Facts:
        """See `Launcher.probe`; reads the labels of the nodes, or else what hosts.yml states."""
        selector = ",".join(f"{key}={value}" for key, value in self._queue.node_selector.items())
        wants_gpus, named = self._host.wants_gpus, bool(self._host.image or self._host.variant)
        try:
            nodes = self._cluster.objects(api.Node, label_selector=selector)
            facts = fleet_facts(nodes, self._queue, wants_gpus=wants_gpus)
        except (api.Refused, NoNode):  # listing them is forbidden, or none exists now
            if self._queue.gpus_per_node is None or not named:
                raise
            facts = stated_facts(self._queue, wants_gpus=wants_gpus)
        if facts.gpus and not named and not (facts.driver and all(gpu.compute_capability for gpu in facts.gpus)):
            raise LaunchFailed(
                "the nodes have no labels of their driver and compute capability. Set variant: in hosts.yml, or "
                "install NVIDIA's GPU feature discovery",
                Status.UNSUPPORTED,
            )
        return dataclasses.replace(facts, images=wanted_images(self._host, facts))

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`; nodes pull images themselves."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.submit`; `start` creates the Jobs, so that there is at most one per worker slot."""

    @malformed_as_error("the cluster")
    def start(self, job: Job) -> bool:
        """See `Launcher.start`."""
        if job.case.num_hosts > 1:
            raise LaunchFailed(
                "a training step across several hosts does not run on Kubernetes. Use a fleet of hosts, or Slurm",
                Status.UNSUPPORTED,
            )
        self._run_id, name = job.origin.run_id, object_name(job)
        manifest = job_manifest(job, self._host, self._queue, self._digests.get(job.origin.image or ""))
        deadline = time.monotonic() + REMOVAL_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(api.NameTaken):
                self._repeats[job.id] = _Repeat(self._cluster.create_job(manifest).uid)
                return False
            found = next(iter(self._cluster.objects(api.KubernetesJob, field_selector=f"metadata.name={name}")), None)
            if found is None:
                continue  # it was deleted in between
            if (found.annotations.get(JOB_LABEL), found.annotations.get(RUN_LABEL)) != (job.id, self._run_id):
                raise LaunchFailed(f"a Job named {name} exists, but it does not belong to this run. Remove it")
            if not found.deleted:
                self._repeats[job.id] = _Repeat(found.uid)
                return True
            time.sleep(1.0)
        raise Lost(f"an earlier Job {name} was not deleted in time: its node may be lost")

    async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`."""
        repeat = self._repeats[job.id]
        stuck_since: float | None = None
        begun, missed = False, 0
        while True:
            await self._poller.wait()
            state, pod = self._state(job, repeat), repeat.pod
            if state is None:
                missed += not self._poller.trouble
                # A query that was in flight when the Job was created does not show it.
                state = Turn(waiting=True) if missed < 2 else _GONE
            begun = begun or (state.exit_code is not None if isinstance(state, Ending) else not state.waiting)
            if job.id in self._cancelled and not begun:
                await in_thread(partial(self.stop, job))
                raise CancelledInQueue
            if isinstance(state, Ending):
                break
            on_turn(state)
            if isinstance(state, Stuck):
                stuck_since = stuck_since or time.monotonic()
                if (failure := self._hopeless(state, stuck_since)) is not None:
                    return Ending(exit_code=None, failure=failure)
            else:
                stuck_since = None
            if not state.waiting and pod is not None:
                self._progress_at = time.monotonic()
                await in_thread(partial(self._read_log, repeat, pod, on_line))
        self._progress_at = time.monotonic()
        if pod is not None and state.exit_code is not None:
            on_turn(Turn(waiting=False, node=state.node))
            if repeat.record.payload() is None:
                await in_thread(partial(self._read_log, repeat, pod, on_line, ended=True))
            if state.failure is None and repeat.record.begun and repeat.record.payload() is None:
                raise LaunchFailed("its record is incomplete: the end of the pod's log is missing", Status.BAD_RESULT)
        if state.image_digest and job.origin.image:
            self._digests.setdefault(job.origin.image, state.image_digest)
        return dataclasses.replace(state, record=repeat.record.payload())

    @malformed_as_error("the cluster")
    def _read_log(self, repeat: _Repeat, pod: api.Pod, on_line: OutputLine, *, ended: bool = False) -> None:
        """Pass on the lines of a pod's log that have not been read yet: as they arrive, or its last ones."""
        before = repeat.stamp
        lines = self._cluster.log_end(pod.name, MAX_RECORD_LINES * 4) if ended else self._cluster.follow_log(pod.name)
        for line in lines:
            self._progress_at = time.monotonic()  # one stream may last as long as the repeat
            stamp, _, text = line.partition(" ")
            if repeat.record.take(text) or (before and stamp <= before):
                continue
            repeat.stamp = max(repeat.stamp, stamp)
            on_line(text)

    def _hopeless(self, state: Stuck, since: float) -> tuple[Status, str] | None:
        """Return why a repeat should not wait any longer; None: it may.

        Args:
            state: Its state.
            since: When it got stuck, in monotonic seconds.
        """
        if not state.transient:
            return state.failure
        limit = PULL_PATIENCE_SECONDS if state.node else self._queue.pending_minutes * MINUTE_SECONDS
        # Nodes occupied by our own repeats are not missing.
        if time.monotonic() - (since if state.node else max(since, self._progress_at)) < limit:
            return None
        status, cause = state.failure
        return status, f"after {counted(f'{limit / MINUTE_SECONDS:g}', 'minute')}: {cause}"

    @malformed_as_error("the cluster")
    def _poll(self) -> None:
        """Query the Jobs and pods of the run, in two or three requests for any number of repeats.

        Raises:
            HostError: The server does not answer.
        """
        selector = run_selector(self._run_id)
        jobs = self._cluster.objects(api.KubernetesJob, label_selector=selector)
        pods = self._cluster.objects(api.Pod, label_selector=selector)
        without_pods = {job.uid for job in jobs} - {pod.owner for pod in pods}
        events = self._cluster.objects(api.ClusterEvent, field_selector=WARNINGS) if without_pods else []
        self._warnings = {item.about: item.text for item in sorted(events, key=lambda item: item.last or item.at)}
        self._jobs = {job.name: job for job in jobs}
        self._present = {pod.uid for pod in pods}  # before their pods: none counts as deleted that is new
        repeats = {repeat.uid: repeat for repeat in list(self._repeats.values())}  # threads add and remove some
        for pod in sorted(pods, key=lambda pod: pod.created):
            repeat = repeats.get(pod.owner)
            if repeat is not None and (repeat.pod is None or repeat.pod.uid == pod.uid):
                repeat.pod = pod

    def _state(self, job: Job, repeat: _Repeat) -> Turn | Ending | None:
        """Return the state of a repeat as of the last poll; None: neither its Job nor a pod of it exists."""
        if repeat.pod is not None:
            return read_state(repeat.pod, deleted=repeat.pod.uid not in self._present)
        name = object_name(job)
        found = self._jobs.get(name)
        return without_pod(found, self._warnings.get(name)) if found and found.uid == repeat.uid else None

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`; `follow` reads the log to its end, including the record."""
        self._cluster.delete_job(object_name(job))

    def cancel_waiting(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.cancel_waiting`; each slot deletes its own Job, even one that is being created now."""
        self._cancelled.update(job.id for job in jobs)
        self._poller.hurry()

    def clear(self, jobs: Sequence[Job]) -> None:
        """See `QueueLauncher.clear`; lists the Jobs first, because most repeats have none."""
        there = set(self.running(jobs[0].origin.run_id)) if jobs else set()
        for job in jobs:
            if job.id in there:
                self.remove(job)

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`."""
        self._cluster.delete_job(object_name(job))
        self._repeats.pop(job.id, None)

    @malformed_as_error("the cluster")
    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        there = self._cluster.objects(api.KubernetesJob, label_selector=run_selector(run_id))
        return [job.annotations[JOB_LABEL] for job in there if JOB_LABEL in job.annotations]

    def manifests(self, jobs: Sequence[Job]) -> list[str]:
        """See `QueueLauncher.manifests`; JSON, which is YAML, for `kubectl apply`."""
        manifests = (job_manifest(job, self._host, self._queue) for job in jobs)
        return [f"---\n{json.dumps(manifest, indent=2, ensure_ascii=False)}" for manifest in manifests]

    def close(self) -> None:
        """See `Launcher.close`."""
        self._cluster.close()
