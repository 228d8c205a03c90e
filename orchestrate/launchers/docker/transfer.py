"""Images without a registry: streamed from this machine's engine to a host's, or kept as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrate.errors import PullFailed, UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.launchers.docker.sdk import DockerEngine
from orchestrate.launchers.pulls import Progress

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
FILE_CHUNK_BYTES = 1 << 20


def controller_address(url: str | None = None) -> DockerAddress:
    """Return the address of this machine's engine.

    Args:
        url: `unix://…` or `ssh://…`; None: DOCKER_HOST, else the usual socket.

    Raises:
        UserError: It is of another kind.
    """
    url = url or os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    scheme, _, target = url.partition("://")
    if scheme == "unix" and target:
        return DockerAddress(scheme="unix", target=target)
    if scheme == "ssh" and target:
        return DockerAddress(scheme="ssh", target=target)
    raise UserError(f"the engine of this machine must be unix://… or ssh://…. Received: {url}. Set DOCKER_HOST")


def send_image(source: DockerEngine, target: DockerEngine, image: str, on_progress: Progress) -> None:
    """Stream an image from one engine to another, without storing it in between.

    Raises:
        PullFailed: The source has not got it, or the target did not take it.
    """
    total = source.image_bytes(image)
    target.load(_counted(source.save(image), total, on_progress))
    if target.image_id(image) is None:
        raise PullFailed(f"image {image}: sent, but the host's engine does not have it under this id")


def save_to_file(source: DockerEngine, reference: str, path: Path, on_progress: Progress) -> None:
    """Write an image to a file, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            for chunk in _counted(source.save(reference), source.image_bytes(reference), on_progress):
                file.write(chunk)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_from_file(target: DockerEngine, path: Path, on_progress: Progress) -> None:
    """Take in an image from a file that `save_to_file` wrote."""
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(FILE_CHUNK_BYTES), b"")
        target.load(_counted(chunks, path.stat().st_size, on_progress))


def _counted(chunks: Iterable[bytes], total: int, on_progress: Progress) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        on_progress(done, max(total, done))
        yield chunk
