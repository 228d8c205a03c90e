"""Parses the output of a cluster, which is not trusted: nodes, states of jobs, files of repeats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from orchestrate.engines.base import Ending
from orchestrate.errors import LaunchFailed
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import named_images
from orchestrate.text import plain_text, whole_number
from results.schema import GPU, Status

MEBIBYTE = 1 << 20

MAX_ARRAY = 1000
"""Maximum number of tasks of an array; Slurm's default limit is 1001."""

Task = tuple[int, int]
"""Job id of an array, and the index in it."""

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})

ENDINGS: dict[str, tuple[Status, str]] = {
    "NODE_FAIL": (Status.LOST, "node {node} failed while the benchmark ran (NODE_FAIL)"),
    "BOOT_FAIL": (Status.LOST, "node {node} could not be started (BOOT_FAIL)"),
    "PREEMPTED": (Status.LOST, "a job of higher priority took the node (PREEMPTED)"),
    "REVOKED": (Status.LOST, "another cluster took the job (REVOKED)"),
    "CANCELLED": (Status.LOST, "somebody, or Slurm itself, cancelled the job (CANCELLED), not this run"),
    "TIMEOUT": (Status.TIMEOUT, "Slurm ended it at its time limit (TIMEOUT). See time_limit_minutes"),
    "DEADLINE": (Status.TIMEOUT, "Slurm ended it at its deadline (DEADLINE)"),
    "OUT_OF_MEMORY": (
        Status.OOM,
        "out of memory: Slurm ended it at its memory limit (OUT_OF_MEMORY). See memory_gb",
    ),
}
"""Status and cause for each state that ends a repeat; in other states, the benchmark's exit code decides."""

SCRIPT_ENDINGS = {
    "pull": (Status.PULL_FAILED, "the node could not pull the image; see the log of the repeat"),
    "modules": (Status.ERROR, "node {node} could not load the modules; see the log of the repeat"),
}
"""Status and cause for what a batch script writes instead of an exit code."""

_GONE = (Status.LOST, "the job is gone: Slurm no longer lists it, and it left no result")
_UNEXPLAINED = (
    Status.ERROR,
    "the batch script on node {node} ended without a result ({state}). Check shared_folder on the node",
)

_LIMIT = (Status.UNSUPPORTED, "Slurm will never start it: {reason}. Request less, or check account, qos and partition")
_LAUNCH = (Status.LOST, "Slurm could not start it on a node and put it on hold: {reason}. See the log of slurmd there")
NEVER_STARTS: dict[str, tuple[Status, str]] = {
    **dict.fromkeys(("BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"), _LIMIT),
    **dict.fromkeys(("PartitionTimeLimit", "PartitionNodeLimit", "AccountNotAllowed", "QOSNotAllowed"), _LIMIT),
    **dict.fromkeys(("AssocMaxGRESPerJob", "QOSMaxGRESPerJob", "AssocMaxWallDurationPerJobLimit"), _LIMIT),
    **dict.fromkeys(("QOSMaxWallDurationPerJobLimit", "ReservationDeleted"), _LIMIT),
    **dict.fromkeys(("launch_failed_requeued_held", "launch failed requeued held"), _LAUNCH),
}
"""Status and cause for each reason for waiting that never resolves itself."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,250}")  # several nodes: names joined by `+`
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")
_ARRAY = re.compile(r"([0-9]{1,15})(?:_(?:([0-9]{1,7})|\[.*))?")
_GRES = re.compile(r"gpu(?::([A-Za-z0-9_.-]+))?:([0-9]{1,4})")
_SUBMITTED = re.compile(r"(?:Submitted batch job )?([0-9]{1,15})(?:;.*| on cluster .*)?")


class SlurmState(NamedTuple):
    """What Slurm reports about a job.

    Attributes:
        name: Slurm's name of the state, e.g. `PENDING`; empty: it does not list the job.
        node: The assigned node, or None.
        reason: Why it waits or ended.
    """

    name: str
    node: str | None = None
    reason: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no machine yet."""
        return self.name in WAITING

    @property
    def is_active(self) -> bool:
        """Whether it waits or runs."""
        return self.name in WAITING or self.name in RUNNING


UNLISTED = SlurmState("")

QueueStates = dict[tuple[int, int | None], SlurmState]
"""The states of a run's jobs by array and index; None: of its tasks that are not listed, e.g. the rest of an array that
was cancelled before it started."""

STATES_FORMAT = "%i|%T|%N|%r"


def read_states(text: str) -> QueueStates:
    """Parse lines of `STATES_FORMAT`, a task a line, ignoring others."""
    states: QueueStates = {}
    for line in text.splitlines():
        identity, *parts = line.split("|", 3)
        if len(parts) == 3 and (found := _ARRAY.fullmatch(identity)):
            node = parts[1] if _NODE.fullmatch(parts[1]) else None
            index = None if found[2] is None else int(found[2])
            states[int(found[1]), index] = SlurmState(plain_text(parts[0], 40), node, plain_text(parts[2], 200))
    return states


