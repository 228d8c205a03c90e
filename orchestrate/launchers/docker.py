"""A Docker engine behind a dozen calls: the only file that knows the Docker SDK.

Three things that the SDK does not do stand here. Connections come back: a host that once answered is asked again for a
while. A pull is believed by its digest only, is ended when it stalls, and is tried again when the network failed. And
every exception of the SDK becomes one of ours, with the engine's words and a remedy.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import IO, Any, TypeVar

import requests.exceptions
import stamina
import urllib3.exceptions
from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.tls import TLSConfig
from docker.types import DeviceRequest, LogConfig, Ulimit

from orchestrate.addresses import DockerAddress
from orchestrate.errors import BuildFailed, HostError, LaunchFailed, PullFailed, Unreachable
from orchestrate.launchers.archives import only_file, read_bounded
from orchestrate.launchers.container import ContainerSpec, repository
from orchestrate.launchers.pulls import PullMeter
from orchestrate.launchers.tunnel import SSHTunnel
from orchestrate.text import MAX_LINE_LENGTH, plain_text, shown
from results.schema import MAX_RECORD_BYTES, Status

REQUEST_TIMEOUT_SECONDS = 60
"""Longest silence of the engine before a request is tried again; a silent benchmark only renews its log stream."""

RECONNECT_SECONDS = 120.0
"""How long a host that once answered may be gone before it is given up."""

STOP_GRACE_SECONDS = 10
ARCHIVE_OVERHEAD_BYTES = 64 * 1024

T = TypeVar("T")

_TRANSPORT = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    OSError,
)


class NotThere(HostError):
    """There is no such container."""


class NameTaken(HostError):
    """There is a container of that name already."""


class PullInterrupted(PullFailed):
    """The network or the registry failed in the middle: worth another try."""


class _Client(APIClient):
    """The SDK's client, deaf to the environment: only hosts.yml says whom to trust.

    Else REQUESTS_CA_BUNDLE would replace `tls.ca`, and proxies and ~/.netrc would be used for engines.
    """

    # requests assigns it while it is constructed, and the SDK connects before its constructor returns.
    trust_env = property(lambda self: False, lambda self, value: None)

    def _check_is_tty(self, container: str) -> bool:
        """Say that containers have no terminal: ours never do, and asking is a request for every log stream."""
        return False


class DockerEngine:
    """One engine, by unix socket, through ssh, or by mutual TLS.

    Args:
        address: Where it is.
    """

    def __init__(self, address: DockerAddress) -> None:
        self._address = address
        self._tunnel = SSHTunnel(address) if address.scheme == "ssh" else None
        self._client: APIClient | None = None
        self._lock = threading.Lock()
        self._answered = False

    def info(self) -> dict[str, Any]:
        """Return what the engine tells about itself and its machine."""
        return self._ask(lambda client: dict(client.info()))

    def close(self) -> None:
        """Let go of the engine; what runs there goes on."""
        if self._client is not None:
            self._client.close()
        if self._tunnel is not None:
            self._tunnel.close()

    # -- images ------------------------------------------------------------------------------------------------

    def registry_digest(self, reference: str) -> str:
        """Ask the registry, through the engine, what a tag means now; nothing is pulled.

        Raises:
            PullFailed: There is no such image, or the registry does not answer.
        """
        try:
            return str(self._ask(lambda client: client.inspect_distribution(reference))["Descriptor"]["digest"])
        except (APIError, KeyError) as error:
            raise PullFailed(f"image {reference} is not in the registry: {_said(error)}") from error

    def image_id(self, reference: str) -> str | None:
        """Return the id of an image on the host; None: it is not there."""
        try:
            return str(self._ask(lambda client: client.inspect_image(reference))["Id"])
        except (ImageNotFound, NotFound):
            return None
        except APIError as error:
            raise PullFailed(f"image {reference}: {_said(error)}") from error

    def pull(self, reference: str, meter: PullMeter) -> None:
        """Pull an image by its digest, watching its progress.

        Raises:
            PullFailed: It cannot be had; PullInterrupted: not this time.
        """
        for attempt in stamina.retry_context(
            on=PullInterrupted, attempts=meter.attempts, timeout=meter.deadline_seconds, wait_initial=1.0, wait_max=30.0
        ):
            with attempt:
                meter.restart()
                self._pull_once(reference, meter)
        if self.image_id(reference) is None:
            raise PullFailed(f"image {reference}: the pull ended, but the image is not there")

    def _pull_once(self, reference: str, meter: PullMeter) -> None:
        """Read the stream of one pull in a thread of its own, because a stalled one never returns."""
        messages: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        client = self._connect()

        def read() -> None:
            try:
                for message in client.pull(reference, stream=True, decode=True):
                    messages.put(message)
                messages.put(None)
            except (*_TRANSPORT, DockerException) as error:
                messages.put(error)

        threading.Thread(target=read, name=f"pull {reference}", daemon=True).start()
        complete = False
        while True:
            try:
                message = messages.get(timeout=meter.patience())
            except queue.Empty as error:
                raise PullInterrupted(f"image {reference}: {meter.stalled()}") from error
            if message is None:
                break
            if isinstance(message, BaseException):
                raise self._pull_error(reference, message) from message
            if "error" in message:
                raise _judge_pull(reference, plain_text(str(message["error"]), 300))
            complete = complete or str(message.get("status", "")).startswith("Status: ")
            meter.note(message)
        if not complete:
            raise PullInterrupted(f"image {reference}: the pull ended without being complete")

    def _pull_error(self, reference: str, error: BaseException) -> PullFailed:
        if isinstance(error, APIError):
            return _judge_pull(reference, _said(error))
        return PullInterrupted(f"image {reference}: {self._explain(error)}")

    def build(self, context: IO[bytes], tag: str, arguments: dict[str, str], on_line: Callable[[str], None]) -> str:
        """Build an image from a tar file and return its id.

        Raises:
            BuildFailed: A step failed; the output went to `on_line`.
        """
        stream = self._ask(
            lambda client: client.build(
                fileobj=context,
                custom_context=True,
                dockerfile="containers/Dockerfile",
                tag=tag,
                buildargs=arguments,
                network_mode="host",
                rm=True,
                forcerm=True,
                decode=True,
            )
        )
        for message in stream:
            for line in str(message.get("stream", "")).splitlines():
                on_line(plain_text(line))
            if "error" in message:
                raise BuildFailed(f"{tag}: {plain_text(str(message['error']), 500)}")
        built = self.image_id(tag)
        if built is None:
            raise BuildFailed(f"{tag}: the build ended, but the image is not there")
        return built

    def push(self, reference: str, on_progress: Callable[[int, int], None]) -> str:
        """Push an image and return the digest under which the registry has it.

        Raises:
            BuildFailed: The registry did not take it.
        """
        meter, digest = PullMeter(on_progress), ""
        stream = self._ask(lambda client: client.push(reference, stream=True, decode=True))
        for message in stream:
            if "error" in message:
                raise BuildFailed(f"push of {reference}: {plain_text(str(message['error']), 300)}")
            digest = str((message.get("aux") or {}).get("Digest", digest))
            meter.note(message)
        if not digest:
            raise BuildFailed(f"push of {reference}: the registry gave no digest")
        return digest

    def tag(self, image: str, reference: str) -> None:
        """Give an image a further name."""
        self._request(lambda client: client.tag(image, repository(reference), reference.rpartition(":")[2]))

    def image_bytes(self, reference: str) -> int:
        """Return the size of an image on the host, unpacked."""
        return int(self._request(lambda client: client.inspect_image(reference))["Size"])

    def save(self, reference: str) -> Iterator[bytes]:
        """Yield an image as a tar file, in chunks."""
        yield from self._request(lambda client: client.get_image(reference))

    def load(self, chunks: Iterable[bytes]) -> None:
        """Take in an image that `save` gave; layers that are there already are not stored twice.

        Raises:
            HostError: The engine refused.
        """
        try:
            for message in self._connect().load_image(chunks):
                if "error" in message:
                    raise PullFailed(f"the engine did not take the image: {plain_text(str(message['error']), 300)}")
        except APIError as error:
            raise _refused(error) from error
        except (*_TRANSPORT, DockerException) as error:
            raise PullFailed(f"the image did not arrive: {self._explain(error)}") from error

    # -- containers --------------------------------------------------------------------------------------------

    def create(self, spec: ContainerSpec) -> None:
        """Create a container.

        Raises:
            NameTaken: There is one of that name.
            HostError: The engine refused.
        """

        def create(client: APIClient) -> None:
            client.create_container(**_arguments(client, spec))

        try:
            self._ask(create)
        except ImageNotFound as error:
            raise PullFailed(f"image {spec.image}: {_said(error)}") from error
        except APIError as error:
            if error.status_code == 409:
                raise NameTaken(_said(error)) from error
            raise _refused(error) from error

    def start(self, name: str) -> None:
        """Start a created container, once.

        Raises:
            HostError: The engine refused; what it said is in the cause.
        """
        asked = False

        def start(client: APIClient) -> None:
            # When the answer to a first request was lost, the container may have run and ended since.
            nonlocal asked
            if not asked or client.inspect_container(name)["State"]["Status"] == "created":
                asked = True
                client.start(name)

        self._request(start)

    def inspect(self, name: str) -> dict[str, Any]:
        """Return all that the engine knows of a container."""
        return dict(self._request(lambda client: client.inspect_container(name)))

    def log_lines(self, name: str, after: str, *, follow: bool) -> Iterator[tuple[str, str]]:
        """Yield time stamp and text of each line of output after a time stamp, until the stream ends or breaks.

        The end of the stream means nothing: ask `inspect`.

        Args:
            name: Of the container.
            after: Time stamp; empty: from the first line.
            follow: Wait for further lines while it runs.
        """
        arguments: dict[str, Any] = {"stream": True, "follow": follow, "timestamps": True}
        if after:
            arguments["since"] = _epoch_seconds(after)
        rest = b""
        try:
            stream = self._connect().logs(name, **arguments)
            try:
                for chunk in stream:
                    *lines, rest = (rest + chunk).split(b"\n")
                    rest = rest[: MAX_LINE_LENGTH * 4]
                    for line in lines:
                        stamp, _, text = line.decode("utf-8", "replace").partition(" ")
                        if stamp > after:
                            yield stamp, plain_text(text)
            finally:
                with contextlib.suppress(*_TRANSPORT, DockerException, AttributeError):
                    stream.close()  # else every repeat would leave a connection open, here and on the host
        except (*_TRANSPORT, DockerException):
            return

    def read_file(self, name: str, path: str) -> bytes | None:
        """Read a file of a stopped container, at most `MAX_RECORD_BYTES` + 1 bytes of it; None: it is not there."""

        def fetch(client: APIClient) -> bytes:
            chunks, _ = client.get_archive(name, path)
            return read_bounded(chunks, MAX_RECORD_BYTES + ARCHIVE_OVERHEAD_BYTES)

        try:
            return only_file(self._request(fetch))
        except NotThere:
            return None

    def output(self, name: str, limit_bytes: int) -> bytes:
        """Return what a container has printed on stdout so far, up to a limit."""
        return self._request(
            lambda client: read_bounded(client.logs(name, stream=True, stdout=True, stderr=False), limit_bytes)
        )

    def wait(self, name: str, timeout_seconds: float) -> None:
        """Wait until a container has ended, or for so long."""
        deadline = time.monotonic() + timeout_seconds
        while self.inspect(name)["State"].get("Running") and time.monotonic() < deadline:
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        """End a container, asking it first; nothing happens when there is none. Does not wait for lost hosts."""
        try:
            self._connect().stop(name, timeout=STOP_GRACE_SECONDS)
        except NotFound:
            return
        except APIError as error:
            raise _refused(error) from error
        except _TRANSPORT as error:
            raise Unreachable(self._explain(error)) from error

    def remove(self, name: str) -> None:
        """Remove a container and its volumes, running or not; nothing happens when there is none."""
        try:
            self._request(lambda client: client.remove_container(name, v=True, force=True))
        except NotThere:
            return

    def labelled(self, label: str) -> list[dict[str, str]]:
        """Return the labels of all containers, running or not, that carry `label`."""
        containers = self._request(lambda client: client.containers(all=True, filters={"label": label}))
        return [dict(container["Labels"]) for container in containers]

    # -- connection --------------------------------------------------------------------------------------------

    def _connect(self) -> APIClient:
        """Return a client whose transport stands.

        Raises:
            Unreachable: It cannot be made to.
        """
        with self._lock:
            if self._tunnel is not None:
                self._tunnel.ensure()
            if self._client is None:
                self._client = self._new_client()
                self._answered = True
            return self._client

    def _new_client(self) -> APIClient:
        url = self._tunnel.url if self._tunnel else f"{self._address.scheme}://{self._address.target}"
        tls: TLSConfig | bool = False
        try:
            if self._address.tls is not None:
                ca, cert, key = self._address.tls
                tls = TLSConfig(client_cert=(cert, key), ca_cert=ca, verify=True)  # verify: off unless asked for
            return _Client(base_url=url, version="auto", timeout=REQUEST_TIMEOUT_SECONDS, tls=tls)
        except (*_TRANSPORT, DockerException) as error:
            raise Unreachable(self._explain(error)) from error

    def _request(self, operation: Callable[[APIClient], T]) -> T:
        """Make a request whose refusals are told in our words."""
        try:
            return self._ask(operation)
        except NotFound as error:
            raise NotThere(_said(error)) from error
        except APIError as error:
            raise _refused(error) from error

    def _ask(self, operation: Callable[[APIClient], T]) -> T:
        """Make a request; a host that once answered is tried again for a while when the connection fails.

        Raises:
            Unreachable: The connection cannot be made, or not again.
            APIError: The engine refused the request.
        """
        deadline = time.monotonic() + RECONNECT_SECONDS
        delay_seconds = 0.5
        while True:
            try:
                return operation(self._connect())
            except APIError:
                raise
            except (*_TRANSPORT, DockerException) as error:
                failure = Unreachable(self._explain(error))
            except Unreachable as error:
                failure = error
            if not self._answered or time.monotonic() > deadline:
                raise failure
            time.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, 10.0)

    def _explain(self, error: BaseException) -> str:
        """Say in one line why the engine could not be asked."""
        where = f"{self._address.scheme}://{self._address.target}"
        for item in _chain(error):
            for kind, remedy in _SOCKET_REMEDIES.items():
                if isinstance(item, kind):
                    return f"{where}: {remedy}"
            if isinstance(item, ConnectionResetError | http.client.RemoteDisconnected) and self._tunnel is not None:
                return (
                    f"{where}: the engine's socket {self._address.socket} does not answer on that host. Is Docker "
                    "installed there, and may this user use it (group docker)? Else set docker_socket:"
                )
        said = plain_text(str(error), 300)
        for sign, remedy in _TLS_REMEDIES.items():
            if sign in said:
                return f"{where}: {remedy}"
        return f"{where}: {said}"


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and everything that it wraps: libraries wrap the socket's own reason several times."""
    seen: list[BaseException] = []
    pending: list[Any] = [error]
    while pending:
        item = pending.pop()
        if isinstance(item, BaseException) and item not in seen:
            seen.append(item)
            pending += [*item.args, item.__cause__, item.__context__, getattr(item, "reason", None)]
    return seen


