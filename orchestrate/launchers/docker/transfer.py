"""Images without a registry: streamed from this machine's engine to a host's, or kept as files."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrate.errors import PullFailed, UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.launchers.docker.sdk import DockerEngine
from orchestrate.launchers.pulls import Progress
from orchestrate.text import plain_text

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
FILE_CHUNK_BYTES = 1 << 20
GZIP_WINDOW = 31
"""Of zlib: the largest window, in gzip's format."""

SENT_REPOSITORY = "tfbench-sent"
"""Of images that were sent to a host; the tag is the image's id in the engine that it came from."""

RUNS = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "Labels")
"""What of an image's configuration decides what a container of it runs."""


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


def image_content(document: Mapping[str, Any]) -> str:
    """Return a fingerprint of an image that is the same in every engine: its layers, and what a container of it runs.

    Its id is not: an engine with the classic store names an image by its configuration, one with containerd's store by
    its manifest, and the same image gets several of these.

    Args:
        document: As the engine describes the image.
    """
    configuration, files = document.get("Config") or {}, document.get("RootFS") or {}
    parts = {name: configuration.get(name) or None for name in RUNS}
    text = json.dumps({"layers": files.get("Layers"), **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sent_name(image: str) -> str:
    """Name an image on the host that it was sent to.

    Args:
        image: Its id in the engine that it comes from, `sha256:…`.
    """
    return f"{SENT_REPOSITORY}:{image.rpartition(':')[2]}"


def send_image(source: DockerEngine, target: DockerEngine, image: str, on_progress: Progress) -> str:
    """Stream an image from one engine to another, without storing it in between.

    Args:
        source: Where it is.
        target: Where it goes.
        image: Its id in the source.
        on_progress: Receives how many bytes of it are sent.

    Returns:
        Its id in the target, which differs from `image` where the engines store images in different ways.

    Raises:
        PullFailed: The source has not got it, or the target did not take it.
    """
    known = source.image_document(image)
    chunks = _counted(source.save(image), source.image_bytes(image), on_progress)
    loaded = target.load(_compressed(chunks) if target.is_far else chunks)
    arrived = target.image_document(loaded)
    if image_content(arrived) != image_content(known):
        raise PullFailed(
            f"image {image}: sent, but the host's engine loaded a different image as {plain_text(loaded, 80)}"
        )
    place, _, tag = sent_name(image).rpartition(":")
    target.tag(str(arrived["Id"]), place, tag)  # so that it is found again, and no clean-up takes it for a leftover
    return str(arrived["Id"])


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


def load_from_file(target: DockerEngine, path: Path, on_progress: Progress) -> str:
    """Take in an image from a file that `save_to_file` wrote, and return what the engine calls it."""
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(FILE_CHUNK_BYTES), b"")
        return target.load(_counted(chunks, path.stat().st_size, on_progress))


def _compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress a stream with gzip, which every engine takes in: CUDA's libraries shrink to less than half."""
    packer = zlib.compressobj(level=1, wbits=GZIP_WINDOW)
    for chunk in chunks:
        if packed := packer.compress(chunk):
            yield packed
    yield packer.flush()


def _counted(chunks: Iterable[bytes], total: int, on_progress: Progress) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        on_progress(done, max(total, done))
        yield chunk
