"""Benchmarks on a host that is reached by ssh and has no Docker engine, e.g. a rented container."""

from __future__ import annotations

import base64
import dataclasses
import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from orchestrate.errors import LaunchFailed, Lost, PullFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import Variant, read_variants
from orchestrate.launchers.base import Ending, OnTurn, OutputLine, always_running
from orchestrate.launchers.container import host_flags, job_variables
from orchestrate.launchers.pulls import Progress, PullLimits
from orchestrate.launchers.ssh import bootstrap
from orchestrate.launchers.ssh.connection import Connection, NoPython
from orchestrate.launchers.ssh.software import (
    Archive,
    Hello,
    Software,
    environment_digest,
    fitting_python,
    image_of_instance,
    image_software,
    lock_of,
    locked_software,
    own_software,
    pack_runner,
    read_hello,
    setup_of,
)
from orchestrate.planning.facts import Facts, Image, facts_from_probe
from orchestrate.planning.images import wanted_images
from orchestrate.planning.plan import Job
from orchestrate.text import MAX_LINE_LENGTH, plain_text
from results.schema import Device, Status
from results.schema.record_json import MAX_RECORD_BYTES

PROBE_SECONDS = 60.0
INSTALL_SILENCE_SECONDS = 120.0
"""While pip works the agent reports every 2 seconds."""

PATIENCE_SECONDS = 300.0
"""How long a host that a benchmark runs on may be away before the benchmark counts as lost."""

BETWEEN_ATTEMPTS_SECONDS = 2.0


