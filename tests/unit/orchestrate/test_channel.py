"""One connection to a host's agent: shared, opened again when it breaks, and safe from what a host sends."""

import ast
import contextlib
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrate import loop
from orchestrate.connections import children
from orchestrate.engines.pulls import PullLimits
from orchestrate.engines.ssh import channel
from orchestrate.engines.ssh.channel import Channel
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
"""Stands for ssh: runs the command here."""


class FakeSSH:
    """A program called `ssh` that runs commands on this machine, and counts logins."""

    def __init__(self, folder: Path, program: str) -> None:
        self._logins = folder / "logins"
        self.program = write_program(folder / "bin" / "ssh", program.replace("{logins}", str(self._logins)))

    @property
    def logins(self) -> int:
        return len(self._logins.read_text().splitlines())


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSSH:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(channel, "PYTHONS", (sys.executable,))
    return FakeSSH(tmp_path, LOCAL)


def open_channel(tmp_path: Path, number: int = 0) -> Channel:
    return Channel(SSHAddress(target=f"node-{number}"), root=str(tmp_path / f"home-{number}"), image_file="/nowhere")


def launcher(tmp_path: Path, number: int, program: str) -> SSHLauncher:
    """Return a launcher of a host that starts `program` instead of a benchmark."""
    image = {"variant": "cpu", "version": "0.1.0", "python": sys.executable, "runner": "/nowhere", "site": "/nowhere"}
    (tmp_path / "image.json").write_text(json.dumps(image))
    address = SSHAddress(target=f"node-{number}")
    made = SSHLauncher(
        Host(fleet="f", name=f"h{number}", docker=None, ssh=address),
        PullLimits(),
        Channel(address, root=str(tmp_path / f"home-{number}"), image_file=str(tmp_path / "image.json")),
    )
    made.command = [sys.executable, "-c", program]
    return made


def connections() -> list[int]:
    """Return the processes that carry connections: children of this one, except for their reaper."""
    ours = [pid for pid in below(os.getpid()) if b"\nPPid:\t%d\n" % os.getpid() in read_proc(pid, "status")]
    return [pid for pid in ours if pid not in {reaper.pid for reaper in children._REAPERS}]


JOB = make_job(Case(model="resnet50", device=Device.CPU), launcher="ssh", variant="cpu")
WAITS = "import pathlib, time\nprint('begun', flush=True)\nwhile not pathlib.Path('end').exists(): time.sleep(0.05)"


def test_ten_followed_repeats_need_a_thread_and_a_process_each(tmp_path: Path, ssh: FakeSSH):
    hosts = [launcher(tmp_path, number, WAITS) for number in range(10)]
    for host in hosts:
        host.start(JOB)
    begun: list[str] = []
    threads, processes = threading.active_count(), len(connections())
    with ThreadPoolExecutor(10) as pool:
        endings = [pool.submit(host.follow, JOB, begun.append) for host in hosts]
        wait_until(lambda: len(begun) == 10, "the first line of each")
        assert threading.active_count() - threads <= 10, "one caller each"
        assert len(connections()) <= processes, "what carried their start carries their output"
        for folder in tmp_path.glob("home-*/jobs/r/*"):
            (folder / "end").touch()
        assert [ending.result().exit_code for ending in endings] == [0] * 10
    assert ssh.logins == 10
    for host in hosts:
        host.remove(JOB)
        host.close()


def test_the_agent_is_a_program_for_the_python_of_old_login_hosts():
    ast.parse(channel.AGENT, feature_version=(3, 6))


def test_all_that_is_asked_of_a_host_needs_one_login(tmp_path: Path, ssh: FakeSSH):
    first = open_channel(tmp_path)
    assert first.request("running", run="r") == {"jobs": []}
    first.close()
    with pytest.raises(Unreachable, match="closed"):
        first.request("running", run="r")
    second = open_channel(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda run: second.request("running", run=run), "abcdefgh")) == [{"jobs": []}] * 8
    assert ssh.logins == 1


