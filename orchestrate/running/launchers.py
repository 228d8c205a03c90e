"""Which launcher serves a host."""

from __future__ import annotations

from pathlib import Path

from orchestrate.errors import UserError
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue, SlurmQueue
from orchestrate.launchers.base import Launcher, QueueLauncher
from orchestrate.launchers.pulls import PullLimits


def make_launcher(host: Host, run_path: Path | None, pulls: PullLimits) -> Launcher:
    """Choose the launcher of a host.

    Args:
        host: Settings of the host.
        run_path: The run's folder; None when nothing will be started.
        pulls: Shared by all hosts of a run.
    """
    if host.queue is not None:
        return _queue_launcher(host)
    if host.ssh is not None:
        from orchestrate.launchers.ssh.launcher import SSHLauncher

        return SSHLauncher(host, pulls)
    if host.docker is None:
        from orchestrate.launchers.process import ProcessLauncher

        return ProcessLauncher(host, run_path)
    from orchestrate.launchers.docker.launcher import ContainerLauncher  # the SDK takes 0.2 s to import

    return ContainerLauncher(host, pulls)


def _queue_launcher(host: Host) -> QueueLauncher:
    if isinstance(host.queue, SlurmQueue):
        from orchestrate.launchers.slurm.launcher import SlurmLauncher

        return SlurmLauncher(host, host.queue)
    if isinstance(host.queue, KubernetesQueue):
        from orchestrate.launchers.kubernetes.launcher import KubernetesLauncher  # the client takes 0.7 s to import

        return KubernetesLauncher(host)
    raise UserError(f"fleet {host.fleet}: there is no launcher for {host.launcher} yet")
