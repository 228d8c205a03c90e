"""A fleet on a real Slurm: a controller and two nodes, with jobs that really run."""

import csv
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from results.__main__ import main
from results.schema import Status
from tests.real.faults.conftest import FakeImages
from tests.real.slurm.conftest import MakeRuns, busy_nodes, fleet, left_behind
from tests.real.ssh.rented import Rent
from tests.real.ssh.rented import rent as rent
from tests.support import PROJECT
from tests.support.engines.docker import Engines
from tests.support.engines.processes import wait_until
from tests.support.engines.servers import SshHost
from tests.support.engines.slurm import NODES, SlurmCluster

pytestmark = pytest.mark.docker


def test_a_fleet_of_two_nodes_gives_every_record_and_keeps_nothing(slurm_cluster, make_runs, fake_project: Path):
    runs = make_runs(seconds=1)
    runs.measure({"lab": fleet(slurm_cluster, fake_project)}, 4)
    records = runs.records()
    assert len(records) == 4
    assert {record.status for record in records.values()} == {Status.OK}
    origins = [record.origin for record in records.values() if record.origin]
    assert {(origin.fleet, origin.launcher) for origin in origins} == {("lab", "slurm")}
    assert {origin.host for origin in origins} == {"n1", "n2"}, "the node is named, not the queue"
    assert left_behind(slurm_cluster) == []
    assert slurm_cluster.queue() == []
    assert {"queued", "on n1", "on n2", "timing"} <= set(runs.states())


def test_a_killed_node_is_lost_with_its_repeat_and_resume_completes(slurm_cluster, make_runs, fake_project: Path):
    runs = make_runs(seconds=20)  # so long that the job on n2 still runs when it is seen to run
    with runs.begin({"lab": fleet(slurm_cluster, fake_project)}, 3) as controller:
        wait_until(lambda: busy_nodes(runs) == set(NODES), "a job on each node")
        # Slurm takes back a job that it has sent to a node but that has not begun there.
        wait_until(lambda: runs.states().count("timing") == 2, "both to begin")
        slurm_cluster.kill_node("n2")
        try:
            assert controller.wait(240) == 3
        finally:
            slurm_cluster.start_node("n2")
    lost = [record for record in runs.records().values() if record.status is not Status.OK]
    # One repeat; a second one where Slurm, on a loaded machine, starts it there before it notices.
    assert 1 <= len(lost) <= 2 and {record.status for record in lost} == {Status.LOST}
    assert {record.origin.host for record in lost if record.origin} == {"n2"}
    assert {record.cause for record in lost} == {"node n2 failed while the benchmark ran (NODE_FAIL)"}

    make_runs(seconds=0.5).resume()
    assert [record.status for record in runs.records().values()] == [Status.OK] * 3
    assert len(list((runs.path / "superseded").iterdir())) == len(lost)
    assert left_behind(slurm_cluster) == []


def test_a_dead_controllers_jobs_are_reattached_and_none_comes_twice(slurm_cluster, make_runs, fake_project: Path):
    runs = make_runs(seconds=35)  # beyond 30 s a repeat was once lost where the site writes the comment
    with runs.begin({"lab": fleet(slurm_cluster, fake_project)}, 3) as controller:
        wait_until(lambda: list(runs.folder.glob("runs/*/records/*.json")), "a record")
        controller.kill()
    saved_before = set(runs.records())
    runs.resume()
    records = runs.records()
    assert len(saved_before) < 3, "the controller was killed too late to leave anything to reattach to"
    assert [record.status for record in records.values()] == [Status.OK] * 3
    assert tasks_of(slurm_cluster, runs.path.name) == 3, "every repeat was one task of one array"
    assert "reattached" in runs.states()
    results = Counter(event["job"] for event in runs.events("job_result"))
    # A record is saved before its event is written: the kill may fall between the two.
    assert results.keys() | saved_before == records.keys()
    assert set(results.values()) == {1}
    assert left_behind(slurm_cluster) == []


