"""Displays: a live table, plain lines and JSON Lines tell the same story, whatever hosts send and whoever reads."""

import dataclasses
import io
import json
import re

import pytest
from rich.console import Console

from orchestrate.display.display import COLUMNS, Display, JSONDisplay, LiveDisplay, PlainDisplay, make_display
from orchestrate.events import (
    Event,
    HostChecked,
    HostLost,
    ImageProgress,
    ImageReady,
    JobResult,
    JobState,
    JobStep,
    RunFinished,
    RunOutcome,
    RunStarted,
    Stopping,
    Warned,
    event_document,
    stored_event,
)
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.durations import Durations, host_seconds, usd_text
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import Plan, make_plan
from orchestrate.running.state import TRIED_AGAIN, RunState
from orchestrate.suites import CaseBlock, Suite
from orchestrate.text import plain_text
from results.runs.store import RunFolder
from results.schema import GPU
from tests.unit.results.factory import make_failure, make_record

BLOCK = CaseBlock(**{"model": "resnet50", "batch_per_gpu": 8, "warmup_steps": 1, "num_steps": 20})
SUITE = Suite(repeats=2, cases=[BLOCK])
EVIL = "\x1b[2J\x1b]0;title\x07[bold red]x[/]\u202e\x9b31m:smile:"


def plan_of(*names: str) -> Plan:
    gpus = tuple(GPU(index=index, name="NVIDIA RTX A4000") for index in range(2))
    image = Image(variant="cuda12.5", reference="r:cuda12.5", reason="", digest="sha256:1")
    facts = Facts(gpus=gpus, images=(image,))
    machines = [Host(fleet="a4000", name=name, docker=DockerAddress(scheme="unix", target=name)) for name in names]
    return make_plan(machines, {host.place: facts for host in machines}, lambda name: SUITE, run_id="run1", seed=1)


def nodes(count: int) -> list[str]:
    return [f"node-{number:02d}" for number in range(count)]


PLAN = plan_of(*nodes(2))
FIRST, SECOND = PLAN.hosts[0].jobs
OTHER = PLAN.hosts[1].jobs[0]

NEAR, FAR = "a4000.node-00", "a4000.node-01"


def result(job: str, host: str, status: str, cause: str | None, seconds: float = 4.0, rate: float = 0.0) -> JobResult:
    measured = {"samples_per_second": rate or None, "unit": "images" if rate else None}
    return JobResult(job=job, host=host, status=status, cause=cause, seconds=seconds, **measured)


STORY: list[Event] = [
    RunStarted(run_id="run1", jobs=4, done=0, folder="runs/run1"),
    HostChecked(host=NEAR, problem=None, gpus=2),
    HostChecked(host=FAR, problem="its disk is full"),
    ImageProgress(host=NEAR, image="r:cuda12.5", done_bytes=450_000_000, total_bytes=1_000_000_000),
    ImageReady(host=NEAR, image="r:cuda12.5", digest="sha256:1"),
    JobState(job=FIRST.id, host=NEAR, state="launching"),
    JobState(job=FIRST.id, host=NEAR, state="timing"),
    JobStep(job=FIRST.id, host=NEAR, step=10, samples_per_second=812.34, unit="images"),
    result(FIRST.id, NEAR, "ok", None, 61.2, 811.5),
    result(SECOND.id, NEAR, "oom", "11 GB were not enough", 9.0),
    Warned(host=None, message="the price is a guess"),
    HostLost(host=FAR, status="unreachable", cause="connection refused"),
    result(OTHER.id, FAR, "unreachable", "connection refused", 0.0),
    RunFinished(run_id="run1", ok=1, failed=2, missing=1, seconds=72.0),
]


def tell(display: Display, state: RunState, events: list[Event]) -> None:
    for event in events:
        state.note(event)
        display.show(event)


def plain(events: list[Event], plan: Plan = PLAN) -> str:
    stream, state = io.StringIO(), RunState(plan)
    tell(PlainDisplay(stream, state), state, events)
    return stream.getvalue()


def terminal(height: int = 40, width: int = 160, kind: str = "xterm") -> Console:
    file, environment = io.StringIO(), {"TERM": kind}  # that of the tests may be dumb
    size = {"width": width, "height": height}
    return Console(file=file, force_terminal=True, color_system=None, _environ=environment, **size)


