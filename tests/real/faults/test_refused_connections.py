"""Connections that must not be made: each is refused with one clear line; the right one works."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.faults.certificates import Authority, Identity
from tests.support.controller import Finished, Runs
from tests.support.engines.docker import TLSEngine
from tests.support.engines.processes import Server, free_port, port_answers
from tests.support.engines.servers import SshHost, new_key

pytestmark = pytest.mark.docker


@dataclass(frozen=True)
class TLSHost:
    """An engine behind TLS, and what its clients can come with."""

    engine: TLSEngine
    ours: Authority
    others: Authority

    def connection(self, ca: Path, name: str, authority: Authority, days: int = 2) -> dict[str, Any]:
        """Return how to reach it, with a new certificate."""
        identity = authority.issue(name, days=days)
        return {"docker": f"tcp://127.0.0.1:{self.engine.port}", "tls": tls(ca, identity)}


def tls(ca: Path, identity: Identity) -> dict[str, str]:
    return {"ca": str(ca), "cert": str(identity.certificate), "key": str(identity.key)}


@pytest.fixture(scope="module")
def tls_host(engine_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSHost]:
    """Start an engine behind mutual TLS."""
    certificates = tmp_path_factory.mktemp("certificates")
    ours, others = Authority(certificates / "ours", "ours"), Authority(certificates / "others", "others")
    identity = ours.issue("engine", server=True)
    folder = engine_folder / "tls"
    folder.mkdir()
    with TLSEngine(folder, ours.certificate, identity.certificate, identity.key) as engine:
        yield TLSHost(engine, ours, others)


@pytest.fixture(scope="module")
def expired_port(tls_host: TLSHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start a server on loopback whose certificate has expired."""
    identity, port = tls_host.ours.issue("expired", server=True, days=-1), free_port()
    log = tmp_path_factory.mktemp("expired") / "log"
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-quiet", "-www"]
    command += ["-cert", str(identity.certificate), "-key", str(identity.key)]
    with Server(command, log, lambda: port_answers(port)):
        yield port


REFUSED = {
    "unknown-host-key": ("Host key verification failed", "host_keys: accept-new"),
    "changed-host-key": ("IDENTIFICATION HAS CHANGED", "compare the key"),
    "wrong-user-key": ("Permission denied", "IdentityFile"),
    "wrong-socket": ("/nowhere/docker.sock", "docker_socket"),
    "closed-port": ("refused", "sshd"),
    "engine-of-another-ca": ("certificate", "tls.ca"),
    "client-of-another-ca": ("certificate", "tls.cert"),
    "expired-client": ("certificate", "tls.cert"),
    "expired-engine": ("expired", "Renew"),
    "key-of-another-certificate": ("key", "tls.key"),
    "no-tls": ("TLS", "tls:"),
}
"""By host: words of why it is refused, and of what to do."""


def ssh_connections(ssh_host: SshHost, folder: Path) -> dict[str, dict[str, Any]]:
    """Return every way in which ssh must not connect."""
    key, unknown, changed = folder / "other", folder / "unknown", folder / "changed"
    new_key(key)
    unknown.write_text("")
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    changed.write_text(f"[127.0.0.1]:{ssh_host.port} {public}\n")

    def by_ssh(alias: str, old: object = "", new: object = "", **settings: str) -> dict[str, Any]:
        config = folder / f"{alias}-config"
        # Every host of a file must be another machine, hence another alias.
        text = ssh_host.config_file.read_text().replace(ssh_host.alias, alias)
        assert str(old) in text
        config.write_text(text.replace(str(old), str(new)))
        return {**ssh_host.connection(), "docker": f"ssh://{alias}", "ssh_config": str(config), **settings}

    return {
        "unknown-host-key": by_ssh("unknown", ssh_host.known_hosts, unknown),
        "changed-host-key": by_ssh("changed", ssh_host.known_hosts, changed),
        "wrong-user-key": by_ssh("stranger", ssh_host.identity_file, key),
        "wrong-socket": by_ssh("elsewhere", docker_socket="/nowhere/docker.sock"),
        "closed-port": by_ssh("closed", f"Port {ssh_host.port}", f"Port {free_port()}"),
    }


