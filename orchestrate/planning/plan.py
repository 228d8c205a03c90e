"""The plan of a run: which repeats run where and in which order. Written to `plan.json` before the start.

In that file, fields with defaults may be missing, and removed fields of older versions are upgraded. Unknown keys are
errors, because a setting of a newer version must not be dropped silently.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict
from pydantic_core import PydanticSerializationError, to_json

from orchestrate.errors import UserError
from orchestrate.inventory.hosts import Host, HostPlace, host_from_plan
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.host_warnings import cpu_refusal
from orchestrate.planning.images import is_chosen, named_images
from orchestrate.suites import Suite
from orchestrate.text import plain_text, shown
from results.runs.reading import CASE_CHANGES, FieldChange, checked, upgrade
from results.schema import Case, Communication, Data, Device, Origin, Status
from results.schema.version import __version__
from results.text import shortened

PLAN_VERSION: Final = 4
"""Rises when a field is removed or changed; `PLAN_CHANGES` then reads older plans."""

DEFAULT_SUITE = "standard"

T = TypeVar("T")

MAX_NAMED = 20
"""Maximum number of lines on cases in an error message."""

PORTS_PER_RANK = 2
"""TensorFlow's port, and the next one for the chief's connections; equal for all ranks to simplify firewall rules."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A host's part in a multi-host job.

    Attributes:
        rank: From 0; rank 0 writes the record.
        addresses: `host:port` of every rank, reachable by the others.
        network: `bridge`: the container's own, with only its ports published; `host`: the machine's.
    """

    rank: int
    addresses: tuple[str, ...]
    network: str = "bridge"

    @property
    def environment(self) -> dict[str, str]:
        """TF_CONFIG with the addresses of all ranks and this rank."""
        task = {"type": "worker", "index": self.rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})}

    @property
    def ports(self) -> tuple[int, ...]:
        """TCP ports that the other hosts connect to."""
        port = int(self.addresses[self.rank].rpartition(":")[2])
        return (port, port + 1) if self.rank == 0 else (port,)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One repeat of one case on one host.

    Attributes:
        id: Unique in the run; part of the names of files and of the container, which is the lock.
        gpus: Indices of the GPUs to use, before CUDA_VISIBLE_DEVICES; empty on a CPU.
        gpu_uuids: UUIDs of the same GPUs, if reported.
        max_seconds: Maximum duration; None: the host's `timeout_minutes`.
        blocked: Status and cause of a repeat that is not started; None: it can be started.
        member: This host's part in a multi-host job; None: a single host.
        known_peaks: Operations and bytes per second of one of its devices, measured by an earlier repeat of the run;
            None: it measures them itself.
    """

    id: str
    case: Case
    origin: Origin
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    max_seconds: float | None = None
    blocked: tuple[Status, str] | None = None
    member: Member | None = None
    known_peaks: tuple[float, float] | None = None

    @property
    def place(self) -> HostPlace:
        """The host that it runs on, or all hosts of a multi-host job."""
        return HostPlace(self.origin.fleet, self.origin.host)


@dataclass(frozen=True, kw_only=True)
class JobOnHosts:
    """One repeat, with one record, on one host or on several that train together.

    Attributes:
        job: The whole repeat, with the first host's id; its origin names all hosts.
        members: Each host's part, by rank.
    """

    job: Job
    members: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """The plan of one host.

    Attributes:
        facts: Facts from the probe; None: it failed, for the reason in `problem`.
        jobs: In the order in which they run.
        excluded: Cases of the suite that do not fit this host, with the reason.
    """

    host: Annotated[Host, BeforeValidator(host_from_plan)]  # a `Form`, whose types are strict by themselves
    suite: str
    facts: Facts | None
    problem: str | None
    jobs: tuple[Job, ...]
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run.

    Attributes:
        seed: Seed for shuffling repeats.
        multi_host_jobs: In the order in which they run, after the hosts' own repeats.
        stop_early: Skip the remaining repeats of a case once every ratio between fleets is known to ± this share, or is
            significantly on one side of their price ratio; None: run all.
        hosts_file: Absolute path of `hosts.yml`, whose addresses `resume` takes; None: unknown.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # also applies to nested types

    run_id: str
    created_at: str
    seed: int
    hosts: tuple[HostPlan, ...]
    multi_host_jobs: tuple[JobOnHosts, ...] = ()
    stop_early: float | None = None
    hosts_file: str | None = None
    tfbench: str = __version__
    plan_version: Literal[4] = PLAN_VERSION

    @property
    def jobs(self) -> list[Job]:
        """All repeats of the run, including multi-host jobs; each has one record."""
        return [*(job for host in self.hosts for job in host.jobs), *(multi.job for multi in self.multi_host_jobs)]

    def jobs_on(self, host: Host) -> list[Job]:
        """All jobs of a host: its own repeats, and its parts of multi-host jobs."""
        alone = next((entry.jobs for entry in self.hosts if entry.host.place == host.place), ())
        return [*alone, *(part for multi in self.multi_host_jobs for part in multi.members if part.place == host.place)]


