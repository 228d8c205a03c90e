"""What really trains on a real Slurm: a cluster of its own, beside that of the other tests."""

import sys
from pathlib import Path

import pytest

from tests.real.slurm.conftest import MakeRuns, fleet, measure_quick_suite
from tests.support import PROJECT
from tests.support.engines.slurm import SlurmCluster

pytestmark = pytest.mark.docker

SMALL = """\
import sys
from tests.real.training.small import small_network
from results.schema.networks import NETWORKS
from tfbench.roofline import peaks
from tfbench.the_program import main

NETWORKS.update({name: small_network(name) for name in NETWORKS})
peaks.MATRIX_SIZES, peaks.COPY_ELEMENTS = (512,), {"CPU": 2**20}
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    """Give a folder whose `python -m tfbench` is the program, with fewer layers in some networks and smaller peaks."""
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
    _, printed = measure_quick_suite(runs, {"lab": {**cluster, "device": "cpu"}}, 840, min_seconds=1)
    assert "resnet152" in printed


@pytest.mark.tensorflow
def test_a_training_step_over_two_nodes_gives_one_record_with_two_ranks(slurm_cluster, make_runs: MakeRuns):
    runs = make_runs()
    case = {"model": "alexnet", "batch_per_gpu": 1, "num_hosts": 2, "num_steps": 2}
    runs.measure({"lab": fleet(slurm_cluster, PROJECT, python=str(Path(sys.executable).absolute()))}, case=case)
    (record,) = runs.records().values()
    assert record.origin is not None and record.origin.host == "n1+n2"
    assert record.measurement is not None and len(record.measurement.ranks) == 2
