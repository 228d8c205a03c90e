"""What a user does, on every engine of the matrix: `make test-engines`. Each test is a row, each engine a column.

A test's docstring is its row in docs/images.md, and why it is skipped is a cell there.
"""

import contextlib
import io
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchestrate.engines.docker.engine import SENT_REPOSITORY
from orchestrate.engines.invocation import container
from results.schema import Status
from tests.real.engines.matrix.conftest import Home, Target
from tests.support.controller import Runs, ours, running
from tests.support.engines.processes import wait_until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.environ.get("TFBENCH_TEST_MATRIX") != "1", reason="opt-in: make test-engines"),
]

HARDENING = """
import os, pathlib
status = dict(line.split(":\\t") for line in pathlib.Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
try:
    pathlib.Path("/opt/new").write_text("x")
    root = "writable"
except OSError as error:
    root = error.strerror
print(os.getuid(), status["CapEff"].strip(), status["NoNewPrivs"].strip(), status["Seccomp"].strip(), root,
      ",".join(sorted(os.listdir("/sys/class/net"))), sep="|")
"""


def fleet_of(target: Target, image: str, **settings: object) -> dict[str, dict[str, Any]]:
    """Return the engine as a fleet."""
    return {"here": {"image": image, "hosts": {"one": {"docker": target.engine.url}}, **settings}}


def test_check(target: Target, home: Home, runs: Runs):
    """check"""
    hosts = runs.hosts(fleet_of(target, f"{target.registry}/{home.pushed}"))
    done = runs.run("check", f"--hosts={hosts}", expect=0)
    assert ("podman 5." if target.kind.podman else "docker 2") in done.stdout and "unusable" not in done.stdout


def test_check_says_that_it_has_no_gpus(target: Target, home: Home, runs: Runs):
    """a host without GPUs gets a warning"""
    if target.has_gpus:
        pytest.skip("has GPUs in this test")
    fleet = fleet_of(target, home.image, image_source="transfer")
    done = runs.run("check", f"--hosts={runs.hosts(fleet, device='auto')}")
    assert "its engine cannot give GPUs to containers" in done.stdout and "set device: cpu" in done.stdout, done.stdout
    images = target.engine.client.api.images()
    assert not [name for image in images for name in image["RepoTags"] or () if "empty" in name], "left behind"
    assert target.engine.client.api.containers(all=True) == []


def test_image_build(target: Target):
    """image build"""
    files = {
        "containers/Dockerfile": b"FROM scratch\nARG WHAT=x\nCOPY hello /\nLABEL what=${WHAT}\n",
        "hello": b"hello",
    }
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    context.seek(0)
    with target.engine.controller_client() as engine:
        built = engine.build(context, "matrix-built:1", {"WHAT": "matrix"}, "containers/Dockerfile", [].append)
        document = engine.image(built) or {}
    assert (document["Config"]["Labels"]["what"], document["Architecture"]) == ("matrix", "amd64")


def test_pull_by_digest_then_run_log_and_record(target: Target, home: Home, runs: Runs):
    """pull by digest, run, log, record"""
    runs.measure(fleet_of(target, f"{target.registry}/{home.pushed}"))
    ((job, record),) = runs.records().items()
    assert record.status is Status.OK and record.origin is not None
    assert record.origin.image_digest == home.digest
    log = (runs.path / "logs" / f"{job}.log").read_text()
    assert "tfbench: state timing" in log.splitlines() and "step" in log
    assert not re.search(r"\d{4}-\d\d-\d\dT\d\d:", log), "the engine's stamps are left in the log"
    assert ours(target.engine) == [], "containers were left behind"


def test_transfer_to_it(target: Target, home: Home, runs: Runs, tmp_path: Path):
    """transfer to it"""
    fleet = fleet_of(target, home.gpus, image_source="transfer")
    assert "pulling" in runs.measure(fleet).stderr
    (record,) = runs.records().values()
    assert record.status is Status.OK
    again = Runs(tmp_path / "again", DOCKER_HOST=home.engine.url)
    again.folder.mkdir()
    assert "pulling" not in again.measure(fleet).stderr, "sent twice"
    tags = [name for image in target.engine.client.api.images() for name in image["RepoTags"] or ()]
    assert any(SENT_REPOSITORY in name for name in tags)


