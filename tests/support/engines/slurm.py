"""A Slurm cluster on this machine: a controller and two nodes with pretended GPUs, all of the tests' own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.engines.processes import EngineError, Server, find_program, free_port

NODES = ("n1", "n2")
GPU_FILES = ("/dev/null", "/dev/zero")
"""Slurm binds GPUs by device files; any that exist will do."""

READY_SECONDS = 120.0
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")


def missing_programs() -> str | None:
    """Say why no cluster can be started here; None when it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "starting Slurm needs root"
    missing = [name for name in PROGRAMS if find_program(name) is None]
    return f"not installed: {', '.join(missing)} (.ci/run installs them)" if missing else None


def _send(number: signal.Signals, pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class SlurmCluster:
    """A cluster with the partitions `gpu` (both nodes) and `small`, without accounting.

    Attributes:
        environment: What its commands need to find it.
        shared: A folder that nodes and login host share.
    """

    _CGROUPS = "cgroup/v1"
    _MORE_SETTINGS = ""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._munge_socket = folder / "munge.sock"
        self._spool = folder / "spool"
        for name in ("state", *NODES):
            (self._spool / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        ports = [free_port() for _ in range(3)]
        (folder / "slurm.conf").write_text(self._configuration(folder, ports))
        lines = [f"NodeName={node} Name=gpu Type=a4000 File={file}\n" for node in NODES for file in GPU_FILES]
        (folder / "gres.conf").write_text("".join(lines))
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={self._CGROUPS}\n")
        munge = ["munged", "--foreground", "--force", f"--socket={self._munge_socket}", f"--key-file={key}"]
        munge += [f"--{kind}-file={folder / f'munged.{kind}'}" for kind in ("pid", "seed", "log")]
        enter = self._enter
        self._munged = Server([*enter("login"), *munge], folder / "munged.out", self._munge_socket.exists)
        self._controller = Server([*enter("login"), "slurmctld", "-D"], folder / "slurmctld.out", self.answers)
        self._nodes = {
            node: Server(
                [*enter(node), "slurmd", "-D", "-N", node], folder / f"{node}.out", lambda node=node: self._is_up(node)
            )
            for node in NODES
        }

    def _on_login_host(self) -> list[str]:
        """Return words before a command that run it where the controller runs."""
        return []

    def _enter(self, machine: str) -> list[str]:
        """Return words before a server's own that start it on a machine: `login` or a node."""
        return ["env", *(f"{name}={value}" for name, value in self.environment.items())]

    def start(self) -> None:
        """Start the controller and both nodes."""
        self._munged.start()
        self._controller.start()
        for node in NODES:
            self.start_node(node)

    def stop(self) -> None:
        """End everything, and what runs on the nodes."""
        for node in self._nodes.values():
            node.stop()
        self._controller.stop()
        self._munged.stop()

    def start_node(self, node: str) -> None:
        """Start a node that is down, and have it used again."""
        self._nodes[node].start()
        wait_for(lambda: self._is_usable(node), f"node {node}")

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon and what it runs, as a power cut does."""
        server = self._nodes[node]
        os.killpg(server.pid, signal.SIGKILL)
        stopped: set[int] = set()
        # All stop before the first is killed: a script that outlives its program would record how that ended.
        while running := self._processes_on(node) - stopped:
            _send(signal.SIGSTOP, running)
            stopped |= running
        _send(signal.SIGKILL, stopped)
        server.stop()

    def _processes_on(self, node: str) -> set[int]:
        """Return what runs on a node: jobs, all that they started, and the steps that watch them."""
        parents, found, steps = {}, set(), set()
        marks = [f"SLURM_CONF={self.environment['SLURM_CONF']}".encode(), f"SLURMD_NODENAME={node}".encode()]
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            try:
                parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if (path / "cmdline").read_bytes().startswith(b"slurmstepd"):
                    steps.add(pid)
                if set(marks) <= set((path / "environ").read_bytes().split(b"\0")):
                    found.add(pid)
            except OSError:
                continue
        found |= {parents[pid] for pid in found if pid in parents} & steps
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more  # a container's processes have no variables of Slurm's
        return found

    def answers(self) -> bool:
        """Say whether the controller runs."""
        return self._command("scontrol", "ping", check=False).startswith("Slurmctld(primary) at") and (
            "is UP" in self._command("scontrol", "ping", check=False)
        )

    def queue(self, *flags: str) -> list[str]:
        """Return the names of the jobs in the queue."""
        return self._command(
            "squeue", "--noheader", *(flags if any("--format" in f for f in flags) else ("--format=%j", *flags))
        ).split()

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        return self._command(*words)

    def _is_up(self, node: str) -> bool:
        state = self._command("sinfo", "--noheader", f"--nodes={node}", "--format=%T", check=False).split()
        return bool(state) and not state[0].endswith("*") and state[0] != "unknown"

    def _is_usable(self, node: str) -> bool:
        state = self._command("sinfo", "--noheader", f"--nodes={node}", "--format=%T").split()
        if state and state[0].startswith(("down", "drain")):
            self._command("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return bool(state) and state[0] in ("idle", "mixed", "allocated")

    def _command(self, *words: str, check: bool = True) -> str:
        answer = subprocess.run(
            [*self._on_login_host(), *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and answer.returncode != 0:
            raise EngineError(f"{words}: {answer.stderr}")
        return answer.stdout

    def _configuration(self, folder: Path, ports: list[int]) -> str:
        host = socket.gethostname()
        nodes = "".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 "
            f"Gres=gpu:a4000:{len(GPU_FILES)} State=UNKNOWN\n"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        return (
            "ClusterName=tfbench\n"
            f"SlurmctldHost={host}(127.0.0.1)\n"
            f"SlurmctldPort={ports[0]}\n"
            "SlurmUser=root\nSlurmdUser=root\n"
            f"AuthType=auth/munge\nAuthInfo=socket={self._munge_socket}\n"
            f"StateSaveLocation={self._spool / 'state'}\n"
            f"SlurmdSpoolDir={self._spool}/%n\n"
            f"SlurmctldPidFile={folder / 'slurmctld.pid'}\nSlurmdPidFile={folder}/%n.pid\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nGresTypes=gpu\n"
            "SlurmdParameters=config_overrides\nReturnToService=2\n"
            "SlurmctldTimeout=30\nSlurmdTimeout=20\nInactiveLimit=0\nKillWait=5\nMinJobAge=300\nWaittime=0\n"
            "SchedulerType=sched/backfill\nSchedulerParameters=sched_interval=2,bf_interval=2\n"
            "MailProg=/bin/true\n"
            f"{self._MORE_SETTINGS}"
            f"{nodes}"
            f"PartitionName=gpu Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n"
            f"PartitionName=small Nodes={NODES[0]} MaxTime=30 State=UP\n"
        )


def wait_for(condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Wait until a condition holds.

    Raises:
        EngineError: It never does.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)
