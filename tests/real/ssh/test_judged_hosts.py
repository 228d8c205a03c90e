"""Hosts that look ready and are not, or the other way round: `check` says so, in the words of the host or its driver."""

import json
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrate.engines.pulls import PullLimits
from orchestrate.engines.ssh.channel import Channel
from orchestrate.engines.ssh.launcher import SSHLauncher
from orchestrate.errors import PullFailed
from orchestrate.inventory.addresses import SSHAddress
from orchestrate.inventory.hosts import Host
from results.schema import Status
from tests.real.ssh.rented import Rent, Rented
from tests.real.ssh.test_launcher import job
from tests.support.controller import Runs
from tests.support.engines.processes import free_port, wait_until
from tests.support.engines.servers import SshHost
from tests.support.fake_driver import build, two_a4000

BROKEN_DRIVER = """\
int nvmlInit_v2(void) {{ return {code}; }}
int nvmlInitWithFlags(unsigned flags) {{ return flags ? {code} : {code}; }}
int nvmlShutdown(void) {{ return {code}; }}
const char *nvmlErrorString(int code) {{ return code == {code} ? "{words}" : "other"; }}
"""

ARM = """\
import os, platform, sysconfig
_known = os.uname()
os.uname = lambda: os.uname_result((*tuple(_known)[:4], "aarch64"))
platform.machine = lambda: "aarch64"
sysconfig.get_platform = lambda: "linux-aarch64"
"""

OLD_GLIBC = """\
def manylinux_compatible(major, minor, arch):
    return (major, minor) <= (2, 17)
"""


def bare(instance: Rented) -> dict[str, Any]:
    """Describe an instance whose software tfbench chooses."""
    entry = instance.entry()
    del entry["python"]
    return entry


def check(tmp_path: Path, entry: dict[str, Any], code: int, device: str = "auto") -> str:
    runs = Runs(tmp_path)
    hosts = runs.hosts({"all": {"hosts": {"one": entry}}}, device=device)
    return runs.run("check", f"--hosts={hosts}", expect=code).stdout


BROKEN = {
    18: ("Driver/library version mismatch", "restart the machine"),
    9: ("Driver Not Loaded", "modprobe nvidia"),
    4: ("Insufficient Permissions", "/dev/nvidia"),
    999: ("Unknown Error", "restart the machine"),
}
"""Codes of NVML, its words, and the remedy."""


def test_a_driver_that_does_not_answer_makes_a_host_unusable(rent: Rent, tmp_path: Path):
    instances = {}
    for code, (words, _) in BROKEN.items():
        library, source = tmp_path / str(code) / "libnvidia-ml.so.1", tmp_path / "nvml.c"
        library.parent.mkdir()
        source.write_text(BROKEN_DRIVER.format(code=code, words=words))
        subprocess.run([shutil.which("gcc") or "cc", "-shared", "-fPIC", "-o", library, source], check=True)
        instances[code] = rent(LD_LIBRARY_PATH=library.parent)
    runs = Runs(tmp_path)
    hosts = runs.hosts(
        {"all": {"hosts": {f"nvml-{code}": bare(one) for code, one in instances.items()}}}, device="auto"
    )
    said = runs.run("check", f"--hosts={hosts}", expect=4).stdout
    for code, (words, remedy) in BROKEN.items():
        assert f"the NVIDIA driver does not work: {words} (NVML {code})" in said and remedy in said
    instance = instances[9]
    runs.measure({"all": {"hosts": {"one": instance.entry()}}}, device="auto", expect=4)
    assert instance.jobs() == [] and not (runs.folder / "runs").exists(), "its CPU is not measured instead"
    assert "unusable" not in check(tmp_path, bare(instance), 0, "cpu"), "on purpose, it is"


def make_launcher(instance: Rented, folder: Path, image: bool) -> SSHLauncher:
    """Return a launcher for an instance that was started from one of our images, or not."""
    entry, file = instance.entry(), folder / "image.json"
    if image:
        paths = {"python": entry["python"], "runner": str(folder), "site": str(folder / "site")}
        file.write_text(json.dumps({"variant": "cpu", "version": "0.1.0", "revision": "abc", **paths}))
    address = SSHAddress(target=entry["ssh"], ssh_config=entry["ssh_config"])
    channel = Channel(address, root=str(folder / "root"), image_file=str(file))
    return SSHLauncher(Host(fleet="rented", name="a", ssh=address), PullLimits(), channel)


def test_the_software_of_an_image_finds_the_driver_of_a_login(rent: Rent, tmp_path: Path):
    driver = build(two_a4000(), tmp_path / "driver")
    assert len(make_launcher(rent(LD_LIBRARY_PATH=driver), tmp_path, image=True).probe().gpus) == 2
    assert len(make_launcher(rent(), tmp_path, image=True).probe().gpus) == 0