class SSHLauncher:
    """Starts benchmarks as processes of a host.

    Args:
        host: Settings of the host; `host.ssh` says where it is.
        pulls: Shared by all hosts of a run; limits how many install packages at a time.
        connection: Instead of one to `host.ssh`, for tests.
    """

    def __init__(self, host: Host, pulls: PullLimits, connection: Connection | None = None) -> None:
        if host.ssh is None:
            raise ValueError(f"host {host.name} is not reached by ssh")
        self._host = host
        self._pulls = pulls
        self._connection = connection or Connection(host.ssh, keys=host.host_keys)
        self._lock = threading.Lock()
        self._software: dict[str | None, Software] = {}

    def probe(self) -> Facts:
        """See `Launcher.probe`: finds the image, or a Python, then runs the probe with it."""
        asked_at = time.time()
        hello = self._hello
        software, python = self._base()
        if self._host.python is not None and hello.image is None:
            own_software(self._runner, python)
        answer = self._connection.ask(
            "probe",
            python=software.python,
            environment=dict(software.environment),
            limit_seconds=PROBE_SECONDS,
            seconds=PROBE_SECONDS + 10,
        )
        try:
            facts = facts_from_probe(str(answer.get("probe")))
        except ValueError as error:
            raise LaunchFailed(f"{self._connection.name}: {plain_text(str(error), 300)}") from error
        facts = dataclasses.replace(
            facts,
            clock_skew_seconds=round(hello.now - asked_at, 1),
            disk_free_bytes=hello.free_bytes,
        )
        if hello.image is not None:
            return dataclasses.replace(facts, images=(image_of_instance(hello.image, self._host.variants),))
        if self._host.python is not None:
            return facts
        images = wanted_images(self._host, facts, read_variants())
        return dataclasses.replace(facts, images=tuple(map(self._with_setup, images)))

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`: installs the locked packages of the job's variant, once per host."""
        self._software_of(job, on_progress)

    def start(self, job: Job) -> bool:
        """See `Launcher.start`: the folder of the repeat is the lock."""
        software = self._software_of(job, lambda done, total: None)
        root = self._hello.root
        answer = self._connection.ask(
            "start",
            run=job.origin.run_id,
            job=job.id,
            command=[
                software.python,
                "-m",
                "tfbench",
                *job.case.flags(),
                *host_flags(job, self._host.data_dir),
                f"--output={root}/jobs/{job.origin.run_id}/{job.id}/record.json",
                f"--max_seconds={self._host.timeout_minutes * 60:g}",
            ],
            environment={**software.environment, "PYTHONUNBUFFERED": "1", **job_variables(job, self._host)},
            unset=[] if job.case.device is Device.CPU or job.gpus else ["CUDA_VISIBLE_DEVICES"],
            cpus=self._host.cpus,
            toolchain=software.toolchain,
        )
        return answer.get("adopted") is True

    def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`: a broken connection is opened again, and goes on where the last one stopped."""
        offset, lines, away_since = 0, _Lines(on_line), None
        while True:
            try:
                run = job.origin.run_id
                for answer in self._connection.stream("follow", run=run, job=job.id, offset=offset):
                    away_since = None
                    if "log" in answer:
                        chunk = self._bytes(answer["log"])
                        lines.take(chunk)
                        offset += len(chunk)
                    elif "code" in answer:
                        lines.end()
                        return _ending(answer)
            except Unreachable as error:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > PATIENCE_SECONDS:
                    raise Lost(f"the host was lost while the benchmark ran: {error.cause}") from error
            time.sleep(BETWEEN_ATTEMPTS_SECONDS)

    def collect(self, job: Job) -> bytes | None:
        """See `Launcher.collect`: asks again while the host is away."""
        began = time.monotonic()
        while True:
            try:
                answer = self._connection.ask("collect", run=job.origin.run_id, job=job.id, limit=MAX_RECORD_BYTES)
                record = answer.get("record")
                return None if record is None else self._bytes(record)[: MAX_RECORD_BYTES + 1]
            except Unreachable as error:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise Lost(f"the host was lost: {error.cause}") from error
            time.sleep(BETWEEN_ATTEMPTS_SECONDS)

    def _bytes(self, text: object) -> bytes:
        """Read bytes from a host's answer."""
        try:
            return base64.b64decode(str(text), validate=True)
        except ValueError as error:
            raise LaunchFailed(
                f"{self._connection.name}: not our agent's answer: {plain_text(str(error), 200)}"
            ) from error

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`: asks first, so that the benchmark can write its record."""
        self._connection.ask("stop", run=job.origin.run_id, job=job.id)

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`."""
        self._connection.ask("remove", run=job.origin.run_id, job=job.id)

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        jobs = self._connection.ask("running", run=run_id).get("jobs")
        names = jobs if isinstance(jobs, list) else []
        return [name for name in names if isinstance(name, str) and name.startswith(f"{self._host.key}.")]

    def close(self) -> None:
        """See `Launcher.close`: every request had a connection of its own."""

    @functools.cached_property
    def _hello(self) -> Hello:
        """What the host has, after a Python was brought where none fits."""
        try:
            hello = self._ask_hello()
        except NoPython as error:
            self._bring_python(str(error))
            return self._ask_hello()
        if hello.image is None and self._host.python is None and fitting_python(hello.pythons) is None:
            self._bring_python(self._no_python(hello))
            hello = self._ask_hello()
        return hello

    def _ask_hello(self) -> Hello:
        answer = self._connection.ask("hello", python=self._host.python)
        try:
            return read_hello(answer)
        except ValueError as error:
            raise LaunchFailed(f"{self._connection.name}: {error}: {plain_text(str(answer), 200)}") from error

    def _bring_python(self, why: str) -> None:
        """Install a Python below our folder.

        Raises:
            LaunchFailed: It cannot be; with the reason, and why it was tried.
        """
        taken = f"downloads about {bootstrap.MEGABYTES_DOWNLOADED} MB, needs {bootstrap.MEGABYTES_NEEDED} MB"
        self._pulls.notify(self._host.key, f"installing Python {bootstrap.PYTHON} below ~/.tfbench: {taken}")
        try:
            with self._pulls.turn("packages"):
                for _ in self._connection.bring_python():
                    pass
        except LaunchFailed as error:
            remedy = "Install Python 3.11 with pip there, or start the instance from another image"
            raise LaunchFailed(f"{why}. It could not be installed either: {error.cause}. {remedy}") from error

    def _with_setup(self, image: Image) -> Image:
        """Add what it takes to install an image's packages, or why they cannot be installed."""
        if image.status is not Status.OK:
            return image
        try:
            variant = _variant(image.variant)
            setup, digest = setup_of(variant), self._environment(variant)
        except LaunchFailed as error:
            return dataclasses.replace(image, status=Status.UNSUPPORTED, problem=error.cause)
        if digest in self._hello.environments:
            return dataclasses.replace(image, reason=f"{image.reason}; its packages are installed")
        if setup is None:
            return image
        if refusal := setup.refusal(self._hello.free_bytes):
            return dataclasses.replace(image, status=Status.PULL_FAILED, problem=refusal)
        return dataclasses.replace(image, reason=f"{image.reason}; not installed yet: {setup.words()}")

    def _environment(self, variant: Variant) -> str:
        """Name the environment of a variant with the Python that fits."""
        python = fitting_python(self._hello.pythons) or {}
        return environment_digest(lock_of(variant), str(python.get("version")))

    def _base(self) -> tuple[Software, Mapping[str, Any]]:
        """Return what the probe runs with, before any package is installed, and the Python in it."""
        hello = self._hello
        if hello.image is not None:
            return image_software(hello.root, hello.image), {}
        python = hello.pythons[0] if self._host.python and hello.pythons else fitting_python(hello.pythons)
        if python is None:
            raise LaunchFailed(self._no_python(hello))
        return Software(python=str(python["path"]), environment={"PYTHONPATH": self._runner}), python

    def _no_python(self, hello: Hello) -> str:
        if self._host.python is not None:
            return f"{self._connection.name}: python: {self._host.python} cannot be started there"
        found = ", ".join(
            f"{python.get('path')} ({python.get('version')}{'' if python.get('pip') else ', without pip'})"
            for python in hello.pythons
        )
        return f"{self._connection.name}: needs Python 3.11, 3.12 or 3.13 with pip. Found: {plain_text(found, 200)}"

    @functools.cached_property
    def _runner(self) -> str:
        """The folder of the runner on the host; sent where it is not there yet."""
        archive: Archive = pack_runner()
        if archive.digest not in self._hello.runners:
            self._connection.ask("unpack", archive.content, digest=archive.digest)
        return f"{self._hello.root}/runner/{archive.digest}"

    def _software_of(self, job: Job, on_progress: Progress) -> Software:
        """Return what a job runs with, after installing what is missing."""
        variant = job.origin.variant
        with self._lock:
            if variant not in self._software:
                self._software[variant] = self._make_software(variant, on_progress)
            return self._software[variant]

    def _make_software(self, name: str | None, on_progress: Progress) -> Software:
        hello = self._hello
        base, python = self._base()
        if hello.image is not None:
            return base
        if self._host.python is not None:
            return own_software(self._runner, python)
        variant = _variant(name)
        digest = self._environment(variant)
        if digest not in hello.environments:
            self._install(variant, str(python["path"]), digest, on_progress)
        return locked_software(hello.root, self._runner, python, digest)

    def _install(self, variant: Variant, python: str, digest: str, on_progress: Progress) -> None:
        """Install the locked packages of a variant.

        Raises:
            PullFailed: The disk is too small, or pip failed.
        """
        setup, total = setup_of(variant), 0
        if setup is not None:
            total = setup.needed_megabytes * 1_000_000
            if refusal := setup.refusal(self._hello.free_bytes):
                raise PullFailed(f"{self._connection.name}: {refusal}")
            self._pulls.notify(self._host.key, f"installing the packages of {variant.name}: {setup.words()}")
        request = {"python": python, "digest": digest}
        try:
            with self._pulls.turn("packages"):
                for answer in self._connection.stream("install", lock_of(variant), INSTALL_SILENCE_SECONDS, **request):
                    if isinstance(done := answer.get("installed_bytes"), int):
                        on_progress(min(done, total or done), total or done)
        except LaunchFailed as error:
            raise PullFailed(error.cause) from error


def _variant(name: str | None) -> Variant:
    for variant in read_variants():
        if variant.name == name:
            return variant
    raise LaunchFailed(f"there is no variant {name!r} for a host without Docker")


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


class _Lines:
    """Cuts output into lines, in bounded memory."""

    def __init__(self, on_line: OutputLine) -> None:
        self._on_line = on_line
        self._rest = b""

    def take(self, chunk: bytes) -> None:
        """Hand on the lines that a chunk completes; the rest waits, but not beyond the longest line."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(plain_text(line.decode("utf-8", "replace")))
        self._rest = rest[-MAX_LINE_LENGTH * 4 :]

    def end(self) -> None:
        """Hand on a last line without its end."""
        if self._rest:
            self._on_line(plain_text(self._rest.decode("utf-8", "replace")))
            self._rest = b""
