"""What really trains on a real Slurm: a cluster of its own, beside that of the other tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.real.slurm.conftest import MakeRuns, fleet
from tests.support.controller import PROJECT
from tests.support.engines.slurm import SlurmCluster

pytestmark = pytest.mark.docker

SMALL = """\
import sys
from tests.real.training.small import small_network
from tfbench.models import NETWORKS
from tfbench.roofline import peaks
from tfbench.the_program import main

NETWORKS.update({name: small_network(name) for name in NETWORKS})
peaks.MATRIX_SIZES, peaks.COPY_ELEMENTS = (512,), {"CPU": 2**20}
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    """Give a folder whose `python -m tfbench` is the program, with fewer layers in its networks and smaller peaks."""
    folder = tmp_path / "project"
    package = folder / "tfbench"
    package.mkdir(parents=True)
    for path in (PROJECT / "tfbench").iterdir():
        (package / path.name.replace("__main__", "the_program")).symlink_to(path)
    (package / "__main__.py").write_text(SMALL)
    for name in ("results", "tests"):
        (folder / name).symlink_to(PROJECT / name)
    return folder


@pytest.mark.tensorflow
def test_the_quick_suite_runs_on_the_cluster(slurm_cluster: SlurmCluster, make_runs: MakeRuns, small_project: Path):
    runs = make_runs()
    cluster = fleet(slurm_cluster, small_project, python=str(Path(sys.executable).absolute()))
    hosts = runs.hosts({"lab": {**cluster, "device": "cpu"}}, 1)
    quick = YAML(typ="safe").load(PROJECT / "orchestrate" / "suites" / "quick.yml")
    for case in quick["cases"]:  # its networks and settings, for a second, with the smallest images that all take
        case.update(image_size=75, batch_per_gpu=2, warmup_steps=1, num_steps=3, min_seconds=1)
    (runs.folder / "one.yml").write_text(json.dumps(quick))
    done = runs.run("run", f"--hosts={hosts}", "--repeats=1", "--display=plain", seconds=840)
    assert done.returncode == 0, done.stderr
    records = runs.records().values()
    assert {record.case.model for record in records} == {"googlenet", "inception_v3", "resnet50", "resnet152"}
    for record in records:
        assert record.environment is not None and record.environment.tensorflow.startswith("2.")
        assert record.measurement is not None and record.measurement.samples_per_second > 0
        assert record.measurement.parameters_total < 4_000_000, "a network with all its layers"
        assert record.validity is not None and record.validity.valid
        assert record.origin is not None and record.origin.host in ("n1", "n2")
    assert "resnet152" in done.stdout


@pytest.mark.tensorflow
def test_a_training_step_over_two_nodes_gives_one_record_with_two_ranks(
    slurm_cluster: SlurmCluster, make_runs: MakeRuns
):
    runs = make_runs()
    case = {"model": "alexnet", "batch_per_gpu": 1, "image_size": 64, "device": "cpu", "num_hosts": 2}
    hosts = runs.hosts({"lab": fleet(slurm_cluster, PROJECT, python=str(Path(sys.executable).absolute()))}, 1)
    suite = {"repeats": 1, "cases": [case | {"warmup_steps": 1, "num_steps": 2}]}
    (runs.folder / "one.yml").write_text(json.dumps(suite))
    done = runs.run("run", f"--hosts={hosts}", "--display=plain")
    assert done.returncode == 0, done.stderr
    (record,) = runs.records().values()
    assert record.origin is not None and record.origin.host == "n1+n2"
    assert record.measurement is not None and len(record.measurement.ranks) == 2