def new_run_id(name: str | None = None) -> str:
    """Return a run id: a name, by default the time in UTC, and four random hexadecimal digits."""
    return f"{name or f'{datetime.now(UTC):%Y%m%d-%H%M%S}'}-{secrets.token_hex(2)}"


def make_plan(
    hosts: Sequence[Host],
    probed: Mapping[HostPlace, Facts | str],
    read_suite: Callable[[str], Suite],
    *,
    run_id: str,
    seed: int,
    repeats: int | None = None,
) -> Plan:
    """Plan every repeat of every case on every host, then the multi-host jobs of each fleet.

    Args:
        hosts: Hosts to measure on.
        probed: Facts of each host, or why the probe failed.
        read_suite: Returns a suite by name.
        run_id: Name of the run.
        seed: Seed for shuffling repeats.
        repeats: Overrides those of hosts and suites.

    Raises:
        UserError: A suite does not exist, or the plan is empty.
    """
    answers = [(host, facts) for host in hosts if isinstance(facts := probed[host.place], Facts)]
    memory = min(filter(None, (facts.gpu_memory_bytes(host.gpus) for host, facts in answers)), default=None)

    def planned(host: Host) -> HostPlan:
        name, reported = host.suite or DEFAULT_SUITE, probed[host.place]
        facts, problem = (reported, None) if isinstance(reported, Facts) else (None, reported)
        mate = facts or next(iter(fleet_facts(host, hosts, probed)), None)
        if facts is None and mate is not None and mate.gpus and is_chosen(host):  # the image of its fleet
            host = host.model_copy(update={"variant": tuple(image.variant for image in mate.images if image.variant)})
        suite = read_suite(name)
        cases, excluded = _fitting([(host, mate)], suite, memory, together=False)
        cells = itertools.product(cases, _images(host, facts) or (None,))
        rounds = _rounds(cells, repeats or host.repeats or suite.repeats, seed, host.key)
        jobs = (host_job(host, facts, case, repeat, run_id, image) for repeat, (case, image) in rounds)
        return HostPlan(host=host, suite=name, facts=facts, problem=problem, jobs=tuple(jobs), excluded=tuple(excluded))

    entries: list[HostPlan] = []
    multi_host_jobs: list[JobOnHosts] = []
    for _, group in itertools.groupby(map(planned, hosts), key=lambda entry: entry.host.fleet):
        fleet = list(group)
        chief, suite = fleet[0].host, read_suite(fleet[0].suite)
        parts, excluded = _fitting([(entry.host, entry.facts) for entry in fleet], suite, memory, together=True)
        count = repeats or chief.repeats or suite.repeats
        for repeat, case in _rounds(parts, count, seed, f"{chief.fleet}:together"):
            jobs = tuple(
                dataclasses.replace(host_job(entry.host, entry.facts, case, repeat, run_id), member=member)
                for entry, member in zip(fleet, parts[case], strict=False)
            )
            multi_host_jobs.append(JobOnHosts(job=whole_job(jobs), members=jobs))
        entries += [dataclasses.replace(fleet[0], excluded=(*fleet[0].excluded, *excluded)), *fleet[1:]]
    created, several = datetime.now(UTC).isoformat(timespec="seconds"), tuple(multi_host_jobs)
    plan = Plan(run_id=run_id, created_at=created, seed=seed, hosts=tuple(entries), multi_host_jobs=several)
    if not plan.jobs:
        left = [f"{entry.host.key}: {text}" for entry in entries for text in entry.excluded]
        lines = ["the plan is empty: no case of the suite fits any host", *shortened(left, MAX_NAMED)]
        raise UserError("\n  ".join(lines))
    return plan


def _rounds(cells: Iterable[T], repeats: int, seed: int, place: str) -> Iterator[tuple[int, T]]:
    """Yield each cell once per repeat, numbered from 1, in shuffled rounds, so that drift affects all alike."""
    shuffle, order = random.Random(f"{seed}:{place}"), list(cells)
    for repeat in range(1, repeats + 1):
        shuffle.shuffle(order)
        for cell in order:
            yield repeat, cell


