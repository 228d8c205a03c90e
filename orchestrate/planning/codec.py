"""Reads and writes `plan.json`, based on the types in `plan.py`.

Fields with defaults may be missing, for plans of older versions. Unknown keys are errors, because a setting of a newer
version must not be dropped silently.
"""

from __future__ import annotations

import json
from functools import cache

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from orchestrate.errors import UserError
from orchestrate.planning.plan import PLAN_VERSION, Plan
from orchestrate.text import plain_text, shown


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
    try:
        return _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        try:
            version = json.loads(text)["plan_version"]
        except (ValueError, RecursionError, TypeError, KeyError):
            version = PLAN_VERSION  # not a plan at all
        if version == PLAN_VERSION:
            raise UserError(
                f"{where}: is damaged: {_first(error)}. Restore the file from a copy, resume with the version of "
                "tfbench that wrote it, or start a new run: the records in the run's folder are unharmed"
            ) from error
        raise UserError(
            f"{where}: plan_version must be {PLAN_VERSION}. Received: {shown(version)}. "
            "Resume with the version of tfbench that started the run"
        ) from error


def _first(error: ValidationError) -> str:
    """Return the place and text of the first mistake, and the number of further ones."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return plain_text(f"{place + ': ' if place else ''}{first['msg']}{more}", 300)
