"""Runs benchmarks as processes through an agent, on this machine or over ssh on a host without Docker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrate import loop
from orchestrate.engines import base
from orchestrate.engines.base import Ending, Launcher, OutputLine, Poller, Progress, PullLimits
from orchestrate.engines.invocation import benchmark_flags, process_variables
from orchestrate.engines.ssh import software
from orchestrate.engines.ssh.channel import Channel, NoPython, shared_channel
from orchestrate.engines.ssh.software import Hello, HostSoftware, Packages
from orchestrate.errors import Busy, HostError, LaunchFailed, PullFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import ARCHITECTURES, Facts, Image, facts_from_probe
from orchestrate.planning.images import wanted_images
from orchestrate.planning.plan import Job
from orchestrate.project import PROJECT, missing_extra
from orchestrate.text import Lines, plain_text
from results.schema import Status
from results.schema.record_json import MAX_RECORD_BYTES

PROBE_SECONDS = 60.0
PATIENCE_SECONDS = 300.0
"""How long a host may be unreachable before its benchmark counts as lost."""

BETWEEN_ANSWERS_SECONDS, MUCH_BYTES = 0.2, 1 << 16
"""Time between requests for output, unless the last answer had so much."""

PROGRESS_SECONDS = 2.0


class AgentLauncher(Launcher):
    """Starts benchmarks as processes through an agent; subclasses choose the software.

    Args:
        host: Settings of the host.
        channel: Channel to its agent.
        pulls: Shared by all hosts of a run; limits concurrent installations.

    Attributes:
        command: Replaces `python -m tfbench` in tests.
    """

    _MACHINE, _STATES = ".", "jobs/*/*/state.json"
    """A folder below which all runs of the host are, relative to the agent's, and the states of their repeats."""

    command: Sequence[str] = ()

    def __init__(self, host: Host, channel: Channel, pulls: PullLimits) -> None:
        self._host = host
        self._channel = channel
        self._pulls = pulls

    def start(self, job: Job) -> bool:
        """See `Launcher.start`; the folder of the repeat is the lock."""
        used = self._software_of(job, lambda done, total: None)
        answer = self._channel.request(
            "start",
            run=job.origin.run_id,
            job=job.id,
            command=[
                *(self.command or (used.python, "-m", "tfbench")),
                *benchmark_flags(job, self._host, self._host.data_dir),
                "--output=record.json",  # in the repeat's folder
            ],
            environment={**used.environment, **process_variables(job, self._host)},
            cpus=self._host.cpus,
            toolchain=used.toolchain,
            machine=self._MACHINE,
            states=self._STATES,
        )
        if (other := answer.get("busy")) is not None:
            raise Busy(f"run {plain_text(str(other), 100)} measures on this machine, too")
        return answer.get("reattached") is True

    async def follow(self, job: Job, on_line: OutputLine, on_turn: base.OnTurn = base.always_running) -> Ending:
        """See `Launcher.follow`; asks for what follows an offset, whatever became of the last answer."""
        lines, answer, away = Lines(), dict[str, Any](), False
        limit = MAX_RECORD_BYTES + 1

        async def ask() -> None:
            nonlocal answer
            answer = {}
            about: dict[str, Any] = {"run": job.origin.run_id, "job": job.id, "record_bytes": limit}
            answer = await self._channel.answer("follow", offset=lines.taken, **about)

        poller = Poller("the host", ask, BETWEEN_ANSWERS_SECONDS, PATIENCE_SECONDS, Unreachable)
        while "code" not in answer:
            await poller.wait()
            if bool(poller.trouble) != away:
                away = not away
                until = f"does not answer; trying again for up to {PATIENCE_SECONDS / 60:g} minutes: {poller.trouble}"
                self._notify(until if away else "answers again")
            output = self._channel.decode(answer.get("log") or "")
            for line in lines.cut(output):
                on_line(line)
            if answer.get("prints") is True:  # more than the agent keeps
                on_line("")
            if len(output) >= MUCH_BYTES:
                poller.hurry()
        for line in lines.end():
            on_line(line)
        record = None if answer.get("record") is None else self._channel.decode(answer["record"])[:limit]
        return dataclasses.replace(_ending(answer), record=record)

    def _notify(self, message: str) -> None:
        self._pulls.notify(self._host.key, message)

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`; sends SIGTERM first so that the benchmark can write its record."""
        self._channel.request("stop", run=job.origin.run_id, job=job.id)

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`."""
        self._channel.request("remove", run=job.origin.run_id, job=job.id)

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        jobs = self._channel.request("running", run=run_id).get("jobs")
        names = jobs if isinstance(jobs, list) else []
        return [name for name in names if isinstance(name, str) and name.startswith(f"{self._host.key}.")]

    def close(self) -> None:
        """See `Launcher.close`; the connection stays open for others until this process ends."""

    def _run_probe(self, used: HostSoftware) -> Facts:
        """Run the probe with the given software."""
        words = (used.python, "-m", "tfbench.probe")
        output = loop.wait_for(self._channel.run(words, used.environment, PROBE_SECONDS))
        return facts_from_probe(output, wants_gpus=self._host.wants_gpus)

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`; over ssh, installs the locked packages of the job's variant, once per host."""
        self._software_of(job, on_progress)

    def _software_of(self, job: Job, on_progress: Progress) -> HostSoftware:
        """Return the software for a job, installing it if necessary."""
        raise NotImplementedError


