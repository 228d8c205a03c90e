"""A Docker engine's images: pulling, building, pushing, and sending from engine to engine.

A pull is verified by its digest only, ends if it stalls, and is retried after network failures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import stamina

from orchestrate.engines.base import NotThere
from orchestrate.engines.bounded import within
from orchestrate.engines.docker.client import EngineClient, document
from orchestrate.engines.docker.engine import ContainerEngine
from orchestrate.engines.pulls import DEADLINE_SECONDS, STALL_SECONDS, Progress, PullMeter
from orchestrate.errors import BuildFailed, LaunchFailed, PullFailed, Unreachable, UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.planning.images import repository
from orchestrate.text import plain_text

PLATFORM = "linux/amd64"
"""Platform of all images, even if built on another: TensorFlow's CUDA packages are for x86-64."""

MAX_PULL_BYTES = 256 << 20
"""Size limit of an engine's messages about one pull."""

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
GZIP_WINDOW = 31
"""zlib's `wbits`: the largest window, in gzip's format."""

SENT_REPOSITORY = "tfbench-sent"
"""Repository name of images that were sent to a host; the tag is the image's id in the source engine."""

RUNS = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "Labels")
"""Keys of an image's configuration that determine what its containers run."""

_DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]{32,128}")
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
"""An engine's message about a loaded image: Docker has `ID` before an id, Podman does not."""

_FINAL_PULL_ERRORS = (
    "not found",
    "unknown",
    "denied",
    "unauthorized",
    "no basic auth",
    "invalid reference",
    "no space",
)


class PullInterrupted(PullFailed):
    """The network or the registry failed during a pull, which can be retried."""