def test_transfer_from_it(target: Target, home: Home, tmp_path: Path):
    """transfer from it"""
    with target.engine.controller_client() as source, home.engine.controller_client() as engine:
        source.load(engine.save(home.slow))
        assert source.image_id("matrix-slow:1") is not None, "the image was loaded, but lost its name"
    fast = Runs(tmp_path, DOCKER_HOST=target.engine.url)
    fleet = {"image": "matrix-slow:1", "image_source": "transfer", "hosts": {"one": {"docker": home.other.url}}}
    fast.measure({"here": fleet})
    for image in home.other.client.images.list():
        home.other.client.images.remove(image.id, force=True)  # the next engine sends it again


def test_kill_of_the_controller_and_resume(target: Target, home: Home, runs: Runs):
    """kill of the controller, `resume`"""
    with runs.begin(fleet_of(target, home.slow, image_source="transfer")) as controller:
        (survivor,) = wait_until(lambda: running(target.engine), "a benchmark", 120)
        controller.kill()
    runs.resume()
    assert runs.states().count("reattached") == 1
    (record,) = runs.records().values()
    assert record.status is Status.OK and survivor.id
    assert ours(target.engine) == []


def test_stop(target: Target, home: Home, runs: Runs):
    """`stop`"""
    with runs.begin(fleet_of(target, home.slow, image_source="transfer")) as controller:
        wait_until(lambda: running(target.engine), "a benchmark", 120)
        controller.kill()
    assert "1 benchmark ended and removed" in runs.run("stop", expect=0).stderr
    assert ours(target.engine) == []


def test_hardening_of_the_container(target: Target, home: Home):
    """hardening: uid 10001, no capabilities, read-only root, no network"""
    image, name = f"{target.registry}/{home.pushed.partition(':')[0]}@{home.digest}", "tfbench-hard"
    made = container(image, Entrypoint=["/usr/bin/python3.11", "-c", HARDENING])
    with target.engine.controller_client() as engine, contextlib.ExitStack() as stack:
        stack.callback(engine.remove, name)
        assert [engine.start(name, made), engine.start(name, made)] == [False, True]
        said = engine.run("hard", made, 60).decode().strip()
    assert said == "10001|0000000000000000|1|2|Read-only file system|lo"


def test_a_data_dir_that_is_missing_is_refused(target: Target, home: Home, runs: Runs):
    """a missing `data_dir` is refused, and not made"""
    if target.kind.podman:
        pytest.skip("Podman makes it")
    missing = Path(target.engine.socket).parent / "missing"
    fleet = fleet_of(target, f"{target.registry}/{home.pushed}", data_dir=str(missing))
    runs.measure(fleet, case={"data": "tfrecord"}, expect=3)
    (record,) = runs.records().values()
    assert record.status is Status.BAD_INPUT and "the folder data_dir does not exist" in (record.cause or "")
    assert not missing.exists()


def test_each_case_gets_exactly_its_gpus(target: Target, home: Home, runs: Runs):
    """each case gets exactly its GPUs, by CDI"""
    if not target.has_gpus:
        pytest.skip("CDI is off by default")
    suite = "repeats: 1\ncases:\n" + "".join(
        f"  - {{model: googlenet, batch_per_gpu: {2 + n}, num_gpus: {n}, num_steps: 3, device: gpu}}\n" for n in (1, 2)
    )
    seen = {}
    for gpus in ("all", [1]):
        fleet = fleet_of(target, home.gpus, image_source="transfer", gpus=gpus)
        folder = runs.folder / str(gpus)
        folder.mkdir()
        mine = Runs(folder, DOCKER_HOST=home.engine.url)
        hosts = mine.hosts(fleet, device="auto")
        (folder / "one.yml").write_text(suite)
        checked = mine.run("check", f"--hosts={hosts}")
        assert "2 × Fake A4000" in checked.stdout and "given by CDI" in checked.stdout, checked.stdout + checked.stderr
        mine.run("run", f"--hosts={hosts}", "--display=plain", expect=0)
        for job in mine.records():
            log = (mine.path / "logs" / f"{job}.log").read_text()
            (line,) = [line for line in log.splitlines() if "devices:" in line]
            seen[str(gpus), job.split("-")[3]] = line.partition("devices: ")[2]
    assert seen == {("all", "1gpu"): "nvidia0", ("all", "2gpu"): "nvidia0 nvidia1", ("[1]", "1gpu"): "nvidia1"}
