"""What tests on a real Slurm share: a user's folder, and a tfbench that only pretends to train."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from results.schema import Record
from tests.real.faults.conftest import fake_images as fake_images
from tests.real.ssh.rented import make_fake_project
from tests.support import PROJECT
from tests.support.controller import Runs
from tests.support.engines.slurm import NODES, SlurmCluster

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


def measure_quick_suite(runs: Runs, fleets: dict[str, Any], seconds: float, **changes: Any) -> tuple[list[Record], str]:
    """Measure the networks and settings of the quick suite, with the smallest images that all of them take.

    Args:
        runs: The user's folder.
        fleets: On the cluster.
        seconds: For the whole run.
        changes: More settings of its cases.

    Returns:
        Its records, which are valid, and what the run printed.
    """
    quick = YAML(typ="safe").load(PROJECT / "orchestrate" / "suites" / "quick.yml")
    for case in quick["cases"]:
        case.update(image_size=75, batch_per_gpu=2, warmup_steps=1, num_steps=3, **changes)
    hosts = runs.hosts(fleets)
    (runs.folder / "one.yml").write_text(json.dumps(quick))
    done = runs.run("run", f"--hosts={hosts}", "--repeats=1", "--display=plain", expect=0, seconds=seconds)
    records = list(runs.records().values())
    assert {record.case.model for record in records} == {"googlenet", "inception_v3", "resnet50", "resnet152"}
    for record in records:
        assert record.environment is not None and record.environment.tensorflow.startswith("2.")
        assert record.measurement is not None and record.measurement.samples_per_second > 0
        assert record.validity is not None and record.validity.valid
        assert record.origin is not None and record.origin.host in NODES
    return records, done.stdout


def left_behind(cluster: SlurmCluster) -> list[Path]:
    """Return what is in the shared folder."""
    return sorted(cluster.shared.iterdir())


def busy_nodes(runs: Runs) -> set[str]:
    """Return the nodes that the newest run was reported to run on."""
    return {event["state"][3:] for event in runs.events("job_state") if event["state"].startswith("on ")}
