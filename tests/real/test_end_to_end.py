"""The main job on real engines: two Docker engines as two fleets, one of them through ssh, into one table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results.runs.reading import from_json
from results.schema import Record, Status
from tests.support.engines.docker import DockerEngine, Engines
from tests.support.engines.images import PushedImage
from tests.support.engines.servers import Registry, SshHost
from tests.support.session.children import a_core

pytestmark = pytest.mark.docker

PROJECT = Path(__file__).parents[2]

ALEXNET = "{model: alexnet, batch_per_gpu: %d, image_size: 64, warmup_steps: 2, num_steps: %d, device: cpu}"
SUITE = f"repeats: 2\ncases: [{ALEXNET % (8, 20)}]"
QUICK_SUITE = f"repeats: 1\ncases: [{ALEXNET % (1, 3)}]"
LONG_SUITE = f"repeats: 2\ncases: [{ALEXNET % (1, 40)}]"


def orchestrate(
    folder: Path, *arguments: str, engine: DockerEngine | None = None, module: str = "orchestrate"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=PROJECT,
        env=environment(folder) | ({"DOCKER_HOST": engine.url} if engine else {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def start_run(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a run that goes on next to the test; what it prints for people is in the file `errors`."""
    with (folder / "errors").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrate", "run", "--display=plain", *arguments],
            cwd=PROJECT,
            env=environment(folder),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TFBENCH_RUNS_DIR": str(folder / "runs"), "COLUMNS": "200"}


def write_hosts(folder: Path, fleets: dict[str, dict[str, Any]], suite: str = SUITE, **defaults: Any) -> Path:
    (folder / "small.yml").write_text(suite)
    path = folder / "hosts.yml"
    path.write_text(
        json.dumps({"version": 1, "defaults": {"suite": "small.yml", "device": "cpu", **defaults}, "fleets": fleets})
    )
    return path


def through_ssh(ssh_host: SshHost) -> dict[str, Any]:
    return {
        "docker": f"ssh://{ssh_host.alias}",
        "ssh_config": str(ssh_host.config_file),
        "docker_socket": str(ssh_host.remote_socket),
    }


def records_of(run: Path) -> dict[str, Record]:
    return {path.stem: from_json(path.read_bytes()) for path in sorted((run / "records").glob("*.json"))}


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.2)
    return pytest.fail(f"waited {seconds} s for {what}")


def ours(engine: DockerEngine) -> list[Any]:
    # One that is removed between the SDK's two requests (list, inspect) is not an error of the test.
    return engine.client.containers.list(all=True, filters={"label": "tfbench.run"}, ignore_removed=True)


def running(engine: DockerEngine) -> Any:
    """Wait for a benchmark that runs on an engine, and return its container."""
    return wait_until(lambda: [c for c in ours(engine) if c.status == "running"], "a running benchmark")[0]


def test_two_engines_give_one_table_in_which_more_cores_are_faster(
    engines: Engines,
    ssh_host: SshHost,
    cpu_image: PushedImage,
    registry: Registry,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
):
    hosts = write_hosts(
        tmp_path,
        {
            "half-a-core": {"cpus": 0.5, "usd_per_gpu_hour": 0.1, "hosts": {"first": {"docker": engines.first.url}}},
            "two-cores": {"hosts": {"second": through_ssh(ssh_host)}},
        },
        registry=registry.address,
        variant="cpu",
    )
    # One host after the other: both engines share the two cores of this machine. Four times the cores, so that the
    # faster one stays the faster one when another program takes a core of it.
    with a_core(tmp_path_factory.getbasetemp().parent):
        done = orchestrate(tmp_path, "run", f"--hosts={hosts}", "--max-parallel=1")
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)

    records = records_of(run)
    assert len(records) == 4
    for record in records.values():
        assert record.status is Status.OK
        assert record.origin is not None and record.origin.image_digest == cpu_image.digest
        assert record.environment is not None
        assert record.environment.cpu_limit == pytest.approx(0.5 if record.origin.fleet == "half-a-core" else 2.0)
        assert record.environment.intra_op_threads == (1 if record.origin.fleet == "half-a-core" else 2)

    table = pd.read_csv(run / "results.csv").set_index("fleet")
    assert list(table["repeats_ok"]) == [2, 2]
    slow, fast = table.loc["half-a-core"], table.loc["two-cores"]
    assert fast["samples_per_second"] > 1.1 * slow["samples_per_second"]

    compared = orchestrate(tmp_path, "compare", "two-cores", "half-a-core", str(run), "--format=json", module="results")
    (case,) = json.loads(compared.stdout)["comparisons"][0]["cases"]
    assert case["ratio"] == pytest.approx(fast["samples_per_second"] / slow["samples_per_second"])
    assert "half-a-core" in done.stdout and "two-cores" in done.stdout
    assert ours(engines.first) == [] and ours(engines.second) == [], "containers were left behind"


