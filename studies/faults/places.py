"""Where random schedules of faults run: this machine, an sshd, a Docker engine and a Slurm cluster, all on loopback."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from orchestrate.engines.ssh import launcher as ssh_launcher
from orchestrate.engines.ssh.agent import read_json
from orchestrate.engines.ssh.software import HostSoftware
from tests.real.ssh.rented import Rented
from tests.support.controller import ours, remove_ours, running
from tests.support.engines.docker import PING_SECONDS
from tests.support.engines.fragile import FragileEngine
from tests.support.engines.processes import (
    EngineError,
    Server,
    all_pids,
    below,
    free_port,
    read_proc,
    send,
    wait_until,
    with_variables,
)
from tests.support.engines.slurm import NODES, SlurmCluster

Undo = Callable[[], object]

MAIN = """\
import fcntl, os, sys
from pathlib import Path
from tfbench.fake import main

place = Path(os.environ["FAULTS"])
name = next(Path(word[9:]).parent.name for word in sys.argv if word.startswith("--output="))
with (place / "starts").open("a") as starts:
    starts.write(name + "\\n")
locks = []
for lock in [name] if "SLURM_JOB_ID" in os.environ else [name, "host"]:
    locks.append((place / f"running-{lock}").open("w"))
    try:
        fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with (place / "overlaps").open("a") as overlaps:
            overlaps.write(f"{name} while {lock} runs\\n")
os.environ["FAKE_BENCHMARK"] = (place / "behaviour").read_text()
main()
"""
"""Of the fake benchmark: notes each start, and whether another repeat runs on its host."""

OPEN, HOLE, SLOW, CUT = "open", "black-holed", "slow", "cut"
ENGINE_BYTES = 400 << 20


class Link:
    """A process that passes on what two sides say, as long as it is let."""

    def __init__(self, mode: Path, listener: socket.socket, target: str | tuple[str, int]) -> None:
        self._mode, self._listener, self._target = mode, listener, target
        self.set(OPEN)
        if (pid := os.fork()) == 0:
            try:
                self._serve()
            finally:
                os._exit(0)
        listener.close()
        self._pid = pid

    def set(self, mode: str) -> None:
        """Let everything through, nothing, little, or cut all connections."""
        self._mode.write_text(mode)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def _serve(self) -> None:
        while True:
            near = self._listener.accept()[0]
            far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            if far.connect_ex(self._target):
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # if one side resets its connection, the other is closed below
            while (mode := self._mode.read_text()) != CUT:
                if mode == HOLE or not select.select([source], [], [], 0.05)[0]:
                    time.sleep(0.05 if mode == HOLE else 0)
                    continue
                if not (data := source.recv(8192)):
                    target.shutdown(socket.SHUT_WR)
                    return
                time.sleep(0.1 if mode == SLOW else 0)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Place:
    """Where the repeats of a schedule run; this one: on this machine.

    Args:
        folder: Of the worker that this place belongs to; kept from schedule to schedule.
        benchmark: From `make_fake_project`.
    """

    victims = ("controller", "agent", "guardian", "benchmark")
    """What gets a signal."""

    others = (("disk", "here"), ("file", "record.json"), ("file", "state.json"), ("file", "output.log"))
    """What else may fail here, in addition to what may fail with each place."""

    _link: Any

    def __init__(self, folder: Path, benchmark: Path) -> None:
        self.folder = folder
        self.benchmark = benchmark
        self.environment: dict[str, str] = {}

    def begin(self, folder: Path) -> dict[str, Any]:
        """Begin a schedule in its folder; return the settings of its fleet."""
        software = HostSoftware(python=sys.executable, environment={"PYTHONPATH": str(self.benchmark)})
        ssh_launcher.HERE = software
        self.schedule = folder
        self.jobs = folder / "runs"
        return {"hosts": {"one": {"process": True}}}

    def find(self, victim: str, controller: int) -> list[int]:
        """Return the processes that a victim's name means now."""
        if victim == "controller":
            return [controller]
        if victim == "agent":
            return [
                pid for pid in below(self.parent_of_agents(controller)) if b"sys.stdin" in read_proc(pid, "cmdline")
            ]
        states = []
        with contextlib.suppress(OSError):  # a folder may go while it is listed
            states = [read_json(path) or {} for path in self.jobs.rglob("state.json")]
        known = [state.get({"benchmark": "child"}.get(victim, victim)) for state in states]
        return [int(identity.split()[0]) for identity in known if identity]

    def parent_of_agents(self, controller: int) -> int:
        """Return the process below which agents are."""
        return controller

    def other(self, what: str, how: str) -> Undo | None:
        """Let something else fail; return what ends that, or None: it is not possible yet."""
        if what == "link":  # only in places that have one
            self._link.set(how)
            return lambda: self._link.set(OPEN)
        if what == "disk":
            return fill(self.schedule / "runs")
        return truncate(self.jobs, how)

    def left(self) -> list[str]:
        """Return what has been left behind."""
        running = [f"{pid}: {read_proc(pid, 'cmdline')!r}" for pid in self.tagged()]
        return [*running, *map(str, self.jobs.glob(".tfbench/jobs/*/*")), *map(str, self.jobs.glob("*/work/*/*/*"))]

    def tagged(self) -> list[int]:
        """Return the processes of this schedule."""
        return with_variables(f"FAULTS={self.schedule}")

    def created(self) -> dict[str, int]:
        """Return how often each repeat was started."""
        file = self.schedule / "starts"
        names = file.read_text().split() if file.exists() else []
        return {name: names.count(name) for name in names}

    def watch(self) -> None:
        """Look at what happens."""

    def undo(self, victim: str, pids: list[int]) -> None:
        """End a fault of processes: those that were stopped go on, and servers are started again."""
        send(signal.SIGCONT, pids)
        if victim not in Place.victims:
            self.heal()

    def heal(self) -> None:
        """Have everything work again."""

    def calm(self) -> None:
        """Wait until what was left has ended."""

    def end(self) -> None:
        """End the schedule, and everything of it."""
        send(signal.SIGKILL, self.tagged())

    def close(self) -> None:
        """End the place."""