HERE = HostSoftware(python=sys.executable, environment={"PYTHONPATH": str(PROJECT)})
"""The running Python."""


class ProcessLauncher(AgentLauncher):
    """Starts benchmarks on this machine, each in a folder `work/jobs/RUN/JOB/` of the run.

    Args:
        host: Settings of the host.
        run_path: The run's folder; None if nothing will be started.
    """

    _MACHINE, _STATES = "../..", "*/work/jobs/*/*/state.json"

    def __init__(self, host: Host, run_path: Path | None) -> None:
        # Absolute, because the agent has another working directory.
        root = "/nonexistent" if run_path is None else str(run_path.absolute() / "work")
        super().__init__(host, shared_channel(None, root=root), PullLimits())

    def probe(self) -> Facts:
        """See `Launcher.probe`."""
        if missing := missing_extra():
            raise LaunchFailed(missing)
        return self._run_probe(HERE)

    def _software_of(self, job: Job, on_progress: Progress) -> HostSoftware:
        return HERE


class SSHLauncher(AgentLauncher):
    """Starts benchmarks as processes on a host over ssh.

    Args:
        host: Settings of the host; `host.ssh` is its address.
        pulls: Shared by all hosts of a run; limits concurrent installations.
        channel: Replaces that to `host.ssh` in tests.
    """

    def __init__(self, host: Host, pulls: PullLimits, channel: Channel | None = None) -> None:
        assert host.ssh is not None
        python = {"python": host.python} if host.python is not None else {"fits": software.FITS}
        super().__init__(host, channel or shared_channel(host.ssh, host.host_keys, **python), pulls)

    def probe(self) -> Facts:
        """See `Launcher.probe`; finds the image or a Python, then runs the probe with it."""
        hello = self._hello
        facts = dataclasses.replace(
            self._run_probe(self._base),
            architecture=ARCHITECTURES.get(machine := plain_text(hello.machine, 30), machine) or None,
            disk_free_bytes=hello.free_bytes,
        )
        if hello.image is not None:
            return dataclasses.replace(facts, images=(software.image_of_instance(hello.image, self._host.variant),))
        if self._host.python is not None:
            return facts
        images = wanted_images(self._host, facts)
        return dataclasses.replace(facts, images=tuple(map(self._with_setup, images)))

    @functools.cached_property
    def _hello(self) -> Hello:
        """What the host has; a Python is installed if none fits.

        Raises:
            LaunchFailed: The installation failed; the message includes why it was needed.
        """
        try:
            return self._read_hello()
        except NoPython as error:
            if self._host.python is not None:
                raise
            why = f"{error.cause}. Needed: Python {software.PYTHON_VERSION} with pip"
        self._notify(f"installing Python {software.PYTHON_VERSION} below ~/.tfbench: {software.PYTHON_DOWNLOAD}")
        try:
            with self._pulls.turn("packages"):
                loop.wait_for(self._channel.install_python())
        except LaunchFailed as error:
            remedy = f"Install Python {software.PYTHON_VERSION} with pip there, or rent from another image"
            raise LaunchFailed(f"{why}. It could not be installed either: {error.cause}. {remedy}") from error
        return self._read_hello()

    def _read_hello(self) -> Hello:
        answer = self._channel.request("hello")
        try:
            return Hello.model_validate(answer)
        except (ValueError, RecursionError) as error:
            shown = plain_text(str(answer), 200)
            raise LaunchFailed(f"{self._channel.name}: not our agent's answer: {shown}") from error

    def _with_setup(self, image: Image) -> Image:
        """Add the size of an image's packages, or why they cannot be installed."""
        if image.status is not Status.OK:
            return image
        try:
            packages = software.packages_of(image.variant, self._hello.libc)
        except LaunchFailed as error:
            return dataclasses.replace(image, status=Status.UNSUPPORTED, reason=error.cause)
        if packages.digest in self._hello.environments:
            return dataclasses.replace(image, reason=f"{image.reason}; its packages are installed")
        if refusal := packages.refusal(self._hello.free_bytes):
            return dataclasses.replace(image, status=Status.PULL_FAILED, reason=refusal)
        return dataclasses.replace(image, reason=f"{image.reason}; not installed yet: {packages.size()}")

    @functools.cached_property
    def _base(self) -> HostSoftware:
        """The software for the probe: all but locked packages.

        Raises:
            LaunchFailed: The host has no usable Python.
        """
        hello = self._hello
        if hello.image is not None:
            return software.image_software(hello.root, hello.image)
        if self._host.python is not None and not hello.tensorflow:
            remedy = "Install it there, or remove python: from hosts.yml"
            raise LaunchFailed(f"python: {self._host.python} has no TensorFlow. {remedy}")
        return HostSoftware(python=hello.python, environment={"PYTHONPATH": self._runner})

    @functools.cached_property
    def _runner(self) -> str:
        """The folder of the runner on the host; sent if missing."""
        digest, content = software.pack_runner()
        if digest not in self._hello.runners:
            self._channel.request("unpack", content, digest=digest)
        return f"{self._hello.root}/runner/{digest}"

    def _software_of(self, job: Job, on_progress: Progress) -> HostSoftware:
        if self._hello.image is not None or self._host.python is not None:
            return self._base
        packages = software.packages_of(job.origin.variant, self._hello.libc)
        if packages.digest not in self._hello.environments:
            self._install(packages, on_progress)
            self._hello.environments.add(packages.digest)
        return packages.software(self._hello.root, self._runner, self._hello.python)

    def _install(self, packages: Packages, on_progress: Progress) -> None:
        """Install the locked packages of a variant.

        Raises:
            PullFailed: pip failed.
        """
        self._notify(f"installing the packages of {packages.variant.name}: {packages.size()}")
        total = packages.needed * 1_000_000

        async def install() -> None:
            about = {"python": self._hello.python, "digest": packages.digest}
            installing = self._channel.answer("install", packages.lock, seconds=base.DEADLINE_SECONDS, **about)
            task, before = asyncio.create_task(installing), self._hello.free_bytes
            while not (await asyncio.wait([task], timeout=PROGRESS_SECONDS))[0]:
                with contextlib.suppress(HostError):
                    free = (await self._channel.answer("hello")).get("free_bytes")
                    on_progress(max(0, min(before - free, total)) if isinstance(free, int) else 0, total)
            await task

        try:
            with self._pulls.turn("packages"):
                loop.wait_for(install())
        except LaunchFailed as error:
            raise PullFailed(error.cause) from error


def _ending(answer: Mapping[str, Any]) -> Ending:
    code = answer["code"]
    if code is None:
        return Ending(exit_code=None, detail="neither it nor its guardian is running any more. Was the host restarted?")
    known = code if isinstance(code, int) and not isinstance(code, bool) else 1
    return Ending(
        exit_code=known if known >= 0 else 128 - known,
        detail=plain_text(str(answer.get("detail") or ""), 300),
    )
