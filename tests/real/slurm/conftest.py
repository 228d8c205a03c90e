"""What tests on a real Slurm share: a user's folder, and a tfbench that only pretends to train."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.faults.conftest import fake_images as fake_images
from tests.real.ssh.rented import make_fake_project
from tests.support.controller import Runs
from tests.support.engines.slurm import SlurmCluster

MakeRuns = Callable[..., Runs]

MAIN = """\
import os
from tfbench.fake import main
print("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
main()
"""


@pytest.fixture(scope="session")
def fake_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder whose `python -m tfbench` is the fake benchmark."""
    return make_fake_project(tmp_path_factory.mktemp("project"), MAIN)


@pytest.fixture
def make_runs(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[MakeRuns]:
    """Make a user's folder for a behaviour of the fake; what a failed test leaves in the queue goes away."""

    def make(does: str = "work", **behaviour: Any) -> Runs:
        fake = json.dumps({"does": does, **behaviour})
        return Runs(tmp_path, FAKE_BENCHMARK=fake, **slurm_cluster.environment)

    yield make
    slurm_cluster.command("scancel", "--user=root")


def fleet(cluster: SlurmCluster, project: Path, **settings: Any) -> dict[str, Any]:
    """Describe the cluster as a fleet, for `hosts.yml`."""
    slurm = {"container": "none", "shared_folder": str(cluster.shared), "partition": "gpu", "poll_seconds": 0.5}
    return {"slurm": {**slurm, "project": str(project), **settings}}


def left_behind(cluster: SlurmCluster) -> list[Path]:
    """Return what is in the shared folder."""
    return sorted(cluster.shared.iterdir())


def busy_nodes(runs: Runs) -> set[str]:
    """Return the nodes that the newest run was reported to run on."""
    return {event["state"][3:] for event in runs.events("job_state") if event["state"].startswith("on ")}
