"""Two rented instances without Docker and a host with an engine: one run makes one table."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.__main__ import main
from results.schema import Status
from results.schema.version import __version__
from tests.real.faults.conftest import Standins
from tests.real.faults.controller import Runs
from tests.real.ssh.rented import Rented, make_pretender
from tests.support.engines.docker import Engines
from tests.support.engines.required import skip_without

pytestmark = pytest.mark.docker


@pytest.fixture
def instances() -> Iterator[tuple[Rented, Rented]]:
    """Make two instances."""
    skip_without("a mount namespace", lambda: None if os.geteuid() == 0 else "it needs root")
    folder = Path(tempfile.mkdtemp(prefix="tfb-rented-"))
    pretender = make_pretender(folder / "pretender")
    made = [Rented(folder / name, pretender, folder / name / "home") for name in ("python", "image")]
    yield made[0], made[1]
    for instance in made:
        instance.host.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_one_run_on_instances_and_an_engine_makes_one_table(
    engines: Engines,
    standins: Standins,
    runs: Runs,
    instances: tuple[Rented, Rented],
    capsys: pytest.CaptureFixture[str],
):
    bare, ours = instances
    python = bare.entry(seconds=0.3)
    fleets = {
        "rented": {"hosts": {"python": python, "ours": ours.image_entry(seconds=0.3)}},
        "own": {"hosts": {"engine": {"docker": engines.first.url, "image": standins.image(seconds=0.3)}}},
    }
    for instance in instances:
        instance.host.start()
    hosts = runs.hosts(fleets, repeats=2)
    checked = runs.run("check", f"--hosts={hosts}")
    assert checked.returncode == 0, checked.stdout
    assert "ssh rented-0" in checked.stdout and f"unix://{engines.first.socket}" in checked.stdout
    assert f"rented.python: {python['python']}, with the TensorFlow that it has" in checked.stdout
    assert f"rented.ours: tfbench:{__version__}-cpu: the instance's own image" in checked.stdout

    done = runs.run("run", f"--hosts={hosts}", "--display=plain")
    assert done.returncode == 0, done.stderr
    records = runs.records().values()
    assert [record.status for record in records] == [Status.OK] * 6
    assert {(record.origin.host, record.origin.launcher) for record in records if record.origin} == {
        ("python", "ssh"),
        ("ours", "ssh"),
        ("engine", "docker"),
    }
    assert "not in containers, on rented.python, rented.ours" in done.stderr
    rows = [line for line in (runs.path / "results.csv").read_text().splitlines() if ",ok," in line]
    assert len(rows) == 3
    assert main(["results", "compare", "rented", "own", str(runs.path)]) == 0
    assert "launcher ssh / docker" in " ".join(capsys.readouterr().out.split())
