"""Command lines of ssh, limits of conversations, and what ssh's last words mean; no sshd is needed."""

import contextlib
import shutil
import subprocess
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from orchestrate.connections.conversation import ATTEMPTS, LimitExceeded, ask, ssh_failure, with_retries
from orchestrate.connections.ssh import ssh_command
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
    here, sleep = threading.get_ident(), time.sleep
    # Threads of other tests may still sleep.
    monkeypatch.setattr("time.sleep", lambda s: (slept.append if threading.get_ident() == here else sleep)(s))
    assert with_retries(mock.Mock(side_effect=[Dropped("busy"), Dropped("busy"), "connected"])) == "connected"
    with pytest.raises(Unreachable, match="refused"):
        with_retries(mock.Mock(side_effect=[Unreachable("refused"), "connected"]))
    assert len(slept) == 2
    with pytest.raises(Dropped, match=f"busy {ATTEMPTS}"):
        with_retries(mock.Mock(side_effect=[Dropped(f"busy {number}") for number in range(1, ATTEMPTS + 1)]))
    assert len(slept) == ATTEMPTS + 1 and 20 < sum(slept[2:]) < 70


@pytest.mark.parametrize(
    ("script", "exceeded"),
    [
        ("sleep 60", "not done within 1 s"),
        ("while :; do echo alive; sleep 0.05; done", "not done within 1 s"),
        ("yes '' >&2 & yes | tr -d '\\n'", "its answer exceeds 1 MiB"),
        ("head -c 100001 >/dev/null; echo done", ""),
    ],
    ids=["silent", "alive for ever", "an endless line", "ends"],
)
def test_a_question_ends_within_its_limits(script: str, exceeded: str):
    text = b"x" * 100_000 + b"\n"
    seconds = 1.0 if exceeded.startswith("not done") else 4 * patience()
    began = time.monotonic()
    with pytest.raises(LimitExceeded) if exceeded else contextlib.nullcontext() as caught:
        answer = ask(["sh", "-c", script], text, seconds=seconds, max_bytes=1 << 20)
        assert (answer.code, answer.output, len(answer.errors)) == (0, b"done\n", 0)
    assert time.monotonic() - began < patience() and (not exceeded or str(caught.value) == exceeded)


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
    failure = ssh_failure("node-a", said.encode(), 255)
    assert isinstance(failure, Dropped) is dropped
    assert failure.cause.startswith("ssh node-a: ") and remedy in failure.cause and "\n" not in failure.cause
