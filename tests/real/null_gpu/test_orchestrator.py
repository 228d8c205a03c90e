"""A whole run over two fleets of null GPUs, reached by ssh: nothing that it leaves may pass for a measurement."""

import csv
import io
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.schema import Status
from results.schema.exit_codes import ExitCode
from tests.real.ssh.rented import Rented
from tests.support.controller import Runs
from tests.support.engines.processes import short_folder
from tests.support.engines.servers import skip_without_sshd
from tests.support.null_gpu import SITE, environment, needs_null_gpu

pytestmark = [pytest.mark.slow, needs_null_gpu]

CASE = {"model": "alexnet", "batch_per_gpu": 4, "warmup_steps": 1, "num_steps": 3, "num_gpus": 1}
GPUS = {"a4000": ("NVIDIA RTX A4000", 16117), "a5000": ("NVIDIA RTX A5000", 24256)}
"""Names and MiB."""

WHOLE_RUN_SECONDS = 500.0


def interpreter(path: Path, name: str, memory_mib: int) -> Path:
    """Write what `python:` of a hosts file names: this Python, with null GPUs and TensorFlow's CUDA build."""
    variables = environment(NULLGPU_DEVICES=1, NULLGPU_NAME=name, NULLGPU_MEMORY_MIB=memory_mib)
    named = [f"{key}={value}" for key, value in variables.items() if key.startswith(("NULLGPU_", "LD_LIB", "XLA_"))]
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{SITE}:$PYTHONPATH" exec env {shlex.join(named)} {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Run one case on two hosts, each a fleet with a GPU of its own name."""
    skip_without_sshd()
    runs = Runs(tmp_path_factory.mktemp("user"))
    with short_folder("tfb-null-") as folder, Rented(folder / "host", folder, folder / "home").host as host:
        entries = {
            name: {
                "ssh": f"{host.alias}-{name}",
                "ssh_config": str(host.config_file),
                "python": str(interpreter(folder / name, *gpu)),
            }
            for name, gpu in GPUS.items()
        }
        fleets = {name: {"usd_per_gpu_hour": 0.17, "hosts": {name: entry}} for name, entry in entries.items()}
        flags = (f"--hosts={runs.hosts(fleets, device='gpu')}", "--display=none")
        (runs.folder / "one.yml").write_text(json.dumps({"description": "one case", "repeats": 1, "cases": [CASE]}))
        runs.run("run", *flags, expect=ExitCode.SOME_FAILED, seconds=WHOLE_RUN_SECONDS)
        yield runs


def said(runs: Runs, *command: str) -> str:
    """Return what a command prints that succeeds."""
    done = runs.run(*command)
    assert done.returncode == ExitCode.OK, done.stderr
    return done.stdout


def test_each_host_trains_on_its_own_gpu_and_its_record_is_simulated(runs: Runs):
    records = runs.by_host()
    for name, (gpu, memory_mib) in GPUS.items():
        record = records[name]
        assert (record.status, record.simulated, record.measurement) == (Status.INVALID, True, None)
        assert record.validity is not None and not record.validity.valid
        assert record.environment is not None
        (found,) = record.environment.gpus
        assert found.name == gpu and found.memory_bytes / 2**20 == pytest.approx(memory_mib, rel=0.02)


def test_table_report_and_export_have_no_figure_and_say_why(runs: Runs):
    for command in (("show",), ("export", "--format=markdown")):
        text = said(runs, *command, str(runs.path))
        assert "the GPUs are simulated" in text.replace("\\", ""), command
    exported = said(runs, "export", str(runs.path))
    rows = list(csv.DictReader(io.StringIO(exported)))
    assert [row["fleet"] for row in rows] == list(GPUS)
    for row in rows:
        assert row["status"] == "invalid" and "simulated" in row["cause"]
        assert not any(row[name] for name in row if name.startswith(("samples_per", "ci95", "step_p", "latency")))


def test_recommend_never_takes_them_for_measured(runs: Runs):
    answer = json.loads(
        said(runs, "recommend", "--model=alexnet", "--gpus=A4000,A5000", "--format=json", str(runs.path))
    )
    (found,) = answer["answers"]
    assert found["basis"] == "published"
    assert {option["subject"]: option["basis"] for option in found["options"]} == {
        "RTX A4000": "predicted",
        "RTX A5000": "predicted",
    }
