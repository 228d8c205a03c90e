"""Runs containers as hardened as the orchestrator does."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

RECORD_PATH = "/out/record.json"

HARDENED: dict[str, Any] = {
    "read_only": True,
    "tmpfs": {"/tmp": "rw,noexec,nosuid,size=1g,mode=1777"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "network_mode": "none",
    "shm_size": "1g",
}


@contextmanager
def finished_container(
    client: docker.DockerClient, image: str, command: list[str], **options: Any
) -> Iterator[Container]:
    """Run a hardened container to its end, and remove it with its volumes after the context."""
    container = client.containers.run(image, command, detach=True, **{**HARDENED, **options})
    try:
        container.wait()
        container.reload()
        yield container
    finally:
        container.remove(force=True, v=True)


@contextmanager
def successful_container(
    client: docker.DockerClient, image: str, command: list[str], **options: Any
) -> Iterator[Container]:
    """Likewise; its exit code must be 0."""
    with finished_container(client, image, command, **options) as container:
        assert container.attrs["State"]["ExitCode"] == 0, container.logs().decode()
        yield container


def output_of_python(client: docker.DockerClient, image: str, program: str) -> str:
    """Run a program with a container's Python and return its stdout."""
    with successful_container(client, image, ["-c", program], entrypoint=["python3.11"]) as container:
        return str(container.logs(stderr=False).decode())


def file_of_image(client: docker.DockerClient, image: str, path: str) -> bytes:
    """Read a file of an image."""
    container = client.containers.create(image)
    try:
        chunks, _ = container.get_archive(path)
    finally:
        container.remove(v=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        content = tar.extractfile(Path(path).name)
        assert content is not None, f"{path} is not a file"
        return content.read()
