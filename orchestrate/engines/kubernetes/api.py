"""A small interface to a Kubernetes API server: the only module that imports the official client.

In addition to the client, it retries requests to a server that has answered before, bounds responses, checks the
fields of their objects that are used, and turns every failure into an error with the server's message and a remedy.
Texts of objects are not trusted: `Explained.text` and `Pod.node` are safe to print, others are only compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import stamina
import urllib3
import urllib3.exceptions
from kubernetes import client, config
from kubernetes.utils.quantity import parse_quantity
from pydantic import AliasPath, BaseModel, ConfigDict, Field, StrictInt, TypeAdapter, ValidationInfo, field_validator
from urllib3.util.ssl_ import create_urllib3_context

from orchestrate.engines.base import NotThere
from orchestrate.engines.bounded import LimitedPool, TLSSocket, read_bounded, within
from orchestrate.engines.invocation import JOB_LABEL, RUN_LABEL
from orchestrate.engines.kubernetes.manifests import CONTAINER
from orchestrate.errors import HostError, LaunchFailed, Unreachable
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.planning.plan import Job
from orchestrate.text import plain_text, read_json
from results.schema import Status

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
WHOLE_ANSWER_SECONDS = 120.0
"""Longest duration of a request and its response; `ANSWER_SECONDS` is the longest silence in it."""

LONGEST_DELAY_SECONDS = 5.0
RECONNECT_SECONDS = 120.0
"""How long requests to a server that has answered before are retried."""

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
        self._loaded: tuple[Any, str] | None = None
        self._answered = False

    @property
    def namespace(self) -> str:
        """The namespace of the Jobs.

        Raises:
            Refused: The kubeconfig file is missing or incomplete.
        """
        return self._load()[1]

    def nodes(self, selector: str) -> list[Node]:
        """Return the nodes that match a label selector."""
        return read_items(Node, self._request("list_node", label_selector=selector))

    def pods(self, selector: str) -> list[Pod]:
        """Return the namespace's pods that match a label selector."""
        return read_items(Pod, self._request("list_namespaced_pod", self.namespace, label_selector=selector))

    def jobs(self, selector: str) -> list[KubernetesJob]:
        """Return the namespace's Jobs that match a label selector."""
        return read_items(KubernetesJob, self._request("list_namespaced_job", self.namespace, label_selector=selector))

    def job(self, name: str) -> KubernetesJob | None:
        """Return a Job; None: it does not exist."""
        try:
            return KubernetesJob.model_validate(self._request("read_namespaced_job", name, self.namespace))
        except NotThere:
            return None

    def create_job(self, manifest: dict[str, Any]) -> None:
        """Create a Job.

        Raises:
            NameTaken: One of that name exists.
        """
        self._request("create_namespaced_job", self.namespace, manifest)

    def delete_job(self, name: str) -> None:
        """Delete a Job, if it exists, after its pods have ended."""
        with contextlib.suppress(NotThere):
            self._request("delete_namespaced_job", name, self.namespace, propagation_policy="Foreground")

    def job_warnings(self) -> dict[str, str]:
        """Return the cluster's latest warning about each of the namespace's Jobs."""
        chosen = "type=Warning,involvedObject.kind=Job"
        warned = read_items(JobWarning, self._request("list_namespaced_event", self.namespace, field_selector=chosen))
        return {item.about: item.text for item in sorted(warned, key=lambda item: item.last or item.at)}

    def follow_log(self, pod: str) -> Iterator[str]:
        """Yield the timestamped lines of a pod's log as they arrive; none if it cannot be read now.

        A broken or silent stream ends like a complete log: only the pod's state shows whether it has ended.
        """
        try:
            response = self._open(
                "read_namespaced_pod_log",
                pod,
                self.namespace,
                follow=True,
                timestamps=True,
                read_seconds=LOG_SILENCE_SECONDS,
            )
        except HostError:
            return  # the container has not started, its node does not respond, or the pod is gone
        try:
            yield from _lines(response.stream())
        except (urllib3.exceptions.HTTPError, OSError):
            return
        finally:
            _release(response)

    def log_end(self, pod: str, tail_lines: int) -> list[str]:
        """Return the last lines of a pod's log; none if the pod is gone.

        Raises:
            HostError: The server does not answer.
        """
        try:
            body = self._read("read_namespaced_pod_log", pod, self.namespace, timestamps=True, tail_lines=tail_lines)
        except (NotThere, LaunchFailed):
            return []
        return list(_lines([body]))

    def close(self) -> None:
        """Disconnect from the server."""
        if self._loaded is not None:
            self._loaded[0].rest_client.pool_manager.clear()

    # -- requests ----------------------------------------------------------------------------------------------

    def _request(self, method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        """Send a request and return the JSON of its response."""
        try:
            return read_json(self._read(method, *arguments, **options), MAX_ANSWER_BYTES, MAX_ANSWER_VALUES)
        except ValueError as error:
            raise self._unreachable(error) from error

    def _read(self, method: str, *arguments: Any, **options: Any) -> bytes:  # noqa: ANN401
        """Send a request and read its response, with retries if the server has answered before."""
        patience = RECONNECT_SECONDS if self._answered else 0.0
        for attempt in stamina.retry_context(
            on=Unreachable,
            attempts=None if patience else 1,
            timeout=patience or None,
            wait_initial=0.2,
            wait_max=LONGEST_DELAY_SECONDS,
        ):
            with attempt, within(WHOLE_ANSWER_SECONDS, 2 * MAX_ANSWER_BYTES):
                response = self._open(method, *arguments, **options)
                try:
                    body = read_bounded(response.stream(), MAX_ANSWER_BYTES)
                except (urllib3.exceptions.HTTPError, OSError) as error:
                    raise self._unreachable(error) from error
                finally:
                    _release(response)
                self._answered = True
        return body

    def _open(
        self,
        method: str,
        *arguments: Any,  # noqa: ANN401
        read_seconds: float = ANSWER_SECONDS,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Send one request and return its unread response; an HTTP error is raised."""
        api, _ = self._load()
        family = client.BatchV1Api if method.endswith("_job") else client.CoreV1Api
        try:
            response = getattr(family(api), method)(
                *arguments, **options, _preload_content=False, _request_timeout=(CONNECT_SECONDS, read_seconds)
            )
        except client.ApiException as error:
            raise _refusal(error.status or 0, _message(error.body)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status >= 300:
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                body = read_bounded(response.stream(), MAX_ANSWER_BYTES)
            _release(response)
            raise _refusal(response.status, _message(body))
        return response

    def _unreachable(self, error: Exception) -> Unreachable:
        host = self._load()[0].configuration.host
        return Unreachable(f"{host} does not answer: {plain_text(str(error), 200)}")

    def _load(self) -> tuple[Any, str]:
        """Return the client and the namespace; the configuration is read at the first call."""
        if self._loaded is None:  # by two threads at once: either result serves
            try:
                self._loaded = _read_configuration(self._queue)
            except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
                raise Refused(
                    f"the cluster cannot be reached: {plain_text(str(error), 300)}. "
                    "Check context and kubeconfig in hosts.yml; kubectl config get-contexts lists them"
                ) from error
        return self._loaded


def _read_configuration(queue: KubernetesQueue) -> tuple[Any, str]:
    settings: Any = client.Configuration()
    settings.retries = urllib3.Retry(0, redirect=0)  # see `_read`
    settings.connection_pool_maxsize = queue.max_jobs + 4  # each worker slot follows a log
    path = queue.kubeconfig or os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    config.load_kube_config(path, context=queue.context, client_configuration=settings, persist_config=False)
    contexts, active = config.list_kube_config_contexts(path)
    chosen = next((item for item in contexts if item["name"] == queue.context), active)
    return _limited(settings), queue.namespace or chosen["context"].get("namespace") or "default"


def _limited(settings: Any) -> Any:  # noqa: ANN401
    """Return a client whose sockets have the limits of `within`."""
    api = client.ApiClient(settings)
    manager = api.rest_client.pool_manager
    context = create_urllib3_context(cert_reqs=manager.connection_pool_kw.get("cert_reqs"))
    context.sslsocket_class = TLSSocket
    manager.connection_pool_kw["ssl_context"] = context
    manager.pool_classes_by_scheme = {"http": LimitedPool, "https": urllib3.HTTPSConnectionPool}
    return api


def quantity(text: str | None) -> int | None:
    """Parse a quantity, e.g. `8`, `7500m` or `64Gi`, rounded down; None: invalid."""
    if not _QUANTITY.fullmatch(text or ""):
        return None  # e.g. 1e999999999, whose digits would fill the memory
    try:
        return int(parse_quantity(text))
    except (ValueError, ArithmeticError):
        return None


def _refusal(status: int, message: str) -> HostError:
    """Return the error for an HTTP status of the server."""
    if status == 404:
        return NotThere(message)
    if status == 409 and "already exists" in message:
        return NameTaken(message)
    if status == 401:
        return Refused(f"the cluster rejected the credentials: {message}. Log in and try again")
    if status == 403:
        return Refused(f"the cluster denied the request: {message}. Required permissions: containers/kubernetes/")
    if status in (409, 429) or status >= 500 or status == 0:
        return Unreachable(f"the cluster is temporarily unavailable: {message}")
    return LaunchFailed(f"the cluster rejected the request: {message}")


def _message(body: bytes | str | None) -> str:
    """Return the message of a Status object, or the whole body if it is something else."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body or ""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
        if isinstance(document, dict) and document.get("message"):
            text = str(document["message"])
    return plain_text(" ".join(text.split()), 300) or "no reason was given"


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a stream, truncated to `MAX_LOG_LINE_BYTES`."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:MAX_LOG_LINE_BYTES]
        yield from (line[:MAX_LOG_LINE_BYTES].decode("utf-8", "replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


def _release(response: Any) -> None:  # noqa: ANN401
    """Return the connection to the pool, or close it if the response was not read to its end."""
    with contextlib.suppress(Exception):
        response.close()
        response.release_conn()


class Object(BaseModel):
    """An object or a part of one; unused fields are ignored, and null is like a missing field."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_missing(cls, value: object, info: ValidationInfo) -> object:
        return cls.model_fields[info.field_name or ""].default if value is None else value


def _at(first: str, *path: str | int, default: Any = "") -> Any:  # noqa: ANN401 (a field of any type)
    return Field(default, validation_alias=AliasPath(first, *path))


class Explained(Object):
    """A state with a reason and a message."""

    reason: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """Reason and message, or the reason alone."""
        return plain_text(f"{self.reason}: {self.message}" if self.message else self.reason, 400)


class Condition(Explained):
    """A condition of an object."""

    type: str = ""
    status: str = ""


def condition(conditions: Sequence[Condition], kind: str, status: str) -> Condition | None:
    """Return a condition that has a status, or None."""
    return next((item for item in conditions if (item.type, item.status) == (kind, status)), None)


class Terminated(Explained):
    """How a container ended."""

    exit_code: StrictInt | None = _at("exitCode", default=None)


class ContainerStatus(Object):
    """The status of a container; of its three states, one is not None."""

    name: str = ""
    image: str = _at("imageID")
    waiting: Explained | None = _at("state", "waiting", default=None)
    running: dict[str, Any] | None = _at("state", "running", default=None)
    terminated: Terminated | None = _at("state", "terminated", default=None)


class Pod(Explained):
    """A pod; reason and message are those of its status."""

    name: str = _at("metadata", "name")
    uid: str = _at("metadata", "uid")
    created: str = _at("metadata", "creationTimestamp")
    job_name: str = _at("metadata", "labels", JOB_LABEL)
    assigned: str = _at("spec", "nodeName")
    phase: str = _at("status", "phase")
    reason: str = _at("status", "reason")
    message: str = _at("status", "message")
    conditions: tuple[Condition, ...] = _at("status", "conditions", default=())
    containers: tuple[ContainerStatus, ...] = _at("status", "containerStatuses", default=())

    @property
    def node(self) -> str | None:
        """The node that it is assigned to, or None."""
        return plain_text(self.assigned, 253) or None

    @property
    def container(self) -> ContainerStatus:
        """The status of the benchmark's container; empty: it has none yet."""
        return next((item for item in self.containers if item.name == CONTAINER), ContainerStatus())


class KubernetesJob(Object):
    """A Job."""

    name: str = _at("metadata", "name")
    annotations: dict[str, str] = _at("metadata", "annotations", default={})
    deleted: str = _at("metadata", "deletionTimestamp")
    suspended: bool = _at("spec", "suspend", default=False)
    conditions: tuple[Condition, ...] = _at("status", "conditions", default=())

    def belongs_to(self, job: Job) -> bool:
        """Return whether it was created for a repeat."""
        return (self.annotations.get(JOB_LABEL), self.annotations.get(RUN_LABEL)) == (job.id, job.origin.run_id)


class JobWarning(Explained):
    """A cluster's warning about a Job."""

    about: str = _at("involvedObject", "name")
    last: str = _at("lastTimestamp")
    at: str = _at("eventTime")


class Taint(Object):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Node(Object):
    """A node."""

    labels: dict[str, str] = _at("metadata", "labels", default={})
    unschedulable: bool = _at("spec", "unschedulable", default=False)
    taints: tuple[Taint, ...] = _at("spec", "taints", default=())
    conditions: tuple[Condition, ...] = _at("status", "conditions", default=())
    allocatable: dict[str, str] = _at("status", "allocatable", default={})
    info: dict[str, str] = _at("status", "nodeInfo", default={})


Kind = TypeVar("Kind", bound=Object)


def read_items(kind: type[Kind], document: object) -> list[Kind]:
    """Parse the objects of a list response.

    Raises:
        ValueError: They are malformed.
    """
    items = document.get("items") if isinstance(document, dict) else None
    return TypeAdapter(list[kind]).validate_python(items or [])  # type: ignore[valid-type]
