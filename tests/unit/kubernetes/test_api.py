"""An API server is trusted by its CA only, and ends a request by its limits, with TLS and without."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrate.engines.kubernetes import api
from orchestrate.engines.kubernetes.api import KubernetesCluster, Node
from orchestrate.errors import HostError, LaunchFailed, Unreachable
from orchestrate.inventory.queues import KubernetesQueue
from tests.real.faults.certificates import Authority
from tests.support.patience import patience

GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"items":[]}'


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., KubernetesCluster]]:
    """Return what starts a server that answers so, and gives the cluster behind it."""
    ours, others = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    identity = ours.issue("server", server=True)
    listeners: list[socket.socket] = []

    def start(begin: bytes, each: bytes = b"", *, tls: str = "", trusted: str = "ours") -> KubernetesCluster:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(identity.certificate, identity.key)

        def accept() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with context.wrap_socket(connection, server_side=True) if tls else connection as stream:
                    stream.recv(65536)
                    stream.sendall(begin)
                    while each:
                        stream.sendall(each)
                        time.sleep(0.05)

        threading.Thread(target=accept, daemon=True).start()
        ca = {"ours": ours, "others": others}[trusted].certificate
        cluster = {"server": f"http{tls}://127.0.0.1:{listener.getsockname()[1]}"}
        cluster |= {"certificate-authority": str(ca)} if tls else {}
        document = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}]}
        document |= {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}
        (tmp_path / "kube.yml").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **document}))
        return KubernetesCluster(KubernetesQueue(kubeconfig=str(tmp_path / "kube.yml")))

    yield start
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("tls", ["", "s"])
@pytest.mark.slow
def test_an_answer_that_drips_or_has_no_end_ends_at_its_limits(serve, monkeypatch: pytest.MonkeyPatch, tls: str):
    monkeypatch.setattr(api, "WHOLE_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(api, "MAX_ANSWER_BYTES", 1000)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="not complete after"):
        serve(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"[", tls=tls).objects(Node)
    assert time.monotonic() - began < patience()
    monkeypatch.setattr(api, "WHOLE_ANSWER_SECONDS", patience())
    with pytest.raises(LaunchFailed, match="too large"):
        serve(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n", tls=tls).objects(Node)


@pytest.mark.parametrize("trusted", ["ours", "others"])
def test_a_server_of_another_ca_is_not_asked(serve, trusted: str):
    cluster = serve(GOOD, tls="s", trusted=trusted)
    with contextlib.nullcontext() if trusted == "ours" else pytest.raises(HostError, match="SSLCertVerificationError"):
        assert cluster.objects(Node) == []
