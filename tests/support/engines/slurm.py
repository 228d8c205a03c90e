"""A Slurm cluster on this machine: a controller and two nodes with fake GPUs."""

import os
import secrets
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.engines import processes

NODES = ("n1", "n2")
GPU_FILES = ("/dev/null", "/dev/zero")
"""Device files of the fake GPUs; Slurm accepts any that exist."""

SITE = """\
function slurm_job_submit(desc, part, uid)
   slurm.log_user("quota of your project: 100 of 2000 hours")
   desc.comment = "project|none"
   slurm.log_user("no partition named, taking the default")
   return slurm.SUCCESS
end
function slurm_job_modify(desc, rec, part, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
"""Prints notices at each submission, and writes a site's own text into the comment of each job."""


def missing_programs() -> str | None:
    """Return why no cluster can be started here; None: it can."""
    return processes.not_root() or processes.missing("slurmctld", "slurmd", "sbatch", "munged")


class SlurmCluster(processes.Service):
    """A cluster with the partitions `gpu` (both nodes) and `small`, without accounting, whose site talks (`SITE`).

    Attributes:
        environment: Variables with which commands find it.
        shared: Folder shared by nodes and login host.
    """

    _CGROUPS = "cgroup/v1"
    _MORE_SETTINGS = "JobSubmitPlugins=lua\n"

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
        ports = [processes.free_port() for _ in range(3)]
        (folder / "slurm.conf").write_text(self._configuration(folder, ports))
        (folder / "job_submit.lua").write_text(SITE)
        lines = [f"NodeName={node} Name=gpu Type=a4000 File={file}\n" for node in NODES for file in GPU_FILES]
        (folder / "gres.conf").write_text("".join(lines))
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={self._CGROUPS}\n")
        munge = ["munged", "--foreground", "--force", f"--socket={self._munge_socket}", f"--key-file={key}"]
        munge += [f"--{kind}-file={folder / f'munged.{kind}'}" for kind in ("pid", "seed", "log")]
        enter = self._enter
        self._munged = processes.Server([*enter("login"), *munge], folder / "munged.out", self._munge_socket.exists)
        self._controller = processes.Server(
            [*enter("login"), "slurmctld", "-D"], folder / "slurmctld.out", self.answers
        )
        self._nodes = {
            node: processes.Server(
                [*enter(node), "slurmd", "-D", "-N", node], folder / f"{node}.out", lambda node=node: self._is_up(node)
            )
            for node in NODES
        }

    def _on_login_host(self) -> list[str]:
        """Return the prefix of commands on the login host."""
        return []

    def _enter(self, machine: str) -> list[str]:
        """Return the prefix of servers on a machine: `login` or a node."""
        return ["env", *(f"{name}={value}" for name, value in self.environment.items())]

    def start(self) -> None:
        """Start the controller and both nodes."""
        self._munged.start()
        self._controller.start()
        for node in NODES:
            self.start_node(node)

    def stop(self) -> None:
        """Stop all servers and the processes on the nodes."""
        for node in self._nodes.values():
            node.stop()
        self._controller.stop()
        self._munged.stop()

    def start_node(self, node: str) -> None:
        """Start a node that is down, and make it usable again."""
        self._nodes[node].start()
        processes.wait_until(lambda: self._is_usable(node), f"node {node}", 120)

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon and all its processes, like a power cut."""
        server = self._nodes[node]
        os.killpg(server.pid, signal.SIGKILL)
        stopped: set[int] = set()
        # Stop all before killing the first: a script that outlives its program would record its end.
        while running := self._processes_on(node) - stopped:
            processes.send(signal.SIGSTOP, running)
            stopped |= running
        processes.send(signal.SIGKILL, stopped)
        server.stop()

    def _processes_on(self, node: str) -> set[int]:
        """Return the processes on a node: jobs, their children, and their step daemons."""
        found = set(processes.with_variables(f"SLURM_CONF={self.environment['SLURM_CONF']}", f"SLURMD_NODENAME={node}"))
        steps = {pid for pid in processes.all_pids() if processes.read_proc(pid, "cmdline").startswith(b"slurmstepd")}
        found |= {step for step in steps if found & set(processes.below(step))}
        # Processes in containers do not have Slurm's variables.
        return found.union(*map(processes.below, found))

    def answers(self) -> bool:
        """Return whether the controller responds."""
        answer = self.command("scontrol", "ping", check=False)
        return answer.startswith("Slurmctld(primary) at") and "is UP" in answer

    def queue(self, *flags: str) -> list[str]:
        """Return the names of the jobs in the queue."""
        return self.command("squeue", "--noheader", "--format=%j", *flags).split()

    def _is_up(self, node: str) -> bool:
        state = self.command("sinfo", "--noheader", f"--nodes={node}", "--format=%T", check=False).split()
        return bool(state) and not state[0].endswith("*") and state[0] != "unknown"

    def _is_usable(self, node: str) -> bool:
        state = self.command("sinfo", "--noheader", f"--nodes={node}", "--format=%T").split()
        if state and state[0].startswith(("down", "drain")):
            self.command("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return bool(state) and state[0] in ("idle", "mixed", "allocated")

    def command(self, *words: str, check: bool = True) -> str:
        """Run a Slurm command and return its output."""
        answer = subprocess.run(
            [*self._on_login_host(), *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and answer.returncode != 0:
            raise processes.EngineError(f"{words}: {answer.stderr}")
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
