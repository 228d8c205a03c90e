"""Reads and writes `plan.json`, based on the types in `plan.py`.

Fields with defaults may be missing, and removed fields of older versions are upgraded. Unknown keys are errors, because
a setting of a newer version must not be dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from orchestrate.errors import UserError
from orchestrate.planning.plan import PLAN_VERSION, Plan
from orchestrate.text import plain_text, shown
from results.schema.upgrades import CASE_CHANGES, CannotUpgrade, FieldChange, upgrade

_HOST_PLAN_CHANGES = (
    FieldChange("left_out", "excluded"),
    FieldChange("facts.raw"),
    FieldChange("facts.gpu_states.xid_errors"),
    FieldChange("host.image_for"),
    FieldChange("host.docker.via", only=None),
    FieldChange("host.ssh.jump", only=None),
    FieldChange("host.queue.slurm.requeue"),
)
_JOBS = ("hosts.jobs", "multi_host_jobs.job", "multi_host_jobs.members")

PLAN_CHANGES: Mapping[int, Sequence[FieldChange]] = {
    1: (
        FieldChange("decide", "stop_early"),
        FieldChange("gangs", "multi_host_jobs"),
        *(FieldChange(f"hosts.{change.path}", change.renamed, change.only) for change in _HOST_PLAN_CHANGES),
        *(
            FieldChange(f"{jobs}.case.{change.path}", change.renamed, change.only)
            for jobs in _JOBS
            for change in CASE_CHANGES[1]
        ),
    )
}
"""By `plan_version` of the plan that still had the field."""


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return the adapter for plans, built on first use because it takes 0.1 s."""
    return TypeAdapter(Plan)


def plan_to_json(plan: Plan, *, ensure_ascii: bool = False) -> str:
    """Return a plan as indented JSON.

    Raises:
        UserError: A path is not UTF-8.
    """
    try:
        return _adapter().dump_json(plan, indent=2, ensure_ascii=ensure_ascii).decode() + "\n"
    except PydanticSerializationError as error:
        raise UserError(
            "the path of hosts.yml, or a path in it, is not UTF-8. Rename the file or its folder"
        ) from error


def plan_from_json(text: str | bytes, where: str = "plan.json") -> Plan:
    """Parse a plan.

    Args:
        text: Content of `plan.json`.
        where: Its path, for messages.

    Raises:
        UserError: The file is damaged, or its version is not supported.
    """
    document, version = _parsed(text)
    try:
        if isinstance(version, int) and version in PLAN_CHANGES:
            upgrade(document, version, PLAN_CHANGES)
            text = json.dumps({**document, "plan_version": PLAN_VERSION})
        return _adapter().validate_json(text, strict=True)
    except CannotUpgrade as error:
        raise UserError(f"{where}: {error}") from error
    except ValidationError as error:
        if not document or version in (PLAN_VERSION, *PLAN_CHANGES):
            raise UserError(
                f"{where}: is damaged: {_first(error)}. Restore the file from a copy, resume with the version of "
                "tfbench that wrote it, or start a new run: the records in the run's folder are unharmed"
            ) from error
        raise UserError(
            f"{where}: plan_version must be 1 to {PLAN_VERSION}. Received: {shown(version)}. "
            "Resume with the version of tfbench that started the run"
        ) from error


def _parsed(text: str | bytes) -> tuple[dict[str, Any], object]:
    """Return a plan as JSON and its version; an empty one and None if it is not a plan at all."""
    try:
        document = json.loads(text)
        return document, document["plan_version"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return {}, None


def _first(error: ValidationError) -> str:
    """Return the place and text of the first mistake, and the number of further ones."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return plain_text(f"{place + ': ' if place else ''}{first['msg']}{more}", 300)
