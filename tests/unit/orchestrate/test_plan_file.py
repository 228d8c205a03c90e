"""`plan.json`: read back as it was written, also by older versions, and what is damaged is named."""

import functools
import json
import operator
from pathlib import Path
from typing import Any

import pytest

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.planning.plan import plan_from_json, plan_to_json
from results.schema import Status

GOLDEN = (Path(__file__).parent / "cases" / "plan.json").read_text(encoding="utf-8")
"""With everything that a plan can hold."""


def test_a_plan_is_read_in_every_part_and_written_alike():
    plan = plan_from_json(GOLDEN)
    hosts = {entry.host.place: entry for entry in plan.hosts}
    assert hosts["lab", "a.1"].host.docker == DockerAddress(scheme="ssh", target="bench@a", port=2222)
    assert {job.blocked for job in hosts["old", "x"].jobs} == {(Status.DRIVER_TOO_OLD, "driver 470 is too old: ≥ 525")}
    assert isinstance(hosts["k", "kubernetes"].host.queue, KubernetesQueue)
    assert plan_to_json(plan) == GOLDEN
    assert plan_from_json(plan_to_json(plan, ensure_ascii=True)) == plan


def damage(*path: str | int, value: Any = None) -> str:
    """Return the plan with another value at a place, or without one."""
    document = json.loads(GOLDEN)
    at = functools.reduce(operator.getitem, path[:-1], document)
    at.pop(path[-1], None)
    at.update({path[-1]: value} if value is not None else {})
    return json.dumps(document)


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (damage("hosts", 0, "jobs", 0, "case", "model"), "hosts[0].jobs[0].case.model: is missing"),
        (damage("hosts", 0, "jobs", 0, "case", "of_a_later_version", value=1), "case.of_a_later_version: Unexpected"),
        (damage("hosts", 0, "jobs", 0, "case", "precision", value="fp99"), "case.precision: must be 'fp32'"),
        (damage("hosts", 4, "host", "lsf", value={}), "host.lsf: unknown key 'lsf'"),
        (damage("multi_host_jobs", 0, "members", 0, "member", "rank", value="x"), "members[0].member.rank"),
    ],
)
def test_a_damaged_plan_is_named_with_the_place_and_what_to_do(damaged: str, said: str):
    with pytest.raises(UserError) as caught:
        plan_from_json(damaged, "runs/r/plan.json")
    message = str(caught.value)
    assert message.startswith("runs/r/plan.json: is damaged: ") and said in message, message
    assert "Restore the file from a copy, resume with the version of tfbench that wrote it" in message
    assert "\n" not in message and len(message) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, r"^plan\.json: is damaged: ") for text in ("", "[1]", "7", b"\xff", GOLDEN[:-100])),
        *(
            (json.dumps(json.loads(GOLDEN) | {"plan_version": version}), r"must be 1 to 4\. .*that started")
            for version in (5, 0, "1")
        ),
    ],
)
def test_what_is_no_plan_or_one_of_another_version_is_named(text: str | bytes, said: str):
    with pytest.raises(UserError, match=said):
        plan_from_json(text)
