"""`plan.json`: the frozen plan as JSON and back, by the types of `plan.py` alone.

A field with a default may be missing, so that plans of older versions are read; a key that no type has is an error,
because a setting of a later version must not be dropped in silence.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrate.errors import UserError
from orchestrate.planning.plan import PLAN_VERSION, Plan
from orchestrate.text import plain_text, shown
from results.schema.case import REMOVED_SETTINGS


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return what reads and writes plans; it takes 0.1 s to build, and `--help` needs none."""
    return TypeAdapter(Plan)


def plan_to_json(plan: Plan, *, ensure_ascii: bool = False) -> str:
    """Write a plan as JSON, indented by 2 for people."""
    return _adapter().dump_json(plan, indent=2, ensure_ascii=ensure_ascii).decode() + "\n"


def plan_from_json(text: str | bytes, where: str = "plan.json") -> Plan:
    """Read a plan back.

    Args:
        text: Of `plan.json`.
        where: Its path, for messages.

    Raises:
        UserError: It is damaged, or of a version that this tfbench cannot read.
    """
    text = _upgraded(text)
    try:
        plan = _adapter().validate_json(text, strict=True)
        version: object = plan.plan_version
    except ValidationError as error:
        version = _version(text)
        if version == PLAN_VERSION:
            raise UserError(
                f"{where}: is damaged: {_first(error)}. Restore the file from a copy, or start a new run: "
                "the records in the run's folder are unharmed"
            ) from error
    if version != PLAN_VERSION:
        raise UserError(
            f"{where}: plan_version must be {PLAN_VERSION}. Received: {shown(version)}. "
            "Resume with the version of tfbench that started the run"
        )
    return plan


REMOVED_KEYS = {"target_ci", "raw"}
"""Of plans that 0.9 and earlier wrote."""


def _upgraded(text: str | bytes) -> str | bytes:
    """Return the plan of an earlier version in the words of this one; damaged text as it is."""
    searched = text.encode(errors="replace") if isinstance(text, str) else text
    if not any(b'"%s"' % key.encode() in searched for key in (*REMOVED_KEYS, *REMOVED_SETTINGS, "decide")):
        return text
    try:
        return json.dumps(json.loads(text, object_hook=_renamed))
    except (ValueError, RecursionError):
        return text


def _renamed(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "stop_early" if key == "decide" else key: value
        for key, value in document.items()
        if key not in REMOVED_KEYS and (key not in REMOVED_SETTINGS or value != REMOVED_SETTINGS[key])
    }


def _version(text: str | bytes) -> object:
    """Return the version that a plan names; where it is no plan at all, that counts as damage of today's."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return PLAN_VERSION
    return document.get("plan_version") if isinstance(document, dict) else PLAN_VERSION


def _first(error: ValidationError) -> str:
    """Return where the first mistake is and what it is, and how many more there are."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return plain_text(f"{place + ': ' if place else ''}{first['msg']}{more}", 300)
