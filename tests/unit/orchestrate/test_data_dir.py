"""A data set of a host's own: named in `hosts.yml`, given to the benchmark read-only, and only where it needs one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrate.errors import DocumentError, UserError
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.launchers.container import container_document, job_container
from orchestrate.launchers.ssh.launcher import ProcessLauncher
from orchestrate.planning.codec import plan_from_json, plan_to_json
from orchestrate.planning.plan import Job, make_plan
from orchestrate.suites import read_suite
from results.schema import Case, Data, Device
from tests.unit.orchestrate.fakes import make_job

PROCESS = Host(fleet="f", name="h", docker=None, data_dir="/sets/imagenet")
SUITE = "cases:\n  - {model: resnet50, batch_per_gpu: 8, data: [synthetic, tfrecord]}\n"


def job(data: Data) -> Job:
    return make_job(Case(model="resnet50", device=Device.CPU, data=data))


def test_a_container_reads_it_at_a_place_of_its_own_and_cannot_write_it():
    document = container_document(job_container(job(Data.TFRECORD), PROCESS, "image"))
    assert document["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": "/sets/imagenet", "Target": "/data", "ReadOnly": True}
    ]
    assert "--data_dir=/data" in document["Cmd"]
    document = container_document(job_container(job(Data.SYNTHETIC), PROCESS, "image"))
    assert "Mounts" not in document["HostConfig"]
    assert not [flag for flag in document["Cmd"] if flag.startswith("--data_dir")]


@pytest.mark.parametrize(("data", "said"), [(Data.TFRECORD, ["--data_dir=/sets/imagenet"]), (Data.SYNTHETIC, [])])
def test_a_process_is_told_the_path_itself(tmp_path: Path, data: Data, said: list[str]):
    program = "import sys; print([flag for flag in sys.argv if flag.startswith('--data_dir')])"
    launcher = ProcessLauncher(PROCESS, tmp_path, [sys.executable, "-c", program])
    launcher.start(job(data))
    lines: list[str] = []
    assert launcher.follow(job(data), lines.append).exit_code == 0
    assert lines == [repr(said)]
    launcher.remove(job(data))


@pytest.mark.parametrize(
    ("fleet", "missing"),
    [
        ("data_dir: /sets/imagenet\n    slurm: {container: none, shared_folder: /home/bench}", None),
        ("slurm: {container: none, shared_folder: /home/bench}", "hosts.yml names no data_dir for the host"),
        ("image: tfbench:x\n    kubernetes: {data_claim: imagenet}", None),
        ("image: tfbench:x\n    kubernetes: {}", "hosts.yml names no data_claim for the cluster"),
        ("hosts: {h: {process: true, data_dir: /sets/imagenet}}", None),
        ("hosts: {h: {process: true}}", "hosts.yml names no data_dir for the host"),
    ],
)
def test_a_host_or_queue_without_data_excludes_its_cases(tmp_path: Path, fleet: str, missing: str | None):
    (tmp_path / "my.yml").write_text(SUITE)
    path = tmp_path / "hosts.yml"
    path.write_text(f"version: 1\ndefaults: {{suite: my.yml}}\nfleets:\n  f:\n    {fleet}\n")
    hosts = read_hosts(path)
    plan = make_plan(hosts, {host.place: "not asked" for host in hosts}, read_suite, run_id="r", seed=1)
    seen = {job.case.data for job in plan.jobs}
    assert seen == ({Data.SYNTHETIC} if missing else {Data.SYNTHETIC, Data.TFRECORD})
    assert [text.partition(": ")[2] for text in plan.hosts[0].excluded] == ([missing] if missing else [])
    assert plan_from_json(plan_to_json(plan)).hosts[0].host.data_dir == hosts[0].data_dir


def test_an_empty_plan_says_what_was_left_out_and_why(tmp_path: Path):
    hosts = [host for number in range(25) for host in read_hosts(hosts_file(tmp_path, "", f"h{number}"))]
    (tmp_path / "my.yml").write_text("cases: [{model: resnet50, data: tfrecord, batch_per_gpu: 1, device: cpu}]")
    with pytest.raises(UserError) as caught:
        make_plan(hosts, {host.place: "not asked" for host in hosts}, read_suite, run_id="r", seed=1)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the plan is empty: no case of the suite fits any host"
    assert lines[1] == "  f.h0: resnet50-fp32-b1-1cpu-tfrecord-w10s100: hosts.yml names no data_dir for the host"
    assert len(lines) == 22 and lines[-1] == "  and 5 more"


def hosts_file(folder: Path, data_dir: str, name: str = "h") -> Path:
    (folder / "my.yml").write_text(SUITE)
    path = folder / "hosts.yml"
    path.write_text(
        f"version: 1\ndefaults: {{suite: my.yml}}\nfleets:\n  f:\n    hosts:\n      {name}:\n        process: true\n{data_dir}"
    )
    return path


@pytest.mark.parametrize("path", ["sets/imagenet", "/sets:/etc", "'/sets,readonly=false'", "[/a]"])
def test_what_is_no_absolute_path_is_refused_with_its_line(tmp_path: Path, path: str):
    with pytest.raises(DocumentError, match=r"hosts\.yml:8: .*data_dir must be the absolute path"):
        read_hosts(hosts_file(tmp_path, f"        data_dir: {path}\n"))
