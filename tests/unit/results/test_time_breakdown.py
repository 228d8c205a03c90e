"""Where the time of a run went: from records and events."""

from __future__ import annotations

import dataclasses
import json

import pytest

from results.runs.reading import from_json
from results.runs.store import RunFolder
from results.runs.time_breakdown import KINDS, time_breakdown, time_breakdown_grid
from results.schema import Origin, Phase, Status
from results.schema.record_json import RecordError, to_json
from tests.unit.results.factory import make_case, make_record

CASE = make_case(num_steps=4)
PHASES = {
    "starting": 4.0,
    "building": 2.0,
    "compiling": 6.0,
    "checking": 1.0,
    "warming": 3.0,
    "timing": 20.0,
    "peaks": 5.0,
}


def run(tmp_path, *, phases=PHASES, status=Status.OK, events=()):
    folder = RunFolder.create(tmp_path, "one")
    record = dataclasses.replace(
        make_record(1.6, case=CASE),  # 4 steps of 8 samples: 20 s
        phases=[Phase(name=name, seconds=seconds, cpu_seconds=seconds) for name, seconds in phases.items()],
        origin=Origin(run_id="one", fleet="a.b", host="c", launcher="docker", repeat=1),
    )
    if status is not Status.OK:
        record = dataclasses.replace(record, status=status, cause="full", measurement=None, validity=None)
    folder.write_record("a.b.c.x.r1", record)
    with folder.events_path.open("w") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in events)
    return list(folder.records())


def state(name, second):
    return {"event": "job_state", "job": "a.b.c.x.r1", "state": name, "at": f"2026-11-01T10:00:{second:02d}+00:00"}


RESULT = {"event": "job_result", "job": "a.b.c.x.r1", "at": "2026-11-01T10:00:50+00:00", "seconds": 47.0}
STATES = [
    state(*pair)
    for pair in (
        ("launching", 0),
        ("queued", 1),
        ("on n", 4),
        ("starting", 5),
        ("building", 8),
        ("compiling", 10),
        ("timing", 17),
    )
]
STATES += [state("writing", 44), state("collecting", 45), RESULT]
PULL = {"event": "image_ready", "host": "a.b.c", "image": "i", "seconds": 90.5, "at": "2026-11-01T10:00:00+00:00"}


def test_a_records_phases_and_what_the_events_add(tmp_path):
    host, case = time_breakdown(run(tmp_path, events=[PULL, *STATES]))
    assert (host.host, host.case, dict(host.seconds)) == ("a.b/c", "", {"pull": 90.5})
    assert (case.host, case.case, case.repeats) == ("a.b/c", CASE.name, 1)
    wanted = {"timed steps": 20, "warm-up": 3, "compilation": 6, "building": 2, "start": 6, "peaks": 5, "checks": 1}
    assert dict(case.seconds) == wanted | {"waiting": 3, "other": 47 - 43}
    assert case.seconds.keys() <= set(KINDS)


def test_a_repeat_that_failed_bought_nothing(tmp_path):
    (case,) = time_breakdown(run(tmp_path, status=Status.OOM, events=STATES))
    assert dict(case.seconds) == {"failed": 47 + 3}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"event": "job_state"}, {"event": "job_result", "job": [], "seconds": "x"}, {"event": ["run_started"]}],
        [STATES[0] | {"at": "never"}, STATES[1] | {"at": "0001-01-01T00:00:00"}, RESULT | {"seconds": float("inf")}],
    ],
)
def test_events_that_are_missing_or_damaged_cost_only_what_they_say(tmp_path, events):
    case = time_breakdown(run(tmp_path, events=events))[-1]
    assert case.seconds["timed steps"] == 20 and case.total < 1e9


def test_a_journal_that_is_no_file_is_passed_over(tmp_path):
    stored = run(tmp_path)
    (tmp_path / "one" / "events.jsonl").unlink()
    (tmp_path / "one" / "events.jsonl").mkdir()
    assert time_breakdown(stored)[0].total == sum(PHASES.values())


def test_an_attempt_that_was_started_anew_counts_once(tmp_path):
    (case,) = time_breakdown(run(tmp_path, events=[state("launching", 0), {"event": "run_started"}, *STATES]))
    assert case.seconds["start"] == 6


def test_the_table_ends_with_the_sum_and_the_share_of_timed_steps(tmp_path):
    grid = time_breakdown_grid(time_breakdown(run(tmp_path, events=[PULL, *STATES])))
    assert grid.headings == [
        *("host", "case", "repeats", "timed steps", "warm-up", "compilation", "building", "start", "peaks", "checks"),
        *("pull", "waiting", "other", "all"),
    ]
    first, second, whole, share = grid.rows
    assert first[1] == "(host)" and first[-1] == "1:30"
    assert second[3:] == ["0:20", "0:03", "0:06", "0:02", "0:06", "0:05", "0:01", "", "0:03", "0:04", "0:50"]
    assert whole[1] == "all" and whole[-1] == "2:20"
    assert share[3] == "14%" and grid.notes == ["minutes:seconds; timed steps are 14% of what the hosts spent"]
    assert time_breakdown_grid([]) is None


def test_phases_travel_in_the_record_and_are_bounded(tmp_path):
    (stored,) = run(tmp_path)
    text = to_json(stored.record)
    assert from_json("".join(text)) == stored.record
    with pytest.raises(RecordError, match="seconds"):
        from_json("".join(text).replace('"seconds": 4.0, "cpu_seconds": 4.0', '"seconds": -4.0, "cpu_seconds": 4.0'))


def test_only_a_case_with_a_minimum_time_may_take_more_steps(tmp_path):
    case = make_case(num_steps=4)
    longer = make_record(1.6, case=make_case(num_steps=8))
    for asked, good in ((case, False), (dataclasses.replace(case, min_seconds=15.0), True)):
        text = "".join(to_json(dataclasses.replace(longer, case=asked)))
        if good:
            assert from_json(text).measurement.num_steps == 8
        else:
            with pytest.raises(RecordError, match="num_steps is 8, but the case asked for 4"):
                from_json(text)
