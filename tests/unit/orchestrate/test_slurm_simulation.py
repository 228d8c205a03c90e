"""A run whose repeats wait in a simulated Slurm takes back those that nobody needs any more."""

import json
from pathlib import Path

import pytest

from results.runs.store import RunFolder, latest_run
from studies.bench_queues import prepare_slurm
from studies.controller_cost import run_controller


@pytest.mark.slow
def test_repeats_of_decided_cases_are_taken_out_of_slurms_queue(tmp_path: Path):
    environment = prepare_slurm(tmp_path, 40, 4, seconds=0.3, poll_seconds=0.2)
    hosts = tmp_path / "hosts.yml"
    document = json.loads(hosts.read_text())
    document["fleets"]["other"] = document["fleets"]["cluster"]
    hosts.write_text(json.dumps(document))
    ran = run_controller(tmp_path, environment, "--stop-early=2%")
    output = (tmp_path / "output.txt").read_text()
    assert ran.exit_code == 0, output
    records = list(RunFolder.open(latest_run(tmp_path / "runs")).records())
    assert 16 <= len(records) < 80 and f"{len(records)} ok, 0 failed, {80 - len(records)} skipped" in output
    assert "cluster / other is known to ± 0.0%" in output
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("sbatch") == 2 and "scancel" in calls
    assert not list((tmp_path / "shared").iterdir()), "nothing is left behind"
