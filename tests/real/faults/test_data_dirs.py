"""A host's data set in a real engine: mounted read-only where it is, and a clear cause where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from results.schema import Status
from tests.real.faults.conftest import Standins
from tests.real.faults.controller import CASE, Runs, ours, wait_until
from tests.support.engines.docker import Engines


def hosts_file(runs: Runs, standins: Standins, engines: Engines, data_dir: Path) -> Path:
    host: dict[str, Any] = {"docker": engines.first.url, "data_dir": str(data_dir)}
    path = runs.hosts({"all": {"hosts": {"one": host}}}, image=standins.image(seconds=2))
    suite = {"description": "real input", "repeats": 1, "cases": [{**CASE, "data": "tfrecord"}]}
    (runs.folder / "one.yml").write_text(json.dumps(suite))
    return path


def test_a_container_gets_the_hosts_data_read_only(runs: Runs, engines: Engines, standins: Standins, tmp_path: Path):
    hosts = hosts_file(runs, standins, engines, tmp_path)
    with runs.start("run", f"--hosts={hosts}", "--display=none") as controller:
        try:
            (benchmark,) = wait_until(lambda: ours(engines.first), "a benchmark")
            reported = benchmark.attrs
            assert controller.wait(180) == 0, (runs.folder / "stderr").read_text()
        finally:
            controller.kill()
    mounts = {mount["Destination"]: mount for mount in reported["Mounts"]}
    assert set(mounts) == {"/out", "/data"}
    data = mounts["/data"]
    assert (data["Type"], data["Source"], data["RW"]) == ("bind", str(tmp_path), False)
    assert "--data_dir=/data" in reported["Config"]["Cmd"]
    assert ours(engines.first) == []


def test_a_folder_that_the_host_lacks_is_bad_input_with_the_remedy(
    runs: Runs, engines: Engines, standins: Standins, tmp_path: Path
):
    hosts = hosts_file(runs, standins, engines, tmp_path / "nowhere")
    done = runs.run("run", f"--hosts={hosts}", "--display=plain")
    assert done.returncode == 3, done.stderr
    record = runs.by_host()["one"]
    assert record.status is Status.BAD_INPUT, record.cause
    assert "Correct data_dir in hosts.yml" in (record.cause or "")
    assert not (tmp_path / "nowhere").exists(), "an engine must not make it"
    assert ours(engines.first) == []
