"""A real control plane and a real kubelet on this machine's loopback, from what `build.sh` made."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import Server, free_port

TOKEN = "tfbench-test-token"
NODE = "node-1"
PAUSE_DOCKERFILE = 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n'
CNI_PLUGIN = """#!/bin/sh
# Gives a pod an address that leads nowhere: a kubelet kills pods without one, and the tests' engine has no network.
version=$(sed -n 's/.*"cniVersion":"\\([0-9.]*\\)".*/\\1/p')
case "$CNI_COMMAND:${0##*/}" in
VERSION:*) echo '{"cniVersion": "0.3.1", "supportedVersions": ["0.2.0", "0.3.0", "0.3.1"]}' ;;
ADD:loopback) echo "{\\"cniVersion\\": \\"${version:-0.2.0}\\"}" ;;
ADD:*)
    sum=$(printf %s "$CNI_CONTAINERID" | cksum | cut -d" " -f1)
    address=10.88.$((sum / 250 % 250 + 1)).$((sum % 250 + 1))/16
    nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" type bridge >&2 || exit 1
    nsenter --net="$CNI_NETNS" ip address add "$address" dev "$CNI_IFNAME" >&2 || exit 1
    echo "{\\"cniVersion\\": \\"0.3.1\\", \\"ips\\": [{\\"version\\": \\"4\\", \\"address\\": \\"$address\\"}]}" ;;
