"""An image of ours, started as RunPod starts an instance with our template: it gets an sshd, and a run uses it as it is.

Opt-in (`make test-renting`): the start command installs an sshd from Debian's package servers.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container

from results.schema import Status
from results.schema.version import __version__
from tests.support import PROJECT
from tests.support.controller import Runs
from tests.support.engines.docker import Engines
from tests.support.engines.images import pip_settings
from tests.support.engines.processes import free_port, port_answers, run_program, wait_until
from tests.support.engines.roots import make_root
from tests.support.engines.servers import new_key

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not os.environ.get("TFBENCH_TEST_RENTING"), reason="opt-in: make test-renting"),
]

TEMPLATE = json.loads((PROJECT / "containers/rent/runpod-template.json").read_text())
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture
def debian(engines: Engines, tmp_path: Path) -> Iterator[str]:
    """Import a Debian whose packages are configured, as those of public images are: their scripts run for an sshd."""
    archive = tmp_path / "root.tar"
    root = make_root("root", "bookworm", ("ca-certificates", "python3", "python3-pip"), tmp_path)
    if CA_BUNDLE.exists():
        shutil.copy(CA_BUNDLE, root / CA_BUNDLE.relative_to("/"))
    run_program("tar", "-C", root, "-cf", archive, ".")
    shutil.rmtree(root)
    engines.first.client.api.import_image(str(archive), repository="debian-with-python", tag="test")
    yield "debian-with-python:test"
    engines.first.client.images.remove("debian-with-python:test")


@pytest.fixture
def instance(engines: Engines, debian: str, tmp_path: Path) -> Iterator[int]:
    """Build the image as in docs/rent.md, start it with RunPod's template, and give the port of its sshd."""
    words = ["images", "build", "cpu", "--registry=instance", f"--engine={engines.first.url}"]
    settings = {"BASE": debian, **pip_settings(), "RUN_AS": "root"}
    words += [f"--build-arg={name}={value}" for name, value in settings.items()]
    Runs(tmp_path).run(*words, expect=0, seconds=1200)
    image = f"instance/tfbench:{__version__}-cpu"
    new_key(tmp_path / "key")
    port = free_port()
    (tmp_path / "port.conf").write_text(f"Port {port}\n")
    container = engines.first.client.containers.run(
        image,
        TEMPLATE["dockerStartCmd"],
        entrypoint=TEMPLATE["dockerEntrypoint"],
        environment={**TEMPLATE["env"], "PUBLIC_KEY": (tmp_path / "key.pub").read_text().strip()},
        network_mode="host",
        volumes={str(tmp_path / "port.conf"): {"bind": "/etc/ssh/sshd_config.d/port.conf", "mode": "ro"}},
        detach=True,
    )
    try:
        wait_until(lambda: port_answers(port) or has_ended(container), "its sshd", 180)
        assert not has_ended(container), container.logs().decode()[-2000:]
        yield port
    finally:
        container.remove(force=True, v=True)
        engines.first.client.images.remove(image)


def has_ended(container: Container) -> bool:
    container.reload()
    return bool(container.status != "running")


def test_a_run_uses_the_instance_as_it_is(instance: int, tmp_path: Path):
    (tmp_path / "ssh_config").write_text(
        f"Host *\n  IdentityFile {tmp_path / 'key'}\n  IdentitiesOnly yes\n  GlobalKnownHostsFile none\n"
    )
    host = {"ssh": f"root@127.0.0.1:{instance}", "ssh_config": str(tmp_path / "ssh_config"), "device": "cpu"}
    runs = Runs(tmp_path)
    hosts = runs.hosts({"rented": {"hosts": {"pod": host}}}, host_keys="accept-new")
    checked = runs.run("check", f"--hosts={hosts}", expect=0)
    assert f"tfbench:{__version__}-cpu: the instance's own image" in checked.stdout
    runs.run("run", f"--hosts={hosts}", "--display=plain", expect=0, seconds=1200)
    (record,) = runs.records().values()
    assert record.status is Status.OK
    assert record.origin is not None and record.origin.launcher == "ssh"