def test_failures_are_measured_again_while_slurm_still_shows_their_jobs(slurm_cluster, make_runs, fake_project: Path):
    failing = make_runs("exit_code")
    failing.measure({"lab": fleet(slurm_cluster, fake_project)}, 2, expect=3)
    causes = {record.cause for record in failing.records().values()}
    assert causes == {"the benchmark ended with exit code 41 and left no record. Last output: cannot go on"}
    working = make_runs(seconds=0.5)
    working.resume("--again=error")
    assert {record.status for record in working.records().values()} == {Status.OK}
    assert tasks_of(slurm_cluster, working.path.name) == 4, "two arrays of one name"


def test_an_interrupted_run_takes_back_what_waits_and_finishes_what_runs(slurm_cluster, make_runs, fake_project: Path):
    runs = make_runs(seconds=6)
    with runs.begin({"lab": fleet(slurm_cluster, fake_project)}, 5) as controller:
        wait_until(lambda: busy_nodes(runs) == set(NODES), "a job on each node")
        controller.send_signal(signal.SIGINT)
        assert controller.wait(180) == 130
    records = runs.records()
    # Both that ran, and what followed on a node that was through with its first one before the signal came.
    assert 2 <= len(records) < 5
    assert {record.status for record in records.values()} == {Status.OK}
    assert slurm_cluster.queue() == []
    assert left_behind(slurm_cluster) == []

    make_runs(seconds=0.5).resume()
    assert [record.status for record in runs.records().values()] == [Status.OK] * 5


def test_stop_cancels_only_its_own_jobs(slurm_cluster: SlurmCluster, make_runs: MakeRuns, fake_project: Path):
    runs = make_runs("hang")
    slurm_cluster.command("sbatch", "--job-name=external", "--output=/dev/null", "--nodelist=n1", "--wrap=sleep 300")
    with runs.begin({"lab": fleet(slurm_cluster, fake_project)}, 4) as controller:
        wait_until(lambda: busy_nodes(runs) == {"n2"}, "a job next to the external one")
        controller.kill()
    assert set(slurm_cluster.queue()) == {"external", f"tfbench-{runs.path.name}.lab"}
    assert "4 benchmarks ended and removed" in runs.run("stop", expect=0).stderr
    assert slurm_cluster.queue() == ["external"]
    assert left_behind(slurm_cluster) == []


def test_cases_get_the_gpus_they_need_and_arrays_run_one_after_another(slurm_cluster, make_runs, fake_project: Path):
    runs = make_runs(seconds=0.3)
    lab = fleet(slurm_cluster, fake_project, gres="gpu:a4000:2", time_limit_minutes=20)
    other = fleet(slurm_cluster, fake_project, gpus_per_node="a4000:2", time_limit_minutes=20)
    case = {"model": ["googlenet", "resnet50"], "num_gpus": [1, 2, 4], "device": "gpu"}
    runs.measure({"lab": lab, "other": other}, case=case, device="auto")
    seen = {job: (runs.path / "logs" / f"{job}.log").read_text().splitlines()[0] for job in runs.records()}
    assert len(seen) == 8, "four GPUs are more than a node has"
    for job, line in seen.items():
        visible = line.removeprefix("CUDA_VISIBLE_DEVICES ").split(",")
        assert len(visible) == runs.records()[job].case.num_gpus
    for name in ("lab.", "other."):
        reported = [event["job"] for event in runs.events("job_result") if event["job"].startswith(name)]
        assert [runs.records()[job].case.num_gpus for job in reported] == [1, 1, 2, 2]