class SshPlace(Place):
    """An instance that only ssh reaches, through a link."""

    victims = (*Place.victims, "session", "sshd")
    others = (*Place.others, ("disk", "there"), ("link", HOLE), ("link", SLOW), ("link", CUT))

    def begin(self, folder: Path) -> dict[str, Any]:
        self.schedule, self.jobs = folder, folder / "home"
        self._rented = Rented(folder / "ssh", self.benchmark, self.jobs, FAULTS=folder)
        host, port = self._rented.host, free_port()
        self._link = Link(folder / "mode", socket.create_server(("127.0.0.1", port)), ("127.0.0.1", host.port))
        alias = f"Port {port}\n  HostKeyAlias [127.0.0.1]:{host.port}\n"
        host.config_file.write_text(host.config_file.read_text().replace(f"Port {host.port}\n", alias))
        host.start()
        return {"hosts": {"one": self._rented.entry()}}

    def find(self, victim: str, controller: int) -> list[int]:
        if victim == "sshd":
            return [self._rented.host.pid]
        if victim == "session":
            return [pid for pid in below(self._rented.host.pid) if read_proc(pid, "cmdline").startswith(b"sshd:")]
        return super().find(victim, controller)

    def parent_of_agents(self, controller: int) -> int:
        return self._rented.host.pid

    def other(self, what: str, how: str) -> Undo | None:
        return fill(self.jobs) if how == "there" else super().other(what, how)

    def heal(self) -> None:
        self._link.set(OPEN)
        revive(self._rented.host)

    def end(self) -> None:
        super().end()
        self._link.close()
        self._rented.host.stop()


class DockerPlace(Place):
    """An engine with a small disk, behind a link; `image` is the archive of the fake benchmark's image."""

    victims = ("controller", "benchmark", "shim", "dockerd")
    others = (*(("disk", how) for how in ("here", "there")), *(("link", how) for how in (HOLE, SLOW, CUT)),
              ("container", "pause"), ("container", "remove"), ("container", "stop"))  # fmt: skip

    def __init__(self, folder: Path, benchmark: Path, image: Path) -> None:
        super().__init__(folder, benchmark)
        self._engine = FragileEngine("f", folder, ENGINE_BYTES)
        self._engine.start()
        with image.open("rb") as archive:
            self._image = self._engine.client.images.load(archive)[0].tags[0]
        # With a short timeout: another fault may have stopped the engine, and only this process resumes it.
        self._impatient = docker.DockerClient(base_url=self._engine.url, timeout=PING_SECONDS)
        self._containers: dict[str, str] = {}
        self._started: dict[str, str] = {}

    def begin(self, folder: Path) -> dict[str, Any]:
        self.schedule, self.jobs, self._containers, self._started = folder, folder / "runs", {}, {}
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "link.sock"))
        listener.listen()
        self._link = Link(folder / "mode", listener, str(self._engine.socket))
        host = {"docker": f"unix://{self.folder / 'link.sock'}", "image_source": "local"}
        return {"hosts": {"one": host}, "image": self._image}

    def watch(self) -> None:
        """See `Place.watch`: each container has a folder of its own; of one that never ran, the start has year 1."""
        for file in self._engine.data_folder.glob("containers/*/config.v2.json"):
            if file.parent.name not in self._started:
                document = read_json(file) or {}
                if job := document.get("Config", {}).get("Labels", {}).get("tfbench.job"):
                    self._containers[file.parent.name] = job
                    if not document["State"]["StartedAt"].startswith("0001"):
                        self._started[file.parent.name] = job

    def created(self) -> dict[str, int]:
        names = list(self._started.values())
        return {name: names.count(name) for name in names}

    def find(self, victim: str, controller: int) -> list[int]:
        if victim in ("dockerd", "controller"):
            return [self._engine.pid if victim == "dockerd" else controller]
        word = b"/opt/benchmark.py" if victim == "benchmark" else b"containerd-shim"
        lines = {pid: read_proc(pid, "cmdline") for pid in all_pids()}
        return [pid for pid, line in lines.items() if word in line and self._is_ours(pid, line)]

    def _is_ours(self, pid: int, line: bytes) -> bool:
        group = read_proc(pid, "cgroup")
        return any(name.encode() in group + line for name in self._containers)

    def other(self, what: str, how: str) -> Undo | None:
        if what == "disk" and how == "there":
            with contextlib.suppress(OSError):  # the engine writes, too
                self._engine.fill_disk()
            return self._engine.free_disk
        if what != "container":
            return super().other(what, how)
        with contextlib.suppress(docker.errors.APIError, OSError):  # it has just ended, or the engine is down
            for container in running(self._engine, self._impatient):
                with contextlib.suppress(requests.Timeout):  # takes effect when the stopped shim resumes
                    getattr(container, how)(**({"force": True, "v": True} if how == "remove" else {}))
                return lambda: self._go_on(container) if how == "pause" else None
        return None

    def _go_on(self, container: Any) -> None:
        with contextlib.suppress(docker.errors.APIError, OSError):  # it has ended
            container.unpause()

    def heal(self) -> None:
        self._link.set(OPEN)
        self._engine.free_disk()
        if not self._engine.answers():
            if self._engine._process is not None:
                with contextlib.suppress(OSError):
                    self._engine.kill()
            self._engine.start()

    def left(self) -> list[str]:
        return [container.name for container in ours(self._engine)]

    def end(self) -> None:
        remove_ours(self._engine)
        self._link.close()
        (self.folder / "link.sock").unlink()

    def close(self) -> None:
        self._engine.close()