class DockerEngine(ContainerEngine):
    """An engine with its containers and images."""

    def registry_digest(self, reference: str) -> str:
        """Resolve a tag to its digest through the engine, without pulling. Podman cannot: see `pull_tag`.

        Raises:
            PullFailed: There is no such image, or the registry does not answer.
        """
        try:
            answer = document(self._link.request(lambda client: client.inspect_distribution(reference)))
        except (NotThere, LaunchFailed) as error:
            raise PullFailed(f"image {reference} is not in the registry: {error.cause}") from error
        described = answer.get("Descriptor")
        digest = described.get("digest") if isinstance(described, dict) else None
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise PullFailed(f"image {reference}: the engine does not report its digest")
        return digest

    def pull_tag(self, reference: str, meter: PullMeter) -> str:
        """Pull the image of a tag, and return its digest in the registry.

        Raises:
            PullFailed: It is not available.
        """
        self.pull(reference, meter)
        reported = self.image_document(reference).get("RepoDigests")
        digests = [str(name).partition("@") for name in reported] if isinstance(reported, list) else []
        wanted = repository(reference)
        for name, _, digest in digests:
            if name in (wanted, f"docker.io/{wanted}", f"docker.io/library/{wanted}") and _DIGEST.fullmatch(digest):
                return digest
        raise PullFailed(f"image {reference}: pulled, but the engine does not report its digest")

    def pull(self, reference: str, meter: PullMeter) -> None:
        """Pull an image by its digest, and report progress.

        Raises:
            PullFailed: It is not available; PullInterrupted: it can be retried.
        """
        cause = ""
        for attempt in stamina.retry_context(
            on=PullInterrupted, attempts=meter.attempts, timeout=meter.deadline_seconds, wait_initial=1.0, wait_max=30.0
        ):
            with attempt:
                if attempt.num > 1:
                    meter.on_retry(cause)
                meter.restart()
                try:
                    self._pull_once(reference, meter)
                except PullInterrupted as error:
                    cause = error.cause
                    raise
        if self.image_id(reference) is None:
            raise PullFailed(f"image {reference}: the pull ended, but the image is missing")

    def _pull_once(self, reference: str, meter: PullMeter) -> None:
        complete = False
        try:
            with within(meter.seconds_left(), MAX_PULL_BYTES, meter.stall_seconds):
                for message in self._messages(lambda client: client.pull(reference, stream=True, decode=True)):
                    if "error" in message:
                        raise _judge_pull(reference, plain_text(str(message["error"]), 300))
                    complete = complete or str(message.get("status", "")).startswith("Status: ")
                    meter.note(message)
        except Unreachable as error:
            raise PullInterrupted(f"image {reference}: {meter.stalled() or error.cause}") from error
        except (NotThere, LaunchFailed) as error:
            raise _judge_pull(reference, error.cause) from error
        # Podman reports no final status: check the image, which a digest identifies with certainty.
        if not complete and self.image_id(reference) is None:
            raise PullInterrupted(f"image {reference}: the pull ended before it was complete")

    def build(
        self,
        context: IO[bytes],
        tag: str,
        arguments: dict[str, str],
        on_line: Callable[[str], None],
        *,
        dockerfile: str = "containers/Dockerfile",
    ) -> str:
        """Build an image from a tar file and return its id.

        Args:
            context: The build context, a tar file.
            tag: Name of the image.
            arguments: Build arguments.
            on_line: Receives lines of output.
            dockerfile: Path in the build context.

        Raises:
            BuildFailed: A step failed; `on_line` received its output.
        """
        for message in self._messages(
            lambda client: client.build(
                fileobj=context,
                custom_context=True,
                dockerfile=dockerfile,
                tag=tag,
                buildargs=arguments,
                network_mode="host",
                platform=PLATFORM,
                rm=True,
                forcerm=True,
                decode=True,
            )
        ):
            for line in str(message.get("stream", "")).splitlines():
                on_line(plain_text(line))
            if "error" in message:
                raise BuildFailed(f"{tag}: {plain_text(str(message['error']), 500)}")
        built = self.image_id(tag)
        if built is None:
            raise BuildFailed(f"{tag}: the build ended, but the image is missing")
        return built

    def push(self, reference: str, on_progress: Progress) -> str:
        """Push an image, and return its digest in the registry.

        Raises:
            BuildFailed: The registry refused it.
        """
        meter, digest = PullMeter(on_progress), ""
        for message in self._messages(lambda client: client.push(reference, stream=True, decode=True)):
            if "error" in message:
                raise BuildFailed(f"push of {reference}: {plain_text(str(message['error']), 300)}")
            if isinstance(aux := message.get("aux"), dict):
                digest = str(aux.get("Digest", digest))
            meter.note(message)
        if not digest:
            raise BuildFailed(f"push of {reference}: the registry returned no digest")
        return digest

    def save(self, reference: str) -> Iterator[bytes]:
        """Yield an image as a tar file, in chunks.

        Raises:
            HostError: The engine refused.
        """
        try:
            yield from self._link.stream(lambda client: client.get_image(reference))
        except (NotThere, LaunchFailed) as error:
            raise PullFailed(f"image {reference}: {error.cause}") from error

    def load(self, chunks: Iterable[bytes]) -> str:
        """Load an image from a tar file of `save`; existing layers are not stored twice.

        Once it is sent, the engine has the limits of a pull.

        Returns:
            Its id or name in this engine.

        Raises:
            HostError: The engine refused, or does not report what it loaded.
        """
        name, limits = "", contextlib.ExitStack()

        def limit() -> None:
            limits.enter_context(within(DEADLINE_SECONDS, MAX_PULL_BYTES, STALL_SECONDS))

        try:
            with limits:
                for message in self._messages(lambda client: client.load_image(_then(chunks, limit))):
                    if "error" in message:
                        raise PullFailed(f"the engine rejected the image: {plain_text(str(message['error']), 300)}")
                    if loaded := _LOADED.search(str(message.get("stream", ""))):
                        name = loaded[1]
        except Unreachable as error:
            raise PullFailed(f"the image did not arrive: {error.cause}") from error
        if not name:
            raise PullFailed("the image was sent, but the host's engine does not report which image it loaded")
        return name

    def tag(self, image: str, place: str, tag: str) -> None:
        """Tag an image on the host.

        Raises:
            HostError: The engine refused.
        """
        self._link.request(lambda client: client.tag(image, place, tag))

    def _messages(self, operation: Callable[[EngineClient], Iterable[Any]]) -> Iterator[dict[str, Any]]:
        """Yield the messages of a stream of an engine."""
        return (document(message) for message in self._link.stream(operation))


