"""Docker engines for tests."""

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

from orchestrate.engines.docker.engine import DockerEngine as ControllerClient
from orchestrate.engines.docker.engine import controller_address
from tests.support.engines.processes import Server, free_port, port_answers

PING_SECONDS = 5
CLIENT_SECONDS = 600
"""Timeout of requests; a build has no output during its longest step."""


def dockerd(folder: Path, name: str, data: Path, execution: Path, *flags: str) -> list[str]:
    """Return the command of an engine that shares nothing with the machine's own.

    It has no bridge, so the machine's firewall and interfaces are unchanged: containers have no network, and builds use
    the machine's.
    """
    configuration = folder / f"{name}.json"
    configuration.write_text("{}")  # instead of the machine's /etc/docker/daemon.json
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
    """A Docker engine with its own socket, images and containers, and no network; `url` is for `DOCKER_HOST`."""

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
        """Client of the Docker SDK; the engine must be running on first use."""
        return docker.DockerClient(base_url=self.url, timeout=CLIENT_SECONDS)

    def controller_client(self) -> contextlib.closing[ControllerClient]:
        """Open the controller's own client."""
        return contextlib.closing(ControllerClient(controller_address(self.url)))

    def answers(self) -> bool:
        """Return whether the engine responds."""
        if not self.socket.exists():  # the SDK would leak its own
            return False
        try:
            with contextlib.closing(docker.DockerClient(self.url, version="1.41", timeout=PING_SECONDS)) as probe:
                return bool(probe.ping())
        except (docker.errors.DockerException, OSError):
            return False

    def remove_containers(self) -> None:
        """Remove all containers, including those of a killed session."""
        for container in self.client.containers.list(all=True, ignore_removed=True):
            with contextlib.suppress(docker.errors.APIError):  # it is already being removed
                container.remove(force=True, v=True)

    def close(self) -> None:
        """Remove all containers, stop the engine and free its resources."""
        with contextlib.suppress(docker.errors.DockerException, OSError):
            self.remove_containers()
        with contextlib.suppress(docker.errors.DockerException, OSError):
            self.client.close()
        self.stop()
        unmount_below(self._exec_folder)
        unmount_below(self.data_folder)
        shutil.rmtree(self._exec_folder, ignore_errors=True)


class TLSEngine(Server):
    """A Docker engine on loopback, IPv4 and IPv6, that requires client certificates; `folder` has a short name."""

    def __init__(self, folder: Path, ca: Path, certificate: Path, key: Path) -> None:
        self.port = free_port()
        hosts = [f"tcp://127.0.0.1:{self.port}", f"tcp://[::1]:{self.port}", f"unix://{folder / 'e.sock'}"]
        flags = ["--tlsverify", f"--tlscacert={ca}", f"--tlscert={certificate}", f"--tlskey={key}"]
        flags += [f"--host={host}" for host in hosts]
        command = dockerd(folder, folder.name, folder / "data", folder / "exec", *flags)
        super().__init__(command, folder / "log", lambda: port_answers(self.port))


@dataclass(frozen=True)
class Engines:
    """Two independent engines: the first builds images and keeps its cache between sessions, the second starts empty."""

    first: DockerEngine
    second: DockerEngine


def unmount_below(folder: Path) -> None:
    """Unmount the mounts of a killed engine, so that its folder can be deleted."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        mount_point = line.split(" ")[1]
        if mount_point.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount_point], check=False, capture_output=True)