class SlurmPlace(Place):
    """A cluster of two nodes."""

    victims = ("controller", "benchmark", "step", "slurmctld", *NODES)
    others = (("disk", "here"), ("job", "cancel"), ("file", "record.json"))

    def __init__(self, folder: Path, benchmark: Path) -> None:
        super().__init__(folder, benchmark)
        self._cluster = SlurmCluster(folder / "slurm")
        self._cluster.start()
        self.environment = self._cluster.environment
        self._servers = {"slurmctld": self._cluster._controller, **self._cluster._nodes}

    def begin(self, folder: Path) -> dict[str, Any]:
        self.schedule, self.jobs = folder, self._cluster.shared
        slurm = {"container": "none", "shared_folder": str(self.jobs), "partition": "gpu", "poll_seconds": 0.5}
        return {"slurm": {**slurm, "project": str(self.benchmark)}}

    def find(self, victim: str, controller: int) -> list[int]:
        if victim == "controller":
            return [controller]
        if victim in self._servers:
            return [self._servers[victim].pid]
        word = b"slurmstepd" if victim == "step" else b"tfbench"
        running = set().union(*map(self._cluster._processes_on, NODES))
        return [pid for pid in running if word in read_proc(pid, "cmdline")]

    def other(self, what: str, how: str) -> Undo | None:
        if what != "job":
            return super().other(what, how)
        with contextlib.suppress(EngineError):  # another fault has ended slurmctld
            if self._cluster.queue():
                self._cluster.command("scancel", "--user=root")
                return lambda: None
        return None

    def heal(self) -> None:
        for server in self._servers.values():
            revive(server)
        for node in NODES:
            self._cluster.start_node(node)

    def calm(self) -> None:
        """See `Place.calm`: Slurm completes its jobs after a while."""
        wait_until(lambda: not self._cluster.queue(), "an empty queue", 120)

    def left(self) -> list[str]:
        return [*self._cluster.queue(), *map(str, self.jobs.iterdir()), *(str(pid) for pid in self.tagged())]

    def end(self) -> None:
        self._cluster.command("scancel", "--user=root", check=False)
        super().end()
        for path in self.jobs.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        self._cluster.stop()


PLACES = {"process": Place, "ssh": SshPlace, "docker": DockerPlace, "slurm": SlurmPlace}


def mount(folder: Path, size: int) -> None:
    """Give a folder a small disk of its own."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tfbench-faults", folder], check=True)


def fill(folder: Path) -> Undo:
    """Fill the disk of a folder."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return lambda: filler.unlink(missing_ok=True)


def truncate(folder: Path, name: str) -> Undo | None:
    """Cut the newest file of a name to half its length."""
    with contextlib.suppress(OSError):
        found = [path for path in folder.rglob(f"*{name}") if path.stat().st_size]
        if found:
            newest = max(found, key=lambda path: path.stat().st_mtime)
            os.truncate(newest, newest.stat().st_size // 2)
            return lambda: None
    return None


def revive(server: Server) -> None:
    """Start a server that was killed, or wake it up."""
    if server._process is not None and server._process.poll() is None:
        os.kill(server.pid, signal.SIGCONT)
    else:
        server._process = None
        server.start()