def test_a_missing_partition_or_gpu_is_reported_before_any_submission(slurm_cluster, make_runs, fake_project: Path):
    runs = make_runs()
    fleets = {
        "elsewhere": fleet(slurm_cluster, fake_project, partition="fast"),
        "rich": fleet(slurm_cluster, fake_project, gres="gpu:h100:8"),
        "nowhere": fleet(slurm_cluster, fake_project, shared_folder="/nowhere/at-all"),
    }
    checked = runs.run("check", f"--hosts={runs.hosts(fleets)}", expect=4)
    assert "Slurm has no partition fast. Partitions: gpu, small" in checked.stdout
    assert "no node offers gres gpu:h100:8. Nodes offer: gpu:a4000:2" in checked.stdout
    assert "shared_folder /nowhere/at-all does not exist" in checked.stdout


def test_commands_go_through_a_login_host_and_nothing_but_ssh(slurm_cluster, make_runs, fake_project: Path, tmp_path):
    login = SshHost(tmp_path, Path("/nowhere"), alias="login")
    far = f"SLURM_CONF={slurm_cluster.environment['SLURM_CONF']} FAKE_BENCHMARK={json.dumps({'seconds': 1})!r}"
    login.config_file.write_text(f"{login.config_file.read_text()}  SetEnv {far}\n")
    runs = make_runs()
    runs.environment["SLURM_CONF"] = "/nowhere"
    python = str(Path(sys.executable).absolute())
    lab = fleet(slurm_cluster, fake_project, ssh="login", ssh_config=str(login.config_file), python=python)
    hosts = runs.hosts({"lab": lab}, 3)
    assert "ssh login" in runs.run("check", f"--hosts={hosts}", expect=4).stdout, "before its sshd runs"
    with login:
        runs.run("run", f"--hosts={hosts}", "--display=plain", expect=0)
    assert {record.status for record in runs.records().values()} == {Status.OK}
    assert left_behind(slurm_cluster) == []


@pytest.mark.tensorflow
@pytest.mark.rare
def test_a_training_step_over_two_nodes_gives_one_record_with_two_ranks(slurm_cluster, make_runs: MakeRuns):
    runs = make_runs()
    case = {"model": "alexnet", "batch_per_gpu": 1, "num_hosts": 2, "num_steps": 2}
    lab = fleet(slurm_cluster, PROJECT, python=str(Path(sys.executable).absolute()))
    runs.measure({"lab": lab}, case=case, seconds=840)
    (record,) = runs.records().values()
    assert record.origin is not None and record.origin.host == "n1+n2"
    assert record.measurement is not None and len(record.measurement.ranks) == 2


@pytest.mark.tensorflow
def test_one_plan_over_all_kinds_of_hosts_gives_one_table(
    slurm_cluster: SlurmCluster,
    make_runs: MakeRuns,
    fake_project: Path,
    engines: Engines,
    fake_images: FakeImages,
    rent: Rent,
    capsys: pytest.CaptureFixture[str],
):
    runs, instance = make_runs(), rent()
    fleets = {
        "rented": {"hosts": {"one": instance.entry(seconds=0.3)}},
        "docked": {"image": fake_images.image(), "hosts": {"second": {"docker": engines.second.url}}},
        "queued": fleet(slurm_cluster, fake_project),
        "here": {"hosts": {"this-machine": {"process": True}}},
    }
    runs.measure(fleets)
    assert {record.status for record in runs.records().values()} == {Status.OK}
    with (runs.path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["fleet"] for row in rows} == {"rented", "docked", "queued", "here"}
    assert {row["launcher"] for row in rows} == {"ssh", "docker", "slurm", "process"}
    assert {row["host"] for row in rows} <= {"one", "second", "this-machine", "n1", "n2"}
    assert sum(int(row["repeats"]) for row in rows) == 4
    assert left_behind(slurm_cluster) == []
    assert main(["results", "compare", "rented", "docked", str(runs.path)]) == 0
    assert "launcher ssh / docker" in " ".join(capsys.readouterr().out.split())


def tasks_of(cluster: SlurmCluster, run_id: str) -> int:
    """Count the tasks that were ever submitted for a run and that Slurm still knows."""
    return len(cluster.queue(f"--name=tfbench-{run_id}.lab", "--array", "--states=all"))
