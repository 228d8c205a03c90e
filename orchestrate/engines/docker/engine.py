"""A Docker engine: its connection, containers and images, with a method per request; through the SDK, except for logs.

A pull is verified by its digest only, ends if it stalls, and is retried after network failures.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tarfile
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime
from typing import IO, Any, TypeVar

from orchestrate.connections.tunnel import Tunnel
from orchestrate.engines.base import ATTEMPTS, DEADLINE_SECONDS, FINAL_PULL_ERRORS, STALL_SECONDS, NotThere, Progress
from orchestrate.engines.bounded import persistently, within
from orchestrate.engines.docker.client import (
    ANSWER_SECONDS,
    MAX_ANSWER_BYTES,
    APIError,
    EngineClient,
    NoSpace,
    engine_pool,
    explained,
)
from orchestrate.errors import BuildFailed, HostError, LaunchFailed, PullFailed, TfbenchError, Unreachable, UserError
from orchestrate.inventory.addresses import AS_CONFIGURED, DockerAddress, HostKeys
from orchestrate.planning.images import repository
from orchestrate.text import Lines, plain_text

T = TypeVar("T")

STOP_GRACE_SECONDS = 10
TRIAL_BYTES = 1 << 20

HEADER_BYTES = 8
"""Header of a log's frame: stream number, three zeros, and the length of the content, big-endian."""

MAX_FRAME_BYTES = 1 << 20
"""Maximum length of a frame: Docker sends at most 16 KiB in one, Podman a write of the benchmark."""

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
PLATFORM = "linux/amd64"
"""Platform of all images, even if built on another: TensorFlow's CUDA packages are for x86-64."""

BUILD_OPTIONS = dict[str, Any](network_mode="host", platform=PLATFORM, custom_context=True, rm=True, forcerm=True)

MAX_PULL_BYTES = 256 << 20
"""Size limit of an engine's messages about one pull."""

RETRY_SECONDS = 5.0
MAX_LAYERS = 1000
GZIP_WINDOW = 31
"""zlib's `wbits`: the largest window, in gzip's format."""

SENT_REPOSITORY = "tfbench-sent"
"""Repository name of images that were sent to a host; the tag is the image's id in the source engine."""

_DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]{32,128}")
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
"""An engine's message about a loaded image: Docker has `ID` before an id, Podman does not."""