def test_a_missing_image_and_a_refused_connection_are_rows_and_the_others_finish(
    engines: Engines, ssh_host: SshHost, cpu_image: PushedImage, registry: Registry, tmp_path: Path
):
    hosts = write_hosts(
        tmp_path,
        {
            "good": {"variant": "cpu", "hosts": {"first": {"docker": engines.first.url}}},
            "no-image": {"registry": f"{registry.address}/nothing", "hosts": {"second": through_ssh(ssh_host)}},
            "refused": {
                "hosts": {
                    "closed": {"docker": f"ssh://{ssh_host.user}@127.0.0.1:1"},
                    "gone": {"docker": f"unix://{tmp_path / 'no.sock'}"},
                }
            },
        },
        suite=QUICK_SUITE,
        registry=registry.address,
    )
    done = orchestrate(tmp_path, "run", f"--hosts={hosts}")
    assert done.returncode == 3, done.stderr

    records = {record.origin.host: record for record in records_of(only_run(tmp_path)).values() if record.origin}
    assert {host: record.status for host, record in records.items()} == {
        "first": Status.OK,
        "second": Status.PULL_FAILED,
        "closed": Status.UNREACHABLE,
        "gone": Status.UNREACHABLE,
    }
    assert "nothing/tfbench" in (records["second"].cause or "")
    assert "refused" in (records["closed"].cause or "").lower()
    assert "no such socket" in (records["gone"].cause or "")
    table = pd.read_csv(only_run(tmp_path) / "results.csv").set_index("host")
    assert table.loc["closed", "status"] == "unreachable" and pd.isna(table.loc["closed", "samples_per_second"])
    assert "Traceback" not in done.stderr


def test_a_killed_benchmark_is_a_row_with_a_cause_and_the_next_one_runs(
    engines: Engines, cpu_image: PushedImage, registry: Registry, tmp_path: Path
):
    fleet = {"variant": "cpu", "hosts": {"second": {"docker": engines.second.url}}}
    hosts = write_hosts(tmp_path, {"killed": fleet}, suite=LONG_SUITE, registry=registry.address)
    with start_run(tmp_path, f"--hosts={hosts}") as controller:
        running(engines.second).kill()
    errors = (tmp_path / "errors").read_text()
    assert controller.returncode == 3 and "Traceback" not in errors, errors
    killed, next_one = sorted(records_of(only_run(tmp_path)).values(), key=lambda record: record.started_at)
    assert (killed.status, next_one.status) == (Status.ERROR, Status.OK) and "SIGKILL" in (killed.cause or "")


def test_stop_and_two_interrupts_end_only_what_belongs_to_the_run(
    engines: Engines, cpu_image: PushedImage, registry: Registry, tmp_path: Path
):
    fleet = {"variant": "cpu", "hosts": {"first": {"docker": engines.first.url}}}
    hosts = write_hosts(tmp_path, {"here": fleet}, suite=LONG_SUITE, registry=registry.address)
    stranger = engines.first.client.containers.create(cpu_image.reference, labels={"tfbench.run": "someone-elses"})
    try:
        with start_run(tmp_path, f"--hosts={hosts}", "--run-id=mine") as controller:
            running(engines.first)
            controller.send_signal(signal.SIGINT)  # starts nothing more
            # The second before the first was handled would be one signal.
            wait_until(lambda: "no new repeats" in (tmp_path / "errors").read_text(), "the first answer")
            controller.send_signal(signal.SIGINT)  # ends what runs
        assert controller.returncode == 130
        stopped = orchestrate(tmp_path, "stop", "mine")
        assert stopped.returncode == 0, stopped.stderr
        assert [container.id for container in ours(engines.first)] == [stranger.id]
    finally:
        stranger.remove(force=True)
