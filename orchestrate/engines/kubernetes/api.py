"""A small interface to a Kubernetes API server: the only module that imports the official client.

In addition to the client, it retries requests to a server that has answered before, bounds responses, checks the
fields of their objects that are used, and turns every failure into an error with the server's message and a remedy.
Texts of objects are not trusted: `Detail.text` and `Pod.node` are safe to print, others are only compared.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import urllib3
import urllib3.exceptions
from kubernetes import client, config
from kubernetes.utils.quantity import parse_quantity
from pydantic import AliasPath, BaseModel, ConfigDict, Field, StrictInt, TypeAdapter, ValidationInfo, field_validator
from urllib3.util.ssl_ import create_urllib3_context

from orchestrate.engines.base import NotThere
from orchestrate.engines.bounded import LimitedPool, TLSSocket, persistently, within
from orchestrate.errors import HostError, LaunchFailed, Unreachable
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.text import plain_text, read_json
from results.schema import Status

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
WHOLE_ANSWER_SECONDS = 120.0
"""Longest duration of a request and its response; `ANSWER_SECONDS` is the longest silence in it."""

LOG_SILENCE_SECONDS = 60.0
"""Longest silence of a log before its stream is reopened; a benchmark may be silent for longer."""

MAX_ANSWER_BYTES = 64 << 20
MAX_ANSWER_VALUES = 1_000_000  # a thousand pods have 400,000; as Python objects, a million take about 160 MB
MAX_LOG_LINE_BYTES = 16 << 10
_QUANTITY = re.compile(r"[\d.]{1,24}(m|[kKMGTPE]i?)?", re.ASCII)


class NameTaken(HostError):
    """An object of that name already exists."""


class Refused(HostError):
    """The server rejected a request for lack of permissions, quota or credentials."""

    status = Status.UNREACHABLE


class KubernetesCluster:
    """One namespace of a cluster.

    Args:
        queue: Its kubeconfig, context and namespace.
    """

    def __init__(self, queue: KubernetesQueue) -> None:
        self._queue = queue
        self._has_answered = False

    def objects(self, kind: type[Kind], **selector: str) -> list[Kind]:
        """Return the objects that match a selector: nodes of the cluster, or others of the namespace.

        Raises:
            HostError: The server does not answer, or refuses.
            ValueError: They are malformed.
        """
        document = self._request(kind.listed_by, **selector)
        items = document.get("items") if isinstance(document, dict) else None
        return TypeAdapter(list[kind]).validate_python(items or [])  # type: ignore[valid-type]

    def create_job(self, manifest: dict[str, Any]) -> KubernetesJob:
        """Create a Job.

        Raises:
            NameTaken: One of that name exists.
        """
        return KubernetesJob.model_validate(self._request("create_namespaced_job", body=manifest))

    def delete_job(self, name: str) -> None:
        """Delete a Job, if it exists, after its pods have ended."""
        with contextlib.suppress(NotThere):
            self._request("delete_namespaced_job", name=name, propagation_policy="Foreground")

    def follow_log(self, pod: str) -> Iterator[str]:
        """Yield the timestamped lines of a pod's log as they arrive; none if it cannot be read now.

        A broken or silent stream ends like a complete log: only the pod's state shows whether it has ended.
        """
        options = {"follow": True, "timestamps": True, "_request_timeout": (CONNECT_SECONDS, LOG_SILENCE_SECONDS)}
        with contextlib.suppress(HostError), self._open("read_namespaced_pod_log", name=pod, **options) as response:
            yield from _lines(response.stream())

    def log_end(self, pod: str, tail_lines: int) -> list[str]:
        """Return the last lines of a pod's log; none if the pod is gone.

        Raises:
            HostError: The server does not answer.
        """
        try:
            body = self._read("read_namespaced_pod_log", name=pod, timestamps=True, tail_lines=tail_lines)
        except (NotThere, LaunchFailed):
            return []
        return list(_lines([body]))

    def close(self) -> None:
        """Disconnect from the server."""
        if "_loaded" in vars(self):
            self._loaded[0].rest_client.pool_manager.clear()

    # -- requests ----------------------------------------------------------------------------------------------

    def _request(self, method: str, **options: Any) -> Any:  # noqa: ANN401
        """Send a request and return the JSON of its response."""
        try:
            return read_json(self._read(method, **options), MAX_ANSWER_BYTES, MAX_ANSWER_VALUES)
        except ValueError as error:
            raise self._unreachable(error) from error

    def _read(self, method: str, **options: Any) -> bytes:  # noqa: ANN401
        """Send a request and read its response, with retries if the server has answered before."""

        def attempt() -> bytes:
            with within(WHOLE_ANSWER_SECONDS, MAX_ANSWER_BYTES), self._open(method, **options) as response:
                body: bytes = response.read()
            self._has_answered = True
            return body

        return persistently(attempt, has_answered=self._has_answered)

    @contextlib.contextmanager
    def _open(self, method: str, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        """Send one request and give its unread response; an HTTP error is raised, also while it is read."""
        api, namespace = self._loaded
        family = client.BatchV1Api if method.endswith("_job") else client.CoreV1Api
        scope = {"namespace": namespace} if "_namespaced_" in method else {}
        usual = {"_preload_content": False, "_request_timeout": (CONNECT_SECONDS, ANSWER_SECONDS)}
        try:
            response = getattr(family(api), method)(**{**usual, **scope, **options})
            with contextlib.closing(response):
                if response.status >= 300:
                    raise _refusal(response.status, response.read())
                yield response
        except client.ApiException as error:
            raise _refusal(error.status or 0, error.body or "") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._loaded[0].configuration.host} does not answer: {plain_text(str(error), 200)}")

    @functools.cached_property
    def _loaded(self) -> tuple[Any, str]:
        """The client and the namespace; the configuration is read at the first use.

        Raises:
            Refused: The kubeconfig file is missing or incomplete.
        """
        queue, settings = self._queue, client.Configuration()
        settings.retries = urllib3.Retry(0, redirect=0)  # see `_read`
        settings.connection_pool_maxsize = queue.max_jobs + 4  # each worker slot follows a log
        path = queue.kubeconfig or os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
        try:
            config.load_kube_config(path, context=queue.context, client_configuration=settings, persist_config=False)
            contexts, active = config.list_kube_config_contexts(path)
            chosen = next((item for item in contexts if item["name"] == queue.context), active)
            namespace = queue.namespace or chosen["context"].get("namespace") or "default"
        except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
            raise Refused(
                f"the cluster cannot be reached: {plain_text(str(error), 300)}. "
                "Check context and kubeconfig in hosts.yml; kubectl config get-contexts lists them"
            ) from error
        api = client.ApiClient(settings)
        manager = api.rest_client.pool_manager  # whose sockets get the limits of `within`
        context = create_urllib3_context(cert_reqs=manager.connection_pool_kw.get("cert_reqs"))
        context.sslsocket_class = TLSSocket
        manager.connection_pool_kw["ssl_context"] = context
        manager.pool_classes_by_scheme = {"http": LimitedPool, "https": urllib3.HTTPSConnectionPool}
        return api, namespace


def quantity(text: str | None) -> int | None:
    """Parse a quantity, e.g. `8`, `7500m` or `64Gi`, rounded down; None: invalid."""
    if not _QUANTITY.fullmatch(text or ""):
        return None  # e.g. 1e999999999, whose digits would fill the memory
    try:
        return int(parse_quantity(text))
    except (ValueError, ArithmeticError):
        return None


def _refusal(status: int, body: bytes | str) -> HostError:
    """Return the error for an HTTP status of the server and its Status object, or whatever else it sent."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(read_json(text, MAX_ANSWER_BYTES)["message"])
    message = plain_text(" ".join(text.split()), 300) or "no reason was given"
    if status == 404:
        return NotThere(message)
    if status == 409 and "already exists" in message:
        return NameTaken(message)
    if status == 401:
        return Refused(f"the cluster rejected the credentials: {message}. Log in and try again")
    if status == 403:
        remedy = "Required permissions: containers/kubernetes/. For nodes, set gpus_per_node: and variant: instead"
        return Refused(f"the cluster denied the request: {message}. {remedy}")
    if status in (409, 429) or status >= 500 or status == 0:
        return Unreachable(f"the cluster is temporarily unavailable: {message}")
    return LaunchFailed(f"the cluster rejected the request: {message}")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a stream, truncated to `MAX_LOG_LINE_BYTES`."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:MAX_LOG_LINE_BYTES]
        yield from (line[:MAX_LOG_LINE_BYTES].decode("utf-8", "replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


# -- objects -------------------------------------------------------------------------------------------------------


class Object(BaseModel):
    """An object or a part of one; unused fields are ignored, and null is like a missing field."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)
    listed_by: ClassVar[str]

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_missing(cls, value: object, info: ValidationInfo) -> object:
        return cls.model_fields[info.field_name or ""].default if value is None else value


Kind = TypeVar("Kind", bound=Object)


def _at(first: str, *path: str | int, default: Any = "") -> Any:  # noqa: ANN401 (a field of any type)
    return Field(default, validation_alias=AliasPath(first, *path))


class Detail(Object):
    """A state or condition with a reason and a message; or how a container ended, with its exit code."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    exit_code: StrictInt | None = _at("exitCode", default=None)

    @property
    def text(self) -> str:
        """Reason and message, or the reason alone."""
        return plain_text(f"{self.reason}: {self.message}" if self.message else self.reason, 400)


def condition(conditions: Sequence[Detail], kind: str, status: str) -> Detail | None:
    """Return a condition that has a status, or None."""
    return next((item for item in conditions if (item.type, item.status) == (kind, status)), None)


class Pod(Object):
    """A pod and its only container, which is waiting, running or terminated.

    Attributes:
        owner: The uid of its Job.
        why: Reason and message of its status.
    """

    listed_by = "list_namespaced_pod"
    name: str = _at("metadata", "name")
    uid: str = _at("metadata", "uid")
    owner: str = _at("metadata", "ownerReferences", 0, "uid")
    created: str = _at("metadata", "creationTimestamp")
    assigned: str = _at("spec", "nodeName")
    phase: str = _at("status", "phase")
    why: Detail = _at("status", default=Detail())
    conditions: tuple[Detail, ...] = _at("status", "conditions", default=())
    image: str = _at("status", "containerStatuses", 0, "imageID")
    waiting: Detail = _at("status", "containerStatuses", 0, "state", "waiting", default=Detail())
    running: dict[str, Any] | None = _at("status", "containerStatuses", 0, "state", "running", default=None)
    terminated: Detail | None = _at("status", "containerStatuses", 0, "state", "terminated", default=None)

    @property
    def node(self) -> str | None:
        """The node that it is assigned to, or None."""
        return plain_text(self.assigned, 253) or None


class KubernetesJob(Object):
    """A Job."""

    listed_by = "list_namespaced_job"
    name: str = _at("metadata", "name")
    uid: str = _at("metadata", "uid")
    annotations: dict[str, str] = _at("metadata", "annotations", default={})
    deleted: str = _at("metadata", "deletionTimestamp")
    suspended: bool = _at("spec", "suspend", default=False)
    conditions: tuple[Detail, ...] = _at("status", "conditions", default=())


class ClusterEvent(Detail):
    """An event about an object."""

    listed_by = "list_namespaced_event"
    about: str = _at("involvedObject", "name")
    last: str = _at("lastTimestamp")
    at: str = _at("eventTime")


class Node(Object):
    """A node."""

    listed_by = "list_node"
    labels: dict[str, str] = _at("metadata", "labels", default={})
    unschedulable: bool = _at("spec", "unschedulable", default=False)
    conditions: tuple[Detail, ...] = _at("status", "conditions", default=())
    allocatable: dict[str, str] = _at("status", "allocatable", default={})
    info: dict[str, str] = _at("status", "nodeInfo", default={})