class DockerEngine:
    """One engine with its containers and images, by unix socket, through ssh, or by mutual TLS.

    A host that has answered before is retried for a while. Refusals and malformed answers become errors of this
    project, with the engine's message and a remedy.

    Args:
        address: Of the engine.
        keys: Host keys that ssh accepts.

    Attributes:
        is_remote: Whether it is on another machine.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys = AS_CONFIGURED) -> None:
        self.is_remote = address.scheme != "unix"
        self._address = address
        self._tunnel = Tunnel(address, keys) if address.scheme == "ssh" else None
        self._client: EngineClient | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Disconnect from the engine; containers keep running."""
        if self._client is not None:
            self._client.close()
        if self._tunnel is not None:
            with self._lock:
                self._tunnel.close()

    def request(
        self, operation: Callable[[EngineClient], T], *, seconds: float = ANSWER_SECONDS, again: bool = True
    ) -> T:
        """Send a request, with retries if the engine has answered before.

        Args:
            operation: Sends the request.
            seconds: Time limit of the request and its answer.
            again: Whether to retry.

        Raises:
            Unreachable: The connection failed, or could not be restored.
            NotThere, LaunchFailed: The engine refused, or its answer is malformed.
        """

        def attempt() -> T:
            client = self._connect()
            with explained(self._address), within(seconds, MAX_ANSWER_BYTES):
                return operation(client)

        return persistently(attempt, has_answered=again and self._client is not None)

    def _connect(self) -> EngineClient:
        with self._lock:
            if self._tunnel is not None:
                self._tunnel.ensure()
            if self._client is None:
                path = None if self._tunnel is None else self._tunnel.path
                try:
                    with explained(self._address), within(ANSWER_SECONDS, MAX_ANSWER_BYTES):
                        self._client = EngineClient(engine_pool(self._address, path))
                except Unreachable as error:
                    problem = None if self._tunnel is None else self._tunnel.problem()
                    raise Unreachable(problem or error.cause) from error
            return self._client

    def _messages(
        self, operation: Callable[[EngineClient], Iterable[Any]], refusal: Callable[[str], TfbenchError]
    ) -> Iterator[dict[str, Any]]:
        """Yield the messages about a pull, build, push or load; one with an error is raised as a refusal."""
        client = self._connect()
        with explained(self._address):
            for message in map(dict, operation(client)):
                if "error" in message:
                    raise refusal(plain_text(str(message["error"]), 500))
                yield message

    def info(self) -> dict[str, Any]:
        """Return the engine's report about itself and its machine."""
        return self.request(lambda client: dict(client.info()))

    @property
    def is_podman(self) -> bool:
        """Whether it is Podman, which resolves no tags, gives GPUs by CDI only, and makes folders to mount."""
        return self.request(lambda client: client.is_podman)

    # -- containers --------------------------------------------------------------------------------------------

    def start(self, name: str, described: dict[str, Any]) -> bool:
        """Start a container, or the existing one of its name if that has never run; if the engine refuses, remove it.

        Docker rejects an existing name with 409, Podman with 500: after any error, the engine is queried for one of
            this name. Mistaking that for a failed start would remove a running benchmark.

        Args:
            name: Of the container.
            described: As `invocation.container` describes it.

        Returns:
            Whether it existed.

        Raises:
            HostError: The engine refused; its message is in the cause. Or the existing one has other labels.
        """
        labels, may_have_run = described.get("Labels", {}).items(), False

        def create(client: EngineClient) -> bool:
            try:
                client.create_container_from_config(described, name)
            except APIError as error:
                with contextlib.suppress(APIError):
                    if labels <= dict(client.inspect_container(name)["Config"]["Labels"] or {}).items():
                        return True
                    whose = "does not belong to this run. Remove or rename it"
                    raise LaunchFailed(f"a container named {name} exists, but {whose}") from error
                raise
            return False

        def start(client: EngineClient) -> None:
            nonlocal may_have_run
            # It must not run again. It may have run even if the answer to a first request to start it was lost.
            if not may_have_run or client.inspect_container(name)["State"].get("Status") == "created":
                may_have_run = True
                client.start(name)

        try:
            existed = may_have_run = self.request(create)
        except NotThere as error:
            raise PullFailed(f"image {described['Image']}: {error.cause}") from error
        try:
            self.request(start)
        except (LaunchFailed, NotThere):  # 404 also means a program that is not in the image
            self.remove(name)
            raise
        return existed

    def run(self, purpose: str, described: dict[str, Any], seconds: float) -> bytes:
        """Run a container to its end, or to a time limit, remove it, and return its stdout.

        Args:
            purpose: Part of its name.
            described: See `start`.
            seconds: The limit.

        Raises:
            HostError: The engine refused, or the output has more than `MAX_ANSWER_BYTES`.
        """
        name = f"tfbench-{purpose}-{secrets.token_hex(6)}"

        def read(client: EngineClient) -> bytes:
            with contextlib.closing(client.open_log(name, stdout=1)) as response:
                return b"".join(data for _, data in _frames(response.raw.read))

        deadline = time.monotonic() + seconds
        try:
            self.start(name, described)
            while self.state(name).get("Running") and time.monotonic() < deadline:
                time.sleep(0.2)
            return self.request(read)
        finally:
            self.remove(name)

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a container: `State` of the engine's API."""
        return self.request(lambda client: dict(client.inspect_container(name)["State"]))

    def log_lines(self, name: str, after: Instant, *, follow: bool) -> Iterator[tuple[Instant, str]]:
        """Yield the instant and text, which is not trusted, of each line of output from the second of an instant on.

        The stream may end before the container: see `state`. There are no retries. The SDK's streams also end if a
            link breaks, and wait forever (`test_an_answer_that_was_cut_off_…`).

        Args:
            name: Of the container.
            after: The instant.
            follow: Whether to wait for further lines while it runs.

        Raises:
            HostError: The stream broke or could not be opened: lines may be missing.
        """
        query = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow), "since": max(0, int(after[0]))}
        response = self.request(lambda client: client.open_log(name, **query), again=False)
        with contextlib.closing(response), explained(self._address):
            yield from stamped_lines(response.raw.read)

    def is_full(self, name: str, folder: str) -> bool:
        """Return whether a stopped container's folder has no space for 1 MiB, by a file that stays in it.

        False if the engine does not say.
        """
        trial = tarfile.TarInfo("trial")
        trial.size = TRIAL_BYTES
        archive = trial.tobuf() + bytes(TRIAL_BYTES)
        try:
            self.request(lambda client: client.put_archive(name, folder, archive), again=False)
        except HostError as error:
            return isinstance(error, NoSpace)
        return False

    def stop(self, name: str) -> None:
        """Stop a container, if it exists, first by SIGTERM; does not wait for lost hosts."""
        seconds = ANSWER_SECONDS + STOP_GRACE_SECONDS
        with contextlib.suppress(NotThere):
            self.request(lambda client: client.stop(name, timeout=STOP_GRACE_SECONDS), seconds=seconds, again=False)

    def remove(self, name: str) -> None:
        """Remove a container, if it exists, running or not, with its volumes."""
        with contextlib.suppress(NotThere):
            self.request(lambda client: client.remove_container(name, v=True, force=True))

    def labelled(self, label: str) -> list[dict[str, Any]]:
        """Return the labels of all containers that have `label`, running or not."""
        filters = {"label": [label]}
        return self.request(lambda client: [dict(it["Labels"]) for it in client.containers(all=True, filters=filters)])

    # -- images ------------------------------------------------------------------------------------------------

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return the engine's description of an image; None: it is not on the host."""
        with _about_image(reference):
            try:
                return self.request(lambda client: dict(client.inspect_image(reference)))
            except NotThere:
                return None

    def image_id(self, reference: str) -> str | None:
        """Return the id of an image on the host, or None."""
        found = self.image(reference)
        return None if found is None else str(found.get("Id"))

    def image_bytes(self, reference: str) -> int:
        """Return the size of an image on the host, unpacked."""
        with _about_image(reference):
            return self.request(lambda client: int(client.inspect_image(reference)["Size"]))

    def registry_digest(self, reference: str) -> str:
        """Resolve a tag to its digest in the registry, without pulling. Podman cannot: see `pulled_digest`.

        Raises:
            PullFailed: There is no such image, or the registry does not answer.
        """
        with _about_image(reference):
            digest = self.request(lambda client: client.inspect_distribution(reference)["Descriptor"]["digest"])
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise PullFailed(f"image {reference}: the engine does not report its digest")
        return digest

    def pulled_digest(self, reference: str) -> str:
        """Return the digest in the registry of a tag that was just pulled.

        Raises:
            PullFailed: The engine does not report it.
        """
        reported, wanted = (self.image(reference) or {}).get("RepoDigests"), repository(reference)
        for found in reported if isinstance(reported, list) else ():
            name, _, digest = str(found).partition("@")
            if name in (wanted, f"docker.io/{wanted}", f"docker.io/library/{wanted}") and _DIGEST.fullmatch(digest):
                return digest
        raise PullFailed(f"image {reference}: pulled, but the engine does not report its digest")

    def pull(self, reference: str, on_progress: Progress, on_retry: Callable[[str], None] = lambda cause: None) -> None:
        """Pull an image by its digest.

        Args:
            reference: Of the image.
            on_progress: Receives the progress of each attempt.
            on_retry: Receives the reason for each retry.

        Raises:
            PullFailed: It is not available, perhaps after several attempts.
        """
        ends_at = time.monotonic() + DEADLINE_SECONDS
        for left in reversed(range(ATTEMPTS)):
            messages = self._messages(lambda client: client.pull(reference, stream=True, decode=True), PullFailed)
            try:
                with within(ends_at - time.monotonic(), MAX_PULL_BYTES, STALL_SECONDS):
                    for _ in _shown(messages, on_progress):
                        """Read the stream to its end."""
                if self.image(reference) is not None:
                    return  # Podman reports no final status, and a digest identifies with certainty
                cause = "the pull ended, but the image is missing"
            except HostError as error:
                cause = error.cause
            if not left or FINAL_PULL_ERRORS.search(cause) or time.monotonic() + RETRY_SECONDS > ends_at:
                raise PullFailed(f"image {reference}: {cause}")
            on_retry(cause)
            time.sleep(RETRY_SECONDS)

    def build(
        self, context: IO[bytes], tag: str, arguments: dict[str, str], dockerfile: str, on_line: Callable[[str], None]
    ) -> str:
        """Build an image from a tar file and return its id.

        Args:
            context: The build context, a tar file.
            tag: Name of the image.
            arguments: Build arguments.
            dockerfile: Path in the build context.
            on_line: Receives lines of output that are not empty.

        Raises:
            BuildFailed: A step failed; `on_line` received its output.
        """
        named = {"fileobj": context, "dockerfile": dockerfile, "tag": tag, "buildargs": arguments, **BUILD_OPTIONS}
        messages = self._messages(
            lambda client: client.build(**named, decode=True), lambda said: BuildFailed(f"{tag}: {said}")
        )
        for message in messages:
            for line in filter(str.strip, str(message.get("stream", "")).splitlines()):
                on_line(plain_text(line))
        built = self.image_id(tag)
        if built is None:
            raise BuildFailed(f"{tag}: the build ended, but the image is missing")
        return built

    def push(self, reference: str, on_progress: Progress) -> str:
        """Push an image, and return its digest in the registry.

        Raises:
            BuildFailed: The registry refused it.
        """
        digest = ""
        messages = self._messages(
            lambda client: client.push(reference, stream=True, decode=True),
            lambda said: BuildFailed(f"push of {reference}: {said}"),
        )
        for message in _shown(messages, on_progress):
            if isinstance(aux := message.get("aux"), dict):
                digest = str(aux.get("Digest", digest))
        if not digest:
            raise BuildFailed(f"push of {reference}: the registry returned no digest")
        return digest

    def save(self, reference: str) -> Iterator[bytes]:
        """Yield an image as a tar file, in chunks.

        Raises:
            HostError: The engine refused.
        """
        client = self._connect()
        with _about_image(reference), explained(self._address):
            yield from client.get_image(reference)

    def load(self, chunks: Iterable[bytes]) -> str:
        """Load an image from a tar file of `save`; existing layers are not stored twice.

        Once it is sent, the engine has the limits of a pull.

        Returns:
            Its id or name in this engine.

        Raises:
            HostError: The engine refused, or does not report what it loaded.
        """
        name, limits = "", contextlib.ExitStack()

        def limited() -> Iterator[bytes]:
            yield from chunks
            limits.enter_context(within(DEADLINE_SECONDS, MAX_PULL_BYTES, STALL_SECONDS))

        try:
            with limits:
                for message in self._messages(
                    lambda client: client.load_image(limited()),
                    lambda said: PullFailed(f"the engine rejected the image: {said}"),
                ):
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
        self.request(lambda client: client.tag(image, place, tag))