esac
"""
PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


class RealCluster:
    """etcd, API server, controllers, scheduler, and a kubelet on a Docker engine.

    Args:
        binaries: Folder with what `build.sh` built.
        folder: Short, empty: for certificates, logs and data.
        engine: Runs the containers.
    """

    def __init__(self, binaries: Path, folder: Path, engine: DockerEngine) -> None:
        self._folder = folder
        self._engine = engine
        self._port = free_port()
        etcd, peer, self._kubelet_port = free_port(), free_port(), free_port()
        healthz, manager, scheduler = free_port(), free_port(), free_port()
        self.kubeconfig = self._write_kubeconfig()
        (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        _run("openssl", "genrsa", "-out", f"{folder}/sa.key", "2048")
        self._write_kubelet_config(healthz)
        api = [
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://tests",
            f"--service-account-signing-key-file={folder}/sa.key",
            f"--service-account-key-file={folder}/sa.key",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--allow-privileged=false",
            "--feature-gates=TTLAfterFinished=true",
            "--kubelet-preferred-address-types=InternalIP",
        ]
        config = f"--kubeconfig={self.kubeconfig}"
        kubelet = [
            config,
            f"--config={folder}/kubelet.json",
            f"--root-dir={folder}/kubelet",
            f"--docker-endpoint={engine.url}",
            f"--hostname-override={NODE}",
            "--node-ip=127.0.0.1",  # refused, so that the address that we write stays
            "--pod-infra-container-image=tfbench-pause:1",
            "--network-plugin=cni",
            f"--cni-conf-dir={folder}/cni",
            f"--cni-bin-dir={folder}/cni/bin",
            f"--cni-cache-dir={folder}/cni/cache",
            f"--port={self._kubelet_port}",
            f"--cert-dir={folder}/kubelet-certificates",
            "--container-runtime=docker",
            f"--experimental-dockershim-root-directory={folder}/dockershim",
        ]
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
            self._server(binaries / "kube-apiserver", *api, ready=lambda: self._is_ready("/readyz")),
            self._server(
                binaries / "kube-controller-manager",
                config,
                "--leader-elect=false",
                f"--secure-port={manager}",
                "--port=0",
                f"--cert-dir={folder}/manager-certificates",
                "--controllers=*,-nodeipam,-serviceaccount,-serviceaccount-token",
                "--use-service-account-credentials=false",
                "--feature-gates=TTLAfterFinished=true",
                "--node-monitor-grace-period=12s",
                "--pod-eviction-timeout=5s",
                ready=lambda: _listens(manager),
            ),
            self._server(
                binaries / "kube-scheduler",
                config,
                "--leader-elect=false",
                f"--secure-port={scheduler}",
                "--port=0",
                f"--cert-dir={folder}/scheduler-certificates",
                ready=lambda: _listens(scheduler),
            ),
        ]
        self.kubelet = self._server(binaries / "kubelet", *kubelet, ready=self._node_is_ready)

    def start(self) -> None:
        """Start everything; the node then offers GPUs that are not there, as a device plugin would."""
        self._build_pause()
        self._write_network_plugin()
        for server in self._servers:
            server.start()
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        self.kubelet.start()
        path = f"/api/v1/nodes/{NODE}"
        capacity = {"nvidia.com/gpu": "4"}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]  # that the kubelet would not say of itself
        status = {"capacity": capacity, "allocatable": capacity, "addresses": addresses}
        self.ask("PATCH", f"{path}/status", {"status": status})
        labels = {
            "nvidia.com/gpu.product": "NVIDIA-RTX-A4000",
            "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "6",
            "nvidia.com/gpu.memory": "16376",
            "nvidia.com/cuda.driver-version.full": "550.127.05",
        }
        self.ask("PATCH", path, {"metadata": {"labels": labels}})

    def stop(self) -> None:
        """End everything, the kubelet first."""
        for server in (self.kubelet, *reversed(self._servers)):
            server.stop()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            mount_point = line.split(" ")[1]
            if mount_point.startswith(f"{self._folder}/kubelet/"):
                subprocess.run(["umount", "--lazy", mount_point], check=False, capture_output=True)

    def ask(self, method: str, path: str, body: object = None, token: str = TOKEN) -> dict:
        """Ask the API server as its administrator."""
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
            return json.loads(answer.read())

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def _server(self, program: Path, *arguments: str, ready) -> Server:
        return Server([str(program), *arguments], self._folder / f"{program.name}.log", ready)

    def _is_ready(self, path: str) -> bool:
        try:
            self.ask("GET", "/api/v1/namespaces/default")
            return True
        except (OSError, ValueError):
            return False

    def _node_is_ready(self) -> bool:
        try:
            conditions = self.ask("GET", f"/api/v1/nodes/{NODE}")["status"]["conditions"]
        except (OSError, KeyError, ValueError):
            return False
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def _write_kubeconfig(self) -> Path:
        path = self._folder / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "clusters": [{"name": "real", "cluster": cluster}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin", "namespace": "bench"}}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(document))
        return path

    def _write_kubelet_config(self, healthz: int) -> None:
        capability = int(_capabilities(), 16) >> 24 & 1  # CAP_SYS_RESOURCE: without it no process may be shielded
        document = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self._kubelet_port,
            "healthzPort": healthz,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "oomScoreAdj": 0 if not capability else -999,
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "volumePluginDir": str(self._folder / "plugins"),
        }
        (self._folder / "kubelet.json").write_text(json.dumps(document))

    def _write_network_plugin(self) -> None:
        folder = self._folder / "cni"
        (folder / "bin").mkdir(parents=True)
        for name in ("loopback", "nowhere"):
            (folder / "bin" / name).write_text(CNI_PLUGIN)
            (folder / "bin" / name).chmod(0o755)
        network = {"cniVersion": "0.3.1", "name": "nowhere", "plugins": [{"type": "nowhere"}]}
        (folder / "10-nowhere.conflist").write_text(json.dumps(network))

    def _build_pause(self) -> None:
        folder = self._folder / "pause"
        folder.mkdir()
        (folder / "pause.c").write_text(PAUSE_SOURCE)
        (folder / "Dockerfile").write_text(PAUSE_DOCKERFILE)
        _run("gcc", "-static", "-Os", "-o", f"{folder}/pause", f"{folder}/pause.c")
        self._engine.client.images.build(path=str(folder), tag="tfbench-pause:1", rm=True, forcerm=True)


def _capabilities() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("CapEff:")).split()[1]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _listens(port: int) -> bool:
    from tests.support.engines.processes import port_answers

    return port_answers(port)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
