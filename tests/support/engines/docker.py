"""Docker engines of the tests' own."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors

from tests.support.engines.processes import Server

PING_SECONDS = 5
CLIENT_SECONDS = 600
"""A build is silent for as long as its longest step."""


class DockerEngine:
    """A Docker engine with a socket, images and containers of its own, and no network.

    Without a bridge neither the machine's firewall nor its interfaces are touched: containers have no
    network, and a build shares the machine's.

    Attributes:
        socket: Where the engine listens.
        url: The same as an address for `DOCKER_HOST`.
    """

    def __init__(self, name: str, folder: Path, data_folder: Path) -> None:
        self._data_folder = data_folder
        self._exec_folder = folder / f"{name}-exec"
        self.socket = folder / f"{name}.sock"
        self.url = f"unix://{self.socket}"
        configuration = folder / f"{name}.json"
        configuration.write_text("{}")  # else the machine's own /etc/docker/daemon.json would be read
        self._server = Server(
            [
                "dockerd",
                f"--host={self.url}",
                f"--config-file={configuration}",
                f"--data-root={data_folder}",
                f"--exec-root={self._exec_folder}",
                f"--pidfile={folder / name}.pid",
                f"--containerd-namespace=tfbench-{os.getpid()}-{name}",
                f"--containerd-plugins-namespace=tfbench-{os.getpid()}-{name}-plugins",
                "--bridge=none",
                "--iptables=false",
                "--ip-masq=false",
                "--ip-forward=false",
                "--shutdown-timeout=5",
            ],
            folder / f"{name}.log",
            self.answers,
        )

    @functools.cached_property
    def client(self) -> docker.DockerClient:
        """Client of the Docker SDK; the engine must run when it is asked for first."""
        return docker.DockerClient(base_url=self.url, timeout=CLIENT_SECONDS)

    def answers(self) -> bool:
        """Say whether the engine runs and answers."""
        if not self.socket.exists():
            return False
        probe = docker.DockerClient(base_url=self.url, version="1.41", timeout=PING_SECONDS)
        try:
            return bool(probe.ping())
        except (docker.errors.DockerException, OSError):
            return False
        finally:
            probe.close()

    def start(self) -> None:
        """Start the engine, with the images and containers that it had."""
        self._server.start()

    def stop(self) -> None:
        """End the engine and every container in it; images stay."""
        self._server.stop()

    def remove_containers(self) -> None:
        """Remove every container: what a session that was killed has left would be taken for this one's."""
        for container in self.client.containers.list(all=True, ignore_removed=True):
            with contextlib.suppress(docker.errors.APIError):  # its removal goes on already
                container.remove(force=True, v=True)

    def close(self) -> None:
        """Remove every container, end the engine and free what it holds."""
        with contextlib.suppress(docker.errors.DockerException, OSError):
            self.remove_containers()
        with contextlib.suppress(docker.errors.DockerException, OSError):
            self.client.close()
        self.stop()
        _unmount_below(self._exec_folder)
        _unmount_below(self._data_folder)
        shutil.rmtree(self._exec_folder, ignore_errors=True)


@dataclass(frozen=True)
class Engines:
    """Two engines that know nothing of each other.

    Attributes:
        first: Builds images and keeps its build cache from one session to the next where it may.
        second: Starts empty.
    """

    first: DockerEngine
    second: DockerEngine


def _unmount_below(folder: Path) -> None:
    """Unmount what a killed engine left, so that its folder can be deleted."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        mount_point = line.split(" ")[1]
        if mount_point.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount_point], check=False, capture_output=True)
