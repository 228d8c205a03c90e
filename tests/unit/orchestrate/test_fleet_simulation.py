"""A fleet of simulated engines behind real sockets: a small one of what `bench_fleet.py` runs with a thousand hosts."""

import json

import pytest

from studies.controller_cost import run_controller
from studies.fleet.bench_fleet import fake_engines, faults_of, write_hosts
from tests.support.engines.processes import short_folder

pytestmark = pytest.mark.slow  # starts programs and waits for them

HOSTS, REPEATS = 20, 3
FEW_FILES = ("sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh")
"""Starts a controller that may open fewer files than its hosts take, unless it asks for more."""


def test_twenty_engines_give_every_record_exactly_once_and_keep_nothing():
    with short_folder("tfb-fleet-") as folder:  # a unix socket's path has at most 107 bytes
        write_hosts(folder, HOSTS, cases=1)
        with fake_engines(folder, HOSTS, seconds=0.3):
            ran = run_controller(folder, launcher=FEW_FILES)
        assert ran.exit_code == 0, (folder / "output.txt").read_text()
        assert faults_of(folder, ran) == []
        (run,) = (folder / "runs").iterdir()
        assert len(list((run / "records").iterdir())) == HOSTS * REPEATS
        assert (run / "results.csv").read_text().count("\n") == HOSTS + 1
        counts = json.loads((folder / "counts.json").read_text())["counts"]
    assert counts["POST images/create"] == HOSTS, "an image is pulled once per host"
    assert counts["DELETE containers/{name}"] == HOSTS * REPEATS
