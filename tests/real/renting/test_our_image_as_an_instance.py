"""An image of ours, started as RunPod starts an instance with our template: it gets an sshd, and a run uses it as it is.

Opt-in (`make test-renting`): the start command installs an sshd from Debian's package servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.schema.version import __version__
from tests.support.engines.docker import Engines
from tests.support.engines.images import pip_settings
from tests.support.engines.processes import find_program, free_port, port_answers
from tests.support.wheel import PROJECT as ROOT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not os.environ.get("TFBENCH_TEST_RENTING"), reason="opt-in: make test-renting"),
]

TEMPLATE = json.loads((ROOT / "containers/rent/runpod-template.json").read_text())
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CASE = "{model: googlenet, batch_per_gpu: 2, image_size: 64, warmup_steps: 1, num_steps: 3, device: cpu}"


def orchestrate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, with records below a folder."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrate", *arguments],
        cwd=ROOT,
        env={**os.environ, "TFBENCH_RUNS_DIR": str(folder / "runs")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )


@pytest.fixture
def debian(engines: Engines, tmp_path: Path) -> Iterator[str]:
    """Import a Debian whose packages are configured, as those of public images are: their scripts run for an sshd."""
    root, archive = tmp_path / "root", tmp_path / "root.tar"
    include = "--include=ca-certificates,python3,python3-pip"
    _run(find_program("debootstrap") or "debootstrap", "--variant=minbase", include, "bookworm", str(root))
    if CA_BUNDLE.exists():
        shutil.copy(CA_BUNDLE, root / CA_BUNDLE.relative_to("/"))
    _run("tar", "-C", str(root), "-cf", str(archive), ".")
    shutil.rmtree(root)
    engines.first.client.api.import_image(str(archive), repository="debian-with-python", tag="test")
    yield "debian-with-python:test"
    engines.first.client.images.remove("debian-with-python:test")


@pytest.fixture
def instance(engines: Engines, debian: str, tmp_path: Path) -> Iterator[int]:
    """Build the image as in docs/rent.md, start it with RunPod's template, and give the port of its sshd."""
    settings = {"BASE": debian, **pip_settings(), "RUN_AS": "root"}
    words = [f"--build-arg={name}={value}" for name, value in settings.items()]
    engine = f"--engine={engines.first.url}"
    built = orchestrate(tmp_path, "images", "build", "cpu", "--registry=instance", engine, *words)
    assert built.returncode == 0, built.stderr
    image = f"instance/tfbench:{__version__}-cpu"
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key"))
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
        deadline = time.monotonic() + 180
        while not port_answers(port):
            container.reload()
            assert container.status == "running" and time.monotonic() < deadline, container.logs().decode()[-2000:]
            time.sleep(0.5)
        yield port
    finally:
        container.remove(force=True, v=True)
        engines.first.client.images.remove(image)


def _run(*words: str) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_run_uses_the_instance_as_it_is(instance: int, tmp_path: Path):
    (tmp_path / "ssh_config").write_text(
        f"Host *\n  IdentityFile {tmp_path / 'key'}\n  IdentitiesOnly yes\n  GlobalKnownHostsFile none\n"
    )
    (tmp_path / "suite.yml").write_text(f"repeats: 1\ncases: [{CASE}]\n")
    host = {"ssh": f"root@127.0.0.1:{instance}", "ssh_config": str(tmp_path / "ssh_config"), "device": "cpu"}
    fleets = {"rented": {"hosts": {"pod": host}}}
    defaults = {"suite": str(tmp_path / "suite.yml"), "host_keys": "accept-new"}
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(json.dumps({"version": 1, "defaults": defaults, "fleets": fleets}))

    checked = orchestrate(tmp_path, "check", f"--hosts={hosts}")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"tfbench:{__version__}-cpu: the instance's own image" in checked.stdout
    done = orchestrate(tmp_path, "run", f"--hosts={hosts}", "--display=plain")
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").glob("2*")
    (record,) = [json.loads(path.read_text()) for path in (run / "records").glob("*.json")]
    assert record["status"] == "ok" and record["origin"]["launcher"] == "ssh"
