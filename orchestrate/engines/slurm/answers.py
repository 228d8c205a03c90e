"""Parses the output of a cluster, which is not trusted: nodes, states of jobs, files of repeats."""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrate.engines.base import Ending
from orchestrate.errors import LaunchFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import named_images, with_named_digest
from orchestrate.text import plain_text, whole_number
from results.schema import GPU, Status

MEBIBYTE = 1 << 20

Task = tuple[int, int]
"""Job id of an array, and the index in it."""

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
ACTIVE = WAITING | RUNNING

ENDINGS: dict[str, tuple[Status, str]] = {
    "NODE_FAIL": (Status.LOST, "node {node} failed while the benchmark ran (NODE_FAIL)"),
    "BOOT_FAIL": (Status.LOST, "node {node} could not be started (BOOT_FAIL)"),
    "PREEMPTED": (Status.LOST, "a job of higher priority took the node (PREEMPTED)"),
    "REVOKED": (Status.LOST, "another cluster took the job (REVOKED)"),
    "CANCELLED": (Status.LOST, "somebody cancelled the job (CANCELLED), not this run"),
    "TIMEOUT": (Status.TIMEOUT, "Slurm ended it at its time limit (TIMEOUT). See time_limit_minutes"),
    "DEADLINE": (Status.TIMEOUT, "Slurm ended it at its deadline (DEADLINE)"),
    "OUT_OF_MEMORY": (
        Status.OOM,
        "out of memory: Slurm ended it at its memory limit (OUT_OF_MEMORY). See memory_gb",
    ),
}
"""Status and cause for each state that ends a repeat; in other states, the benchmark's exit code decides."""

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
_ARRAY = re.compile(r"([0-9]{1,15})(?:_(?:([0-9]{1,7})|\[([0-9,:-]*)(?:%[0-9]+)?\]))?")
_GRES = re.compile(r"gpu(?::([A-Za-z0-9_.-]+))?:([0-9]{1,4})")
_SUBMITTED = re.compile(r"(?:Submitted batch job )?([0-9]{1,15})(?:;.*| on cluster .*)?")
_COMMENT = re.compile(r"tfbench:([0-9]{1,6})")


@dataclass(frozen=True)
class SlurmState:
    """What Slurm reports about a job.

    Attributes:
        name: Slurm's name of the state, e.g. `PENDING`.
        node: The assigned node, or None.
        reason: Why it waits or ended.
    """

    name: str
    node: str | None = None
    reason: str = ""


@dataclass
class SlurmAnswer:
    """The parsed output of one script.

    Attributes:
        states: States of tasks listed individually.
        rests: State of the remaining tasks of an array, which were cancelled before they started.
        waiting: Pending index ranges of arrays: first, last, reason.
        arrays: Job ids of our arrays, by their number in the run; those whose comment the site has kept.
        files: Bytes by kind and repeat: `log` (new output), `record`, `done`.
        words: Other lines, as kind and value: `jobs`, `begun`, `ended`, `submitted`, …
    """

    states: dict[Task, SlurmState] = field(default_factory=dict)
    rests: dict[int, SlurmState] = field(default_factory=dict)
    waiting: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    arrays: dict[int, int] = field(default_factory=dict)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    words: list[tuple[str, str]] = field(default_factory=list)

    def state(self, task: Task) -> SlurmState | None:
        """Return the state of a task; None: Slurm no longer lists it."""
        if (reported := self.states.get(task)) is not None:
            return reported
        for first, last, reason in self.waiting.get(task[0], ()):
            if first <= task[1] <= last:
                return SlurmState("PENDING", reason=reason)
        return self.rests.get(task[0])

    @property
    def array_ids(self) -> set[int]:
        """Job ids of all listed arrays."""
        return {array for array, _ in self.states} | self.waiting.keys() | self.rests.keys()

    def values(self, kind: str) -> list[str]:
        """Return the values of all lines of a kind."""
        return [value for word, value in self.words if word == kind]