def state_of(states: QueueStates, task: Task | None) -> SlurmState:
    """Return the state of a task; `UNLISTED`: Slurm no longer lists it."""
    if task is None:
        return UNLISTED
    return states.get(task) or states.get((task[0], None)) or UNLISTED


def submitted_id(output: str) -> int | None:
    """Return the job id in the output of `sbatch`, which sites may wrap; None: there is none."""
    found = [match for line in output.splitlines() if (match := _SUBMITTED.fullmatch(line.strip()))]
    return int(found[-1][1]) if found else None


def task_lists(tasks: Iterable[Task]) -> list[str]:
    """Return tasks in Slurm's compact notation, e.g. `12_[0,1,7]`."""
    by_array: dict[int, list[str]] = {}
    for array, index in sorted(set(tasks)):
        by_array.setdefault(array, []).append(str(index))
    return [f"{array}_[{','.join(indices)}]" for array, indices in by_array.items()]


def ending(state: SlurmState, status: bytes | None) -> Ending:
    """Describe how a repeat ended.

    Args:
        state: That Slurm reports now.
        status: The file written at the end of the batch script; None: it was not reached.
    """
    left = dict(line.partition(" ")[::2] for line in (status or b"").decode("ascii", "replace").splitlines())
    node, code = left.get("node", ""), left.get("code", "")
    place = node if _NODE.fullmatch(node) else state.node
    digest = _DIGEST.search(left.get("image", ""))
    failure = ENDINGS.get(state.name) or SCRIPT_ENDINGS.get(code)
    if failure is None and status is None:
        failure = _UNEXPLAINED if state.name else _GONE
    if failure is not None:
        reason = f", {state.reason}" if state.reason not in ("", "None") else ""
        failure = failure[0], failure[1].format(node=place or "?", state=f"{state.name}{reason}")
    return Ending(
        exit_code=whole_number(code) if len(code) <= 3 else None,
        failure=failure,
        node=place,
        image_digest=digest[0] if digest else None,
    )


def ending_of_pending(state: SlurmState) -> Ending | None:
    """Return the ending of a pending repeat that can never start; None: it may still start."""
    if not state.waits or state.reason not in NEVER_STARTS:
        return None
    word, cause = NEVER_STARTS[state.reason]
    return Ending(exit_code=None, failure=(word, cause.format(reason=state.reason)))


NODES_FORMAT = "%R|%N|%c|%m|%T|%G"
"""Partition, name, CPUs, memory, state and GPUs of a node, for `sinfo`."""


def facts_of(host: Host, queue: SlurmQueue, version: str, listed: str) -> Facts:
    """Return the facts in the output of `sinfo`: the minimum of all nodes, none of which is queried.

    Args:
        host: Settings of the fleet.
        queue: Settings of its queue.
        version: Of Slurm.
        listed: Lines of `NODES_FORMAT`; a node is listed once per partition.

    Raises:
        LaunchFailed: No node can run the largest job; the message includes a remedy.
    """
    lines = [parts for line in listed.splitlines() if len(parts := line.split("|", 5)) == 6]
    partitions = sorted({parts[0] for parts in lines})
    if queue.partition is not None and queue.partition not in partitions:
        names = plain_text(", ".join(partitions), 200) or "none"
        raise LaunchFailed(f"Slurm has no partition {queue.partition}. Partitions: {names}", Status.UNSUPPORTED)
    nodes = {parts[1]: parts for parts in lines if queue.partition in (None, parts[0])}.values()
    fitting = [parts for parts in nodes if _gpus(parts[5], queue) >= queue.gpu_count]
    if not fitting:
        offered = plain_text(", ".join(sorted({parts[5] for parts in nodes})), 200) or "none"
        wanted = f"gres {queue.gres}" if queue.gres else f"gpus_per_node {queue.gpus_per_node}"
        raise LaunchFailed(f"no node offers {wanted}. Nodes offer: {offered}", Status.NO_GPU)
    cpus, memory = (min(_number(node[place]) for node in fitting) for place in (2, 3))
    kinds = Counter(plain_text(node[4].rstrip("*~#!%$@^-"), 20) for node in fitting)
    return Facts(
        cpu=f"{len(fitting)} nodes ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})",
        cpu_count=cpus or None,
        cpu_limit=host.cpus or float(cpus) or None,
        memory_bytes=memory * MEBIBYTE or None,
        engine=plain_text(version.strip() or "slurm", 50),
        gpus=tuple(GPU(index=index, name=queue.gpus[0] or "gpu") for index in range(queue.gpu_count)),
        images=named_images(host),
    )


def _gpus(gres: str, queue: SlurmQueue) -> int:
    """Return the number of a node's GPUs that suit a queue."""
    return sum(int(count) for kind, count in _GRES.findall(gres) if queue.gpus[0] in ("", kind))


def _number(text: str) -> int:
    """Parse `8`, or `8+`, which sinfo prints if nodes differ."""
    digits = text.rstrip("+")
    return (whole_number(digits) if len(digits) < 12 else None) or 0
