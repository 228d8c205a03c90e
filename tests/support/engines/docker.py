"""Docker engines of the tests' own."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors

from orchestrate.launchers.docker.images import DockerEngine as ControllerClient
from orchestrate.launchers.docker.images import controller_address
from tests.support.engines.processes import Server, free_port, port_answers

PING_SECONDS = 5
CLIENT_SECONDS = 600
"""A build is silent for as long as its longest step."""


def dockerd(folder: Path, name: str, data: Path, execution: Path, *flags: str) -> list[str]:
    """Return the command of an engine that shares nothing with the machine's own.

    Without a bridge neither the machine's firewall nor its interfaces are touched: containers have no network, and a
    build shares the machine's.
    """
    configuration = folder / f"{name}.json"
    configuration.write_text("{}")  # else the machine's own /etc/docker/daemon.json would be read
    return [
        "dockerd",
        f"--config-file={configuration}",
        f"--data-root={data}",
        f"--exec-root={execution}",
        f"--pidfile={folder / name}.pid",
        f"--containerd-namespace=tfbench-{os.getpid()}-{name}",
        f"--containerd-plugins-namespace=tfbench-{os.getpid()}-{name}-plugins",
        "--bridge=none",
        "--iptables=false",
        "--ip-masq=false",
        "--ip-forward=false",
        *flags,
    ]


class DockerEngine(Server):
    """A Docker engine with a socket, images and containers of its own, and no network.

    Attributes:
        socket: Where the engine listens.
        url: The same as an address for `DOCKER_HOST`.
        data_folder: Where it keeps images and containers.
    """

    def __init__(self, name: str, folder: Path, data_folder: Path, command: Sequence[str] | None = None) -> None:
        self.data_folder = data_folder
        self._exec_folder = folder / f"{name}-exec"
        self.socket = folder / f"{name}.sock"
        self.url = f"unix://{self.socket}"
        flags = (f"--host={self.url}", "--shutdown-timeout=5")
        command = command or dockerd(folder, name, data_folder, self._exec_folder, *flags)
        super().__init__(command, folder / f"{name}.log", self.answers)

    @functools.cached_property
    def client(self) -> docker.DockerClient:
        """Client of the Docker SDK; the engine must run when it is asked for first."""
        return docker.DockerClient(base_url=self.url, timeout=CLIENT_SECONDS)

    def controller_client(self) -> contextlib.closing[ControllerClient]:
        """Give the controller's own client, which is closed with the context."""
        return contextlib.closing(ControllerClient(controller_address(self.url)))

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
        unmount_below(self._exec_folder)
        unmount_below(self.data_folder)
        shutil.rmtree(self._exec_folder, ignore_errors=True)


class TLSEngine(Server):
    """A Docker engine that listens on loopback, on IPv4 and IPv6, and wants a certificate.

    Attributes:
        port: Where.

    Args:
        folder: An empty folder with a short name.
        ca: Certificate of the authority whose clients it lets in.
        certificate: Its own.
        key: Of `certificate`.
    """

    def __init__(self, folder: Path, ca: Path, certificate: Path, key: Path) -> None:
        self.port = free_port()
        hosts = [f"tcp://127.0.0.1:{self.port}", f"tcp://[::1]:{self.port}", f"unix://{folder / 'e.sock'}"]
        flags = ["--tlsverify", f"--tlscacert={ca}", f"--tlscert={certificate}", f"--tlskey={key}"]
        flags += [f"--host={host}" for host in hosts]
        command = dockerd(folder, folder.name, folder / "data", folder / "exec", *flags)
        super().__init__(command, folder / "log", lambda: port_answers(self.port))


@dataclass(frozen=True)
class Engines:
    """Two engines that know nothing of each other.

    Attributes:
        first: Builds images and keeps its build cache from one session to the next where it may.
        second: Starts empty.
    """

    first: DockerEngine
    second: DockerEngine


def unmount_below(folder: Path) -> None:
    """Unmount what a killed engine left, so that its folder can be deleted."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        mount_point = line.split(" ")[1]
        if mount_point.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount_point], check=False, capture_output=True)
