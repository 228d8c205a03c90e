"""`plan.json`: the frozen plan as JSON and back, by the types of `plan.py` alone.

A field with a default may be missing, so that plans of older versions are read; a key that no type has is an error,
because a setting of a later version must not be dropped in silence.
"""

from __future__ import annotations

import json
from functools import cache

from pydantic import TypeAdapter, ValidationError

from orchestrate.errors import UserError
from orchestrate.planning.plan import PLAN_VERSION, Plan
from orchestrate.text import plain_text, shown


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
    try:
        return _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        try:
            version = json.loads(text)["plan_version"]
        except (ValueError, RecursionError, TypeError, KeyError):
            version = PLAN_VERSION  # it is no plan at all
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
    """Return where the first mistake is and what it is, and how many more there are."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return plain_text(f"{place + ': ' if place else ''}{first['msg']}{more}", 300)
