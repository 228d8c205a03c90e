"""`python -m orchestrate` on a fleet behind an API server, as its users call it."""

from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from results.schema import Status
from tests.support.controller import Runs
from tests.support.engines.kubernetes import plays
from tests.support.engines.kubernetes.fake_server import SCHEMA, Object
from tests.support.engines.processes import wait_until
from tests.unit.kubernetes.conftest import IMAGE

pytestmark = pytest.mark.slow  # starts programs and waits for them


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Give a user's folder, beside the cluster's."""
    folder = tmp_path / "user"
    folder.mkdir()
    return Runs(folder)


def fleets(kubeconfig: Path | None, context: str = "bench") -> dict:
    settings = {"context": context, "max_jobs": 2, **({"kubeconfig": str(kubeconfig)} if kubeconfig else {})}
    return {"cloud": {"image": IMAGE, "device": "cpu", "kubernetes": settings}}


def test_plan_shows_the_manifests_that_run_creates_and_creates_none(bench, runs: Runs):
    created: list[Object] = []
    one = bench(lambda server, job: (created.append(job), plays.work(server, job)))
    hosts = str(runs.hosts(fleets(one.kubeconfig), repeats=2))
    planned = runs.run("plan", "--hosts", hosts, "--show-manifests")
    assert planned.returncode == 0, planned.stderr
    assert not one.asked("POST", "")
    head, _, yaml = planned.stdout.partition("# fleet cloud\n")
    assert "cloud" in head
    shown = [item for item in YAML(typ="safe", pure=True).load_all(yaml) if item is not None]
    for item in shown:
        kubernetes_validate.validate(item, SCHEMA, strict=True)
    assert [item["kind"] for item in shown] == ["Job", "Job"]
    assert runs.run("run", "--hosts", hosts).returncode == 0
    assert len(created) == 2
    planned, ran = shown[0]["spec"], created[0]["spec"]
    assert planned.pop("template")["spec"]["containers"] == ran.pop("template")["spec"]["containers"]
    assert planned == ran


def test_run_measures_where_the_variable_kubeconfig_leads(bench, runs: Runs):
    one = bench()  # its file's current context leads nowhere
    runs.environment["KUBECONFIG"] = str(one.kubeconfig)
    done = runs.run("run", "--hosts", str(runs.hosts(fleets(None), repeats=2)))
    assert done.returncode == 0 and "googlenet" in done.stdout, done.stderr
    records = runs.records().values()
    assert [(record.status, record.origin.launcher) for record in records] == [(Status.OK, "kubernetes")] * 2
    assert len(one.asked("POST", "/jobs")) == 2
    wait_until(lambda: not one.server.all("jobs"), "the Jobs to go")


@pytest.mark.parametrize("context", ["nowhere", "elsewhere"])
def test_a_cluster_that_cannot_be_reached_is_no_usable_host(bench, runs: Runs, context):
    one = bench()
    done = runs.run("run", "--hosts", str(runs.hosts(fleets(one.kubeconfig, context=context))))
    assert done.returncode == 4
    assert "cloud" in done.stderr and "Traceback" not in done.stderr
    assert ("kubectl config get-contexts" if context == "nowhere" else "127.0.0.1:9 does not answer") in done.stderr


def test_without_the_client_check_names_the_package_to_install(bench, runs: Runs, tmp_path: Path):
    (tmp_path / "kubernetes.py").write_text("raise ModuleNotFoundError(\"No module named 'kubernetes'\")\n")
    runs.environment["PYTHONPATH"] = f"{tmp_path}:{runs.environment.get('PYTHONPATH', '')}"
    done = runs.run("check", "--hosts", str(runs.hosts(fleets(bench().kubeconfig), repeats=2)))
    assert done.returncode == 2 and "pip install 'tfbench[kubernetes]'" in done.stderr
    assert "Traceback" not in done.stderr
