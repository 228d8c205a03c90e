"""A whole run on this machine without Docker, as `make run` starts it."""

import json
from pathlib import Path

import pytest

from tests.unit.test_cli import HERE, tfbench


@pytest.mark.tensorflow
def test_a_run_in_a_pipe_prints_lines_and_ends_with_a_table(tmp_path: Path):
    (tmp_path / "my.yml").write_text(
        "repeats: 1\ncases: [{model: alexnet, batch_per_gpu: 2, image_size: 64, num_gpus: [1, 2], warmup_steps: 1, num_steps: 4, device: cpu}]\n"
    )
    (tmp_path / "hosts.yml").write_text(HERE.replace("quick", "my.yml"))
    done = tfbench("run", "--run-id=first", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2/2 run first: 2 ok, 0 failed" in done.stderr
    assert "alexnet" in done.stdout and "2 CPU" in done.stdout
    run = tmp_path / "runs" / "first"
    files = {"plan.json", "events.jsonl", "records", "logs", "results.csv", "report.html"}
    assert {path.name for path in run.iterdir()} >= files
    assert "<html" in (run / "report.html").read_text()
    record = json.loads(next((run / "records").glob("*2cpu*")).read_text())
    assert (record["measurement"]["replicas"], record["measurement"]["global_batch"]) == (2, 4)
    assert not any((run / "work").iterdir())

    assert tfbench("resume", "first", folder=tmp_path).returncode == 0, "nothing is missing"
    assert "2/2" in tfbench("status", folder=tmp_path).stdout
    again = tfbench("run", "--run-id=first", folder=tmp_path)
    assert again.returncode == 2 and "first" in again.stderr and "Traceback" not in again.stderr
