"""A whole run on this machine without Docker, as `make run` starts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.orchestrate.test_commands import HERE, command


@pytest.mark.tensorflow
def test_a_run_in_a_pipe_prints_lines_and_ends_with_a_table(tmp_path: Path):
    (tmp_path / "my.yml").write_text(
        "repeats: 1\ncases: [{model: alexnet, batch_per_gpu: 2, image_size: 64, num_gpus: [1, 2], warmup_steps: 1, num_steps: 4, device: cpu}]\n"
    )
    (tmp_path / "hosts.yml").write_text(HERE.replace("quick", "my.yml"))
    done = command(tmp_path, "run", "--run-id=first")
    assert done.returncode == 0, done.stderr
    assert "2/2 run first: 2 ok, 0 failed" in done.stderr
    assert "alexnet" in done.stdout and "2 CPU" in done.stdout
    run = tmp_path / "runs" / "first"
    assert {path.name for path in run.iterdir()} >= {
        "plan.json",
        "events.jsonl",
        "records",
        "logs",
        "results.csv",
        "report.html",
    }
    assert "<html" in (run / "report.html").read_text()
    record = json.loads(next((run / "records").glob("*2cpu*")).read_text())
    assert (record["measurement"]["replicas"], record["measurement"]["global_batch"]) == (2, 4)
    assert not any((run / "work").iterdir())

    assert command(tmp_path, "resume", "first").returncode == 0, "nothing is missing"
    assert "2/2" in command(tmp_path, "status").stdout
    again = command(tmp_path, "run", "--run-id=first")
    assert again.returncode == 2 and "first" in again.stderr and "Traceback" not in again.stderr