@contextlib.contextmanager
def _about_image(reference: str) -> Iterator[None]:
    """Raise a refusal as one that is about an image."""
    try:
        yield
    except (NotThere, LaunchFailed) as error:
        raise PullFailed(f"image {reference}: {error.cause}") from error


def _shown(messages: Iterable[dict[str, Any]], on_progress: Progress) -> Iterator[dict[str, Any]]:
    """Yield messages about a pull or push after reporting the progress in them, over all layers."""
    layers: dict[str, tuple[int, int]] = {}
    for message in messages:
        detail = message.get("progressDetail")
        if message.get("status") in ("Downloading", "Pushing") and isinstance(detail, dict):
            done, total = detail.get("current"), detail.get("total")
            if isinstance(done, int) and isinstance(total, int) and len(layers) < MAX_LAYERS:
                layers[str(message.get("id"))] = (done, total)
                on_progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))
        yield message


def controller_address(url: str | None = None) -> DockerAddress:
    """Return the address of this machine's engine.

    Args:
        url: `unix://…` or `ssh://…`; None: DOCKER_HOST, else the usual socket.

    Raises:
        UserError: It is another kind of address.
    """
    url = url or os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    scheme, _, target = url.partition("://")
    if scheme not in ("unix", "ssh") or not target:
        raise UserError(f"the engine of this machine must be unix://… or ssh://…. Received: {url}. Set DOCKER_HOST")
    return DockerAddress(scheme=scheme, target=target)


