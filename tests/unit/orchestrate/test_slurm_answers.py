"""What Slurm tells, in words that were seen from a real one, and what becomes of a repeat."""

from __future__ import annotations

import base64

import pytest

from orchestrate.launchers.slurm.answers import SlurmState, ending, hopeless, read_answer, task_ranges
from orchestrate.launchers.slurm.commands import refusal
from results.schema import Status

SEEN = """\
Welcome to the cluster | have a nice day
state|71_0|COMPLETED|n1|tfbench:1|None
state|71_2|RUNNING|n2|tfbench:1|None
state|71_[4-19%3]|PENDING||tfbench:1|Resources
state|72_[0,2-3]|PENDING||tfbench:2|Dependency
state|73|CANCELLED||tfbench:3|Resources
state|99_1|RUNNING|n1|(null)|None
state|x_1|RUNNING|n1|tfbench:9|None
state|74_0|RUNNING|\x1b[2J|tfbench:4|None
""".splitlines()


def test_states_are_read_task_by_task_and_what_waits_by_ranges():
    answer = read_answer(SEEN)
    assert answer.arrays == {1: 71, 2: 72, 3: 73, 4: 74}, "jobs without our comment are somebody else's"
    assert answer.state((71, 0)) == SlurmState("COMPLETED", "n1", "None")
    assert answer.state((71, 2)) == SlurmState("RUNNING", "n2", "None")
    assert answer.state((71, 19)) == SlurmState("PENDING", reason="Resources")
    assert answer.state((71, 3)) is None and answer.state((71, 20)) is None
    assert answer.state((72, 2)) == SlurmState("PENDING", reason="Dependency")
    assert answer.state((72, 1)) is None
    assert answer.state((73, 5)) == SlurmState("CANCELLED", reason="Resources"), (
        "the rest of an array, cancelled at once"
    )
    assert answer.state((74, 0)) == SlurmState("RUNNING", None, "None"), "that is no node's name"


def test_of_two_arrays_of_one_number_the_later_counts():
    lines = ["state|80_0|RUNNING|n1|tfbench:1|None", "state|79_0|COMPLETED|n1|tfbench:1|None"]
    assert read_answer(lines).arrays == read_answer(lines[::-1]).arrays == {1: 80}


def test_files_come_as_base64_and_what_is_cut_off_is_passed_over():
    text = base64.b64encode(b'{"a": "\xff"}').decode()
    answer = read_answer([f"record|job-1|{text}", f"log|job-2|{text[:-3]}", "done|job-3|!!", "submitted|17;cluster"])
    assert answer.files == {("record", "job-1"): b'{"a": "\xff"}'}
    assert answer.values("submitted") == ["17;cluster"]


def test_tasks_are_named_in_few_words():
    tasks = [(12, index) for index in (0, 1, 2, 7, 9, 10)] + [(13, 5)]
    assert task_ranges(tasks) == ["12_[0-2,7,9-10]", "13_[5]"]
    assert task_ranges([(1, index) for index in range(1000)]) == ["1_[0-999]"]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("NODE_FAIL", Status.LOST, "node n2 failed"),
        ("BOOT_FAIL", Status.LOST, "could not be started"),
        ("PREEMPTED", Status.LOST, "higher priority"),
        ("REVOKED", Status.LOST, "another cluster"),
        ("CANCELLED", Status.LOST, "somebody cancelled"),
        ("TIMEOUT", Status.TIMEOUT, "time limit"),
        ("DEADLINE", Status.TIMEOUT, "deadline"),
        ("OUT_OF_MEMORY", Status.OOM, "memory_gb"),
        ("COMPLETED", Status.ERROR, "Does the node see shared_folder?"),
        ("FAILED", Status.ERROR, "FAILED, NonZeroExitCode"),
    ],
)
def test_what_slurm_ends_has_a_status_and_a_cause(name: str, status: Status, words: str):
    reason = "NonZeroExitCode" if name == "FAILED" else "None"
    ended = ending(SlurmState(name, "n2", reason), None)
    assert ended.failure is not None and ended.node == "n2" and ended.exit_code is None
    assert ended.failure[0] is status and words in ended.failure[1]


DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"code 0\nnode n1\n", (0, "n1", None, None)),
        (b"code 137\nnode n1\nimage \n", (137, "n1", None, None)),
        (f"code 0\nnode n1\nimage ghcr.io/you/tfbench@{DIGEST}\n".encode(), (0, "n1", DIGEST, None)),
        (b"code pull\nnode n1\nimage \n", (None, "n1", None, Status.PULL_FAILED)),
        (b"code 99999999999999999\nnode ../../x\nimage sha256:zz\n\xff\x00", (None, None, None, None)),
        (None, (None, None, None, Status.LOST)),
    ],
    ids=["ended", "killed", "names its image", "no image", "hostile", "forgotten"],
)
def test_a_batch_scripts_last_words_are_the_benchmarks_end(said: bytes | None, found: tuple[object, ...]):
    ended = ending(None, said)
    status = ended.failure[0] if ended.failure else None
    assert (ended.exit_code, ended.node, ended.image_digest, status) == found


def test_what_can_never_start_ends_and_what_only_waits_does_not():
    ended = hopeless(SlurmState("PENDING", reason="PartitionTimeLimit"))
    assert ended is not None and ended.failure is not None and ended.failure[0] is Status.UNSUPPORTED
    held = hopeless(SlurmState("PENDING", reason="launch failed requeued held"))
    assert held is not None and held.failure is not None and held.failure[0] is Status.LOST
    for reason in ("Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime", "ReqNodeNotAvail"):
        assert hopeless(SlurmState("PENDING", reason=reason)) is None
    assert hopeless(SlurmState("RUNNING", reason="BadConstraints")) is None


def test_refusals_of_sbatch_have_a_status():
    said = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    assert refusal(said) is Status.UNSUPPORTED
    assert refusal("sbatch: error: invalid partition specified: x") is Status.UNSUPPORTED
    assert refusal("sbatch: error: Invalid generic resource (gres) specification") is Status.NO_GPU
    assert refusal("sbatch: error: something new") is Status.ERROR
