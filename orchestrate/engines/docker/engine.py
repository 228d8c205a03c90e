"""A Docker engine's containers, and descriptions of its images; through the SDK, except for logs."""

from __future__ import annotations

import contextlib
import io
import re
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from orchestrate.engines.base import NotThere
from orchestrate.engines.bounded import only_file, read_bounded
from orchestrate.engines.docker.client import (
    ANSWER_SECONDS,
    APIError,
    EngineClient,
    EngineLink,
    Kind,
    NoSpace,
    document,
)
from orchestrate.engines.invocation import ContainerSpec, container_document
from orchestrate.errors import HostError, LaunchFailed, PullFailed
from orchestrate.inventory.addresses import AS_CONFIGURED, DockerAddress, HostKeys
from orchestrate.text import MAX_LINE_LENGTH, plain_text
from results.schema.record_json import MAX_RECORD_BYTES

STOP_GRACE_SECONDS = 10
ARCHIVE_OVERHEAD_BYTES = 64 * 1024
CHUNK_BYTES = 64 << 10
TRIAL_BYTES = 1 << 20

MAX_LOG_BYTES = 8 << 30
"""Size of a log at which the benchmark counts as failed."""

HEADER_BYTES = 8
"""Header of a log's frame: stream number, three zeros, and the length of the content, big-endian."""

MAX_HELD_BYTES = MAX_LINE_LENGTH * 4
MAX_STAMP_BYTES = 40
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{8,18}(Z|[+-]\d\d:\d\d)")


class EndlessLog(LaunchFailed):
    """The log of a benchmark exceeds its size limit."""