def _fitting(
    group: Sequence[tuple[Host, Facts | None]], suite: Suite, memory: int | None, *, together: bool
) -> tuple[dict[Case, tuple[Member, ...]], list[str]]:
    """Choose the cases that fit a host, or that hosts of a fleet run together; a case with N hosts uses the first N.

    A single-replica case is never excluded, so that a missing GPU is a failure.

    Args:
        group: A host, or all of a fleet, with facts if known.
        suite: Has the cases.
        memory: Bytes of the smallest GPU of the run.
        together: Whether these hosts train together; a queue assigns several machines to one job by itself.

    Returns:
        The parts of the hosts by case, and the cases that do not fit.
    """
    host = group[0][0]
    gpu_count = min(len(_usable_gpus(*member)) for member in group)
    fitting: dict[Case, tuple[Member, ...]] = {}
    excluded = []
    for case in suite.cases_on(_device(host, gpu_count), memory):
        if (case.num_hosts > 1 and host.queue is None) is not together:
            continue
        members = members_of([member for member, _ in group[: case.num_hosts]], case) if together else ()
        if isinstance(members, str):
            excluded.append(f"{case.name}: {members}")
        elif case.device is Device.GPU and case.num_gpus > max(1, gpu_count):
            known = all(facts is not None or host.queue or host.gpus is not None for host, facts in group)
            offers = (
                f"{'each' if together else 'the'} host offers ({gpu_count})"
                if known
                else "one; the host could not be queried"
            )
            excluded.append(f"{case.name}: needs more GPUs than {offers}")
        elif case.data is Data.TFRECORD and not (host.kubernetes.data_claim if host.kubernetes else host.data_dir):
            needed = "data_claim for the cluster" if host.kubernetes else "data_dir for the host"
            excluded.append(f"{case.name}: hosts.yml names no {needed}")
        else:
            fitting[case] = members
    return fitting, excluded


def _device(host: Host, gpu_count: int) -> Device:
    """Return the device of a host; one with a price never falls back to its CPU."""
    return host.device or (Device.GPU if gpu_count or host.usd_per_gpu_hour else Device.CPU)


def fleet_facts(host: Host, hosts: Sequence[Host], probed: Mapping[HostPlace, Facts | str]) -> list[Facts]:
    """Return the facts of all hosts of a host's fleet, which should be equal, including its own."""
    reported = (probed[other.place] for other in hosts if other.fleet == host.fleet)
    return [facts for facts in reported if isinstance(facts, Facts)]


def _usable_gpus(host: Host, facts: Facts | None) -> list[int]:
    """Return the indices of the GPUs to use, for a host without facts those in `hosts.yml`."""
    if facts is None and host.queue is not None:
        return list(range(host.queue.gpu_count))
    if facts is None:
        return list(host.gpus or ())
    present = [gpu.index for gpu in facts.gpus]
    return present if host.gpus is None else [index for index in host.gpus if index in present]


def _images(host: Host, facts: Facts | None) -> tuple[Image, ...]:
    """Return the images that a host measures with; none: without containers, or not known yet."""
    return named_images(host) if facts is None else facts.images


def host_job(host: Host, facts: Facts | None, case: Case, repeat: int, run_id: str, image: Image | None = None) -> Job:
    """Return a job of a host, or its part of a multi-host job: its GPUs and image, or why it is blocked.

    Args:
        host: The host.
        facts: Facts of the host; None: not probed yet, see `complete_job`.
        case: The case.
        repeat: From 1.
        run_id: Name of the run.
        image: One of the host's images; None: the first. With several, ids contain the variant.
    """
    images = _images(host, facts)
    image = image or next(iter(images), None)
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus} if facts is not None else {}
    wanted = case.num_gpus if facts is not None and case.device is Device.GPU else 0
    gpus, blocked = _usable_gpus(host, facts)[:wanted], None
    if facts is not None and len(gpus) < wanted:
        cause = f"the case needs {wanted} GPU, the host offers {len(gpus)}"
        blocked = Status.NO_GPU, "; ".join(filter(None, (cause, cpu_refusal(host, facts))))
    if image is not None and image.status is not Status.OK:
        blocked = (image.status, image.reason)
    origin = Origin(
        run_id=run_id,
        fleet=host.fleet,
        host=host.name,
        launcher=host.launcher,
        repeat=repeat,
        variant=image.variant if image else None,
        image=image.reference if image else None,
        image_digest=image.digest if image else None,
        usd_per_gpu_hour=host.usd_per_gpu_hour or None,  # a price of 0 cannot be compared
    )
    variant = f"{image.variant}." if image and len(images) > 1 else ""
    return Job(
        id=f"{host.key}.{case.name}.{variant}r{repeat}",
        case=case,
        origin=origin,
        gpus=tuple(gpus),
        gpu_uuids=tuple(uuid for index in gpus if (uuid := uuids.get(index))),
        blocked=blocked,
    )


