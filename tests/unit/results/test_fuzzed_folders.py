"""Any folder of records through every command."""

import contextlib
import os
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