def test_a_connection_that_nobody_uses_is_closed(tmp_path: Path, ssh: FakeSSH, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "SIGN_OF_LIFE_SECONDS", 0.1)
    before = connections()
    used, other = open_channel(tmp_path), open_channel(tmp_path)
    for one in (used, other):
        one.request("running", run="r")
    (agent,) = set(connections()) - set(before)
    other.close()
    time.sleep(0.5)
    used.request("running", run="r")
    assert ssh.logins == 1, "it is used"
    used.close()
    wait_until(lambda: agent not in connections(), "the end of the connection")


def test_a_connection_that_broke_while_idle_is_opened_again(tmp_path: Path, ssh: FakeSSH):
    before = set(connections())
    it = open_channel(tmp_path)
    for _ in range(2):
        assert it.request("running", run="r") == {"jobs": []}
        (agent,) = set(connections()) - before
        os.killpg(agent, signal.SIGKILL)
    assert it.request("running", run="r") == {"jobs": []} and ssh.logins == 3


def test_output_continues_where_a_broken_connection_ended(tmp_path: Path, ssh: FakeSSH):
    before = set(connections())
    numbers = "import time\nfor n in range(60): print(n, flush=True); time.sleep(0.05)"
    it, lines = launcher(tmp_path, 0, numbers), list[str]()

    def on_line(line: str) -> None:
        lines.append(line)
        if line in ("5", "30"):
            for pid in set(connections()) - before:
                os.killpg(pid, signal.SIGKILL)

    it.start(JOB)
    assert it.follow(JOB, on_line).exit_code == 0
    assert lines == [str(number) for number in range(60)] and ssh.logins >= 2
    it.remove(JOB)


def test_nothing_goes_on_for_a_request_that_nobody_waits_for(tmp_path: Path, ssh: FakeSSH):
    it = launcher(tmp_path, 0, WAITS)
    it.start(JOB)

    def threads() -> int:
        tasks = [Path(f"/proc/{pid}/task") for pid in below(os.getpid())]
        return sum(len(list(path.iterdir())) for path in tasks if path.exists())

    async def listen() -> int:
        async with contextlib.aclosing(it._channel.answers("follow", run="r", job=JOB.id, offset=0)) as answers:
            await anext(answers)
            return threads()

    followed = loop.wait_for(listen())
    wait_until(lambda: threads() < followed, "the end of the request")
    it.remove(JOB)


HOSTILE: dict[str, Any] = {
    "no JSON": "never",
    "no object": [1],
    "no id": {"jobs": []},
    "an id of another type": {"id": [1], "jobs": []},
    "an id that was not given": {"id": 99, "jobs": []},
    "the end alone": {"id": 1, "end": True},
    "an error of another type": {"id": 1, "failed": {"a": 1}, "end": True},
}

ANSWERS = """\
#!{python}
import json, sys
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
print(json.loads(sys.stdin.buffer.readline())["mark"], flush=True)
for line in sys.stdin.buffer:
    if line.strip():
        print({answer!r}, flush=True)
"""


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_an_answer_that_no_agent_gives_fails_its_request_alone(tmp_path, monkeypatch, ssh, answer):
    text = answer if isinstance(answer, str) else json.dumps(answer)
    ssh.program.write_text(ANSWERS.format(python=sys.executable, answer=text))
    it = open_channel(tmp_path)
    try:
        found = it.request("running", seconds=0.5, run="r")
    except HostError as error:
        assert error.cause.startswith("ssh node-0: ")
    else:
        assert found == {"failed": {"a": 1}}
    it.close()


@pytest.mark.parametrize("piece", ["x", '{"id": 1, "a": 1}\\n', '{"id": 7}\\n'], ids=["a line", "an answer", "others"])
def test_an_answer_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ssh: FakeSSH, piece: str):
    monkeypatch.setattr(channel, "MAX_STREAM_BYTES", 1 << 20)
    text = ANSWERS.format(python=sys.executable, answer="")
    ssh.program.write_text(text.replace("print('', flush=True)", f"while True: sys.stdout.write('{piece}' * 1000)"))
    it = open_channel(tmp_path)
    with pytest.raises(Unreachable, match=r"exceeds|no request|several answers"):
        it.request("running", seconds=patience(), run="r")
    it.close()
