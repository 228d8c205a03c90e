"""Hosts without Docker: an sshd on loopback, a home folder of its own, and a tfbench that only pretends to train."""

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrate.engines.base import PullLimits
from orchestrate.engines.ssh.channel import Channel
from orchestrate.engines.ssh.launcher import SSHLauncher
from orchestrate.engines.ssh.software import FITS
from orchestrate.inventory.addresses import SSHAddress
from orchestrate.inventory.hosts import Host
from tests.real.ssh.rented import Rent, Rented, make_fake_project
from tests.real.ssh.rented import rent as rent
from tests.support.engines.processes import short_folder
from tests.support.engines.servers import SshHost, skip_without_sshd

MakeLauncher = Callable[..., SSHLauncher]


@pytest.fixture(scope="session")
def bare_host() -> Iterator[SshHost]:
    """Start an sshd; nothing behind it is a Docker engine."""
    skip_without_sshd()
    with short_folder("tfb-bare-") as folder, SshHost(folder, folder / "no-engine.sock", alias="bare") as host:
        yield host


@pytest.fixture(scope="session")
def fake_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder whose `python -m tfbench` is the fake benchmark, and whose probe is the real one."""
    return make_fake_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def make_launcher(tmp_path: Path, bare_host: SshHost, fake_project: Path) -> MakeLauncher:
    """Make launchers of one host, whose folder is `tmp_path/home`; each is a controller of its own.

    The host is an instance of an image whose benchmark is the fake, unless `image` says otherwise.
    """

    def make(
        image: bool = True, python: str | None = None, instance: Rented | None = None, **behaviour: Any
    ) -> SSHLauncher:
        image_file, server = tmp_path / "image.json", instance.host if instance else bare_host
        if image:
            paths = {"python": sys.executable, "runner": str(fake_project), "site": str(tmp_path / "site")}
            image_file.write_text(json.dumps({"variant": "cpu", "version": "0.1.0", "revision": "abc", **paths}))
        address = SSHAddress(target=server.alias, ssh_config=str(server.config_file))
        environment = {"FAKE_BENCHMARK": json.dumps({"does": "work", **behaviour})}
        host = Host(fleet="rented", name="a", docker=None, ssh=address, python=python)
        host = host.model_copy(update={"environment": environment})
        choice = {"python": python} if python else {"fits": FITS}
        channel = Channel(address, root=str(tmp_path / "home"), image_file=str(image_file), **choice)
        return SSHLauncher(host, PullLimits(), channel)

    return make


@pytest.fixture
def small_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put one wheel of our own, with its hash, in place of a variant's lock."""
    wheel = tmp_path / "tfbench_nothing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tfbench_nothing.py", "here = True\n")
        metadata = "Metadata-Version: 2.1\nName: tfbench-nothing\nVersion: 1\n"
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        for name, text in (("METADATA", metadata), ("WHEEL", kind), ("RECORD", "")):
            file.writestr(f"tfbench_nothing-1.dist-info/{name}", text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"tfbench-nothing @ file://{wheel} --hash=sha256:{digest}\n".encode()
    monkeypatch.setattr("orchestrate.engines.ssh.software.lock_of", lambda variant: lock)
    return wheel


@pytest.fixture
def instance(rent: Rent) -> Rented:
    return rent()
