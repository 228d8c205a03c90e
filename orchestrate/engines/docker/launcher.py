"""Runs benchmarks as containers of a Docker engine.

A benchmark has ended when its inspected state shows it, not when its log ends. A container's name is its lock. The
record is printed as the last lines of the log.

An engine may support GPUs without listing them: Docker lists neither the toolkit's hook, with which `--gpus` works
without a registered runtime, nor, before API 1.50, CDI devices; Podman lists nothing. Then each method is tried.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from orchestrate.engines import base, invocation
from orchestrate.engines.base import Ending, Launcher, NotThere, OutputLine, Progress, PullLimits
from orchestrate.engines.docker.client import NoGPUs, NoMemoryLock
from orchestrate.engines.docker.engine import BEFORE_ALL, DockerEngine, controller_address, send_image, sent_name
from orchestrate.errors import Gone, HostError, Lost, PullFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.loop import in_thread
from orchestrate.planning.facts import ARCHITECTURES, Facts, Image, facts_from_probe
from orchestrate.planning.images import pinned, probe_reference, registry_of, unsupported_architecture, wanted_images
from orchestrate.planning.plan import Job
from orchestrate.text import plain_text
from results.schema import Status
from results.schema.progress import RecordReader
from results.schema.record_json import MAX_RECORD_BYTES

T = TypeVar("T")

CDI = "CDI"
RUNTIME = "NVIDIA runtime"
TOOLKIT = "NVIDIA toolkit"

PROBE_SECONDS = 120.0
BETWEEN_LOOKS_SECONDS = 0.2

KILLED = 137
"""Exit code of a container that was ended by SIGKILL."""

REASON_SECONDS = 1.0
"""After the end, an engine may take this long to report that memory was the reason."""

MAX_FIGURE = 1 << 60


class ContainerLauncher(Launcher):
    """Starts benchmarks on one Docker engine.

    Args:
        host: Settings of the host; `host.docker` is the engine's address.
        pulls: Shared by all hosts of a run.
    """

    def __init__(self, host: Host, pulls: PullLimits) -> None:
        assert host.docker is not None
        self._host = host
        self._engine = DockerEngine(host.docker, host.host_keys)
        self._pulls = pulls
        self._methods: list[str] = []  # of giving GPUs to containers, the most likely first
        self._listed: frozenset[str] = frozenset()  # CDI names of GPUs
        self._lifts_memory_lock = True
        self._names: dict[str, str] = {}
        # Used only to send images: otherwise this machine needs no engine, and DOCKER_HOST is ignored.
        self._controller = DockerEngine(controller_address()) if host.image_source == "transfer" else None

    def probe(self) -> Facts:
        """See `Launcher.probe`."""
        info, name = self._engine.info(), "podman" if self._engine.is_podman else "docker"
        cpus = _whole(info.get("NCPU"))
        facts = Facts(
            cpu_count=cpus,
            cpu_limit=self._host.cpus or (None if cpus is None else float(cpus)),
            memory_bytes=_whole(info.get("MemTotal")),
            architecture=_architecture(str(info.get("Architecture", ""))),
            engine=f"{name} {plain_text(str(info.get('ServerVersion')), 50)}",
        )
        if self._host.wants_gpus and not unsupported_architecture(self._host, facts):
            facts = self._query_driver(facts, info)
        images = wanted_images(self._host, facts)
        return dataclasses.replace(facts, images=tuple(map(self.pin, images)))

    def pin(self, image: Image) -> Image:
        """See `Launcher.pin`; every repeat of the run starts this digest."""
        if image.status is not Status.OK:
            return image
        try:
            return dataclasses.replace(image, digest=self._digest(image.reference))
        except PullFailed as error:
            return dataclasses.replace(image, status=error.status, reason=error.cause)

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`; pulls by digest only."""
        image = self._pinned(job.origin.image or "", job.origin.image_digest)
        self._names[image] = self._provide(image, on_progress)

    def start(self, job: Job) -> bool:
        """See `Launcher.start`; optional requests that the engine refuses are dropped."""
        if job.gpus and not self._methods:
            self._list_methods(self._engine.info())
        try:
            return self._with_gpus(partial(self._start, job))
        except NoMemoryLock:
            self._lifts_memory_lock = False
            self._pulls.notify(
                self._host.key,
                "its engine may not raise the limit on locked memory, so containers run with its own limit: NCCL may "
                "fail where a case has several GPUs",
            )
            return self._with_gpus(partial(self._start, job))

    def _start(self, job: Job, method: str) -> bool:
        planned, lifts = self._pinned(job.origin.image or "", job.origin.image_digest), self._lifts_memory_lock
        image, devices = self._names.get(planned, planned), self._listed if job.gpus and method == CDI else None
        described = invocation.job_container(job, self._host, image, devices, lifts_memory_lock=lifts)
        return self._engine.start(invocation.container_name(job), described)

    async def follow(self, job: Job, on_line: OutputLine, on_turn: base.OnTurn = base.always_running) -> Ending:
        """See `Launcher.follow`."""
        return await in_thread(partial(self._follow, job, on_line))

    def _follow(self, job: Job, on_line: OutputLine) -> Ending:
        name, record, last, runs = invocation.container_name(job), RecordReader(MAX_RECORD_BYTES), BEFORE_ALL, True
        while True:
            complete, shown = False, last
            with contextlib.suppress(HostError):  # lost temporarily or for good: the state shows it
                for instant, line in self._engine.log_lines(name, shown, follow=runs):
                    last = max(last, instant)
                    # A line within which the log broke was shown, and the record may be its end.
                    if not record.take(line) and instant > shown:
                        on_line(line)
                complete = True
            if not runs:
                break
            state = self._state(job)
            runs = bool(state.get("Running")) or state.get("Status") in ("created", "restarting")
            if runs:
                time.sleep(BETWEEN_LOOKS_SECONDS)
            elif complete and record.payload() is not None:
                break  # else the rest of the output, from while the link was down, is read once more
        code = state.get("ExitCode")
        if code == KILLED and not state.get("OOMKilled"):  # the engine may learn the reason after the end
            time.sleep(REASON_SECONDS)
            state = self._state(job)
        detail = plain_text(str(state.get("Error") or ""), 300)
        if code and self._engine.is_full(name, invocation.RECORD_PATH.rpartition("/")[0]):
            detail = f"The host's disk is full; the end of its output may be lost. {detail}".rstrip()
        return Ending(
            exit_code=code if isinstance(code, int) and abs(code) < 1 << 31 else None,
            out_of_memory=bool(state.get("OOMKilled")),
            detail=detail,
            record=record.payload(),
        )

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`."""
        self._engine.stop(invocation.container_name(job))

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`; removes the container and its volume."""
        self._engine.remove(invocation.container_name(job))

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        jobs = [
            labels.get(invocation.JOB_LABEL, "") for labels in self._engine.labelled(f"{invocation.RUN_LABEL}={run_id}")
        ]
        return [job for job in jobs if isinstance(job, str) and job.startswith(f"{self._host.key}.")]

    def close(self) -> None:
        """See `Launcher.close`."""
        self._engine.close()
        if self._controller is not None:
            self._controller.close()

    def _state(self, job: Job) -> dict[str, Any]:
        try:
            return self._engine.state(invocation.container_name(job))
        except NotThere as error:
            raise Gone("the container is gone: somebody removed it, or the engine lost it") from error
        except Unreachable as error:
            raise Lost(f"the host was lost while the benchmark ran: {error.cause}") from error

    # -- images ------------------------------------------------------------------------------------------------

    def _pinned(self, reference: str, digest: str | None) -> str:
        """Return the name of an image on the host: by digest if known, which is its id if it is not pulled."""
        return digest if digest and not self._host.pulls else pinned(reference, digest)

    def _digest(self, reference: str) -> str:
        if not self._host.pulls:
            found = (self._controller or self._engine).image_id(reference)
            if found is None:
                where = "in this machine's engine" if self._controller else "on the host"
                raise PullFailed(f"image {reference} is not {where}. Build it there, or set registry: to pull it")
            return found
        if not self._engine.is_podman:
            return self._engine.registry_digest(reference)
        self._pull(reference, partial(self._pulls.progress, self._host.key, reference))
        return self._engine.pulled_digest(reference)

    def _provide(self, image: str, on_progress: Progress) -> str:
        """Make an image available on the host, and return its name there."""
        if self._engine.image(image) is not None:
            return image
        if self._controller is not None:
            sent, turn = self._engine.image_id(sent_name(image)), self._pulls.turn(base.TRANSFER)
            return sent or send_image(self._controller, self._engine, image, on_progress, turn)
        if not self._host.pulls:
            raise PullFailed(f"image {image} is no longer on the host")
        self._pull(image, on_progress)
        return image

    def _pull(self, image: str, on_progress: Progress) -> None:
        with self._pulls.turn(registry_of(image)):
            self._engine.pull(
                image, on_progress, lambda cause: self._pulls.notify(self._host.key, f"retrying the pull: {cause}")
            )

    # -- GPUs --------------------------------------------------------------------------------------------------

    def _list_methods(self, info: dict[str, Any]) -> bool:
        """List the methods of giving GPUs to containers; return whether the engine announces one.

        Args:
            info: The engine's report about itself, which is not trusted.
        """
        devices, runtimes = info.get("DiscoveredDevices"), info.get("Runtimes")
        names = [str(item.get("ID")) for item in devices if isinstance(item, dict)] if isinstance(devices, list) else []
        self._listed = frozenset(name for name in names if name.startswith(f"{invocation.CDI_GPU}="))
        has_runtime = isinstance(runtimes, dict) and "nvidia" in runtimes
        if self._engine.is_podman:  # it ignores requests to the runtime and the toolkit
            self._methods = [CDI]
        else:  # dockerd may know the runtime and not find its hook, which requests for GPUs need
            self._methods = [RUNTIME, CDI] if has_runtime else [CDI, TOOLKIT]
        return has_runtime or bool(self._listed)

    def _with_gpus(self, start: Callable[[str], T]) -> T:
        """Start a container with the first method of giving GPUs that the engine does not refuse.

        Raises:
            NoGPUs: It refuses all of them.
        """
        while True:
            try:
                return start(self._methods[0] if self._methods else "")
            except NoGPUs:
                self._methods = self._methods[1:]
                if not self._methods:
                    raise

    def _query_driver(self, facts: Facts, info: dict[str, Any]) -> Facts:
        """Query the NVIDIA driver through a container with all GPUs.

        Any tfbench image is suitable: the NVIDIA container toolkit adds the driver's library.

        Raises:
            HostError: The container could not be started, or its answer is malformed.
        """
        is_announced, reference = self._list_methods(info), probe_reference(self._host)
        report = partial(self._pulls.progress, self._host.key, reference)
        image = self._provide(self._pinned(reference, self._digest(reference)), report)

        def probe(method: str) -> bytes:
            return self._engine.run("probe", invocation.probe_container(image, cdi=method == CDI), PROBE_SECONDS)

        try:
            reported = facts_from_probe(self._with_gpus(probe))
        except NoGPUs:
            if is_announced:
                raise
            return facts
        of_engine = {name: value for name, value in vars(facts).items() if value}
        return dataclasses.replace(reported, gpu_runtime=self._methods[0], **of_engine)


def _whole(value: object) -> int | None:
    """Return a plausible count; None: implausible or not a number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_FIGURE else None


def _architecture(reported: str) -> str | None:
    """Return the name of a CPU architecture in image registries; engines may use the kernel's."""
    return ARCHITECTURES.get(reported, plain_text(reported, 30)) or None
