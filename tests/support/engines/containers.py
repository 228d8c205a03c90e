"""Run a container as the orchestrator does: nothing that training does not need is allowed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Run a hardened container to its end, give it, and remove it with its volumes."""
    container = client.containers.run(image, command, detach=True, **{**HARDENED, **options})
    try:
        container.wait()
        container.reload()
        yield container
    finally:
        container.remove(force=True, v=True)


def exit_code(container: Container) -> int:
    """Return how a finished container ended."""
    return int(container.attrs["State"]["ExitCode"])


def read_file(container: Container, path: str) -> bytes:
    """Return a file of a container, which may have ended."""
    chunks, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        (member,) = tar.getmembers()
        content = tar.extractfile(member)
        assert content is not None, f"{path} is not a file"
        return content.read()