PIP_CONF = "[global]\ntarget = /nowhere\nno-deps = false\nproxy = http://127.0.0.1:9\n[install]\nuser = true\n"


@pytest.mark.parametrize("variables", [{"PIP_USER": 1}, {"PIP_NO_BINARY": ":all:", "PIP_TARGET": "/nowhere"}, {}])
def test_settings_of_pip_on_a_host_do_not_change_an_installation(rent: Rent, tmp_path: Path, small_lock, variables):
    instance = rent(**variables)
    (instance.root.parent / ".config" / "pip").mkdir(parents=True)
    (instance.root.parent / ".config" / "pip" / "pip.conf").write_text(PIP_CONF)
    make_launcher(instance, tmp_path, image=False).prepare(job(), lambda done, total: None)
    assert [path.name for path in (tmp_path / "root").rglob("tfbench_nothing.py")] == ["tfbench_nothing.py"]


def test_the_index_of_a_host_is_kept(rent: Rent, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(
        "orchestrate.engines.ssh.software.lock_of", lambda variant: b"nothing==1 --hash=sha256:" + b"0" * 64
    )
    port = free_port()
    instance = rent(PIP_RETRIES=0)
    (instance.root.parent / ".pip").mkdir()
    (instance.root.parent / ".pip" / "pip.conf").write_text(f"[global]\nindex-url = http://127.0.0.1:{port}/simple\n")
    asked: list[bytes] = []

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            asked.append(connection.recv(1000))
            connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")

    with socket.create_server(("127.0.0.1", port)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        with pytest.raises(PullFailed, match="pip could not install the locked packages"):
            make_launcher(instance, tmp_path, image=False).prepare(job(), lambda done, total: None)
    assert asked and asked[0].startswith(b"GET /simple/nothing/")


def test_a_processor_without_our_packages_is_refused(rent: Rent, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(ARM)
    said = check(tmp_path, bare(rent(PYTHONPATH=tmp_path)), 4)
    assert "its processor is arm64" in said and "set python:" in said


def test_an_old_c_library_is_refused_with_both_versions(rent: Rent, tmp_path: Path):
    (tmp_path / "_manylinux.py").write_text(OLD_GLIBC)
    said = check(tmp_path, bare(rent(PYTHONPATH=tmp_path)), 4)
    assert "its glibc is 2.17, and the packages of cpu need glibc 2.27" in said


def test_resume_takes_the_new_port_of_a_rented_machine(rent: Rent, tmp_path: Path):
    instance, runs = rent(), Runs(tmp_path)
    entry = instance.entry(seconds=2)
    with runs.begin({"all": {"hosts": {"one": entry}}}, repeats=3) as controller:
        wait_until(lambda: list(runs.folder.glob("runs/*/records/*.json")), "a record")
        controller.send_signal(signal.SIGINT)
        controller.wait(120)
    instance.host.stop()
    with SshHost(tmp_path, None, alias=entry["ssh"], home=instance.root.parent) as moved:
        runs.hosts({"all": {"hosts": {"one": {**entry, "ssh_config": str(moved.config_file)}}}}, repeats=3)
        said = runs.resume().stderr
    assert "all.one: its address has changed" in said
    assert [record.status for record in runs.records().values()] == [Status.OK] * 3


@pytest.mark.parametrize("kind", ["ssh", pytest.param("process", marks=[pytest.mark.rare, pytest.mark.tensorflow])])
def test_two_runs_on_one_machine_take_turns(rent: Rent, tmp_path: Path, kind: str):
    entry, root = {"process": True}, tmp_path / "runs"
    if kind == "ssh":
        instance = rent()
        entry, root = instance.entry(seconds=3), instance.root
    most = 0

    def measure_how_many() -> bool:
        nonlocal most
        states = [path.parent for path in root.rglob("state.json")]
        most = max(most, sum(not (folder / "exit.json").exists() for folder in states))
        return all(controller.poll() is not None for controller in controllers)

    both = [
        Runs(tmp_path / name, TFBENCH_RUNS_DIR=str(root if kind == "process" else tmp_path / name)) for name in "ab"
    ]
    for runs in both:
        runs.folder.mkdir()
    controllers = [runs.begin({"all": {"hosts": {"one": entry}}}, repeats=2) for runs in both]
    wait_until(measure_how_many, "the end of both", seconds=240)
    assert [controller.returncode for controller in controllers] == [0, 0]
    assert most == 1
    assert "measures on this machine, too" in "".join(runs.stderr for runs in both)
