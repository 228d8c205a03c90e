"""Any folder of records through every command."""

import contextlib
import os
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.runs.store import RunFolder
from results.table.merge import merge_records
from tests.support.examples import examples
from tests.unit.results.fuzzing import COMMANDS, fault_of, folders, write


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(folders(), st.sampled_from(COMMANDS))
def test_no_folder_of_records_makes_a_command_crash_or_hang(drawn, command):
    files, names = drawn
    with (
        tempfile.TemporaryDirectory() as parent,
        contextlib.chdir(parent),
        mock.patch.dict(os.environ, TFBENCH_RUNS_DIR=parent, TFBENCH_DEBUG="1", COLUMNS="80"),
    ):
        write(files, Path(parent))
        for line in ("export run-1 --by=all", command):
            assert fault_of(*(part.format_map(names) for part in line.split())) == ""


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(folders())
def test_a_bad_record_costs_itself_only_and_is_named(drawn):
    with tempfile.TemporaryDirectory() as parent:
        write(drawn[0], Path(parent))
        found = list(RunFolder.open(Path(parent, "run-1")).records())
        assert len(found) == sum(name.startswith("run-1/") for name in drawn[0])
        bad = [item for item in found if item.record is None]
        everything = merge_records(found)
        without = merge_records(item for item in found if item.record is not None)
        assert everything.table.to_csv() == without.table.to_csv()
        lost = [line for line in everything.problems if "not a record, excluded" in line]
        assert len(lost) == len(bad) and all(any(item.where in line for line in lost) for item in bad)