def shown(console: Console) -> str:
    """Return what was written, without the cursor's movements."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).replace("\u00a0", " ")


def table(display: LiveDisplay) -> str:
    """Draw the table once, as the terminal would show it now."""
    console = terminal()
    console.print(display.get_renderable())
    return "\n".join(line.rstrip() for line in shown(console).splitlines())


def live(events: list[Event], plan: Plan = PLAN, **size: int) -> LiveDisplay:
    state = RunState(plan)
    display = LiveDisplay(terminal(**size), state)
    tell(display, state, events)
    return display


def test_plain_lines_tell_what_failed_why_and_how_to_repeat_only_that():
    expected = """\
0/4 run run1: 4 repeats, output in runs/run1
0/4 a4000.node-00: reachable, 2 GPUs
0/4 a4000.node-01: its disk is full
0/4 a4000.node-00: pulling r:cuda12.5: 450 of 1000 MB
0/4 a4000.node-00: image r:cuda12.5 sha256:1
0/4 a4000.node-00.resnet50-fp32-b8-1gpu-w1s20.r1: launching
0/4 a4000.node-00.resnet50-fp32-b8-1gpu-w1s20.r1: timing
1/4 a4000.node-00.resnet50-fp32-b8-1gpu-w1s20.r1: ok after 61 s, 811.50 images/s; about 03:1_ left
2/4 a4000.node-00.resnet50-fp32-b8-1gpu-w1s20.r2: oom after 9 s: 11 GB were not enough; about 03:1_ left
2/4 warning: the price is a guess
2/4 a4000.node-01: dropped (unreachable): connection refused
3/4 a4000.node-01.resnet50-fp32-b8-1gpu-w1s20.r1: unreachable: connection refused
3/4 run run1: 1 ok, 2 failed, 1 not run, 72 s
  1 × oom on a4000.node-00: 11 GB were not enough
  1 × unreachable on a4000.node-01: connection refused
  to repeat only these: python -m orchestrate resume runs/run1 --again oom
