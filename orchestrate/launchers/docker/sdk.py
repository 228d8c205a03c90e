"""A Docker engine's images: what needs the registries' credentials or moves layers. The only file with the Docker SDK.

Two things that the SDK does not do stand here. A pull is believed by its digest only, is ended when it stalls, and is
tried again when the network failed. And every exception of the SDK becomes one of ours.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

import requests.exceptions
import stamina
import urllib3.exceptions
from docker import APIClient
from docker.errors import APIError, DockerException
from docker.tls import TLSConfig

from orchestrate.errors import BuildFailed, PullFailed, Unreachable
from orchestrate.launchers.container import repository
from orchestrate.launchers.docker.engine import ContainerEngine
from orchestrate.launchers.docker.http import TIMEOUT_SECONDS
from orchestrate.launchers.docker.refusals import MAX_SAID, explain, launch_refusal
from orchestrate.launchers.pulls import PullMeter
from orchestrate.text import plain_text

T = TypeVar("T")

PLATFORM = "linux/amd64"
"""What images are built for, also on machines of another kind: TensorFlow's CUDA packages are for x86-64."""

NOTHING = bytes(1024)
"""A tar file without entries: two empty blocks. Source: POSIX.1-1988 ustar."""

_TRANSPORT = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    OSError,
)


class PullInterrupted(PullFailed):
    """The network or the registry failed in the middle: worth another try."""


class _Client(APIClient):
    """The SDK's client, deaf to the environment: only hosts.yml says whom to trust.

    Else REQUESTS_CA_BUNDLE would replace `tls.ca`, and proxies and ~/.netrc would be used for engines.
    """

    # requests assigns it while it is constructed, and the SDK connects before its constructor returns.
    trust_env = property(lambda self: False, lambda self, value: None)


