"""The main job on real engines: two Docker engines as two fleets, one of them through ssh, into one table."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from results.schema import Status
from tests.support import PROJECT
from tests.support.controller import Runs, ours, running
from tests.support.engines.docker import Engines
from tests.support.engines.images import PushedImage
from tests.support.engines.processes import wait_until
from tests.support.engines.servers import Registry, SshHost
from tests.support.session.children import a_core

pytestmark = pytest.mark.docker

LONG = {"model": "alexnet", "batch_per_gpu": 1, "num_steps": 40}
SECONDS = 900


WEIGHT = Path("/sys/fs/cgroup/cpu/docker/cpu.shares")
"""Of all containers together against everything else on the machine (cgroup v1)."""


@contextlib.contextmanager
def containers_first() -> Iterator[None]:
    """Give containers their cores before other tests: all of these together weigh as much as all containers."""
    before = WEIGHT.read_text() if WEIGHT.exists() else ""
    if before:
        WEIGHT.write_text("262144")
    try:
        yield
    finally:
        if before:
            WEIGHT.write_text(before)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_two_engines_give_one_table_in_which_more_cores_are_faster(
    engines: Engines,
    ssh_host: SshHost,
    cpu_image: PushedImage,
    registry: Registry,
    runs: Runs,
    tmp_path_factory: pytest.TempPathFactory,
):
    fleets = {
        "half-a-core": {"cpus": 0.5, "usd_per_gpu_hour": 0.1, "hosts": {"first": {"docker": engines.first.url}}},
        "two-cores": {"hosts": {"second": ssh_host.connection()}},
    }
    case = {"model": "alexnet", "batch_per_gpu": 8, "num_steps": 10}
    images = {"registry": registry.address, "variant": "cpu"}
    # One host after the other: both engines share the two cores of this machine. Four times the cores, so that the
    # faster one stays the faster one when another program takes a core of it.
    with a_core(tmp_path_factory.getbasetemp().parent), containers_first():
        done = runs.measure(fleets, 2, "--max-parallel=1", case=case, seconds=SECONDS, **images)

    records = runs.records()
    assert len(records) == 4
    for record in records.values():
        assert record.status is Status.OK
        assert record.origin is not None and record.origin.image_digest == cpu_image.digest
        assert record.environment is not None
        assert record.environment.cpu_limit == pytest.approx(0.5 if record.origin.fleet == "half-a-core" else 2.0)
        assert record.environment.intra_op_threads == (1 if record.origin.fleet == "half-a-core" else 2)

    table = pd.read_csv(runs.path / "results.csv").set_index("fleet")
    assert list(table["repeats_ok"]) == [2, 2]
    slow, fast = table.loc["half-a-core"], table.loc["two-cores"]
    assert fast["samples_per_second"] > 1.1 * slow["samples_per_second"]

    command = [sys.executable, "-m", "results", "compare", "two-cores", "half-a-core", str(runs.path), "--format=json"]
    compared = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    (case,) = json.loads(compared.stdout)["comparisons"][0]["cases"]
    assert case["ratio"] == pytest.approx(fast["samples_per_second"] / slow["samples_per_second"])
    assert "half-a-core" in done.stdout and "two-cores" in done.stdout
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
