"""etcd, an API server, controllers and a scheduler on loopback, with the programs in a folder."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.support.engines.processes import Server, Service, free_port, port_answers, run_program

TOKEN = "tfbench-test-token"
NAMESPACE = "bench"


class ControlPlane(Service):
    """A cluster without nodes.

    Args:
        binaries: Folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
        folder: Empty folder with a short name for certificates, logs and data.
        api: Flags of the API server, in addition to those of all versions.
        manager: Likewise of the controllers.
        scheduler: Likewise of the scheduler.
    """

    def __init__(
        self, binaries: Path, folder: Path, *, api: Sequence[str], manager: Sequence[str], scheduler: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._port = free_port()
        etcd, peer, manager_port, scheduler_port = free_port(), free_port(), free_port(), free_port()
        self.kubeconfig = self._write_kubeconfig()
        config = f"--kubeconfig={self.kubeconfig}"
        (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        run_program("openssl", "genrsa", "-out", f"{folder}/sa.key", "2048")
        self._servers = [
            self._server(
                binaries / "etcd",
                f"--data-dir={folder}/etcd",
                f"--listen-client-urls=http://127.0.0.1:{etcd}",
                f"--advertise-client-urls=http://127.0.0.1:{etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
                ready=lambda: _answers(f"http://127.0.0.1:{etcd}/health"),
            ),
            self._server(
                binaries / "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--cert-dir={folder}/certificates",
                f"--token-auth-file={folder}/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://tests",
                f"--service-account-signing-key-file={folder}/sa.key",
                f"--service-account-key-file={folder}/sa.key",
                "--service-cluster-ip-range=10.96.0.0/24",
                "--allow-privileged=false",
                "--kubelet-preferred-address-types=InternalIP",
                *api,
                ready=self._is_ready,
            ),
            self._server(
                binaries / "kube-controller-manager",
                config,
                "--leader-elect=false",
                f"--secure-port={manager_port}",
                f"--cert-dir={folder}/manager-certificates",
                "--use-service-account-credentials=false",
                *manager,
                ready=lambda: port_answers(manager_port),
            ),
            self._server(
                binaries / "kube-scheduler",
                config,
                "--leader-elect=false",
                f"--secure-port={scheduler_port}",
                f"--cert-dir={folder}/scheduler-certificates",
                *scheduler,
                ready=lambda: port_answers(scheduler_port),
            ),
        ]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start everything, and create the namespace."""
        for server in self._servers:
            server.start()
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def stop(self) -> None:
        """Stop everything."""
        for server in reversed(self._servers):
            server.stop()

    def ask(self, method: str, path: str, body: object = None) -> dict:
        """Send a request to the API server as administrator."""
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
            return json.loads(answer.read())

    def _server(self, program: Path, *arguments: str, ready) -> Server:
        return Server([str(program), *arguments], self._folder / f"{program.name}.log", ready)

    def _is_ready(self) -> bool:
        try:
            self.ask("GET", "/api/v1/namespaces/default")
            return True
        except (OSError, ValueError):
            return False

    def _write_kubeconfig(self) -> Path:
        path = self._folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "clusters": [{"name": "real", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin", "namespace": NAMESPACE}}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(document))
        return path


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
