"""Any folder of records through every command; 20,000 folders: `python -m tests.benchmarks.fuzz_records`."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.runs.store import RunFolder
from results.table.merge import merge_records
from tests.support.examples import examples
from tests.unit.results.fuzzing.commands import run_all, tries
from tests.unit.results.fuzzing.folders import folders


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(tries(), st.integers(0, 6))
def test_no_folder_of_records_makes_a_command_crash_hang_or_print_control_characters(drawn, number):
    folder, lines = drawn
    parent = Path(tempfile.mkdtemp())
    try:
        folder.write(parent)
        outcomes = run_all(parent, [lines[0], lines[number]])  # validate, and one of the others: all take a second
    finally:
        shutil.rmtree(parent)
    assert not [outcome for outcome in outcomes if outcome.fault], "\n\n".join(map(str, outcomes))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(folders())
def test_a_bad_record_costs_itself_only_and_is_named(folder):
    parent = Path(tempfile.mkdtemp())
    try:
        run = RunFolder.open(parent / folder.write(parent)[0])
        found = list(run.records())
        assert len(found) == len([path for path in (run.path / "records").iterdir() if path.name.endswith(".json")])
        good = [item for item in found if item.record is not None]
        bad = [item for item in found if item.record is None]
        everything, without = merge_records(found), merge_records(good)
        assert everything.table.to_csv() == without.table.to_csv()
        lost = [line for line in everything.problems if "not a record, excluded" in line]
        assert len(lost) == len(bad) and all(any(item.where in line for line in lost) for item in bad)
    finally:
        shutil.rmtree(parent)
