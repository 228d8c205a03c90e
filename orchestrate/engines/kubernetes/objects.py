"""Objects of the Kubernetes API, with the fields that are used, checked when they arrive.

Their texts are not trusted: `Explained.text` and `Pod.node` are safe to print, others are only compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import AliasPath, BaseModel, ConfigDict, Field, StrictInt, TypeAdapter, ValidationInfo, field_validator

from orchestrate.engines.invocation import JOB_LABEL, RUN_LABEL
from orchestrate.engines.kubernetes.manifests import CONTAINER
from orchestrate.planning.plan import Job
from orchestrate.text import plain_text


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
