"""What a benchmark's container may do, and that no secret of the user gets anywhere."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.schema import Status
from tests.real.faults.conftest import FakeImages
from tests.support import write_program
from tests.support.controller import Runs, ours, running
from tests.support.engines.docker import Engines
from tests.support.engines.processes import wait_until
from tests.support.engines.servers import PASSWORD, USER, Registry, guarded_registry

pytestmark = pytest.mark.docker

SECRETS = {"REGISTRY_TOKEN": "tok-5b1c7f", "AWS_SECRET_ACCESS_KEY": "aws-e83a91", "HF_TOKEN": "hf-77c0de"}


@pytest.fixture
def guarded(engine_folder: Path, engines: Engines, fake_images: FakeImages) -> Iterator[tuple[Registry, str]]:
    """Start a registry that wants a password, with an image that the second engine does not have."""
    with guarded_registry(engine_folder) as registry:
        reference = f"{registry.address}/private/fake:1"
        client = engines.first.client
        client.images.get(fake_images.image(seconds=2)).tag(reference)
        said = client.api.push(reference, auth_config={"username": USER, "password": PASSWORD})
        assert "error" not in said, said
        yield registry, reference
        for found in engines.second.client.images.list(name=reference.rpartition(":")[0]):
            engines.second.client.images.remove(found.id, force=True)


def write_config(folder: Path, document: dict[str, object]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder)


def auths(registry: Registry, password: str) -> dict[str, object]:
    return {"auths": {registry.address: {"auth": base64.b64encode(f"{USER}:{password}".encode()).decode()}}}


def assert_in_no_file(runs: Runs, *secrets: str) -> None:
    """Look for secrets, as they are and in base 64, in everything that the controller wrote or printed."""
    wanted = {form for secret in secrets for form in (secret.encode(), base64.b64encode(secret.encode()))}
    written = [path for path in runs.folder.glob("runs/**/*") if path.is_file()]
    assert len(written) >= 3, "there was nothing to search"
    for path in (*written, runs.folder / "stdout", runs.folder / "stderr"):
        assert not [secret for secret in wanted if secret in path.read_bytes()], path


def test_a_password_of_the_docker_config_pulls_and_is_in_no_file(engines: Engines, runs: Runs, guarded, tmp_path: Path):
    registry, image = guarded
    runs.environment |= SECRETS | {"DOCKER_CONFIG": write_config(tmp_path / "config", auths(registry, PASSWORD))}
    hosts = runs.hosts({"all": {"hosts": {"one": {"docker": engines.second.url}}}}, image=image)
    runs.run("check", f"--hosts={hosts}", expect=0)
    with runs.start("run", f"--hosts={hosts}", "--display=json") as controller:
        (benchmark,) = wait_until(lambda: running(engines.second), "a benchmark")
        reported = json.dumps(benchmark.attrs)
        arguments = Path(f"/proc/{controller.pid}/cmdline").read_text()
        assert controller.wait(60) == 0
    assert {record.status for record in runs.records().values()} == {Status.OK}
    secrets = (PASSWORD, f"{USER}:{PASSWORD}", *SECRETS.values())
    assert_in_no_file(runs, *secrets)
    assert not any(secret in reported or secret in arguments for secret in secrets)


def test_a_credential_helper_pulls_and_its_password_is_in_no_file(engines, runs: Runs, guarded, tmp_path: Path):
    registry, image = guarded
    answer = json.dumps({"ServerURL": registry.address, "Username": USER, "Secret": PASSWORD})
    program = f"#!/bin/sh\ncat > /dev/null\necho '{answer}'\n"
    helper = write_program(tmp_path / "bin" / "docker-credential-tfbenchtest", program)
    config = write_config(tmp_path / "config", {"credHelpers": {registry.address: "tfbenchtest"}})
    runs.environment |= {"DOCKER_CONFIG": config, "PATH": f"{helper.parent}:{runs.environment['PATH']}"}
    runs.measure({"all": {"hosts": {"one": {"docker": engines.second.url}}}}, image=image)
    assert_in_no_file(runs, PASSWORD)


def test_a_wrong_password_is_pull_failed_and_is_in_no_file(engines: Engines, runs: Runs, guarded, tmp_path: Path):
    registry, image = guarded
    runs.environment["DOCKER_CONFIG"] = write_config(tmp_path / "config", auths(registry, "wrong-horse-battery"))
    good = {"docker": engines.first.url, "image_source": "local"}
    fleets = {"all": {"hosts": {"one": {"docker": engines.second.url}, "good": good}}}
    runs.measure(fleets, image=image, expect=3)
    record = runs.by_host()["one"]
    assert record.status is Status.PULL_FAILED
    assert "no basic auth" in (record.cause or "") or "unauthorized" in (record.cause or "").lower()
    assert_in_no_file(runs, "wrong-horse-battery", f"{USER}:wrong-horse-battery")


def test_a_benchmark_has_no_rights_as_its_engine_and_the_kernel_say(engines: Engines, fake_images, runs: Runs):
    host = {"docker": engines.first.url, "cpus": 0.5, "memory_gb": 0.5}
    with runs.begin({"all": {"hosts": {"one": host}}}, image=fake_images.image(seconds=2)) as controller:
        (benchmark,) = wait_until(lambda: running(engines.first), "a benchmark")
        (process,) = wait_until(lambda: benchmark.top(ps_args="-o pid,args -C python3.11")["Processes"], "its process")
        lines = Path(f"/proc/{process[0]}/status").read_text().splitlines()
        reported = benchmark.attrs
        assert controller.wait(60) == 0
    assert ours(engines.first) == []

    status = dict(line.split(":\t") for line in lines if ":\t" in line)
    assert status["Uid"].split() == ["10001"] * 4
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    config, host_config = reported["Config"], reported["HostConfig"]
    assert config["User"] == "10001:10001"
    assert host_config["ReadonlyRootfs"] is True and host_config["Privileged"] is False
    assert host_config["CapDrop"] == ["ALL"] and not host_config["CapAdd"]
    assert host_config["SecurityOpt"] == ["no-new-privileges=true"]
    assert host_config["NetworkMode"] == "none" and config.get("NetworkDisabled", True)
    assert host_config["PidMode"] == "" and host_config["UTSMode"] == "" and host_config["UsernsMode"] == ""
    assert host_config["IpcMode"] in ("private", "shareable")
    assert not host_config["Binds"] and not host_config["Devices"] and not host_config["VolumesFrom"]
    assert [(mount["Type"], mount["Destination"]) for mount in reported["Mounts"]] == [("volume", "/out")]
    assert "docker.sock" not in json.dumps(reported)
    assert host_config["NanoCpus"] == 500_000_000
    assert host_config["Memory"] == host_config["MemorySwap"] == 500_000_000
    assert host_config["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
    assert host_config["RestartPolicy"]["Name"] in ("", "no") and host_config["AutoRemove"] is False
    assert {limit["Name"] for limit in host_config["Ulimits"]} >= {"fsize"}
    assert 0 < (host_config["PidsLimit"] or 0) <= 100_000, "a fork bomb would take the host down"
