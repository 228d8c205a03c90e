"""Command lines of ssh, turns to start connections, and what ssh's last words mean; no sshd is needed."""

from __future__ import annotations

import shlex
import shutil
import threading
import time
from pathlib import Path

import pytest

from orchestrate.errors import Dropped, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.links.connections import ATTEMPTS, Conversation, Turns, persist, ssh_failure
from orchestrate.links.ssh import configuration, entrance, hops, ssh_command

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an OpenSSH client")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "ssh config"
    path.write_text(
        """
Host behind-two
  ProxyJump bob@first.example:2222,second
Host behind-one
  ProxyJump second
Host by-command
  ProxyCommand cloud connect %h
Host second
  HostName 192.0.2.2
"""
    )
    configuration.cache_clear()
    return str(path)


@needs_ssh
def test_jump_hosts_come_from_the_ssh_configuration_the_nearest_first(config: str):
    assert [hop.target for hop in hops(SSHAddress(target="behind-two", ssh_config=config))] == [
        "bob@first.example",
        "second",
    ]
    assert hops(SSHAddress(target="second", ssh_config=config)) == []
    entrances = [
        entrance(SSHAddress(target=name, ssh_config=config))
        for name in ("behind-two", "behind-one", "by-command", "second")
    ]
    assert entrances == ["first.example:2222", "192.0.2.2:22", "cloud connect %h", None]


@needs_ssh
def test_without_a_policy_the_ssh_configuration_alone_decides(config: str):
    login = SSHAddress(target="behind-one", ssh_config=config)
    for keys in (AS_CONFIGURED, HostKeys(file="/a.known_hosts")):
        plain = " ".join(ssh_command(login, keys))
        assert "StrictHostKeyChecking" not in plain and "KnownHosts" not in plain and "Proxy" not in plain


@needs_ssh
def test_jump_hosts_get_the_same_host_keys_through_any_number_of_shells(config: str):
    keys = HostKeys(policy="strict", file="/my hosts/50%.known_hosts")
    words = ssh_command(SSHAddress(target="behind-two", ssh_config=config), keys, remote="true")
    assert words[-3:] == ["--", "behind-two", "true"]
    known = '-oUserKnownHostsFile="/my hosts/50%%.known_hosts"'  # ssh reads % as the beginning of a token
    assert known in words and "-oStrictHostKeyChecking=yes" in words
    (outer,) = [word.partition("=")[2] for word in words if word.startswith("-oProxyCommand=")]
    second = shlex.split(outer.replace("%%", "%"))  # what ssh does with a ProxyCommand, then what the shell does
    assert second[-4:] == ["-W", "[%h]:%p", "--", "second"] and known in second
    assert "-J" not in second, "ssh takes a jump host or a proxy command"
    (inner,) = [word.partition("=")[2] for word in second if word.startswith("-oProxyCommand=")]
    first = shlex.split(inner.replace("%%", "%"))
    assert first[-4:] == ["-W", "[%h]:%p", "--", "bob@first.example"] and known in first and "2222" in first
    assert "-oControlMaster=no" in second and "-oControlMaster=no" in first


def test_no_more_than_the_allowed_starts_go_on_at_a_time():
    turns, running, most, lock = Turns(at_a_time=3), 0, 0, threading.Lock()

    def start() -> None:
        nonlocal running, most
        with turns.turn():
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1

    threads = [threading.Thread(target=start) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_a_start_that_hangs_does_not_keep_others_from_the_jump_host():
    turns = Turns(at_a_time=1, seconds=0.05)
    with turns.turn(), turns.turn() as opened:
        opened()
        with turns.turn():
            opened()


def test_a_dropped_connection_is_made_again_and_another_failure_is_not(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    here, sleep = threading.get_ident(), time.sleep
    # Threads of other tests may still sleep.
    monkeypatch.setattr(
        "time.sleep", lambda seconds: (slept.append if threading.get_ident() == here else sleep)(seconds)
    )
    answers: list[Exception | str] = [Dropped("busy"), Dropped("busy"), "connected"]

    def start() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert persist(start) == "connected" and len(slept) == 2
    answers[:] = [Unreachable("refused"), "connected"]
    with pytest.raises(Unreachable, match="refused"):
        persist(start)
    slept.clear()
    answers[:] = [Dropped(f"busy {number}") for number in range(1, ATTEMPTS + 1)]
    with pytest.raises(Dropped, match=f"busy {ATTEMPTS}"):
        persist(start)
    assert len(slept) == ATTEMPTS - 1 and 20 < sum(slept) < 70


@pytest.mark.parametrize(
    ("script", "exceeded"),
    [
        ("sleep 60", "no answer for 0 s"),
        ("while :; do echo alive; sleep 0.05; done", "not done within 1 s"),
        ("yes", "its answer exceeds 1 MiB"),
        ("yes '' >&2 & yes | tr -d '\\n'", "its answer exceeds 1 MiB"),
        ("cat; echo done", ""),
    ],
    ids=["silent", "alive for ever", "endless lines", "an endless line", "ends"],
)
def test_a_conversation_ends_within_its_limits(script: str, exceeded: str):
    limits = {"seconds": 1.0, "max_bytes": 1 << 20}
    began = time.monotonic()
    text = b"x" * 100_000 + b"\n"
    script = script.replace("cat", f"head -c {len(text)} >/dev/null")
    with Conversation(["sh", "-c", script], text, silence_seconds=0.4, **limits) as talk:
        lines = list(talk.lines())
        code, said = talk.result()
    assert talk.exceeded == exceeded and len(said) <= 10_000 and time.monotonic() - began < 40
    assert bool(code) is bool(exceeded) and (exceeded or lines == [b"done\n"])


@pytest.mark.parametrize(
    ("said", "dropped", "remedy"),
    [
        ("kex_exchange_identification: Connection closed by remote host", True, "MaxStartups"),
        ("kex_exchange_identification: read: Connection reset by peer\nConnection reset by ::1 port 22", True, "MaxS"),
        ("Connection closed by UNKNOWN port 65535", True, "MaxStartups"),
        ("Connection timed out during banner exchange", True, "MaxStartups"),
        ("Connection to 10.0.0.1 closed by remote host.", False, "closed by remote host"),
        ("client_loop: send disconnect: Broken pipe", False, "Broken pipe"),
        ("Permission denied (publickey).\nConnection closed by UNKNOWN port 65535", False, "Add your key"),
        ("Host key verification failed.\nConnection closed by UNKNOWN port 65535", False, "host_keys: accept-new"),
        (
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n"
            "kex_exchange_identification: Connection closed by remote host",
            False,
            "Check the port",
        ),
        (
            "ssh: connect to host bastion port 22: Connection timed out\n"
            "kex_exchange_identification: Connection closed by remote host",
            False,
            "timed out",
        ),
        ("", False, "exit code 255"),
    ],
)
def test_only_a_connection_that_an_sshd_dropped_is_worth_another_try(said: str, dropped: bool, remedy: str):
    failure = ssh_failure("node-a", said.encode(), 255)
    assert isinstance(failure, Dropped) is dropped
    assert failure.cause.startswith("ssh node-a: ") and remedy in failure.cause and "\n" not in failure.cause
