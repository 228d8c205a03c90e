"""One connection to a host's agent: shared, opened again when it breaks, and safe from what a host sends."""

import ast
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrate import loop
from orchestrate.engines.base import PullLimits
from orchestrate.engines.ssh import channel, software
from orchestrate.engines.ssh.channel import Channel, shared_channel
from orchestrate.engines.ssh.launcher import SSHLauncher
from orchestrate.errors import HostError, Unreachable
from orchestrate.inventory.addresses import SSHAddress
from orchestrate.inventory.hosts import Host
from results.schema import Case, Device
from tests.support import write_program
from tests.support.engines.processes import below, read_proc, wait_until
from tests.support.patience import patience
from tests.unit.orchestrate.fakes import make_job

LOCAL = """\
#!/bin/sh
echo login >>'{logins}'
for command; do :; done
sh -c "$command"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called `ssh` first, which runs commands on this machine and counts logins."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(channel, "PYTHONS", (sys.executable,))
    return write_program(tmp_path / "bin" / "ssh", LOCAL.replace("{logins}", str(tmp_path / "logins")))


def logins(tmp_path: Path) -> int:
    return len((tmp_path / "logins").read_text().splitlines())


ADDRESS = SSHAddress(target="node-0")


def open_channel(tmp_path: Path, image_file: object = "/nowhere") -> Channel:
    return shared_channel(ADDRESS, root=str(tmp_path / "home"), image_file=str(image_file))


def launcher(tmp_path: Path, program: str) -> SSHLauncher:
    """Return a launcher of a host that starts `program` instead of a benchmark."""
    image = {"variant": "cpu", "version": "0.1.0", "python": sys.executable, "runner": "/nowhere", "site": "/nowhere"}
    (tmp_path / "image.json").write_text(json.dumps(image))
    host = Host(fleet="f", name="h", docker=None, ssh=ADDRESS)
    made = SSHLauncher(host, PullLimits(), open_channel(tmp_path, tmp_path / "image.json"))
    made.command = [sys.executable, "-c", program]
    return made


def connections() -> list[int]:
    """Return the processes that carry connections: children of this one."""
    return [pid for pid in below(os.getpid()) if b"\nPPid:\t%d\n" % os.getpid() in read_proc(pid, "status")]


JOB = make_job(Case(model="resnet50", device=Device.CPU), launcher="ssh", variant="cpu")


def test_ten_followed_repeats_need_a_thread_and_a_process_each(tmp_path: Path, ssh: Path):
    waits = "import pathlib, time\nprint('begun', flush=True)\nwhile not pathlib.Path('end').exists(): time.sleep(0.05)"
    homes = [tmp_path / str(number) for number in range(10)]
    for home in homes:
        home.mkdir()
    hosts = [launcher(home, waits) for home in homes]
    for host in hosts:
        host.start(JOB)
    begun: list[str] = []
    threads, processes = threading.active_count(), len(connections())
    with ThreadPoolExecutor(10) as pool:
        endings = [pool.submit(loop.wait_for, host.follow(JOB, begun.append)) for host in hosts]
        wait_until(lambda: len(begun) == 10, "the first line of each")
        assert threading.active_count() - threads <= 10, "one caller each"
        assert len(connections()) <= processes, "what carried their start carries their output"
        for folder in tmp_path.glob("*/home/jobs/r/*"):
            (folder / "end").touch()
        assert [ending.result().exit_code for ending in endings] == [0] * 10
    assert logins(tmp_path) == 10
    for host in hosts:
        host.remove(JOB)
        host.close()


def test_the_agent_is_a_program_for_the_python_of_old_login_hosts():
    ast.parse(channel.AGENT, feature_version=(3, 6))


def test_all_that_is_asked_of_a_host_needs_one_login(tmp_path: Path, ssh: Path):
    first = open_channel(tmp_path)
    assert first.request("running", run="r") == {"jobs": []}
    second = open_channel(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda run: second.request("running", run=run), "abcdefgh")) == [{"jobs": []}] * 8
    assert logins(tmp_path) == 1


def test_a_host_that_is_probed_twice_installs_one_python_at_a_time(tmp_path: Path, ssh: Path, monkeypatch):
    install = 'mkdir "$root/busy" && sleep 0.3 && rmdir "$root/busy" && reply python || reply failed'
    reply = """reply() { echo "{\\"$1\\": \\"there\\"}"; }"""
    monkeypatch.setattr(software, "SCRIPT", f'{reply}\necho "$mark"\n{install}\n')
    (tmp_path / "home").mkdir()
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda _: loop.wait_for(open_channel(tmp_path).install_python()), "ab")] == [None] * 2


def test_output_continues_where_a_broken_connection_ended(tmp_path: Path, ssh: Path):
    before = set(connections())
    numbers = "import time\nfor n in range(60): print(n, flush=True); time.sleep(0.05)"
    it, lines = launcher(tmp_path, numbers), list[str]()

    def on_line(line: str) -> None:
        lines.append(line)
        if line in ("5", "30"):
            for pid in set(connections()) - before:
                os.killpg(pid, signal.SIGKILL)

    it.start(JOB)
    assert loop.wait_for(it.follow(JOB, on_line)).exit_code == 0
    assert lines == [str(number) for number in range(60)] and logins(tmp_path) >= 2
    it.remove(JOB)


ANSWERS = """\
#!{python}
import json, sys
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
print(json.loads(sys.stdin.buffer.readline())["mark"] + '\\n{{"agent": true}}', flush=True)
for line in sys.stdin.buffer:
    if line.strip():
        print({answer!r}, flush=True)
"""


@pytest.mark.parametrize("answer", ["never", '{"jobs": []}', '{"id": 99, "jobs": []}'])
def test_an_answer_that_no_agent_gives_fails_its_request_alone(tmp_path: Path, ssh: Path, answer: str):
    ssh.write_text(ANSWERS.format(python=sys.executable, answer=answer))
    it = open_channel(tmp_path)
    with pytest.raises(HostError, match=r"^ssh node-0: "):
        it.request("running", seconds=0.5, run="r")


@pytest.mark.parametrize("piece", ["x", '{"id": 99, "a": 1}\\n'], ids=["a line", "answers"])
def test_an_answer_without_end_is_given_up(tmp_path: Path, ssh: Path, piece: str):
    text = ANSWERS.format(python=sys.executable, answer="")
    ssh.write_text(text.replace("print('', flush=True)", f"while True: sys.stdout.write('{piece}' * 1000)"))
    it = open_channel(tmp_path)
    with pytest.raises(Unreachable, match=r"exceeds|nobody has asked"):
        it.request("running", seconds=patience(), run="r")
