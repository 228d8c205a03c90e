"""The main job on real engines: two Docker engines as two fleets, into one table, and one case over both."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from results.schema import Status
from tests.support import PROJECT
from tests.support.controller import Runs, ours, running
from tests.support.engines.docker import Engines
from tests.support.engines.processes import free_port, wait_until

pytestmark = pytest.mark.docker

LONG = {"model": "alexnet", "batch_per_gpu": 1, "num_steps": 40}
SECONDS = 900


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_two_engines_one_of_them_through_ssh_give_one_table(
    engines: Engines, ssh_host, cpu_image, registry, runs: Runs
):
    fleets = {
        "one-core": {"cpus": 1, "usd_per_gpu_hour": 0.1, "hosts": {"first": {"docker": engines.first.url}}},
        "all-cores": {"hosts": {"second": ssh_host.connection()}},
    }
    done = runs.measure(fleets, registry=registry.address, variant="cpu", seconds=SECONDS)
    records = runs.records()
    assert len(records) == 2
    for record in records.values():
        assert record.status is Status.OK
        assert record.origin is not None and record.origin.image_digest == cpu_image.digest
        assert record.environment is not None
        one = record.origin.fleet == "one-core"
        assert record.environment.cpu_limit == pytest.approx(1 if one else len(os.sched_getaffinity(0)))
        assert record.environment.intra_op_threads == 1 or not one

    table = pd.read_csv(runs.path / "results.csv").set_index("fleet")
    assert list(table["repeats_ok"]) == [1, 1]
    command = [sys.executable, "-m", "results", "compare", "all-cores", "one-core", str(runs.path), "--format=json"]
    compared = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    (case,) = json.loads(compared.stdout)["comparisons"][0]["cases"]
    speed = table["samples_per_second"]
    assert case["ratio"] == pytest.approx(speed["all-cores"] / speed["one-core"])
    assert "one-core" in done.stdout and "all-cores" in done.stdout
    assert ours(engines.first) == [] and ours(engines.second) == [], "containers were left behind"


def test_a_missing_image_and_a_refused_connection_are_rows(engines: Engines, ssh_host, cpu_image, registry, runs: Runs):
    refused = {
        "closed": {"docker": f"ssh://{ssh_host.user}@127.0.0.1:1"},
        "gone": {"docker": f"unix://{runs.folder / 'no.sock'}"},
    }
    fleets = {
        "good": {"variant": "cpu", "hosts": {"first": {"docker": engines.first.url}}},
        "no-image": {"registry": f"{registry.address}/nothing", "hosts": {"second": ssh_host.connection()}},
        "refused": {"hosts": refused},
    }
    done = runs.measure(fleets, registry=registry.address, expect=3, seconds=SECONDS)
    assert "Traceback" not in done.stderr

    records = runs.by_host()
    assert {host: record.status for host, record in records.items()} == {
        "first": Status.OK,
        "second": Status.PULL_FAILED,
        "closed": Status.UNREACHABLE,
        "gone": Status.UNREACHABLE,
    }
    assert "nothing/tfbench" in (records["second"].cause or "")
    assert "refused" in (records["closed"].cause or "").lower()
    assert "no such socket" in (records["gone"].cause or "")
    table = pd.read_csv(runs.path / "results.csv").set_index("host")
    assert table.loc["closed", "status"] == "unreachable" and pd.isna(table.loc["closed", "samples_per_second"])


def test_a_killed_benchmark_is_a_row_with_a_cause_and_the_next_one_runs(engines, cpu_image, registry, runs: Runs):
    fleet = {"variant": "cpu", "hosts": {"second": {"docker": engines.second.url}}}
    with runs.begin({"killed": fleet}, repeats=2, case=LONG, registry=registry.address) as controller:
        wait_until(lambda: running(engines.second), "a running benchmark")[0].kill()
    assert controller.returncode == 3 and "Traceback" not in runs.stderr, runs.stderr
    killed, next_one = sorted(runs.records().values(), key=lambda record: record.started_at)
    assert (killed.status, next_one.status) == (Status.ERROR, Status.OK) and "SIGKILL" in (killed.cause or "")


def test_stop_and_two_interrupts_end_only_what_belongs_to_the_run(engines: Engines, cpu_image, registry, runs: Runs):
    fleet = {"variant": "cpu", "hosts": {"first": {"docker": engines.first.url}}}
    hosts = runs.hosts({"here": fleet}, repeats=2, case=LONG, registry=registry.address)
    stranger = engines.first.client.containers.create(cpu_image.reference, labels={"tfbench.run": "someone-elses"})
    try:
        with runs.start("run", f"--hosts={hosts}", "--run-id=mine", "--display=plain") as controller:
            wait_until(lambda: running(engines.first), "a running benchmark")
            controller.send_signal(signal.SIGINT)  # starts nothing more
            # The second before the first was handled would be one signal.
            wait_until(lambda: "no new repeats" in runs.stderr, "the first answer")
            controller.send_signal(signal.SIGINT)  # ends what runs
        assert controller.returncode == 130
        runs.run("stop", "mine", expect=0)
        assert [container.id for container in ours(engines.first)] == [stranger.id]
    finally:
        stranger.remove(force=True)


def test_two_engines_train_one_case_together_and_give_one_record(engines: Engines, cpu_image, registry, runs: Runs):
    addresses = {"first": engines.first.url, "second": engines.second.url}
    hosts = {name: {"docker": url, "address": "127.0.0.1"} for name, url in addresses.items()}
    # These engines have no bridge: their containers share this machine's network.
    fleet = {"hosts": hosts, "network": "host", "cluster_port": free_port(2)}
    case = {"model": "alexnet", "warmup_steps": 2, "num_steps": 6, "num_hosts": 2, "communication": "ring"}
    runs.measure({"pair": fleet}, case=case, registry=registry.address, variant="cpu", seconds=SECONDS)
    (record,) = runs.records().values()
    assert record.status is Status.OK
    assert record.origin is not None and record.validity is not None and record.measurement is not None
    assert (record.origin.fleet, record.origin.host) == ("pair", "first+second")
    checks = {check.name: check for check in record.validity.checks}
    assert checks["ranks_equal"].passed and checks["ranks_equal"].value == 0.0
    assert checks["update_equals_one_device"].passed and checks["loss_equals_one_device"].passed
    measured = record.measurement
    assert [(rank.rank, rank.host, rank.samples) for rank in measured.ranks] == [(0, "first", 12), (1, "second", 12)]
    assert measured.samples_per_second == pytest.approx(24 / max(rank.seconds for rank in measured.ranks))
    assert measured.all_reduce_bytes_per_second is not None and measured.all_reduce_bytes_per_second > 0

    (row,) = pd.read_csv(runs.path / "results.csv").to_dict("records")
    assert (row["host"], row["global_batch"], row["status"]) == ("first+second", 4, "ok")
    assert row["samples_per_second"] == pytest.approx(measured.samples_per_second)
    assert ours(engines.first) == [] and ours(engines.second) == [], "containers were left behind"