class DockerEngine(ContainerEngine):
    """One engine, its containers and its images."""

    _sdk: APIClient | None = None

    def close(self) -> None:
        """See `ContainerEngine.close`."""
        self.release_sdk()
        super().close()

    def release_sdk(self) -> None:
        """Let go of what only images need: a thousand hosts would each hold a client for the whole run."""
        with self._lock:
            sdk, self._sdk = self._sdk, None
        if sdk is not None:
            sdk.close()

    def registry_digest(self, reference: str) -> str:
        """Ask the registry, through the engine, what a tag means now; nothing is pulled. Podman cannot: see `pull_tag`.

        Raises:
            PullFailed: There is no such image, or the registry does not answer.
        """
        try:
            return str(self._by_sdk(lambda client: client.inspect_distribution(reference))["Descriptor"]["digest"])
        except (APIError, KeyError) as error:
            raise PullFailed(f"image {reference} is not in the registry: {_said(error)}") from error

    def pull_tag(self, reference: str, meter: PullMeter) -> str:
        """Pull what a tag means now, and return its digest in the registry.

        Raises:
            PullFailed: It cannot be had.
        """
        self.pull(reference, meter)
        digests = [str(name).partition("@") for name in self.image_document(reference).get("RepoDigests") or ()]
        wanted = repository(reference)
        for name, _, digest in digests:
            if name in (wanted, f"docker.io/{wanted}", f"docker.io/library/{wanted}") and digest:
                return digest
        raise PullFailed(f"image {reference}: pulled, but the engine does not report its digest")

    def pull(self, reference: str, meter: PullMeter) -> None:
        """Pull an image by its digest, watching its progress.

        Raises:
            PullFailed: It cannot be had; PullInterrupted: not this time.
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
        """Read the stream of one pull in a thread of its own, because a stalled one never returns."""
        messages: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        client = self._client()

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
        # Podman names no status at the end: what is there decides, which for a digest is certain.
        if not complete and self.image_id(reference) is None:
            raise PullInterrupted(f"image {reference}: the pull ended before it was complete")

    def _pull_error(self, reference: str, error: BaseException) -> PullFailed:
        if isinstance(error, APIError):
            return _judge_pull(reference, _said(error))
        return PullInterrupted(f"image {reference}: {explain(error, self._address)}")

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
            context: The tar file.
            tag: The image's name.
            arguments: Of the build.
            on_line: Receives its output.
            dockerfile: Path in the tar file.

        Raises:
            BuildFailed: A step failed; the output went to `on_line`.
        """
        stream = self._by_sdk(
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
        )
        for message in stream:
            for line in str(message.get("stream", "")).splitlines():
                on_line(plain_text(line))
            if "error" in message:
                raise BuildFailed(f"{tag}: {plain_text(str(message['error']), 500)}")
        built = self.image_id(tag)
        if built is None:
            raise BuildFailed(f"{tag}: the build ended, but the image is missing")
        return built

    def push(self, reference: str, on_progress: Callable[[int, int], None]) -> str:
        """Push an image and return the digest under which the registry has it.

        Raises:
            BuildFailed: The registry did not take it.
        """
        meter, digest = PullMeter(on_progress), ""
        stream = self._by_sdk(lambda client: client.push(reference, stream=True, decode=True))
        for message in stream:
            if "error" in message:
                raise BuildFailed(f"push of {reference}: {plain_text(str(message['error']), 300)}")
            digest = str((message.get("aux") or {}).get("Digest", digest))
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
            yield from self._by_sdk(lambda client: client.get_image(reference))
        except APIError as error:
            raise PullFailed(f"image {reference}: {_said(error)}") from error

    def load(self, chunks: Iterable[bytes]) -> str:
        """Take in an image that `save` gave; layers that are there already are not stored twice.

        Returns:
            What the engine calls it: its id there, or a name.

        Raises:
            HostError: The engine refused, or does not name what it took in.
        """
        name = ""
        try:
            for message in self._client().load_image(chunks):
                if "error" in message:
                    raise PullFailed(f"the engine rejected the image: {plain_text(str(message['error']), 300)}")
                if loaded := _LOADED.search(str(message.get("stream", ""))):
                    name = loaded[1]
        except APIError as error:
            raise launch_refusal(_said(error)) from error
        except (*_TRANSPORT, DockerException) as error:
            raise PullFailed(f"the image did not arrive: {explain(error, self._address)}") from error
        if not name:
            raise PullFailed("the image was sent, but the host's engine does not report which image it loaded")
        return name

    def tag(self, image: str, place: str, tag: str) -> None:
        """Give an image on the host a name; Podman's answer to that is no JSON, which the SDK does not mind.

        Raises:
            HostError: The engine refused.
        """
        try:
            self._by_sdk(lambda client: client.tag(image, place, tag))
        except APIError as error:
            raise launch_refusal(_said(error)) from error

    def import_empty(self, name: str) -> None:
        """Make an image without files.

        Raises:
            HostError: The engine refused.
        """
        place, _, tag = name.rpartition(":")
        try:
            self._by_sdk(lambda client: client.import_image_from_data(NOTHING, repository=place, tag=tag))
        except APIError as error:
            raise launch_refusal(_said(error)) from error

    # -- connection --------------------------------------------------------------------------------------------

    def _client(self) -> APIClient:
        """Return the SDK's client, made when it is needed first.

        Raises:
            Unreachable: The engine does not answer.
        """
        self._connect()  # through the tunnel, if there is one, which comes back by itself
        with self._lock:
            if self._sdk is None:
                self._sdk = self._new_client()
            return self._sdk

    def _new_client(self) -> APIClient:
        path, tls = self._tunnel and self._tunnel.path, self._address.tls
        url = f"unix://{path}" if path else f"{self._address.scheme}://{self._address.target}"
        try:
            # verify: off unless asked for
            config = tls and TLSConfig(client_cert=tls[1:], ca_cert=tls[0], verify=True)
            return _Client(base_url=url, version="auto", timeout=TIMEOUT_SECONDS, tls=config or False)
        except (*_TRANSPORT, DockerException) as error:
            raise Unreachable(explain(error, self._address)) from error

    def _by_sdk(self, operation: Callable[[APIClient], T]) -> T:
        """Make a request by the SDK; refusals stay the SDK's `APIError`.

        Raises:
            Unreachable: The connection cannot be made, or not again.
        """

        def reported() -> T | APIError:
            try:
                return operation(self._client())
            except APIError as error:  # an answer, however unwelcome: not to be asked for again
                return error

        answer = self._persist(reported, (*_TRANSPORT, DockerException))
        if isinstance(answer, APIError):
            raise answer
        return answer


_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
"""How an engine names what it took in: Docker an id by `ID`, Podman without."""


def _said(error: Exception) -> str:
    """Quote the engine."""
    text = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return plain_text(str(text), MAX_SAID)


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
    """Separate errors that another try cannot mend from those it may."""
    final = any(sign in said.lower() for sign in _FINAL_PULL_ERRORS)
    return (PullFailed if final else PullInterrupted)(f"image {reference}: {said}")