def complete_job(job: Job, host: Host, facts: Facts) -> Job:
    """Return a job that was planned without facts, completed with them; never for the CPU of a machine with GPUs."""
    image = next((image for image in facts.images if image.variant == job.origin.variant), None)
    made = host_job(host, facts, job.case, job.origin.repeat, job.origin.run_id, image)
    blocked = made.blocked
    if blocked is None and job.case.device is Device.CPU and host.device is None and _usable_gpus(host, facts):
        why = "it did not answer when the run was planned, and was taken for one without GPUs. Start a new run for it"
        blocked = Status.UNSUPPORTED, why
    return dataclasses.replace(made, id=job.id, member=job.member, max_seconds=job.max_seconds, blocked=blocked)


def members_of(hosts: Sequence[Host], case: Case) -> tuple[Member, ...] | str:
    """Return the hosts' parts in a multi-host job.

    Args:
        hosts: By rank.
        case: A case for that number of hosts.

    Returns:
        The members by rank, or why these hosts cannot train together.
    """
    if len(hosts) < case.num_hosts:
        return f"needs {case.num_hosts} hosts, the fleet has {len(hosts)}"
    if case.device is Device.CPU and case.num_gpus > 1:
        return "with several hosts, TensorFlow uses only one CPU device per host"
    addresses = []
    for rank, host in enumerate(hosts):
        where = host.cluster_address
        if where is None:
            return f"the address at which other hosts reach {host.key} is unknown. Set its address: in the hosts file"
        if host.network == "bridge" and case.device is Device.GPU and case.communication is not Communication.RING:
            return (
                f"NCCL opens additional ports, which {host.key} would not publish. Set network: host if you trust the "
                "network, or else communication: ring"
            )
        shown = f"[{where}]" if ":" in where else where
        addresses.append(f"{shown}:{host.cluster_port + PORTS_PER_RANK * rank}")
    return tuple(Member(rank=rank, addresses=tuple(addresses), network=host.network) for rank, host in enumerate(hosts))


def whole_job(members: Sequence[Job]) -> Job:
    """Return the whole repeat of these members; its record names all hosts, by rank."""
    chief = members[0]
    hosts = "+".join(job.origin.host for job in members)
    blocked = next((job.blocked for job in members if job.blocked is not None), None)
    return dataclasses.replace(chief, origin=dataclasses.replace(chief.origin, host=hosts), blocked=blocked)


_JOBS = ("hosts.jobs", "multi_host_jobs.job", "multi_host_jobs.members")

PLAN_CHANGES: Mapping[int, Sequence[FieldChange]] = {
    1: (
        FieldChange("decide", "stop_early"),
        FieldChange("gangs", "multi_host_jobs"),
        FieldChange("hosts.left_out", "excluded"),
        FieldChange("hosts.facts.raw"),
        FieldChange("hosts.facts.gpu_states.xid_errors"),
        FieldChange("hosts.host.image_for"),
        FieldChange("hosts.host.docker.via", only=None),
        FieldChange("hosts.host.ssh.jump", only=None),
        FieldChange("hosts.host.queue.slurm.requeue"),
        *(
            FieldChange(f"{jobs}.case.{change.path}", change.renamed, change.only)
            for jobs in _JOBS
            for change in CASE_CHANGES[1]
        ),
    ),
    2: (
        FieldChange("hosts.host.variants", "variant"),
        *(FieldChange(f"hosts.facts.{name}") for name in ("kernel", "operating_system")),
        *(FieldChange(f"hosts.facts.images.{name}") for name in ("problem", "send_bytes")),
    ),
    3: (FieldChange("hosts.facts.clock_skew_seconds"),),
}
"""By `plan_version` of the plan that still had the field."""


def plan_to_json(plan: Plan, *, ensure_ascii: bool = False) -> str:
    """Return a plan as indented JSON.

    Raises:
        UserError: A path is not UTF-8.
    """
    try:
        return to_json(plan, indent=2, ensure_ascii=ensure_ascii).decode() + "\n"
    except PydanticSerializationError as error:
        raise UserError(
            "the path of hosts.yml, or a path in it, is not UTF-8. Rename the file or its folder"
        ) from error


def plan_from_json(text: str | bytes, where: str = "plan.json") -> Plan:
    """Parse a plan.

    Args:
        text: Content of `plan.json`.
        where: Its path, for messages.

    Raises:
        UserError: The file is damaged, or its version is not supported.
    """
    try:
        document = json.loads(text)
        version = document["plan_version"]
        if version not in (*PLAN_CHANGES, PLAN_VERSION):
            raise UserError(
                f"{where}: plan_version must be 1 to {PLAN_VERSION}. Received: {shown(version)}. "
                "Resume with the version of tfbench that started the run"
            )
        upgrade(document, version, PLAN_CHANGES)
        return checked(Plan, {**document, "plan_version": PLAN_VERSION})
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise UserError(
            f"{where}: is damaged: {plain_text(str(error), 300)}. Restore the file from a copy, resume with the "
            "version of tfbench that wrote it, or start a new run: the records in the run's folder are unharmed"
        ) from error