def read_answer(lines: Iterable[str]) -> SlurmAnswer:
    """Parse the output of our scripts, ignoring other lines."""
    answer = SlurmAnswer()
    for line in lines:
        kind, bar, rest = line.partition("|")
        if not bar:
            continue
        if kind == "state":
            _read_state(rest, answer)
        elif kind in ("log", "record", "done"):
            job, _, text = rest.partition("|")
            try:
                answer.files[kind, job] = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue  # truncated: the next poll repeats it
        else:
            answer.words.append((kind, rest))
    return answer


def _read_state(text: str, answer: SlurmAnswer) -> None:
    """Parse `ARRAY_TASK|STATE|NODE|COMMENT|REASON`; pending tasks of an array share a line.

    Sites may replace the comment, by any text.
    """
    parts = text.split("|")
    identity = _ARRAY.fullmatch(parts[0])
    if identity is None or len(parts) < 5:
        return
    array, name, reason = int(identity[1]), parts[1], plain_text(parts[-1], 200)
    if (comment := _COMMENT.fullmatch(parts[3])) is not None:
        number = int(comment[1])
        answer.arrays[number] = max(array, answer.arrays.get(number, 0))
    node = parts[2] if _NODE.fullmatch(parts[2]) else None
    state = SlurmState(plain_text(name, 40), node, reason)
    if identity[2] is not None:
        answer.states[array, int(identity[2])] = state
    elif identity[3] is None:
        answer.rests[array] = state
    else:
        answer.waiting.setdefault(array, []).extend((*range_, reason) for range_ in _ranges(identity[3]))


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """Parse `1-4,7`; our arrays have no steps (`0-8:2`)."""
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = whole_number(first), whole_number(last if dash else first)
        if begin is not None and end is not None:
            yield begin, end


def submitted_id(lines: Iterable[str]) -> int | None:
    """Return the job id in the output of `sbatch`, which sites may wrap; None: there is none."""
    found = [match for line in lines if (match := _SUBMITTED.fullmatch(line.strip()))]
    return int(found[-1][1]) if found else None


def task_ranges(tasks: Iterable[Task]) -> list[str]:
    """Return tasks in Slurm's compact notation, e.g. `12_[0-3,7]`."""
    by_array: dict[int, list[int]] = {}
    for array, index in sorted(set(tasks)):
        by_array.setdefault(array, []).append(index)
    return [f"{array}_[{','.join(_spans(indices))}]" for array, indices in by_array.items()]


def _spans(indices: list[int]) -> Iterator[str]:
    for _, group in itertools.groupby(enumerate(indices), lambda item: item[1] - item[0]):
        first, *_, last = [index for _, index in [*group] * 2]
        yield str(first) if first == last else f"{first}-{last}"


def ending(state: SlurmState | None, status: bytes | None) -> Ending:
    """Describe how a repeat ended.

    Args:
        state: The last state that Slurm reported; None: it no longer lists the job.
        status: The file written at the end of the batch script; None: it was not reached.
    """
    left = dict(line.partition(" ")[::2] for line in (status or b"").decode("ascii", "replace").splitlines())
    node = left.get("node", "")
    place = node if _NODE.fullmatch(node) else None
    if place is None and state is not None:
        place = state.node
    digest = _DIGEST.search(left.get("image", ""))
    failure = None
    if state is not None and state.name in ENDINGS:
        word, cause = ENDINGS[state.name]
        failure = word, cause.format(node=place or "?")
    elif left.get("code") == "pull":
        failure = Status.PULL_FAILED, "the node could not pull the image; see the log of the repeat"
    elif left.get("code") == "modules":
        failure = Status.ERROR, f"node {place or '?'} could not load the modules; see the log of the repeat"
    elif status is None:
        failure = _unexplained(state, place)
    code = left.get("code", "")
    return Ending(
        exit_code=whole_number(code) if len(code) <= 3 else None,
        failure=failure,
        node=place,
        image_digest=digest[0] if digest else None,
    )