# -- images that are sent ----------------------------------------------------------------------------------------


def sent_name(image: str) -> str:
    """Return the name of a sent image on its host.

    Args:
        image: Its id in the source engine, `sha256:…`.
    """
    return f"{SENT_REPOSITORY}:{image.rpartition(':')[2]}"


def send_image(
    source: DockerEngine, target: DockerEngine, image: str, on_progress: Progress, turn: threading.Semaphore
) -> str:
    """Stream an image from one engine to another, without storing it on this machine.

    Args:
        source: Engine that has it.
        target: Engine that receives it.
        image: Its id in the source.
        on_progress: Receives the number of bytes sent.
        turn: Held while bytes are sent, but not while the target unpacks them.

    Returns:
        Its id in the target, which differs from `image` if the engines use different stores.

    Raises:
        PullFailed: The source does not have it, or the target refused it.
    """
    total = source.image_bytes(image)

    def sent() -> Generator[bytes, None, None]:
        done, packer = 0, zlib.compressobj(level=1, wbits=GZIP_WINDOW)
        with turn:
            for chunk in source.save(image):
                done += len(chunk)
                on_progress(done, max(total, done))
                # gzip is accepted by every engine, and shrinks CUDA's libraries to less than half
                yield packer.compress(chunk) if target.is_remote else chunk
            if target.is_remote:
                yield packer.flush()

    with contextlib.closing(sent()) as chunks:  # else the turn lasts as long as the traceback of an error
        loaded = target.image_id(target.load(filter(None, chunks)))
    if loaded is None:
        raise PullFailed(f"image {image}: sent, but the host's engine does not have it")
    place, _, tag = sent_name(image).rpartition(":")
    target.tag(loaded, place, tag)  # so that it can be found again, and clean-ups do not remove it
    return loaded


