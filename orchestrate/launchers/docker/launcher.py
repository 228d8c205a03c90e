"""Benchmarks as containers of a Docker engine.

The end of a log stream is not the end of a benchmark, only the inspected state is. A container's name is its lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from datetime import UTC, datetime
from typing import Any

from orchestrate.errors import HostError, LaunchFailed, Lost, PullFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import read_variants
from orchestrate.launchers.base import Ending, OnTurn, OutputLine, always_running
from orchestrate.launchers.container import (
    CACHE_LABEL,
    CDI_GPU,
    JOB_LABEL,
    RECORD_PATH,
    RUN_LABEL,
    container_name,
    job_container,
    probe_container,
    registry_of,
    repository,
    with_cache,
)
from orchestrate.launchers.docker.engine import NameTaken, NotThere
from orchestrate.launchers.docker.sdk import DockerEngine
from orchestrate.launchers.docker.transfer import controller_address, send_image
from orchestrate.launchers.pulls import Progress, PullLimits, PullMeter
from orchestrate.planning.facts import Facts, Image, facts_from_probe, raw_json
from orchestrate.planning.images import image_reference, wanted_images
from orchestrate.planning.plan import Job
from orchestrate.text import plain_text
from results.schema import Status

CDI = "CDI"
MAY_HOLD_SECRETS = ("HttpProxy", "HttpsProxy", "NoProxy", "Labels", "Swarm", "RegistryConfig")
"""What is not kept of an engine's facts."""

PROBE_SECONDS = 120.0
MAX_PROBE_BYTES = 1 << 20
BETWEEN_LOOKS_SECONDS = 0.2


