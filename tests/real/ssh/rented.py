"""Rented instances for whole runs: an sshd with a home folder of its own, and Pythons that only pretend to train."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import PROJECT, write_program
from tests.support.engines.processes import not_root, run_program, short_folder
from tests.support.engines.required import skip_without
from tests.support.engines.servers import SshHost, skip_without_sshd

WRAPPER = """\
#!/bin/sh
case "$1 $2" in "-m tfbench") echo "$PWD" >> '{starts}'; {first} ;; esac
FAKE_BENCHMARK='{behaviour}' PYTHONPATH="{project}:$PYTHONPATH" exec '{python}' "$@"
"""

MAIN = "from tfbench.fake import main\n\nmain()\n"


def make_fake_project(folder: Path, main: str = MAIN) -> Path:
    """Give a folder whose `python -m tfbench` is the fake benchmark, with a quick probe and a TensorFlow by name only.

    `main` is a program that calls `tfbench.fake.main`.
    """
    shutil.copytree(PROJECT / "tfbench", folder / "tfbench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "tests" / "real" / "faults" / "benchmark.py", folder / "tfbench" / "fake.py")
    (folder / "tfbench" / "__main__.py").write_text(main)
    probe = folder / "tfbench" / "machine" / "host.py"
    text = probe.read_text()
    assert {"PRODUCT_SECONDS", "LOOPS"} <= {*text.split()}, "shortened, as tests probe hundreds of times"
    probe.write_text(f"{text}\nPRODUCT_SECONDS, LOOPS = 0.01, 1\n")
    probe = folder / "tfbench" / "probe.py"  # hosts of tests are one machine, and stand for several
    text = probe.read_text()
    assert "/proc/sys/kernel/random/boot_id" in text
    probe.write_text(text.replace("/proc/sys/kernel/random/boot_id", "/nowhere"))
    (folder / "results").symlink_to(PROJECT / "results")
    (folder / "tensorflow.py").touch()
    return folder


class Rented:
    """An instance with a home folder and variables of its own; `project` is from `make_fake_project`.

    Attributes:
        root: Our folder there.
    """

    def __init__(self, folder: Path, project: Path, home: Path, **variables: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        home.mkdir(parents=True, exist_ok=True)
        self._folder, self._project, self._starts = folder, project, folder / "starts"
        self.root = home / ".tfbench"
        self.host = SshHost(folder, None, alias="rented", home=home, **variables)
        config = self.host.config_file
        config.write_text(config.read_text().replace("Host rented", "Host rented*"))

    def entry(self, does: str = "work", first: str = ":", **behaviour: Any) -> dict[str, Any]:
        """Return a host of hosts.yml whose benchmark behaves so; `first` is a command of sh that runs before it.

        Each has an alias of its own, because a hosts file names a machine once.
        """
        number = len(list(self._folder.glob("python-*")))
        values = {"starts": self._starts, "project": self._project, "python": sys.executable}
        program = WRAPPER.format(**values, behaviour=json.dumps({"does": does, **behaviour}), first=first)
        path = write_program(self._folder / f"python-{number}", program)
        return {"ssh": f"{self.host.alias}-{number}", "ssh_config": str(self.host.config_file), "python": str(path)}

    def starts(self) -> Counter[str]:
        """Count how often each repeat was started."""
        return Counter(Path(line).name for line in self._starts.read_text().splitlines())

    def jobs(self) -> list[Path]:
        """Return the folders of repeats that are there."""
        return sorted(self.root.glob("jobs/*/*"))

    def output(self, host: str) -> str:
        """Return what the only repeat of a host has printed so far; empty: it does not run."""
        logs = list(self.root.glob(f"jobs/*/all.{host}.*/output.log"))
        return logs[0].read_text(errors="replace") if logs else ""

    def reboot(self, host: str) -> None:
        """End all processes of a host's repeat at once, as the end of their machine does."""
        (state,) = self.root.glob(f"jobs/*/all.{host}.*/state.json")
        document = json.loads(state.read_text())
        os.kill(int(document["guardian"].split()[0]), signal.SIGKILL)
        os.killpg(document["pid"], signal.SIGKILL)


Rent = Callable[..., Rented]


@pytest.fixture
def rent() -> Iterator[Rent]:
    """Make instances, each with an sshd, a home and variables of its own."""
    skip_without_sshd()
    with short_folder("tfb-rented-") as folder, contextlib.ExitStack() as stack:
        project, numbers = make_fake_project(folder / "project"), itertools.count()

        def make(**variables: object) -> Rented:
            place = folder / str(next(numbers))
            instance = Rented(place, project, place / "home", **variables)
            stack.enter_context(instance.host)
            stack.callback(instance.host.answer)
            stack.callback(instance.host.start)  # it may have been stopped
            return instance

        yield make


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Give a folder a disk of its own of some bytes while the context lasts."""
    skip_without("a small disk", not_root)
    folder.mkdir(parents=True)
    run_program("mount", "-t", "tmpfs", "-o", f"size={size}", "tfbench-small", folder)
    try:
        yield
    finally:
        run_program("umount", "--lazy", folder)


def fill(folder: Path) -> Path:
    """Fill the disk of a folder; return the file that does so."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free)
    return filler


BETWEEN = '''\
#!{python}
"""Stands between a controller and ssh: sees each request to the agent, and may do something instead or afterwards."""
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path

ssh = subprocess.Popen(["{ssh}", *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
held = set()  # ids of requests whose answers are held
writing = threading.Lock()

def send(data):
    with writing:
        while data:
            data = data[os.write(1, data):]

{program}

def pass_back():
    for line in ssh.stdout:
        try:
            number = json.loads(line).get("id")
        except (ValueError, AttributeError):
            number = None
        if number in held:
            after()
        send(line)
    os._exit(ssh.wait())

threading.Thread(target=pass_back, daemon=True).start()
size = sys.stdin.buffer.readline()
ssh.stdin.write(size + sys.stdin.buffer.read(int(size or 0)) + sys.stdin.buffer.readline())
ssh.stdin.flush()
while line := sys.stdin.buffer.readline():
    request = json.loads(line) if line.strip() else dict(do="")
    payload = sys.stdin.buffer.read(request.get("payload_bytes", 0))
    if not before(request):
        ssh.stdin.write(line + payload)
        ssh.stdin.flush()
ssh.stdin.close()
time.sleep(600)
'''

END_CONTROLLER = """\
moment = Path(os.environ["TFBENCH_TEST_MOMENT"])
wanted = json.loads(moment.read_text()) if moment.exists() else dict(do=None)

def after():
    moment.unlink()
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(0)

def before(request):
    if request["do"] == wanted["do"]:
        if not wanted["after"]:
            after()
        held.add(request["id"])
"""
"""Ends the controller at a moment of its talk with the agent, which a file names."""


def make_ssh(folder: Path, program: str = END_CONTROLLER) -> Path:
    """Put a program called `ssh` into a folder, whose functions `before` and `after` see each request."""
    ssh = shutil.which("ssh")
    write_program(folder / "ssh", BETWEEN.format(python=sys.executable, ssh=ssh, program=program))
    return folder
