"""The command line as a user meets it: subprocesses, exit codes, stdout and stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
HERE = "version: 1\ndefaults: {suite: quick}\nfleets: {here: {hosts: {this-machine: {process: true}}}}\n"


def command(folder: Path, *arguments: str, module: str = "orchestrate") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=PROJECT,
        env={**os.environ, "TFBENCH_RUNS_DIR": str(folder / "runs"), "TFBENCH_HOSTS": str(folder / "hosts.yml")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.parametrize("arguments", [("runn",), ("run", "--repeats=0"), ("plan", "--nonsense"), ()])
def test_bad_flags_end_with_exit_code_2(tmp_path: Path, arguments: tuple[str, ...]):
    done = command(tmp_path, *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.slow
def test_a_bad_hosts_file_ends_with_exit_code_2_and_no_traceback(tmp_path: Path):
    (tmp_path / "hosts.yml").write_text("version: 1\nfleets: {f: {hosts: {h: {proces: true}}}}\n")
    done = command(tmp_path, "run")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("hosts.yml:2: host h: unknown key 'proces'. Did you mean 'process'?")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_plan_shows_what_would_run_and_writes_nothing(tmp_path: Path):
    (tmp_path / "hosts.yml").write_text(HERE)
    refused = command(tmp_path, "plan", "--limit=that-machine")
    assert refused.returncode == 2 and "no fleet or host is named that-machine. Names: here, this-" in refused.stderr
    done = command(tmp_path, "plan", "--limit=this-machine")
    assert done.returncode == 0
    assert "resnet152-fp32-b4-1cpu-w3s10-min15s" in done.stdout and "12 repeats on 1 host," in done.stdout
    assert not (tmp_path / "runs").exists()
    planned = json.loads(command(tmp_path, "plan", "--format=json", "--repeats=5").stdout)
    assert len(planned["hosts"][0]["jobs"]) == 20


@pytest.mark.slow
def test_a_priced_host_without_a_gpu_is_refused_unless_its_cpu_is_meant(tmp_path: Path):
    fleet = "fleets: {here: {usd_per_gpu_hour: 0.17, hosts: {this-machine: {process: true}}}}\n"
    (tmp_path / "hosts.yml").write_text(f"version: 1\ndefaults: {{suite: quick}}\n{fleet}")
    for name in ("plan", "run"):
        done = command(tmp_path, name)
        assert done.returncode == 4 and "estimate:" not in done.stdout + done.stderr
        assert "here.this-machine: the case needs 1 GPU, the host offers 0; it has a price" in done.stderr
    assert not (tmp_path / "runs").exists()
    (tmp_path / "hosts.yml").write_text(f"version: 1\ndefaults: {{suite: quick, device: cpu}}\n{fleet}")
    assert command(tmp_path, "plan").returncode == 0