class ContainerLauncher:
    """Starts benchmarks on one Docker engine.

    Args:
        host: Settings of the host; `host.docker` says where the engine is.
        pulls: Shared by all hosts of a run.
    """

    def __init__(self, host: Host, pulls: PullLimits) -> None:
        if host.docker is None:
            raise ValueError(f"host {host.name} has no Docker engine")
        self._host = host
        self._engine = DockerEngine(host.docker)
        self._pulls = pulls
        self._devices: frozenset[str] | None = None
        self._tidied = False
        # Only asked where images come from it: else this machine needs no engine, and DOCKER_HOST may be anything.
        self._controller = DockerEngine(controller_address()) if host.image_source == "transfer" else None

    def probe(self) -> Facts:
        """See `Launcher.probe`."""
        asked_at = datetime.now(UTC)
        facts = _engine_facts(self._engine.info(), self._host, asked_at)
        if facts.gpu_runtime and self._host.wants_gpus:
            facts = self._ask_driver(facts)
        images = wanted_images(self._host, facts, read_variants())
        return dataclasses.replace(facts, images=tuple(map(self._pin, images)))

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`: pulls by digest, and believes nothing else."""
        self._bring(_pinned(job.origin.image or "", job.origin.image_digest, self._host), on_progress)
        self._engine.release_sdk()
        if job.gpus and not self._tidied:
            self._tidied = True
            self._remove_orphaned_caches()

    def start(self, job: Job) -> bool:
        """See `Launcher.start`."""
        image = _pinned(job.origin.image or "", job.origin.image_digest, self._host)
        adopted = False
        try:
            devices = self._cdi_devices() if job.gpus else frozenset()
            spec = job_container(job, self._host, image, devices)
            self._engine.create(with_cache(spec) if job.gpus else spec)
        except NameTaken:
            adopted = True
            if self._state_of_ours(job) != "created":
                return True  # it runs or has ended: to start an ended container would be to run the repeat again
        try:
            self._engine.start(container_name(job))
        except HostError as error:
            if not isinstance(error, Unreachable):
                self._engine.remove(container_name(job))  # a refused start leaves a created container behind
            raise
        return adopted

    def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`."""
        last_stamp = ""
        while True:
            complete = True
            try:
                for stamp, line in self._engine.log_lines(container_name(job), last_stamp, follow=True):
                    last_stamp = stamp
                    on_line(line)
            except HostError:  # gone for a moment, or for good: the state tells
                complete = False
            state = self._state(job)
            if not state.get("Running") and state.get("Status") not in ("created", "restarting"):
                if not complete or state.get("ExitCode") != 0:
                    self._read_rest(job, last_stamp, on_line)
                return Ending(
                    exit_code=state.get("ExitCode"),
                    out_of_memory=bool(state.get("OOMKilled")),
                    detail=plain_text(str(state.get("Error") or ""), 300),
                )
            time.sleep(BETWEEN_LOOKS_SECONDS)

    def collect(self, job: Job) -> bytes | None:
        """See `Launcher.collect`."""
        return self._engine.read_file(container_name(job), RECORD_PATH)

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`."""
        self._engine.stop(container_name(job))

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`: the container and its volume, nothing else."""
        self._engine.remove(container_name(job))

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        jobs = [labels.get(JOB_LABEL, "") for labels in self._engine.labelled(f"{RUN_LABEL}={run_id}")]
        return [job for job in jobs if job.startswith(f"{self._host.key}.")]

    def close(self) -> None:
        """See `Launcher.close`."""
        self._engine.close()
        if self._controller is not None:
            self._controller.close()

    def _read_rest(self, job: Job, after: str, on_line: OutputLine) -> None:
        """Hand on what was printed while the link was down."""
        with contextlib.suppress(HostError):
            for _, line in self._engine.log_lines(container_name(job), after, follow=False):
                on_line(line)

    def _state(self, job: Job) -> dict[str, Any]:
        try:
            return self._engine.state(container_name(job))
        except NotThere as error:
            raise Lost("the container is gone: somebody removed it, or the engine lost it") from error
        except Unreachable as error:
            raise Lost(f"the host was lost while the benchmark ran: {error.cause}") from error

    def _state_of_ours(self, job: Job) -> str:
        """Return the state of the container that has the job's name, after making sure that it is the job's."""
        told = self._engine.inspect(container_name(job))
        if (told["Config"]["Labels"] or {}).get(JOB_LABEL) != job.id:
            raise LaunchFailed(
                f"a container named {container_name(job)} exists, but does not belong to this run. Remove or rename it"
            )
        return str(told["State"].get("Status"))

    def _pin(self, image: Image) -> Image:
        """Find out what an image's tag means now; every repeat of the run then starts that."""
        if image.status is not Status.OK:
            return image
        try:
            return dataclasses.replace(image, digest=self._digest(image.reference))
        except PullFailed as error:
            return dataclasses.replace(image, status=error.status, problem=error.cause)

    def _digest(self, reference: str) -> str:
        if self._host.pulls:
            return self._engine.registry_digest(reference)
        found = (self._controller or self._engine).image_id(reference)
        if found is None:
            where = "in this machine's engine" if self._controller else "on the host"
            raise PullFailed(f"image {reference} is not {where}. Build it there, or set registry: to pull it")
        return found

    def _bring(self, image: str, on_progress: Progress) -> None:
        if self._engine.image_id(image) is not None:
            return
        if self._controller is not None:
            with self._pulls.turn("transfer"):
                send_image(self._controller, self._engine, image, on_progress)
            return
        if not self._host.pulls:
            raise PullFailed(f"image {image} is no longer on the host")
        with self._pulls.turn(registry_of(image)):
            self._engine.pull(image, PullMeter(on_progress, self._tell_retry))

    def _remove_orphaned_caches(self) -> None:
        """Remove what was compiled for images that are no longer on the host; what stays for now does no harm."""
        with contextlib.suppress(HostError):
            for volume, image in self._engine.labelled_volumes(CACHE_LABEL).items():
                if self._engine.image_id(image) is None:
                    self._engine.remove_volume(volume)

    def _tell_retry(self, cause: str) -> None:
        self._pulls.tell(self._host.key, f"retrying the pull: {cause}")

    def _ask_driver(self, facts: Facts) -> Facts:
        """Ask the NVIDIA driver, through a container that sees all GPUs.

        Any image will do, the smallest is chosen: the NVIDIA container toolkit brings the driver's library along.

        Raises:
            HostError: The container could not be started, or did not answer as expected.
        """
        reference = self._host.image or image_reference(self._host, "cpu")
        image = _pinned(reference, self._digest(reference), self._host)
        self._bring(image, lambda done, total: None)
        spec = probe_container(image, cdi=facts.gpu_runtime == CDI)
        self._engine.create(spec)
        try:
            self._engine.start(spec.name)
            self._engine.wait(spec.name, PROBE_SECONDS)
            told = facts_from_probe(self._engine.output(spec.name, MAX_PROBE_BYTES))
        except ValueError as error:
            raise LaunchFailed(f"the probe of the host's GPUs failed: {plain_text(str(error), 300)}") from error
        finally:
            self._engine.remove(spec.name)
        return dataclasses.replace(
            facts,
            driver=told.driver,
            gpus=told.gpus,
            gpu_states=told.gpu_states,
            gpu_problems=told.gpu_problems,
            cpu=told.cpu,
            disk_free_bytes=told.disk_free_bytes,
            raw=raw_json(**{**json.loads(facts.raw), **json.loads(told.raw)}),
        )

    def _cdi_devices(self) -> frozenset[str]:
        """Return the GPUs that the engine offers by CDI, where that is the only way; asked once."""
        if self._devices is None:
            info = self._engine.info()
            self._devices = _cdi_gpus(info) if _gpu_runtime(info) == CDI else frozenset()
        return self._devices


def _pinned(reference: str, digest: str | None, host: Host) -> str:
    """Return the image to start: by digest if there is one, because tags move."""
    if digest is None:
        return reference
    return f"{repository(reference)}@{digest}" if host.pulls else digest


def _engine_facts(info: dict[str, Any], host: Host, asked_at: datetime) -> Facts:
    """Read the report of the engine; nothing in it is trusted."""
    cpus = info.get("NCPU")
    memory = info.get("MemTotal")
    return Facts(
        cpu_count=cpus if isinstance(cpus, int) else None,
        cpu_limit=host.cpus or (float(cpus) if isinstance(cpus, int) else None),
        memory_bytes=memory if isinstance(memory, int) else None,
        kernel=plain_text(str(info.get("KernelVersion")), 100),
        operating_system=plain_text(str(info.get("OperatingSystem")), 100),
        engine=f"docker {plain_text(str(info.get('ServerVersion')), 50)}",
        gpu_runtime=_gpu_runtime(info),
        clock_skew_seconds=_skew(str(info.get("SystemTime")), asked_at),
        raw=raw_json(engine={key: value for key, value in info.items() if key not in MAY_HOLD_SECRETS}),
    )


def _gpu_runtime(info: dict[str, Any]) -> str | None:
    """Name the way in which an engine gives GPUs to containers; None: it cannot."""
    runtimes = info.get("Runtimes")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return "NVIDIA runtime"
    return CDI if _cdi_gpus(info) else None


def _cdi_gpus(info: dict[str, Any]) -> frozenset[str]:
    """Return the names of the GPUs that an engine has found by CDI."""
    devices = info.get("DiscoveredDevices")
    found = devices if isinstance(devices, list) else []
    names = (str(device.get("ID", "")) for device in found if isinstance(device, dict))
    return frozenset(name for name in names if name.startswith(f"{CDI_GPU}="))


def _skew(stamp: str, asked_at: datetime) -> float | None:
    """Return how many seconds the host's clock is ahead of ours; None: it reports no time."""
    try:
        told = datetime.fromisoformat(f"{stamp[:19]}+00:00")
    except ValueError:
        return None
    return round((told - asked_at).total_seconds(), 1)