def ending_of_pending(state: SlurmState) -> Ending | None:
    """Return the ending of a pending repeat that can never start; None: it may still start."""
    if state.name not in WAITING or state.reason not in NEVER_STARTS:
        return None
    word, cause = NEVER_STARTS[state.reason]
    return Ending(exit_code=None, failure=(word, cause.format(reason=state.reason)))


def _unexplained(state: SlurmState | None, node: str | None) -> tuple[Status, str]:
    where = f" on node {node}" if node else ""
    if state is None:
        return Status.LOST, f"the job{where} is gone: Slurm no longer lists it, and it left no result"
    shown = f"{state.name}{f', {state.reason}' if state.reason not in ('', 'None') else ''}"
    return Status.ERROR, f"the batch script{where} ended without a result ({shown}). Check shared_folder on the node"


def facts_of(host: Host, queue: SlurmQueue, answer: SlurmAnswer) -> Facts:
    """Return the facts in the output of `sinfo`: the minimum of all nodes, none of which is queried.

    Raises:
        HostError: No node can run benchmarks; the message includes a remedy.
    """
    if answer.values("missing"):
        remedy = (
            "Name the login host with ssh:" if queue.login is None else "Set PATH in the login shell's profile there"
        )
        raise Unreachable(f"Slurm was not found: sbatch is not in PATH. {remedy}")
    if answer.values("folder"):
        raise LaunchFailed(f"shared_folder {queue.shared_folder} does not exist or is not writable. Create it")
    nodes = _fitting_nodes(queue, answer)
    version = plain_text(next(iter(answer.values("version")), "slurm"), 50)
    cpus, memory = (min(_number(node[place]) for node in nodes) for place in (1, 2))
    kinds = Counter(node[3].rstrip("*~#!%$@^-") for node in nodes)
    return Facts(
        cpu=f"{len(nodes)} nodes ({', '.join(f'{count} {plain_text(kind, 20)}' for kind, count in kinds.items())})",
        cpu_count=cpus or None,
        cpu_limit=host.cpus or float(cpus) or None,
        memory_bytes=memory * MEBIBYTE or None,
        engine=version,
        gpus=tuple(GPU(index=index, name=queue.gpu_type or "gpu") for index in range(queue.gpu_count)),
        images=tuple(map(with_named_digest, named_images(host))),
    )


def _fitting_nodes(queue: SlurmQueue, answer: SlurmAnswer) -> list[list[str]]:
    """Return name, CPUs, memory, state and GPUs of each node that can run the largest job: at least one.

    Raises:
        LaunchFailed: There is no such partition or node.
    """
    known = sorted(set(answer.values("partition")))
    if queue.partition is not None and queue.partition not in known:
        names = plain_text(", ".join(known), 200) or "none"
        raise LaunchFailed(f"Slurm has no partition {queue.partition}. Partitions: {names}", Status.UNSUPPORTED)
    reported = [parts for value in answer.values("node") if len(parts := value.split("|", 4)) == 5]
    nodes = list({parts[0]: parts for parts in reported}.values())  # a node is listed once per partition
    fitting = [parts for parts in nodes if _offers(parts[4], queue)]
    if not fitting:
        offered = plain_text(", ".join(sorted({parts[4] for parts in nodes})), 200) or "none"
        wanted = f"gres {queue.gres}" if queue.gres else f"gpus_per_node {queue.gpus_per_node}"
        raise LaunchFailed(f"no node offers {wanted}. Nodes offer: {offered}", Status.NO_GPU)
    return fitting


def _offers(gres: str, queue: SlurmQueue) -> bool:
    """Return whether a node's GPUs suffice for the largest job."""
    counts = [int(count) for kind, count in _GRES.findall(gres) if queue.gpu_type in ("", kind)]
    return sum(counts) >= queue.gpu_count


def _number(text: str) -> int:
    """Parse `8`, or `8+`, which sinfo prints if nodes differ."""
    digits = text.rstrip("+")
    return (whole_number(digits) if len(digits) < 12 else None) or 0