def _judge_pull(reference: str, message: str) -> PullFailed:
    """Raise for errors that a retry cannot fix, and `PullInterrupted` for others."""
    final = any(sign in message.lower() for sign in _FINAL_PULL_ERRORS)
    return (PullFailed if final else PullInterrupted)(f"image {reference}: {message}")


def controller_address(url: str | None = None) -> DockerAddress:
    """Return the address of this machine's engine.

    Args:
        url: `unix://…` or `ssh://…`; None: DOCKER_HOST, else the usual socket.

    Raises:
        UserError: It is another kind of address.
    """
    url = url or os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    scheme, _, target = url.partition("://")
    if scheme == "unix" and target:
        return DockerAddress(scheme="unix", target=target)
    if scheme == "ssh" and target:
        return DockerAddress(scheme="ssh", target=target)
    raise UserError(f"the engine of this machine must be unix://… or ssh://…. Received: {url}. Set DOCKER_HOST")


def image_content(document: Mapping[str, Any]) -> str:
    """Return a fingerprint of an image that is equal in all engines: its layers and what its containers run.

    Ids differ: with the classic store an image is identified by its configuration, with containerd's store by its
    manifest, of which one image may have several.

    Args:
        document: The engine's description of the image.
    """
    configuration, files = document.get("Config") or {}, document.get("RootFS") or {}
    parts = {name: configuration.get(name) or None for name in RUNS}
    text = json.dumps({"layers": files.get("Layers"), **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sent_name(image: str) -> str:
    """Return the name of a sent image on its host.

    Args:
        image: Its id in the source engine, `sha256:…`.
    """
    return f"{SENT_REPOSITORY}:{image.rpartition(':')[2]}"


def send_image(
    source: DockerEngine,
    target: DockerEngine,
    image: str,
    on_progress: Progress,
    on_sent: Callable[[], None] = lambda: None,
) -> str:
    """Stream an image from one engine to another, without storing it on this machine.

    Args:
        source: Engine that has it.
        target: Engine that receives it.
        image: Its id in the source.
        on_progress: Receives the number of bytes sent.
        on_sent: Called when the target has all bytes, and unpacks them.

    Returns:
        Its id in the target, which differs from `image` if the engines use different stores.

    Raises:
        PullFailed: The source does not have it, or the target refused it.
    """
    known = source.image_document(image)
    chunks = _then(_counted(source.save(image), source.image_bytes(image), on_progress), on_sent)
    loaded = target.load(_compressed(chunks) if target.is_remote else chunks)
    arrived = target.image_document(loaded)
    if image_content(arrived) != image_content(known):
        raise PullFailed(
            f"image {image}: sent, but the host's engine loaded a different image as {plain_text(loaded, 80)}"
        )
    place, _, tag = sent_name(image).rpartition(":")
    target.tag(str(arrived["Id"]), place, tag)  # so that it can be found again, and clean-ups do not remove it
    return str(arrived["Id"])


def _compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress a stream with gzip, which every engine accepts: CUDA's libraries shrink to less than half."""
    packer = zlib.compressobj(level=1, wbits=GZIP_WINDOW)
    for chunk in chunks:
        if packed := packer.compress(chunk):
            yield packed
    yield packer.flush()


def _then(chunks: Iterable[bytes], action: Callable[[], None]) -> Iterator[bytes]:
    """Yield chunks, then call a function."""
    yield from chunks
    action()


def _counted(chunks: Iterable[bytes], total: int, on_progress: Progress) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        on_progress(done, max(total, done))
        yield chunk
