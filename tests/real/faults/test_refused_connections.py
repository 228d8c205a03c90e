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
    """An engine behind mutual TLS, an authority that it trusts, and another one.

    Attributes:
        expired_port: Port of a second server, with an expired certificate.
    """

    engine: TLSEngine
    ours: Authority
    others: Authority
    expired_port: int


def tls(ca: Authority, identity: Identity) -> dict[str, Any]:
    return {"tls": {"ca": str(ca.certificate), "cert": str(identity.certificate), "key": str(identity.key)}}


@pytest.fixture(scope="module")
def tls_host(engine_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSHost]:
    certificates, port = tmp_path_factory.mktemp("certificates"), free_port()
    ours, others = Authority(certificates / "ours", "ours"), Authority(certificates / "others", "others")
    identity, expired = ours.issue("engine", server=True), ours.issue("expired", server=True, days=-1)
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-quiet", "-www"]
    command += ["-cert", str(expired.certificate), "-key", str(expired.key)]
    folder = engine_folder / "tls"
    folder.mkdir()
    with (
        TLSEngine(folder, ours.certificate, identity.certificate, identity.key) as engine,
        Server(command, certificates / "log", lambda: port_answers(port)),
    ):
        yield TLSHost(engine, ours, others, port)


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


def tls_connections(host: TLSHost) -> dict[str, dict[str, Any]]:
    """Return every way in which TLS must not connect."""
    ours, others = host.ours, host.others
    mixed = Identity(ours.issue("another").key, ours.issue("mixed").certificate)
    connections: dict[str, dict[str, Any]] = {
        "engine-of-another-ca": tls(others, ours.issue("trusting-others")),
        "client-of-another-ca": tls(ours, others.issue("stranger")),
        "expired-client": tls(ours, ours.issue("late", days=-1)),
        "key-of-another-certificate": tls(ours, mixed),
        "no-tls": {"insecure": True},
        "expired-engine": tls(ours, ours.issue("punctual")),
    }
    for name, connection in connections.items():
        port = host.expired_port if name == "expired-engine" else host.engine.port
        connection["docker"] = f"tcp://127.0.0.1:{port}"
    return connections


def check(runs: Runs, hosts: dict[str, dict[str, Any]], expect: int | None = None) -> Finished:
    file = runs.hosts({"all": {"hosts": hosts}}, image="nothing", image_source="local")
    return runs.run("check", f"--hosts={file}", expect=expect)


def test_connections_that_must_not_be_made_are_refused_with_one_line_each(ssh_host, tls_host: TLSHost, runs: Runs):
    runs.environment["REQUESTS_CA_BUNDLE"] = str(tls_host.ours.certificate)  # does not replace the file's `ca`
    hosts = ssh_connections(ssh_host, runs.folder) | tls_connections(tls_host)
    done = check(runs, hosts, expect=4)
    assert "Traceback" not in done.stderr and "A bug" not in done.stderr
    assert (runs.folder / "unknown").read_text() == "", "a host key was added without being asked for"
    for name, words in REFUSED.items():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"all.{name}: ")]
        assert all(word in line for word in ("cannot be measured now", *words)), line


def test_mutual_tls_works_also_over_ipv6(tls_host: TLSHost, runs: Runs):
    good, port = tls(tls_host.ours, tls_host.ours.issue("client")), tls_host.engine.port
    addresses = {"four": "127.0.0.1", "six": "[::1]"}
    done = check(runs, {name: good | {"docker": f"tcp://{address}:{port}"} for name, address in addresses.items()})
    # The engine was asked: only it can know that it has no such image.
    assert done.stdout.count("image nothing is not on the host") == 2, done.stdout + done.stderr
