"""Runs benchmarks as processes through an agent, on this machine or over ssh on a host without Docker."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio

from orchestrate import loop
from orchestrate.engines.base import Ending, Launcher, OnTurn, OutputLine, always_running
from orchestrate.engines.invocation import host_flags, job_variables
from orchestrate.engines.pulls import DEADLINE_SECONDS, Progress, PullLimits
from orchestrate.engines.ssh import software
from orchestrate.engines.ssh.channel import Channel, NoPython
from orchestrate.engines.ssh.software import Hello, HostSoftware, Packages
from orchestrate.errors import Busy, LaunchFailed, Lost, PullFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.facts import ARCHITECTURES, Facts, Image, facts_from_probe, require_driver
from orchestrate.planning.images import wanted_images
from orchestrate.planning.plan import Job
from orchestrate.project import PROJECT, missing_extra
from orchestrate.text import Lines, plain_text
from results.schema import Status
from results.schema.record_json import MAX_RECORD_BYTES

PROBE_SECONDS = 60.0
INSTALL_SILENCE_SECONDS = 120.0
"""The agent reports every 2 seconds while pip runs."""

PATIENCE_SECONDS = 300.0
"""How long a host may be unreachable before its benchmark counts as lost."""

BETWEEN_ATTEMPTS_SECONDS = 2.0

T = TypeVar("T")

Notify = Callable[[str, str], None]
"""Receives a host's key and a message."""


