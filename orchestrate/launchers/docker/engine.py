"""A Docker engine's containers behind a dozen calls: the path that every repeat takes, without the SDK.

Connections come back: a host that once answered is asked again for a while. Every refusal becomes one of our errors,
with the engine's words and a remedy.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from orchestrate.errors import HostError, LaunchFailed, PullFailed, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, DockerAddress, HostKeys
from orchestrate.launchers.archives import only_file, read_bounded
from orchestrate.launchers.container import ContainerSpec, container_document
from orchestrate.launchers.docker.http import (
    LIBPOD,
    LISTS_DEVICES_API,
    TIMEOUT_SECONDS,
    TRANSPORT_ERRORS,
    EngineHTTP,
    Refused,
)
from orchestrate.launchers.docker.log_frames import stamped_lines, unframed
from orchestrate.launchers.docker.refusals import MAX_SAID, explain, launch_refusal
from orchestrate.links.tunnel import tunnel_to
from orchestrate.text import plain_text
from results.schema.record_json import MAX_RECORD_BYTES

RECONNECT_SECONDS = 120.0
"""How long a host that once answered may be gone before it is given up."""

LONGEST_DELAY_SECONDS = 10.0
STOP_GRACE_SECONDS = 10
ARCHIVE_OVERHEAD_BYTES = 64 * 1024

T = TypeVar("T")


class NotThere(HostError):
    """There is no such container."""


class ContainerEngine:
    """One engine and its containers, by unix socket, through ssh, by sudo, or by mutual TLS.

    Args:
        address: Where it is.
        keys: Which host keys ssh accepts on the way.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys = AS_CONFIGURED) -> None:
        self._address = address
        self._tunnel = tunnel_to(address, keys)
        self._http: EngineHTTP | None = None
        self._lock = threading.Lock()
        self._answered = False

    def info(self) -> dict[str, Any]:
        """Return what the engine reports about itself and its machine."""
        return _document(self._ask(lambda http: http.ask("GET", "/info")))

    @property
    def is_far(self) -> bool:
        """Whether it is reached over a network."""
        return self._address.scheme != "unix"

    @property
    def is_podman(self) -> bool:
        """Whether it is Podman, which answers as a Docker engine, with differences."""
        return self._ask(lambda http: http.is_podman)

    @property
    def lists_devices(self) -> bool:
        """Whether `info` lists the devices that CDI offers, where there are any."""
        return self._ask(lambda http: not http.is_podman and http.api >= LISTS_DEVICES_API)

    def close(self) -> None:
        """Let go of the engine; what runs there goes on."""
        if self._http is not None:
            self._http.close()
        if self._tunnel is not None:
            self._tunnel.close()

    def image_id(self, reference: str) -> str | None:
        """Return the id of an image on the host; None: it is not there."""
        try:
            return str(self._image(reference).get("Id"))
        except NotThere:
            return None

    def image_bytes(self, reference: str) -> int:
        """Return the size of an image on the host, unpacked."""
        size = self._image(reference).get("Size")
        if not isinstance(size, int):
            raise PullFailed(f"image {reference}: the engine does not report its size")
        return size

    def image_labels(self, reference: str) -> dict[str, str]:
        """Return the labels of an image on the host."""
        configuration = self._image(reference).get("Config")
        labels = configuration.get("Labels") if isinstance(configuration, dict) else None
        return {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {}

    def image_document(self, reference: str) -> dict[str, Any]:
        """Return all that the engine knows of an image.

        Raises:
            NotThere: It is not on the host.
        """
        return self._image(reference)

    def remove_image(self, reference: str) -> None:
        """Remove a name of an image, and the image with its last name; nothing happens when there is none."""
        with contextlib.suppress(NotThere):
            self._ask(lambda http: http.ask("DELETE", f"/images/{reference}"))

    def check_folder(self, image: str, name: str, folder: str) -> None:
        """Have Podman look whether a folder of its machine exists: Podman's answer to Docker's requests makes it.

        Args:
            image: On the host.
            name: Of the container that is created for it, and removed.
            folder: Absolute path.

        Raises:
            HostError: It does not exist.
        """
        mount = {"type": "bind", "source": folder, "destination": "/data", "options": ["ro"]}
        document = {"image": image, "name": name, "mounts": [mount]}
        try:
            self._ask(lambda http: http.ask("POST", "/containers/create", None, document, api=LIBPOD))
        finally:
            with contextlib.suppress(HostError):
                self.remove(name)

    def _image(self, reference: str) -> dict[str, Any]:
        try:
            return _document(self._ask(lambda http: http.ask("GET", f"/images/{reference}/json")))
        except LaunchFailed as error:
            raise PullFailed(f"image {reference}: {error.cause}") from error

    def create(self, spec: ContainerSpec) -> bool:
        """Create a container, unless there is one of its name.

        Docker refuses a name that is taken with 409, Podman with 500: after any refusal the engine is asked whether
        there is a container of this name. Whoever takes that for a failed start would remove a running benchmark.

        Returns:
            Whether it was created.

        Raises:
            HostError: The engine refused.
        """
        document, query = container_document(spec), {"name": spec.name}

        def create(http: EngineHTTP) -> bool:
            try:
                http.ask("POST", "/containers/create", query, document)
            except Refused as error:
                if error.status == 409 or _exists(http, spec.name):
                    return False
                raise
            return True

        try:
            return self._ask(create)
        except NotThere as error:
            raise PullFailed(f"image {spec.image}: {error.cause}") from error

    def start(self, name: str) -> None:
        """Start a created container, once; one that the engine refuses to start is removed.

        Raises:
            HostError: The engine refused; what it said is in the cause.
        """
        asked = False

        def start(http: EngineHTTP) -> None:
            # When the answer to a first request was lost, the container may have run and ended since.
            nonlocal asked
            if not asked or _state(http.ask("GET", _path(name, "json"))).get("Status") == "created":
                asked = True
                http.ask("POST", _path(name, "start"))

        try:
            self._ask(start)
        except (LaunchFailed, NotThere):  # 404 is also the answer to a program that is not in the image
            self.remove(name)
            raise

    def inspect(self, name: str) -> dict[str, Any]:
        """Return all that the engine knows of a container."""
        return _document(self._ask(lambda http: http.ask("GET", _path(name, "json"))))

    def state(self, name: str) -> dict[str, Any]:
        """Return whether a container runs, and how it ended: `State` of the engine's API."""
        return _state(self.inspect(name))

    def log_lines(self, name: str, after: str, *, follow: bool) -> Iterator[tuple[str, str]]:
        """Yield time stamp and text of each line of output after a time stamp, until the stream ends.

        Its end means nothing for the container: ask `state`. Nothing is asked twice.

        Args:
            name: Of the container.
            after: Time stamp; empty: from the first line.
            follow: Wait for further lines while it runs.

        Raises:
            HostError: The stream broke, or there is none: lines may be missing.
        """
        query = {"stdout": "1", "stderr": "1", "timestamps": "1", "follow": str(int(follow))}
        if after:
            query["since"] = str(_epoch_seconds(after))
        try:
            with contextlib.closing(self._connect().stream(_path(name, "logs"), query)) as pieces:
                yield from stamped_lines(pieces, after)
        except TRANSPORT_ERRORS as error:
            raise Unreachable(explain(error, self._address)) from error
        except Refused as error:
            raise launch_refusal(error.message) from error

    def read_file(self, name: str, path: str) -> bytes | None:
        """Read a file of a stopped container, at most `MAX_RECORD_BYTES` + 1 bytes of it; None: it is not there."""
        limit = MAX_RECORD_BYTES + ARCHIVE_OVERHEAD_BYTES
        try:
            return only_file(self._read(_path(name, "archive"), {"path": path}, limit))
        except NotThere:
            return None

    def output(self, name: str, limit_bytes: int) -> bytes:
        """Return what a container has printed on stdout so far, up to a limit."""
        return self._read(_path(name, "logs"), {"stdout": "1"}, limit_bytes, framed=True)

    def wait(self, name: str, timeout_seconds: float) -> None:
        """Wait until a container has ended, or until the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while self.state(name).get("Running") and time.monotonic() < deadline:
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        """End a container, asking it first; nothing happens when there is none. Does not wait for lost hosts."""
        query, seconds = {"t": str(STOP_GRACE_SECONDS)}, TIMEOUT_SECONDS + STOP_GRACE_SECONDS
        try:
            self._connect().ask("POST", _path(name, "stop"), query, seconds=seconds)
        except Refused as error:
            if error.status != 404:
                raise launch_refusal(error.message) from error
        except TRANSPORT_ERRORS as error:
            raise Unreachable(explain(error, self._address)) from error

    def remove(self, name: str) -> None:
        """Remove a container and its volumes, running or not; nothing happens when there is none."""
        with contextlib.suppress(NotThere):
            self._ask(lambda http: http.ask("DELETE", _path(name), {"v": "1", "force": "1"}))

    def labelled(self, label: str) -> list[dict[str, str]]:
        """Return the labels of all containers, running or not, that carry `label`."""
        query = {"all": "1", "filters": json.dumps({"label": [label]})}
        containers = self._ask(lambda http: http.ask("GET", "/containers/json", query))
        if not isinstance(containers, list):
            raise LaunchFailed("the engine's list of containers is not a list")
        return [dict(_document(container).get("Labels") or {}) for container in containers]

    def labelled_volumes(self, label: str) -> dict[str, str]:
        """Return the value of `label` of each volume that carries it, by the volume's name."""
        query = {"filters": json.dumps({"label": [label]})}
        answer = _document(self._ask(lambda http: http.ask("GET", "/volumes", query)))
        volumes = [_document(volume) for volume in answer.get("Volumes") or ()]
        return {str(volume["Name"]): str((volume.get("Labels") or {}).get(label)) for volume in volumes}

    def remove_volume(self, name: str) -> None:
        """Remove a volume.

        Raises:
            HostError: The engine refused, e.g. because a container uses it.
        """
        with contextlib.suppress(NotThere):
            self._ask(lambda http: http.ask("DELETE", f"/volumes/{name}"))

    # -- connection --------------------------------------------------------------------------------------------

    def _ask(self, operation: Callable[[EngineHTTP], T]) -> T:
        """Make a request; refusals become our own messages.

        Raises:
            Unreachable: The connection cannot be made, or not again.
            NotThere, LaunchFailed: The engine refused.
        """
        try:
            return self._persist(lambda: operation(self._connect()), TRANSPORT_ERRORS)
        except Refused as error:
            if error.status == 404:
                raise NotThere(plain_text(error.message, MAX_SAID)) from error
            raise launch_refusal(error.message) from error

    def _read(self, path: str, query: dict[str, str], limit_bytes: int, *, framed: bool = False) -> bytes:
        """Read an answer that is no JSON, up to a limit."""

        def read(http: EngineHTTP) -> bytes:
            with contextlib.closing(http.stream(path, query)) as pieces:
                return read_bounded(unframed(pieces) if framed else pieces, limit_bytes)

        return self._ask(read)

    def _connect(self) -> EngineHTTP:
        """Return a connection whose transport stands.

        Raises:
            Unreachable: It cannot be made to.
        """
        with self._lock:
            if self._tunnel is not None:
                self._tunnel.ensure()
            if self._http is None:
                http = EngineHTTP(self._address, None if self._tunnel is None else self._tunnel.path)
                try:
                    http.connect()
                except (*TRANSPORT_ERRORS, Refused) as error:
                    raise Unreachable(explain(error, self._address)) from error
                self._http = http
                self._answered = True
            return self._http

    def _persist(self, operation: Callable[[], T], transport_errors: tuple[type[Exception], ...]) -> T:
        """Do something over the network; a host that once answered is tried again for a while when it is gone.

        Raises:
            Unreachable: The connection cannot be made, or not again.
        """
        deadline = time.monotonic() + RECONNECT_SECONDS
        delay_seconds = 0.5
        while True:
            try:
                return operation()
            except transport_errors as error:
                failure = Unreachable(explain(error, self._address))
            except Unreachable as error:
                failure = error
            if not self._answered or time.monotonic() > deadline:
                raise failure
            time.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, LONGEST_DELAY_SECONDS)


def _path(name: str, *parts: str) -> str:
    return "/".join(("/containers", name, *parts))


def _exists(http: EngineHTTP, name: str) -> bool:
    try:
        http.ask("GET", _path(name, "json"))
    except Refused:
        return False
    return True


def _document(answer: object) -> dict[str, Any]:
    """Make sure that an answer is an object."""
    if not isinstance(answer, dict):
        raise LaunchFailed("the engine's answer is not a JSON object")
    return answer


def _state(container: object) -> dict[str, Any]:
    return _document(_document(container).get("State"))


def _epoch_seconds(stamp: str) -> int:
    """Turn the engine's RFC 3339 stamp into seconds, rounded down: repeated lines are dropped by their stamp."""
    try:
        return int(datetime.fromisoformat(f"{stamp[:19]}+00:00").timestamp())
    except (ValueError, OverflowError):
        return 0  # no stamp: the log is read from its beginning