def tls_connections(tls_host: TLSHost, expired_port: int) -> dict[str, dict[str, Any]]:
    """Return every way in which TLS must not connect."""
    ours, others, port = tls_host.ours, tls_host.others, tls_host.engine.port
    mixed = Identity(ours.issue("another").key, ours.issue("mixed").certificate)
    connections = {
        "engine-of-another-ca": tls_host.connection(others.certificate, "trusting-others", ours),
        "client-of-another-ca": tls_host.connection(ours.certificate, "stranger", others),
        "expired-client": tls_host.connection(ours.certificate, "late", ours, days=-1),
        "key-of-another-certificate": {"tls": tls(ours.certificate, mixed)},
        "no-tls": {"insecure": True},
    }
    for connection in connections.values():
        connection["docker"] = f"tcp://127.0.0.1:{port}"
    return connections | {
        "expired-engine": {
            "docker": f"tcp://127.0.0.1:{expired_port}",
            "tls": tls(ours.certificate, ours.issue("punctual")),
        }
    }


@pytest.fixture(scope="module")
def verdicts(
    ssh_host: SshHost, tls_host: TLSHost, expired_port: int, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Ask all of them by one `check`, and return what it said about each."""
    runs = Runs(tmp_path_factory.mktemp("refused"))
    hosts = ssh_connections(ssh_host, runs.folder) | tls_connections(tls_host, expired_port)
    done = check(runs, hosts, expect=4)
    assert "Traceback" not in done.stderr and "A bug" not in done.stderr
    assert (runs.folder / "unknown").read_text() == "", "a host key was added without being asked for"
    starts = {name: f"all.{name}: " for name in hosts}
    lines = done.stdout.splitlines()
    return {name: [line for line in lines if line.startswith(start)] for name, start in starts.items()}


def check(runs: Runs, hosts: dict[str, dict[str, Any]], expect: int | None = None) -> Finished:
    file = runs.hosts({"all": {"hosts": hosts}}, image="nothing", image_source="local")
    return runs.run("check", f"--hosts={file}", expect=expect)


@pytest.mark.parametrize("name", REFUSED)
def test_a_connection_that_must_not_be_made_is_refused_with_one_line(name: str, verdicts: dict[str, list[str]]):
    (line,) = verdicts[name]
    reason, remedy = REFUSED[name]
    assert "cannot be measured now" in line
    assert reason in line
    assert remedy in line


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_mutual_tls_works(address: str, tls_host: TLSHost, runs: Runs):
    good = tls_host.connection(tls_host.ours.certificate, f"client-{len(address)}", tls_host.ours)
    done = check(runs, {"one": good | {"docker": f"tcp://{address}:{tls_host.engine.port}"}})
    # The engine was asked: only it can know that it has no such image.
    assert "image nothing is not on the host" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_ca_of_the_environment_does_not_replace_the_one_of_the_file(variable: str, tls_host: TLSHost, runs: Runs):
    trusting_others = tls_host.connection(tls_host.others.certificate, "deceived", tls_host.ours)
    runs.environment[variable] = str(tls_host.ours.certificate)
    done = check(runs, {"one": trusting_others}, expect=4)
    assert "tls.ca" in done.stdout


def test_tcp_without_tls_is_a_mistake_of_the_file(runs: Runs):
    done = check(runs, {"one": {"docker": "tcp://127.0.0.1:2375"}}, expect=2)
    assert len(done.stderr.splitlines()) == 1
    assert "without TLS" in done.stderr and "insecure: true" in done.stderr


def test_a_run_on_no_usable_host_says_why_and_starts_nothing(ssh_host: SshHost, runs: Runs):
    refused = ssh_connections(ssh_host, runs.folder)["unknown-host-key"]
    done = runs.measure({"all": {"hosts": {"one": refused}}}, image="nothing", expect=4)
    assert "Host key verification failed" in done.stderr
    assert not (runs.folder / "runs").exists()
