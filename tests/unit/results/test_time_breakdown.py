"""Where the time of a run went: from records and events."""

import dataclasses
import json

import pytest

from results.runs.reading import from_json
from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
from results.schema import Origin, Phase, Status
from results.schema.record_json import RecordError, to_json
from tests.unit.results.factory import make_case, make_record, write_run

CASE = make_case(num_steps=4)
PHASES = {"starting": 4.0, "building": 2.0, "compiling": 6.0, "checking": 1.0}
PHASES |= {"warming": 3.0, "timing": 20.0, "peaks": 5.0}


def run(tmp_path, *, phases=PHASES, status=Status.OK, events=()):
    record = dataclasses.replace(
        make_record(1.6, case=CASE),  # 4 steps of 8 samples: 20 s
        phases=[Phase(name=name, seconds=seconds, cpu_seconds=seconds) for name, seconds in phases.items()],
        origin=Origin(run_id="one", fleet="a.b", host="c", launcher="docker", repeat=1),
    )
    if status is not Status.OK:
        record = dataclasses.replace(record, status=status, cause="full", measurement=None, validity=None)
    folder = write_run(tmp_path, [record], "one")
    folder.events_path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return list(folder.records())


def state(name, second):
    return {"event": "job_state", "job": "job-0", "state": name, "at": f"2026-11-01T10:00:{second:02d}+00:00"}


RESULT = {"event": "job_result", "job": "job-0", "at": "2026-11-01T10:00:50+00:00", "seconds": 47.0}
SECONDS = {"launching": 0, "queued": 1, "on n": 4, "starting": 5, "building": 8, "compiling": 10, "timing": 17}
STATES = [*(state(*pair) for pair in (SECONDS | {"writing": 44, "collecting": 45}).items()), RESULT]
PULL = {"event": "image_ready", "host": "a.b.c", "image": "i", "seconds": 90.5, "at": "2026-11-01T10:00:00+00:00"}


def test_a_records_phases_and_what_the_events_add_are_a_row_of_its_host(tmp_path):
    found = time_breakdown(run(tmp_path, events=[PULL, *STATES]))
    wanted = {"timed steps": 20, "warm-up": 3, "compilation": 6, "building": 2, "start": 6, "peaks": 5, "checks": 1}
    assert found == {"a.b/c": {"repeats": 1, **wanted, "waiting": 3, "other": 47 - 43, "pull": 90.5}}
    grid = time_breakdown_grid(found)
    assert grid.headings == [
        *("host", "repeats", "timed steps", "warm-up", "compilation", "building", "start", "peaks", "checks", "pull"),
        *("waiting", "other", "all"),
    ]
    row, share = grid.rows
    assert row[1:] == ["1", "0:20", "0:03", "0:06", "0:02", "0:06", "0:05", "0:01", "1:30", "0:03", "0:04", "2:20"]
    assert share[2] == "14%" and grid.notes == ["minutes:seconds; timed steps are 14% of what the hosts spent"]


def test_a_failed_repeat_bought_nothing_and_without_time_there_is_no_table(tmp_path):
    assert time_breakdown_grid(time_breakdown([])) is None
    found = time_breakdown(run(tmp_path, status=Status.OOM, events=STATES))
    assert found == {"a.b/c": {"repeats": 1, "failed": 47 + 3}}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"event": "job_state"}, {"event": "job_result", "job": [], "seconds": "x"}, {"event": ["run_started"]}],
        [STATES[0] | {"at": "never"}, STATES[1] | {"at": "0001-01-01T00:00:00"}, RESULT | {"seconds": float("inf")}],
        [state("launching", 0), {"event": "run_started"}],
        None,
    ],
)
def test_events_that_are_missing_or_damaged_cost_only_what_they_report(tmp_path, events):
    stored = run(tmp_path, events=events or ())
    if events is None:  # what is no file
        (tmp_path / "one" / "events.jsonl").unlink()
        (tmp_path / "one" / "events.jsonl").mkdir()
    (spent,) = time_breakdown(stored).values()
    assert spent["timed steps"] == 20 and sum(spent.values()) < 1e9 and spent["start"] == PHASES["starting"]


def test_an_attempt_that_was_started_anew_counts_once(tmp_path):
    (spent,) = time_breakdown(run(tmp_path, events=[state("launching", 0), {"event": "run_started"}, *STATES])).values()
    assert spent["start"] == 6


def test_only_a_case_with_a_minimum_time_may_take_more_steps():
    longer = make_record(1.6, case=make_case(num_steps=8))
    timed, counted = (dataclasses.replace(CASE, min_seconds=seconds) for seconds in (15.0, None))
    assert from_json(to_json(dataclasses.replace(longer, case=timed))).measurement.num_steps == 8
    with pytest.raises(RecordError, match="num_steps is 8, but the case has 4"):
        from_json(to_json(dataclasses.replace(longer, case=counted)))
