"""`plan.json`: read back as it was written, also by older versions, and what is damaged is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.planning.codec import plan_from_json, plan_to_json
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


def test_a_field_with_a_default_may_be_missing():
    document = json.loads(GOLDEN)
    del document["multi_host_jobs"]
    for entry in document["hosts"]:
        for key in ("data_dir", "environment", "address", "network", "cluster_port"):
            del entry["host"][key]
        for key in ("gpu_states", "gpu_problems"):
            (entry["facts"] or {key: 0}).pop(key)
    plan = plan_from_json(json.dumps(document))
    assert plan.multi_host_jobs == () and {entry.host.network for entry in plan.hosts} == {"bridge"}


def damage(*path: str | int, value: Any = None) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        if value is None:
            del document[path[-1]]
        else:
            document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damage("hosts", 0, "jobs", 0, "case", "model"), "hosts.0.jobs.0.case.model: Field required"),
        (damage("hosts", 0, "jobs", 0, "case", "of_a_later_version", value=1), "case.of_a_later_version: Unexpected"),
        (damage("hosts", 0, "jobs", 0, "case", "precision", value="fp99"), "case.precision: Input should be 'fp32'"),
        (damage("hosts", 4, "host", "queue", value={"lsf": {}}), "must be one of slurm, kubernetes"),
        (damage("multi_host_jobs", 0, "members", 0, "member", "rank", value="0"), "members.0.member.rank"),
    ],
)
def test_a_damaged_plan_is_named_with_the_place_and_what_to_do(change: Callable[[Any], None], said: str):
    document = json.loads(GOLDEN)
    change(document)
    with pytest.raises(UserError) as caught:
        plan_from_json(json.dumps(document), "runs/r/plan.json")
    message = str(caught.value)
    assert message.startswith("runs/r/plan.json: is damaged: ") and said in message, message
    assert "Restore the file from a copy, resume with the version of tfbench that wrote it" in message
    assert "\n" not in message and len(message) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, r"^plan\.json: is damaged: ") for text in ("", "[1]", "7", b"\xff", GOLDEN[:-100])),
        *(
            (json.dumps(json.loads(GOLDEN) | {"plan_version": version}), r"must be 1 to 2\. .*that started")
            for version in (3, 0, "1")
        ),
    ],
)
def test_what_is_no_plan_or_one_of_another_version_is_named(text: str | bytes, said: str):
    with pytest.raises(UserError, match=said):
        plan_from_json(text)