_SOCKET_REMEDIES: dict[type[BaseException], str] = {
    PermissionError: "permission denied. Join the group `docker` on that host, or name another user",
    FileNotFoundError: "there is no such socket. Is the Docker engine installed and running?",
    ConnectionRefusedError: "connection refused. Is the Docker engine running there?",
}

_TLS_REMEDIES = {
    "certificate has expired": "its certificate has expired. Renew it on the host",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of the CA in tls.ca. Check tls.ca, or who answers there",
    "alert unknown ca": "the host does not know the CA of our certificate. Check tls.cert and tls.key",
    "alert bad certificate": "the host refused our certificate. Check tls.cert and tls.key",
    "alert certificate required": "the host wants a certificate. Check tls.cert and tls.key",
    "alert certificate expired": "our certificate has expired. Renew tls.cert",
    "KEY_VALUES_MISMATCH": "tls.key is not the key of tls.cert",
    "HTTP request to an HTTPS server": "the host speaks TLS. Add tls: {ca: …, cert: …, key: …}",
    "WRONG_VERSION_NUMBER": "the host does not speak TLS on that port",
}


def _arguments(client: APIClient, spec: ContainerSpec) -> dict[str, Any]:
    """Turn a description into the SDK's arguments."""
    host_config = client.create_host_config(
        read_only=True,
        tmpfs={"/tmp": f"rw,nosuid,nodev,size={spec.tmp_bytes},mode=1777"},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        network_mode="none",
        init=True,
        shm_size=spec.shm_bytes,
        pids_limit=spec.max_processes,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in spec.limits.items()],
        log_config=LogConfig(type=LogConfig.types.JSON, config=dict(spec.log_limit)),
        nano_cpus=None if spec.cpus is None else int(spec.cpus * 1e9),
        mem_limit=spec.memory_bytes,
        memswap_limit=spec.memory_bytes,
        device_requests=_device_requests(spec),
    )
    return {
        "image": spec.image,
        "name": spec.name,
        "command": list(spec.command),
        "entrypoint": None if spec.entrypoint is None else list(spec.entrypoint),
        "environment": dict(spec.environment),
        "labels": dict(spec.labels),
        "host_config": host_config,
        "network_disabled": True,
    }


