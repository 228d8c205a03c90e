"""Hosts that look ready and are not, or the other way round: `check` says so, in the words of the host or its driver."""

import glob
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrate.errors import PullFailed
from results.schema import Status
from tests.real.ssh.rented import Rent, Rented
from tests.real.ssh.test_setup import prepare
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

OLD_GLIBC = "import os\nos.confstr = lambda name: 'glibc 2.17'\n"


def bare(instance: Rented) -> dict[str, Any]:
    """Describe an instance whose software tfbench chooses."""
    entry = instance.entry()
    del entry["python"]
    return entry


def check(tmp_path: Path, entries: dict[str, Any], code: int, device: str = "auto") -> str:
    """Return what `check` prints of hosts, by name, when it ends with this exit code."""
    runs = Runs(tmp_path)
    hosts = runs.hosts({"all": {"hosts": entries}}, device=device)
    return runs.run("check", f"--hosts={hosts}", expect=code).stdout


BROKEN = {
    18: ("Driver/library version mismatch", "restart the machine"),
    9: ("Driver Not Loaded", "modprobe nvidia"),
    4: ("Insufficient Permissions", "/dev/nvidia"),
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
    said = check(tmp_path, {f"nvml-{code}": bare(one) for code, one in instances.items()}, 4)
    for code, (words, remedy) in BROKEN.items():
        assert f"the NVIDIA driver does not work: {words} (NVML {code})" in said and remedy in said
    instance = instances[9]
    runs = Runs(tmp_path)
    runs.measure({"all": {"hosts": {"one": instance.entry()}}}, device="auto", expect=4)
    assert instance.jobs() == [] and not (runs.folder / "runs").exists(), "its CPU is not measured instead"
    assert "unusable" not in check(tmp_path, {"one": bare(instance)}, 0, "cpu"), "on purpose, it is"


def test_the_software_of_an_image_finds_the_driver_of_a_login(rent: Rent, make_launcher, tmp_path: Path):
    driver = build(two_a4000(), tmp_path / "driver")
    assert len(make_launcher(instance=rent(LD_LIBRARY_PATH=driver)).probe().gpus) == 2
    assert len(make_launcher(instance=rent()).probe().gpus) == 0


PIP_CONF = "[global]\ntarget = /nowhere\nno-deps = false\nproxy = http://127.0.0.1:9\n[install]\nuser = true\n"


@pytest.mark.parametrize("variables", [{"PIP_USER": 1}, {"PIP_NO_BINARY": ":all:", "PIP_TARGET": "/nowhere"}, {}])
def test_settings_of_pip_on_a_host_do_not_change_an_installation(
    rent, make_launcher, tmp_path: Path, small_lock, variables
):
    instance = rent(**variables)
    (instance.root.parent / ".config" / "pip").mkdir(parents=True)
    (instance.root.parent / ".config" / "pip" / "pip.conf").write_text(PIP_CONF)
    prepare(make_launcher(image=False, instance=instance))
    assert [path.name for path in (tmp_path / "home").rglob("tfbench_nothing.py")] == ["tfbench_nothing.py"]


def test_the_index_of_a_host_is_kept(rent: Rent, make_launcher, monkeypatch):
    lock = b"nothing==1 --hash=sha256:" + b"0" * 64
    monkeypatch.setattr("orchestrate.engines.ssh.software.lock_of", lambda variant: lock)
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
            prepare(make_launcher(image=False, instance=instance))
    assert asked and asked[0].startswith(b"GET /simple/nothing/")


FOREIGN = {
    "arm": (ARM, "its processor is arm64", "set python:"),
    "old": (OLD_GLIBC, "its C library is glibc 2.17", "the packages of cpu need glibc 2.27"),
}
"""What a host's Python runs to be another machine, and words of why it is refused."""


def test_machines_without_our_packages_are_refused_with_the_reason(rent: Rent, tmp_path: Path):
    entries = {}
    for name, (program, *_) in FOREIGN.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(program)
        entries[name] = bare(rent(PYTHONPATH=tmp_path / name))
    said = check(tmp_path, entries, 4)
    assert all(words in said for _, *reasons in FOREIGN.values() for words in reasons), said


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


def test_two_runs_on_one_machine_take_turns(instance: Rented, tmp_path: Path):
    entry, most = instance.entry(seconds=3), 0

    def measure_how_many() -> bool:
        nonlocal most
        states = [Path(path).parent for path in glob.glob(f"{instance.root}/jobs/*/*/state.json")]  # noqa: PTH207
        most = max(most, sum(not (folder / "exit.json").exists() for folder in states))
        return all(controller.poll() is not None for controller in controllers)

    both = [Runs(tmp_path / name) for name in "ab"]
    for runs in both:
        runs.folder.mkdir()
    controllers = [runs.begin({"all": {"hosts": {"one": entry}}}, repeats=2) for runs in both]
    wait_until(measure_how_many, "the end of both")
    assert [controller.returncode for controller in controllers] == [0, 0]
    assert most == 1
    assert "measures on this machine, too" in "".join(runs.stderr for runs in both)