class ContainerEngine:
    """One engine and its containers, by unix socket, through ssh, or by mutual TLS.

    Args:
        address: Of the engine.
        keys: Host keys that ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys = AS_CONFIGURED) -> None:
        self._link = EngineLink(address, keys)

    def info(self) -> dict[str, Any]:
        """Return the engine's report about itself and its machine."""
        return document(self._link.request(lambda client: client.info()))

    @property
    def is_remote(self) -> bool:
        """Return whether it is on another machine."""
        return self._link.address.scheme != "unix"

    @property
    def kind(self) -> Kind:
        """Return what differs between engines."""
        return self._link.request(lambda client: client.kind)

    def close(self) -> None:
        """Disconnect from the engine; containers keep running."""
        self._link.close()

    # -- images ------------------------------------------------------------------------------------------------

    def image_id(self, reference: str) -> str | None:
        """Return the id of an image on the host, or None."""
        try:
            return str(self.image_document(reference).get("Id"))
        except NotThere:
            return None

    def image_bytes(self, reference: str) -> int:
        """Return the size of an image on the host, unpacked."""
        size = self.image_document(reference).get("Size")
        if not isinstance(size, int):
            raise PullFailed(f"image {reference}: the engine does not report its size")
        return size

    def image_document(self, reference: str) -> dict[str, Any]:
        """Return the engine's description of an image.

        Raises:
            NotThere: It is not on the host.
        """
        try:
            return document(self._link.request(lambda client: client.inspect_image(reference)))
        except LaunchFailed as error:
            raise PullFailed(f"image {reference}: {error.cause}") from error

    # -- containers --------------------------------------------------------------------------------------------

    def check_folder(self, image: str, name: str, folder: str) -> None:
        """Check through Podman's native API that a folder exists: through Docker's API, Podman would create it.

        Args:
            image: An image on the host.
            name: For the temporary container.
            folder: Absolute path.

        Raises:
            HostError: It does not exist.
        """
        mount = {"type": "bind", "source": folder, "destination": "/data", "options": ["ro"]}
        try:
            self._link.request(
                lambda client: client.create_by_podman({"image": image, "name": name, "mounts": [mount]})
            )
        finally:
            with contextlib.suppress(HostError):
                self.remove(name)

    def create(self, spec: ContainerSpec) -> bool:
        """Create a container, unless one of its name exists.

        Docker rejects an existing name with 409, Podman with 500: after any error, the engine is queried for one of
            this name. Mistaking that for a failed start would remove a running benchmark.

        Returns:
            Whether it was created.

        Raises:
            HostError: The engine refused.
        """
        described = container_document(spec)

        def create(client: EngineClient) -> bool:
            try:
                client.create_container_from_config(described, spec.name)
            except APIError as refusal:
                with contextlib.suppress(APIError):
                    if refusal.status_code == 409 or client.inspect_container(spec.name):
                        return False
                raise
            return True

        try:
            return self._link.request(create)
        except NotThere as error:
            raise PullFailed(f"image {spec.image}: {error.cause}") from error

    def start(self, name: str) -> None:
        """Start a created container once; if the engine refuses, remove it.

        Raises:
            HostError: The engine refused; its message is in the cause.
        """
        requested = False

        def start(client: EngineClient) -> None:
            # If the answer to a first request was lost, the container may have run and ended since.
            nonlocal requested
            if not requested or _state(client.inspect_container(name)).get("Status") == "created":
                requested = True
                client.start(name)

        try:
            self._link.request(start)
        except (LaunchFailed, NotThere):  # 404 also means a program that is not in the image
            self.remove(name)
            raise

    def inspect(self, name: str) -> dict[str, Any]:
        """Return the engine's description of a container."""
        return document(self._link.request(lambda client: client.inspect_container(name)))

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a container: `State` of the engine's API."""
        return _state(self.inspect(name))

    def log_lines(self, name: str, after: str, *, follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the time stamp and text of each line of output after a time stamp, until the stream ends.

        The stream may end before the container: see `state`. There are no retries. The SDK's streams also
            end if a link breaks, buffer a frame whose size the host chooses, and wait forever
            (`test_a_stream_that_was_cut_off_…`, `test_a_frame_without_end_…`).

        Args:
            name: Of the container.
            after: Time stamp; empty: from the first line.
            follow: Whether to wait for further lines while it runs.

        Raises:
            EndlessLog: The log exceeds its size limit.
            HostError: The stream broke or could not be opened: lines may be missing.
        """
        query: dict[str, int | str] = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow)}
        if after:
            query["since"] = max(0, _instant(after)[0])
        response = self._link.request(lambda client: client.open_log(name, **query), again=False)
        with contextlib.closing(response), self._link.explained():
            yield from stamped_lines(_bounded(response.raw.stream(CHUNK_BYTES)), after)

    def read_file(self, name: str, path: str) -> bytes | None:
        """Read at most `MAX_RECORD_BYTES` + 1 bytes of a file of a stopped container; None: it does not exist."""
        limit = MAX_RECORD_BYTES + ARCHIVE_OVERHEAD_BYTES

        def read(client: EngineClient) -> bytes:
            return read_bounded(client.get_archive(name, path, chunk_size=CHUNK_BYTES)[0], limit)

        try:
            return only_file(self._link.request(read, limit_bytes=2 * limit))
        except NotThere:
            return None

    def is_full(self, name: str, folder: str) -> bool:
        """Return whether a stopped container's folder has no space for 1 MiB, by a file that stays in it.

        False if the engine does not say.
        """
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            trial = tarfile.TarInfo("trial")
            trial.size = TRIAL_BYTES
            tar.addfile(trial, io.BytesIO(bytes(TRIAL_BYTES)))
        try:
            self._link.request(lambda client: client.put_archive(name, folder, archive.getvalue()), again=False)
        except HostError as error:
            return isinstance(error, NoSpace)
        return False

    def output(self, name: str, limit_bytes: int) -> bytes:
        """Return a container's stdout so far, up to a limit."""

        def read(client: EngineClient) -> bytes:
            with contextlib.closing(client.open_log(name, stdout=1)) as response:
                return read_bounded(unframed(response.raw.stream(CHUNK_BYTES)), limit_bytes)

        return self._link.request(read)

    def wait(self, name: str, timeout_seconds: float) -> None:
        """Wait until a container has ended, or until a time limit."""
        deadline = time.monotonic() + timeout_seconds
        while self.state(name).get("Running") and time.monotonic() < deadline:
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        """Stop a container, if it exists, first by SIGTERM; does not wait for lost hosts."""
        seconds = ANSWER_SECONDS + STOP_GRACE_SECONDS
        with contextlib.suppress(NotThere):
            self._link.request(
                lambda client: client.stop(name, timeout=STOP_GRACE_SECONDS), seconds=seconds, again=False
            )

    def remove(self, name: str) -> None:
        """Remove a container, if it exists, running or not, with its volumes."""
        with contextlib.suppress(NotThere):
            self._link.request(lambda client: client.remove_container(name, v=True, force=True))

    def labelled(self, label: str) -> list[dict[str, str]]:
        """Return the labels of all containers that have `label`, running or not."""
        containers = self._link.request(lambda client: client.containers(all=True, filters={"label": [label]}))
        if not isinstance(containers, list):
            raise LaunchFailed("the engine's list of containers is not a list")
        return [document(document(container).get("Labels") or {}) for container in containers]


def _state(container: object) -> dict[str, Any]:
    return document(document(container).get("State"))


def _instant(stamp: str) -> tuple[int, str]:
    """Return whole seconds since the epoch and the digits of the fraction of an RFC 3339 time stamp, for comparisons.

    Podman writes local time with its zone, which changes when a repeat runs into winter time. Without a stamp, the
    result is before all others.
    """
    zone = "+00:00" if stamp.endswith("Z") else stamp[-6:]
    try:
        return int(datetime.fromisoformat(f"{stamp[:19]}{zone}").timestamp()), stamp[19:].removesuffix(zone).rstrip("Z")
    except (ValueError, OverflowError):
        return (0, "") if stamp else (-1, "")


# -- logs --------------------------------------------------------------------------------------------------------


def stamped_lines(pieces: Iterable[bytes], after: str) -> Iterator[tuple[str, str]]:
    """Yield the time stamp and printable text of each line later than `after`."""
    streams: defaultdict[int, _Lines] = defaultdict(_Lines)

    def lines() -> Iterator[tuple[str, str]]:
        for stream, starts, data in _frame_parts(pieces):
            yield from streams[min(stream, 2)].take(data, starts=starts)
        for ended in streams.values():
            yield from ended.end()

    shown = _instant(after)
    return ((stamp, text) for stamp, text in lines() if _instant(stamp) > shown)


def unframed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the contents of the frames of both streams, in pieces as they arrive."""
    return (data for _, _, data in _frame_parts(pieces))


def _frame_parts(pieces: Iterable[bytes]) -> Iterator[tuple[int, bool, bytes]]:
    """Yield stream (1: stdout, 2: stderr), whether a frame starts, and content, in pieces as they arrive.

    Source: Docker Engine API, "Attach to a container", stream format.
    """
    rest, left, stream, starts = b"", 0, 0, False  # left: remaining bytes of the current frame
    for piece in pieces:
        data, at = rest + piece, 0
        while at < len(data):
            if left:
                part = data[at : at + left]
                yield stream, starts, part
                at, left, starts = at + len(part), left - len(part), False
            elif len(data) - at < HEADER_BYTES:
                break
            else:
                stream, left = data[at], int.from_bytes(data[at + 4 : at + HEADER_BYTES], "big")
                at, starts = at + HEADER_BYTES, True
        rest = data[at:]


class _Lines:
    """Splits one stream into lines: every frame begins with a time stamp, and may end in the middle of a line.

    Podman sends a frame per write of the benchmark, Docker one per line, or per 16 KiB of a long line.
    """

    def __init__(self) -> None:
        self._stamp = ""
        self._head: bytes | None = None
        self._rest = b""

    def take(self, data: bytes, *, starts: bool) -> Iterator[tuple[str, str]]:
        """Yield the time stamp (that of the last frame) and text of each line that a piece completes."""
        if starts:
            self._head = b""
        if self._head is not None:
            self._head += data
            stamp, space, after = self._head.partition(b" ")
            if not space and len(self._head) < MAX_STAMP_BYTES:
                return  # the stamp is still incomplete
            data, self._head = self._head, None
            if _STAMP.fullmatch(stamp):
                self._stamp, data = stamp.decode(), after
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:MAX_HELD_BYTES]
        for line in lines:
            yield self._stamp, plain_text(line.decode("utf-8", "replace"))

    def end(self) -> Iterator[tuple[str, str]]:
        """Yield the last line, if it has no line end, e.g. `free(): invalid pointer` before an abort."""
        if self._rest:
            yield self._stamp, plain_text(self._rest.decode("utf-8", "replace"))


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    limit_bytes = MAX_LOG_BYTES
    for piece in pieces:
        limit_bytes -= len(piece)
        if limit_bytes < 0:
            raise EndlessLog(f"it printed more than {MAX_LOG_BYTES >> 30} GiB")
        yield piece
