"""Command lines of ssh, limits of connections, and what ssh's last words mean; no sshd is needed."""

import asyncio
import contextlib
import gc
import shutil
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest

from orchestrate import loop
from orchestrate.connections.link import ATTEMPTS, MARK, Link, with_retries
from orchestrate.connections.ssh import ssh_command, ssh_failure
from orchestrate.errors import Dropped, Unreachable
from orchestrate.inventory.addresses import HostKeys, SSHAddress
from tests.support.patience import patience


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an OpenSSH client")
def test_jump_hosts_use_the_fleets_file_of_host_keys_whatever_its_name(tmp_path: Path):
    config = tmp_path / "ssh config"
    config.write_text("Host behind-two\n  ProxyJump bob@first.example:2222,second\n")
    keys = HostKeys(policy="strict", file="/my hosts/50%.known_hosts")
    words = ssh_command(SSHAddress(target="behind-two", ssh_config=str(config)), keys, remote="true")
    assert words[-3:] == ["--", "behind-two", "true"]
    for name in ("behind-two", "second"):  # ssh hands the file to the jump host's ssh
        asked = ["ssh", "-G", "-F", words[words.index("-F") + 1], name]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert "\nuserknownhostsfile /my hosts/50%.known_hosts\n" in found
        assert "\nstricthostkeychecking true\n" in found and "\ncontrolmaster false\n" in found


def test_a_dropped_connection_is_made_again_and_another_failure_is_not(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("stamina._core._smart_sleep", sleep)

    def connect(*outcomes: object) -> object:
        return loop.wait_for(with_retries(mock.AsyncMock(side_effect=outcomes)))

    assert connect(Dropped("busy"), Dropped("busy"), "connected") == "connected"
    with pytest.raises(Unreachable, match="refused"):
        connect(Unreachable("refused"), "connected")
    assert len(slept) == 2
    with pytest.raises(Dropped, match=f"busy {ATTEMPTS}"):
        connect(*(Dropped(f"busy {number}") for number in range(1, ATTEMPTS + 1)))
    assert len(slept) == ATTEMPTS + 1 and 20 < sum(slept[2:]) < 70


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("yes", "its login prints more than 20 MiB"),
        (f"echo {MARK}; yes '' >&2 & yes | tr -d '\\n'", "its answer exceeds 20 MiB"),
        ("echo Not you; exit 3", "the login ended with exit code 3. It printed: Not you"),
        (f"echo {MARK}; echo so >&2; exit 3", "the connection ended. so"),
        (f"yes '' >&2 & head -c 100001 >/dev/null; printf 'no end'; echo {MARK}; echo '{{}}'", ""),
    ],
    ids=["an endless login", "an endless line", "refused", "ended", "answers"],
)
def test_a_connection_ends_within_its_limits_and_says_why(script: str, failure: str):
    async def talk() -> object:
        link = await Link.open("here", ["sh", "-c", script], b"x" * 100_000 + b"\n")
        link.end(Unreachable("over"))
        return link.first

    began = time.monotonic()
    with pytest.raises(Unreachable) if failure else contextlib.nullcontext() as caught:
        assert loop.wait_for(talk()) == {}
    assert time.monotonic() - began < patience() and (not failure or str(caught.value) == f"here: {failure}")


def test_input_that_a_process_refuses_is_no_traceback_on_the_terminal(caplog: pytest.LogCaptureFixture):
    async def talk() -> None:
        others = asyncio.all_tasks()
        with pytest.raises(Unreachable, match="Permission denied"):
            await Link.open("here", ["sh", "-c", "exec <&-; echo Permission denied; exit 3"], b"x" * 200_000)
        while asyncio.all_tasks() - others:
            await asyncio.sleep(0.01)

    loop.wait_for(talk())
    gc.collect()
    assert caplog.records == [], "Python prints an error that nobody has asked for"


@pytest.mark.parametrize(
    ("said", "dropped", "remedy"),
    [
        ("kex_exchange_identification: Connection closed by remote host", True, "MaxStartups"),
        ("kex_exchange_identification: read: Connection reset by peer\nConnection reset by ::1 port 22", True, "MaxS"),
        ("Connection timed out during banner exchange", True, "MaxStartups"),
        ("Permission denied (publickey).\nConnection closed by UNKNOWN port 65535", False, "Add your key"),
        ("Host key verification failed.\nConnection closed by UNKNOWN port 65535", False, "host_keys: accept-new"),
        (
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n"
            "kex_exchange_identification: Connection closed by remote host",
            False,
            "Check the port",
        ),
        ("", False, "exit code 255"),
    ],
)
def test_only_a_connection_that_an_sshd_dropped_is_worth_another_try(said: str, dropped: bool, remedy: str):
    failure = ssh_failure("ssh node-a", said.encode(), 255)
    assert isinstance(failure, Dropped) is dropped
    assert failure.cause.startswith("ssh node-a: ") and remedy in failure.cause and "\n" not in failure.cause