class AgentLauncher(Launcher):
    """Starts benchmarks as processes through an agent; subclasses choose the software.

    Args:
        host: Settings of the host.
        channel: Channel to its agent.
        notify: Receives messages for the user.

    Attributes:
        command: Replaces `python -m tfbench` in tests.
    """

    _MACHINE, _STATES = ".", "jobs/*/*/state.json"
    """A folder below which all runs of the host are, relative to the agent's, and the states of their repeats."""

    command: Sequence[str] = ()

    def __init__(self, host: Host, channel: Channel, notify: Notify) -> None:
        self._host = host
        self._channel = channel
        self._notify = notify

    def start(self, job: Job) -> bool:
        """See `Launcher.start`; the folder of the repeat is the lock."""
        used = self._software_of(job, lambda done, total: None)
        answer = self._channel.request(
            "start",
            run=job.origin.run_id,
            job=job.id,
            command=[
                *(self.command or (used.python, "-m", "tfbench")),
                *job.case.flags(),
                *host_flags(job, self._host.data_dir),
                "--output=record.json",  # in the repeat's folder
                f"--max_seconds={self._host.timeout_minutes * 60:g}",
            ],
            environment={**used.environment, "PYTHONUNBUFFERED": "1", **job_variables(job, self._host)},
            cpus=self._host.cpus,
            toolchain=used.toolchain,
            machine=self._MACHINE,
            states=self._STATES,
        )
        if (other := answer.get("busy")) is not None:
            raise Busy(f"run {plain_text(str(other), 100)} measures on this machine, too")
        return answer.get("reattached") is True

    async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`; reconnects after a broken connection and continues at the same offset."""
        once = functools.partial(self._follow_once, job, Lines(), on_line)
        return await self._patiently("the host was lost while the benchmark ran", once)

    async def _follow_once(self, job: Job, lines: Lines, on_line: OutputLine) -> Ending | None:
        """Follow once; None: the connection broke after at least one answer, or ended early."""
        received = False
        answers = self._channel.answers("follow", run=job.origin.run_id, job=job.id, offset=lines.taken)
        try:
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    received = True
                    if "log" in answer:
                        for line in lines.cut(self._channel.decode(answer["log"])):
                            on_line(line)
                        await anyio.sleep(0)  # others have their turn
                    elif answer.get("prints") is True:  # more than the agent keeps
                        on_line("")
                    elif "code" in answer:
                        for line in lines.end():
                            on_line(line)
                        return _ending(answer)
        except Unreachable:
            if not received:
                raise
        return None

    def collect(self, job: Job) -> bytes | None:
        """See `Launcher.collect`; retries while the host is unreachable."""
        about: dict[str, Any] = {"run": job.origin.run_id, "job": job.id, "limit": MAX_RECORD_BYTES}
        once = functools.partial(self._channel.answer, "collect", **about)
        record = loop.wait_for(self._patiently("the host was lost", once)).get("record")
        return None if record is None else self._channel.decode(record)[: MAX_RECORD_BYTES + 1]

    async def _patiently(self, lost: str, action: Callable[[], Awaitable[T | None]]) -> T:
        """Repeat an action until it has a result, also while the host is unreachable, of which the user hears once.

        Raises:
            Lost: It was unreachable for too long; with this reason.
        """
        away_since: float | None = None
        while True:
            try:
                done = await action()
            except Unreachable as error:
                if away_since is None:
                    away_since, minutes = time.monotonic(), f"{PATIENCE_SECONDS / 60:g} minutes"
                    self._notify(self._host.key, f"does not answer; trying again for up to {minutes}: {error.cause}")
                if time.monotonic() - away_since > PATIENCE_SECONDS:
                    raise Lost(f"{lost}: {error.cause}") from error
            else:
                if away_since is not None:
                    self._notify(self._host.key, "answers again")
                    away_since = None
                if done is not None:
                    return done
            await anyio.sleep(BETWEEN_ATTEMPTS_SECONDS)

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
        """See `Launcher.close`."""
        self._channel.close()

    def _run_probe(self, used: HostSoftware) -> Facts:
        """Run the probe with the given software."""
        words, where = (used.python, "-m", "tfbench.probe"), self._channel.name
        done = loop.wait_for(self._channel.run(words, used.environment, PROBE_SECONDS))
        if done.code != 0:
            said = done.errors.split("\n")
            cause = next((plain_text(line, 300) for line in reversed(said) if line.strip()), "it printed nothing")
            raise LaunchFailed(f"{where}: the probe ended with exit code {done.code}: {cause}")
        try:
            facts = facts_from_probe(done.output)
        except ValueError as error:
            raise LaunchFailed(f"{where}: {plain_text(str(error), 300)}") from error
        if self._host.wants_gpus:
            require_driver(facts)
        return facts

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
        super().__init__(host, Channel(None, root=root), lambda host, message: None)

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
        if host.ssh is None:
            raise ValueError(f"host {host.name} is not reached by ssh")
        super().__init__(
            host,
            channel or Channel(host.ssh, keys=host.host_keys),
            lambda key, message: pulls.notify(key, message),
        )
        self._pulls = pulls
        self._software: dict[str | None, HostSoftware] = {}
        self._clock_skew_seconds = 0.0

    def probe(self) -> Facts:
        """See `Launcher.probe`; finds the image or a Python, then runs the probe with it."""
        hello, base = self._hello, self._base
        facts = dataclasses.replace(
            self._run_probe(base),
            architecture=ARCHITECTURES.get(machine := plain_text(hello.machine, 30), machine) or None,
            clock_skew_seconds=self._clock_skew_seconds,
            disk_free_bytes=hello.free_bytes,
        )
        if hello.image is not None:
            return dataclasses.replace(facts, images=(software.image_of_instance(hello.image, self._host.variant),))
        if self._host.python is not None:
            return facts
        images = wanted_images(self._host, facts, read_variants())
        return dataclasses.replace(facts, images=tuple(map(self._with_setup, images)))

    @functools.cached_property
    def _hello(self) -> Hello:
        """What the host has; a Python is installed if it has none for the agent, or none for our packages."""
        try:
            hello = self._read_hello()
            if hello.image is not None or self._host.python is not None or software.fitting_python(hello.pythons):
                return hello
            why = self._no_python(hello)
        except NoPython as error:
            why = str(error)
        self._install_python(why)
        return self._read_hello()

    def _read_hello(self) -> Hello:
        asked_at = time.time()
        answer = self._channel.request("hello", python=self._host.python)
        midway = (asked_at + time.time()) / 2  # logging in may take seconds
        try:
            hello = Hello.model_validate(answer)
        except (ValueError, RecursionError) as error:
            shown = plain_text(str(answer), 200)
            raise LaunchFailed(f"{self._channel.name}: not our agent's answer: {shown}") from error
        self._clock_skew_seconds = round(hello.now - midway, 1)
        return hello

    def _install_python(self, why: str) -> None:
        """Install a Python below our folder.

        Raises:
            LaunchFailed: The installation failed; the message includes why it was needed.
        """
        what = f"installing Python {software.PYTHON_VERSION} below ~/.tfbench: {software.PYTHON_DOWNLOAD}"
        self._notify(self._host.key, what)
        try:
            with self._pulls.turn("packages"):
                self._channel.install_python()
        except LaunchFailed as error:
            remedy = "Install Python 3.11 with pip there, or start the instance from another image"
            raise LaunchFailed(f"{why}. It could not be installed either: {error.cause}. {remedy}") from error

    def _with_setup(self, image: Image) -> Image:
        """Add the size of an image's packages, or why they cannot be installed."""
        if image.status is not Status.OK:
            return image
        try:
            packages = self._packages(image.variant)
        except LaunchFailed as error:
            return dataclasses.replace(image, status=Status.UNSUPPORTED, reason=error.cause)
        if packages.digest in self._hello.environments:
            return dataclasses.replace(image, reason=f"{image.reason}; its packages are installed")
        if refusal := packages.refusal(self._hello.free_bytes):
            return dataclasses.replace(image, status=Status.PULL_FAILED, reason=refusal)
        return dataclasses.replace(image, reason=f"{image.reason}; not installed yet: {packages.size()}")

    def _packages(self, name: str | None) -> Packages:
        """Return the packages of a variant, for the host's Python; that of the locks is installed if none fits.

        Raises:
            LaunchFailed: They cannot be installed there.
        """
        variant = next((variant for variant in read_variants() if variant.name == name), None)
        if variant is None:
            raise LaunchFailed(f"there is no variant {name!r} for a host without Docker")
        lock, python = software.lock_of(variant), software.fitting_python(self._hello.pythons, variant)
        if python is None:
            lacking = f"TensorFlow {variant.tensorflow} has no wheels for Python after {variant.newest_python}"
            self._install_python(f"{self._channel.name}: {lacking}")
            self._hello = self._read_hello()
            python = software.fitting_python(self._hello.pythons, variant)
        if python is None:
            raise LaunchFailed(self._no_python(self._hello))
        if too_old := software.libc_refusal(variant, python):
            raise LaunchFailed(too_old)
        return Packages(variant=variant, python=python, lock=lock)

    @functools.cached_property
    def _base(self) -> HostSoftware:
        """The software for the probe: all but locked packages.

        Raises:
            LaunchFailed: The host has no usable Python.
        """
        hello, own = self._hello, self._host.python is not None
        if hello.image is not None:
            return software.image_software(hello.root, hello.image)
        python = next(iter(hello.pythons), None) if own else software.fitting_python(hello.pythons)
        if python is None:
            raise LaunchFailed(self._no_python(hello))
        if own and not isinstance(python.get("tensorflow"), str):
            remedy = "Install it there, or remove python: from hosts.yml"
            raise LaunchFailed(f"python: {python['path']} has no TensorFlow. {remedy}")
        return HostSoftware(python=str(python["path"]), environment={"PYTHONPATH": self._runner})

    def _no_python(self, hello: Hello) -> str:
        if self._host.python is not None:
            return f"{self._channel.name}: python: {self._host.python} cannot be started there"
        found = ", ".join(
            f"{python.get('path')} ({python.get('version')}{'' if python.get('pip') else ', without pip'})"
            for python in hello.pythons
        )
        return f"{self._channel.name}: needs Python 3.11, 3.12 or 3.13 with pip. Found: {plain_text(found, 200)}"

    @functools.cached_property
    def _runner(self) -> str:
        """The folder of the runner on the host; sent if missing."""
        digest, content = software.pack_runner()
        if digest not in self._hello.runners:
            self._channel.request("unpack", content, digest=digest)
        return f"{self._hello.root}/runner/{digest}"

    def _software_of(self, job: Job, on_progress: Progress) -> HostSoftware:
        variant = job.origin.variant
        if variant not in self._software:
            self._software[variant] = self._make_software(variant, on_progress)
        return self._software[variant]

    def _make_software(self, name: str | None, on_progress: Progress) -> HostSoftware:
        if self._hello.image is not None or self._host.python is not None:
            return self._base
        packages = self._packages(name)
        if packages.digest not in self._hello.environments:
            self._install(packages, on_progress)
        return packages.software(self._hello.root, self._runner)

    def _install(self, packages: Packages, on_progress: Progress) -> None:
        """Install the locked packages of a variant.

        Raises:
            PullFailed: The disk is too small, or pip failed.
        """
        if refusal := packages.refusal(self._hello.free_bytes):
            raise PullFailed(f"{self._channel.name}: {refusal}")
        self._notify(self._host.key, f"installing the packages of {packages.variant.name}: {packages.size()}")
        total = packages.needed * 1_000_000
        about: dict[str, Any] = {"silence_seconds": INSTALL_SILENCE_SECONDS, "seconds": DEADLINE_SECONDS}
        about |= {"python": str(packages.python["path"]), "digest": packages.digest}

        async def install() -> None:
            async for answer in self._channel.answers("install", packages.lock, **about):
                if isinstance(done := answer.get("installed_bytes"), int):
                    on_progress(min(done, total), total)

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
        out_of_memory=answer.get("out_of_memory") is True,
        detail=plain_text(str(answer.get("detail") or ""), 300),
    )