def _device_requests(spec: ContainerSpec) -> list[DeviceRequest]:
    capabilities = [["gpu", "compute", "utility"]]
    if spec.all_gpus:
        return [DeviceRequest(count=-1, capabilities=capabilities)]
    return [DeviceRequest(device_ids=list(spec.gpus), capabilities=capabilities)] if spec.gpus else []


def _epoch_seconds(stamp: str) -> float:
    """Turn the engine's RFC 3339 stamp into seconds, rounded down: repeated lines are dropped by their stamp."""
    return datetime.fromisoformat(f"{stamp[:19]}+00:00").timestamp()


def _said(error: Exception) -> str:
    """Quote the engine."""
    text = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return plain_text(str(text), 300)


_FINAL_PULL_ERRORS = (
    "not found",
    "unknown",
    "denied",
    "unauthorized",
    "no basic auth",
    "invalid reference",
    "no space",
)


def _judge_pull(reference: str, said: str) -> PullFailed:
    """Tell errors that another try cannot mend from those it may."""
    final = any(sign in said.lower() for sign in _FINAL_PULL_ERRORS)
    return (PullFailed if final else PullInterrupted)(f"image {reference}: {said}")


_REFUSALS = {
    "could not select device driver": (
        Status.NO_GPU,
        "the engine cannot give GPUs to containers. Install the NVIDIA container toolkit there",
    ),
    "unsatisfied condition: cuda": (
        Status.DRIVER_TOO_OLD,
        "the NVIDIA driver is too old for this image. Choose an older variant or update the driver",
    ),
    "nvidia-container-cli": (Status.NO_GPU, "the NVIDIA container toolkit failed on the host"),
    "no space left on device": (Status.ERROR, "the host's disk is full. Free some space, or remove old images"),
}


def _refused(error: APIError) -> HostError:
    said = _said(error)
    for sign, (status, remedy) in _REFUSALS.items():
        if sign in said:
            return LaunchFailed(f"{remedy}. The engine said: {said}", status)
    return LaunchFailed(f"the engine refused: {said or shown(error)}")