"""
    said = re.sub(r"^\[\d\d:\d\d\] ", "", plain(STORY), flags=re.MULTILINE)
    assert re.sub(r"03:1\d", "03:1_", said) == expected, "two repeats of 61 s and the set-up of the second host"


def test_json_lines_hold_every_field_of_an_event_and_when_it_was():
    stream = io.StringIO()
    tell(JSONDisplay(stream), RunState(PLAN), STORY)
    for line, event in zip(stream.getvalue().splitlines(), STORY, strict=True):
        document = json.loads(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", document["at"])
        assert document == event_document(event) | {"at": document["at"]} and document.items() >= vars(event).items()


TEXTS = {"run_id", "folder", "problem", "image", "digest", "state", "unit", "cause", "message"}
EVIL_STORY = [dataclasses.replace(event, **dict.fromkeys(TEXTS & vars(event).keys(), EVIL)) for event in STORY]
EVIL_STORY += [JobState(job=EVIL, host=FAR, state=EVIL), Warned(host=EVIL, message=EVIL)]
EVIL_STORY.remove(next(event for event in EVIL_STORY if isinstance(event, ImageProgress)))  # else no step is due


def test_escape_sequences_and_markup_reach_no_terminal():
    display = live(EVIL_STORY)
    for written in (plain(EVIL_STORY), shown(display.console) + table(display)):
        assert all(line == plain_text(line) for line in written.splitlines())
        assert "[bold red]x[/]" in written and ":smile:" in written, "markup is text"
    stream = io.StringIO()
    JSONDisplay(stream).show(EVIL_STORY[-1])
    assert stream.getvalue().isascii() and "\x1b" not in stream.getvalue()
    assert json.loads(stream.getvalue())["message"] == EVIL


def test_the_live_table_shows_what_every_host_does_and_what_is_left():
    drawn = re.sub(r"^\d\d:\d\d", "00:00", table(live(STORY[:8])), flags=re.MULTILINE)
    assert drawn.splitlines() == [
        "",
        " host           GPU            variant   case                            k/n  state    step  samples/s  time left",
        " ────────────────────────────────────────────────────────────────────────────────────────────────────────────────",
        " a4000/node-00  2 × RTX A4000  cuda12.5  resnet50-fp32-b8-1gpu-w1s20 r1  1/2  timing     10      812.3",
        " a4000/node-01  2 × RTX A4000                                            0/2  waiting",
        "",
        "00:00  nothing finished yet",
    ]
    assert "01:01" in table(live(STORY[:9])).splitlines()[3], "one repeat took 61 s, one is left"
    drawn = table(live(STORY))
    assert "done, 1 failed" in drawn and "dropped, 1 failed" in drawn
    assert drawn.splitlines()[-1].endswith("1 ok, 1 oom, 1 unreachable")


def test_a_queue_is_one_line_that_tells_how_many_run_and_wait():
    queue = SlurmQueue(container="none", shared_folder="/home/bench", max_jobs=4)
    host = Host(fleet="lab", name="slurm", docker=None, slurm=queue)
    plan = make_plan([host], {host.place: Facts()}, lambda name: SUITE, run_id="run1", seed=1, repeats=3)
    first, _, third = (job.id for job in plan.jobs)
    states = [*((job.id, "queued") for job in plan.jobs), (first, "on n1"), (third, "on n2")]
    events: list[Event] = [JobState(job=job, host=host.key, state=state) for job, state in states]
    assert "0/3  2 run, 1 queued" in table(live(events, plan))
    events += [JobState(job=first, host=host.key, state="queued"), result(third, host.key, "ok", None, 9.0, 8.0)]
    assert "1/3  0 run, 2 queued" in table(live(events, plan)), "what was preempted waits again"


def test_of_a_hundred_hosts_those_that_work_or_failed_are_shown():
    plan = plan_of(*nodes(100))
    events: list[Event] = [RunStarted(run_id="run1", jobs=200, done=0, folder="runs/run1")]
    for number, entry in enumerate(plan.hosts):
        if number < 50:  # done
            events += [result(job.id, entry.host.key, "ok", None) for job in entry.jobs]
        elif number < 58:
            events.append(JobState(job=entry.jobs[0].id, host=entry.host.key, state="timing"))
        elif number < 60:
            events.append(HostLost(host=entry.host.key, status="lost", cause="gone"))
    drawn = table(live(events, plan, height=24))
    assert len(drawn.splitlines()) <= 22
    assert all(f"a4000/node-{number} " in drawn for number in range(50, 60)), "who works or failed is shown"
    rows = [line for line in drawn.splitlines() if "a4000/" in line]
    more = re.search(r"… and (\d+) more: 50 done, .* waiting", drawn)
    assert more and int(more[1]) == 100 - len(rows)
    assert rows == sorted(rows), "rows stay in the order of the plan"


def test_ctrl_c_is_seen_above_the_table_and_stays_below_it():
    display = live([])
    console = display.console
    with display:
        tell(display, display._state, [Stopping(now=False, hint="Press Ctrl-C again to end them now.")])
        display.refresh()
        assert "stopping… no new repeats will start" in shown(console)
        tell(display, display._state, [Stopping(now=True, hint="")])
        assert "stopping: ending the running repeats" in shown(console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "running ones will finish. Press Ctrl-C again to end them now." in printed


def test_a_display_is_chosen_by_name_and_by_where_it_writes():
    kinds = [type(make_display(name, terminal(), RunState())) for name in ("auto", "json", "none")]
    assert kinds == [LiveDisplay, JSONDisplay, Display]
    for console in (Console(file=io.StringIO()), terminal(kind="dumb")):  # rich draws no table on a dumb one
        assert isinstance(make_display("auto", console, RunState()), PlainDisplay)


@pytest.mark.parametrize("width", [60, 80, 100, 150])
def test_headings_are_never_cut_and_columns_go_by_priority(width: int):
    name = "a-host-with-a-long-name.example.org"
    plan = plan_of(name)
    job, host = plan.jobs[0].id, plan.hosts[0].host.key
    events: list[Event] = [JobState(job=job, host=host, state="compiling")]
    events += [JobStep(job=job, host=host, step=100, samples_per_second=12345.6, unit="images")]
    console = terminal(width=width)
    console.print(live(events, plan, width=width).get_renderable())
    heading, *rows = (line.rstrip() for line in shown(console).splitlines() if line.strip())
    columns = [" ".join(words.split()) for words in re.split(r"\s{2,}", heading.strip())]
    known = {name.removesuffix(">").replace("\u00a0", " ") for name in COLUMNS}
    assert {"host", "k/n", "state"} <= {*columns} <= known
    assert f"a4000/{name}" in rows[1] and "1/2" in rows[1] and "compiling" in rows[1]
    assert len(heading) <= width and len(rows[1]) <= width
    assert ("time left" in columns) >= (width >= 80) and ("variant" in columns) >= (width >= 150)


# ---- what is left of a run: it counts down, learns from what has ended, and survives the controller

KNOWN: Durations = {("a4000", job.case.name): (100.0, "seen") for job in PLAN.jobs}
ALONE = dataclasses.replace(PLAN, hosts=PLAN.hosts[:1])
SETUP = host_seconds(PLAN.hosts[0])
STARTED = STORY[0]


def state_of(*events: tuple[Event, float], plan: Plan = ALONE, durations: Durations = KNOWN) -> RunState:
    state = RunState(plan, durations)
    for event, at in events:
        state.note(event, at)
    return state


def phase(state: str, job: str = FIRST.id) -> JobState:
    return JobState(job=job, host=NEAR, state=state)


def ended(seconds: float, status: str = "ok", job: str = FIRST.id, cause: str | None = None) -> JobResult:
    return result(job, NEAR, status, cause, seconds, rate=0.0 if cause else 5.0)


def test_the_time_left_counts_down_and_includes_the_pull():
    state = state_of((STARTED, 0.0))
    assert state.seconds_left(now=0.0) == 200 + SETUP
    assert state.seconds_left(now=10.0) == 190 + SETUP
    state.note(ImageProgress(host=NEAR, image="i", done_bytes=25, total_bytes=100), 20.0)
    assert state.seconds_left(now=20.0) == 200 + 60, "a quarter took 20 s"
    state.note(phase("launching"), 100.0)
    assert state.seconds_left(now=130.0) == 170


def test_the_time_left_learns_from_the_first_repeat_that_ends():
    state = state_of((STARTED, 0.0), (phase("launching"), 0.0), (ended(300.0), 300.0))
    assert state.seconds_left(now=300.0) == 300, "not 100"
    unknown = state_of((STARTED, 0.0), (phase("launching"), 0.0), durations={})
    assert unknown.seconds_left(now=0.0) == 0, "a guess is not shown"
    unknown.note(ended(300.0), 300.0)
    assert unknown.seconds_left(now=300.0) == 300
    unknown.note(HostLost(host=NEAR, status="lost", cause=""), 301.0)
    assert unknown.seconds_left(now=301.0) == 0


def test_after_ctrl_c_the_time_left_is_that_of_the_running_repeat():
    state = state_of((STARTED, 0.0), (phase("timing"), 0.0), (Stopping(now=False, hint=""), 40.0))
    assert state.seconds_left(now=40.0) == 60


def test_a_resumed_run_has_less_left_and_repeats_what_was_stopped(tmp_path):
    """Whatever its journal says: records decide."""
    lines = [*map(event_document, (STARTED, phase("timing"), ended(50.0, "lost"))), {"event": "unheard of"}]
    state, folder = state_of(*filter(None, map(stored_event, lines))), RunFolder.create(tmp_path, "run1")
    folder.write_record(FIRST.id, make_record(5.0, case=FIRST.case))
    folder.write_record(SECOND.id, make_failure("stopped", "by the user"))
    assert (state.read(folder, TRIED_AGAIN), state.outcome()) == ({SECOND.id: None}, RunOutcome(1, 0, 1))
    state.note(STARTED, 0.0)
    assert state.seconds_left(now=0.0) == 100
    assert stored_event({"event": "job_result", "at": "yesterday"}) is None


def test_a_stopped_repeat_is_no_failure_and_has_one_duration():
    cause = "the host did not respond in time; abandoned after 4 s"
    said = plain(
        [
            STARTED,
            ended(79.0, "lost", cause=cause),
            RunFinished(run_id="run1", ok=1, failed=1, missing=2, stopped=1, seconds=9),
        ]
    )
    assert "1 ok, 0 failed, 1 stopped, 2 not run" in said
    assert not re.search(r"after \d+ s after", said) and f"lost after 79 s: {cause}" in said


def test_a_limit_of_cost_says_how_many_repeats_fit():
    host = ALONE.hosts[0].host.model_copy(update={"usd_per_gpu_hour": 18.0})  # two GPUs: a cent a second
    plan = dataclasses.replace(ALONE, hosts=[dataclasses.replace(ALONE.hosts[0], host=host)])
    costs = [(SETUP + 100 * repeats) / 100 for repeats in (1, 2)]
    limits = (costs[0] - 0.01, costs[0] + 0.01, costs[1] - 0.01, costs[1] + 0.01)
    assert [RunState(plan, KNOWN).fitting_repeats(limit) for limit in limits] == [0, 1, 1, 2]
    assert [usd_text(usd) for usd in (0.0, 0.0042, 0.053, 0.17, 12.5)] == ["0.00", "0.0042", "0.053", "0.17", "12.50"]