# -- logs --------------------------------------------------------------------------------------------------------


Instant = tuple[float, str]
"""Seconds since the epoch, and the digits after their microseconds."""

BEFORE_ALL: Instant = (0.0, "")


def stamped_lines(read: Callable[[int], bytes]) -> Iterator[tuple[Instant, str]]:
    """Yield the instant and text of each line of a log; of an overlong line only the end is kept.

    Every frame begins with a time stamp, and may end in the middle of a line, whose stamp is that of its last frame.
    Podman sends a frame per write of the benchmark, Docker one per line, or per 16 KiB of a long line.
    """
    instants, cutters = dict[int, Instant](), defaultdict[int, Lines](Lines)
    for stream, data in _frames(read):
        stamp, _, text = data.partition(b" ")
        instants[stream] = _instant(stamp.decode("ascii", "replace"))
        yield from ((instants[stream], line) for line in cutters[stream].cut(text))
    for stream, cutter in cutters.items():  # without a line end, e.g. `free(): invalid pointer` before an abort
        yield from ((instants[stream], line) for line in cutter.end())


def _frames(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield stream (1: stdout, 2: stderr) and content of each frame.

    Source: Docker Engine API, "Attach to a container", stream format.
    """
    while len(header := read(HEADER_BYTES)) == HEADER_BYTES:
        length = int.from_bytes(header[4:], "big")
        if length > MAX_FRAME_BYTES:
            raise LaunchFailed(f"a frame of the log is longer than {MAX_FRAME_BYTES >> 20} MiB")
        yield min(header[0], 2), read(length)


def _instant(stamp: str) -> Instant:
    """Parse an RFC 3339 time stamp.

    Podman writes local time with its zone, which changes when a repeat runs into winter time.

    Raises:
        ValueError: It is not a time stamp.
    """
    return datetime.fromisoformat(stamp).timestamp(), stamp[26:29].rstrip("Z")
