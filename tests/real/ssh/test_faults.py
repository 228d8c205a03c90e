"""The faults of tests/real/faults on hosts without Docker, with the same promise: every repeat exactly once.

What needs to wait shares a run, since hosts work side by side: one run has all connections that fail and all benchmarks
that misbehave, another one all deaths of its controller.
"""

import json
import os
import re
from pathlib import Path

from results.schema import Status
from tests.real.faults.benchmark import HOSTILE
from tests.real.ssh.rented import Rent, make_ssh
from tests.support.controller import Runs, folder_bytes
from tests.support.engines.processes import below, read_proc, wait_until, with_variables
from tests.support.patience import slowness

MOMENTS = (
    ("before the first repeat is started", "start", False, 0),
    ("it was started, and the controller does not know", "start", True, 0),
    ("while it runs", "follow", False, 1),
    ("it has ended, and its record was on its way", "follow", True, 2),
    ("its record is collected, and nothing is removed yet", "remove", False, 3),
    ("between two repeats", "remove", True, 3),
    ("its first output was on its way", "follow", True, 3),
)
"""When one controller after another dies, at a request or after it, and how many repeats they have reattached by then."""


def test_a_run_survives_the_death_of_seven_controllers(rent: Rent, tmp_path: Path):
    instance = rent()
    relay, moment = make_ssh(tmp_path / "bin"), tmp_path / "moment"
    runs = Runs(tmp_path, PATH=f"{relay}:{os.environ['PATH']}", TFBENCH_TEST_MOMENT=str(moment))
    hosts = runs.hosts({"all": {"hosts": {"one": instance.entry(seconds=1)}}}, repeats=2)
    command = ("run", f"--hosts={hosts}")
    for when, do, after, reattached in MOMENTS:
        moment.write_text(json.dumps({"do": do, "after": after}))
        assert runs.run(*command, "--display=none").returncode == -9, when
        assert not moment.exists(), when
        assert runs.states().count("reattached") == reattached, when
        command = ("resume",)
    runs.resume()
    records = runs.records()
    assert [record.status for record in records.values()] == [Status.OK, Status.OK]
    assert instance.starts() == dict.fromkeys(records, 1)
    assert sorted(event["job"] for event in runs.events("job_result")) == sorted(records)
    assert instance.jobs() == [], "repeats were left behind"


PROCESSES = {**HOSTILE, "floods": ("chatter", Status.OK, "")}
"""Likewise of processes."""

MAX_CONTROLLER_BYTES = 300_000_000
MAX_RUN_BYTES = 40_000_000
LINGERING = "TFBENCH_TEST_LINGERS"


def test_broken_links_restarts_and_hostile_benchmarks_lose_nothing(rent: Rent, tmp_path: Path):
    steady, cut, hole = rent(), rent(), rent()
    runs = Runs(tmp_path)
    fleets = {
        "cut": cut.entry(seconds=round(8 * slowness())),  # it must still run when the one behind the hole has begun
        "hole": hole.entry(seconds=4),
        "restarted": steady.entry(seconds=60),
        "leaves-a-child": steady.entry(first=f"{LINGERING}={tmp_path} sleep 600 &"),
        **{name: {**steady.entry(does), "silence_minutes": 0.2} for name, (does, _, _) in PROCESSES.items()},
    }
    with runs.begin({"all": {"hosts": fleets}}) as controller:
        wait_until(lambda: "step" in hole.output("hole"), "the first step behind the hole")
        hole.host.swallow()
        wait_until(lambda: "step" in cut.output("cut"), "the first step of the host that is cut")
        for _ in range(2):
            wait_until(cut.host.sessions, "a connection")
            cut.host.cut()
        wait_until(lambda: "step" in steady.output("restarted"), "the first step of the host that restarts")
        steady.reboot("restarted")
        port = str(hole.host.config_file)
        wait_until(lambda: not clients(controller.pid, port), "ssh to notice that nobody answers", seconds=100)
        assert controller.poll() is None
        hole.host.answer()
        assert controller.wait(600) == 3  # a flood takes long on a busy machine
    others = {"cut": Status.OK, "hole": Status.OK, "restarted": Status.LOST, "leaves-a-child": Status.OK}
    records = runs.by_host()
    assert {name: records[name].status for name in others} == others
    for name, (_, status, words) in PROCESSES.items():
        assert records[name].status is status and words in (records[name].cause or ""), name
    for name in ("cut", "hole"):
        runs.assert_no_step_was_lost(name)
    starts = steady.starts() + cut.starts() + hole.starts()
    assert starts == dict.fromkeys(runs.records(), 1)
    assert not with_variables(f"{LINGERING}={tmp_path}"), "what a benchmark left running disturbs the next one"
    assert runs.events("host_lost") == []
    assert folder_bytes(runs.path) < MAX_RUN_BYTES
    assert "Traceback" not in runs.stderr

    fleets["restarted"]["python"] = steady.entry(seconds=1)["python"]
    instead = Path(str(fleets["restarted"]["python"]))
    plan = runs.path / "plan.json"
    plan.write_text(re.sub(r'python-0"', f'{instead.name}"', plan.read_text()))
    resumed = runs.run("resume", "--display=plain")
    assert resumed.memory_peak_bytes < MAX_CONTROLLER_BYTES
    assert runs.by_host()["restarted"].status is Status.OK
    again = [job for job, count in steady.starts().items() if count == 2]
    assert [job.split(".")[1] for job in again] == ["restarted"], "only what was lost is measured again"
    assert steady.jobs() == cut.jobs() == hole.jobs() == [], "repeats were left behind"


def clients(controller: int, word: str) -> list[int]:
    """Return the ssh clients of a controller whose command line has a word."""
    return [pid for pid in below(controller) if word.encode() in read_proc(pid, "cmdline")]
