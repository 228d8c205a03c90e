"""The engines that other tests stand on do what a real fleet's do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.engines.docker import DockerEngine, Engines
from tests.support.engines.images import pip_settings
from tests.support.engines.servers import Registry, SshHost

pytestmark = pytest.mark.docker

BUSY_SECONDS = 2.0
BUSY = f"""
import os, time
started = time.monotonic()
child = os.fork()
while time.monotonic() - started < {BUSY_SECONDS}:
    pass
if child:
    os.wait()
    print(sum(os.times()[:4]) / (time.monotonic() - started))
"""
"""Two processes that compute for a while; prints how many CPUs they got."""


def cpus_of_two_busy_processes(engine: DockerEngine, image: str, nano_cpus: int) -> float:
    output = engine.client.containers.run(
        image, ["python3.11", "-c", BUSY], nano_cpus=nano_cpus, network_mode="none", remove=True
    )
    return float(output)


def test_a_container_limited_to_one_cpu_gets_no_more(engines: Engines, base_image: str):
    assert cpus_of_two_busy_processes(engines.first, base_image, 500_000_000) < 0.75
    assert cpus_of_two_busy_processes(engines.first, base_image, 1_000_000_000) < 1.25


def test_the_two_engines_know_nothing_of_each_other(engines: Engines, base_image: str):
    container = engines.first.client.containers.create(base_image, ["true"], network_mode="none")
    try:
        assert [c.id for c in engines.first.client.containers.list(all=True)] == [container.id]
        assert engines.second.client.containers.list(all=True) == []
    finally:
        container.remove()


def test_an_engine_that_was_stopped_comes_back_with_its_containers(engines: Engines, base_image: str):
    container = engines.first.client.containers.create(base_image, ["true"], network_mode="none")
    try:
        engines.first.stop()
        assert not engines.first.answers()
        engines.first.start()
        assert engines.first.client.containers.get(container.id).status == "created"
    finally:
        engines.first.start()
        container.remove()


def test_ssh_leads_to_the_second_engine(engines: Engines, ssh_host: SshHost, tmp_path: Path):
    command = ["ssh", "-F", str(ssh_host.config_file), "-o", "BatchMode=yes", ssh_host.alias]
    answer = subprocess.run([*command, "echo", "$DOCKER_HOST"], check=True, capture_output=True, text=True, timeout=30)
    assert answer.stdout.strip() == engines.second.url


def test_an_ssh_host_with_another_key_is_refused(ssh_host: SshHost, tmp_path: Path):
    (tmp_path / "known_hosts").write_text("")
    command = ["ssh", "-F", str(ssh_host.config_file), "-o", "BatchMode=yes"]
    answer = subprocess.run(
        [*command, "-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", ssh_host.alias, "true"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert answer.returncode == 255
    assert "Host key verification failed" in answer.stderr


def test_the_registry_keeps_its_images_over_a_restart(engines: Engines, registry: Registry, base_image: str):
    name = f"{registry.address}/restart:1"
    engines.first.client.images.get(base_image).tag(name)
    engines.first.client.api.push(name)
    registry.stop()
    registry.start()
    assert engines.second.client.images.pull(name).tags == [name]


def test_pip_settings_that_mean_files_of_this_machine_do_not_enter_a_build():
    environment = {
        "PIP_EXTRA_INDEX_URL": "file:///somewhere",
        "PIP_INDEX_URL": "https://index.example/simple",
    }
    assert pip_settings(environment) == {"PIP_INDEX_URL": "https://index.example/simple"}
