"""A real control plane and kubelet of Kubernetes 1.20 on loopback, with the programs built by `build.sh`."""

import json
import ssl
import urllib.request
from pathlib import Path

from tests.support import write_program
from tests.support.engines.docker import DockerEngine, unmount_below
from tests.support.engines.processes import Server, Service, free_port, port_answers, run_program

TOKEN = "tfbench-test-token"
NAMESPACE = "bench"
NODE = "node-1"
PAUSE_DOCKERFILE = 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n'
CNI_PLUGIN = """#!/bin/sh
# Gives a pod an unreachable address: a kubelet kills pods without one, and the tests' engine has no network.
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
RESTRICTED = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "requiredDropCapabilities": ["ALL"],
    "volumes": [
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
    ],
    "hostNetwork": False,
    "hostIPC": False,
    "hostPID": False,
    "runAsUser": {"rule": "MustRunAsNonRoot"},
    "seLinux": {"rule": "RunAsAny"},
    "supplementalGroups": {"rule": "RunAsAny"},
    "fsGroup": {"rule": "RunAsAny"},
}
"""The Pod Security level `restricted`, as enforced by the admission of Kubernetes before 1.25.
Source: Kubernetes, "Pod Security Standards" and "Mapping PodSecurityPolicies to Pod Security Standards"."""

OPENSHIFT_USERS = {"min": 1000660000, "max": 1000669999}
OPENSHIFT = {
    **RESTRICTED,
    "runAsUser": {"rule": "MustRunAs", "ranges": [OPENSHIFT_USERS]},
    "fsGroup": {"rule": "MustRunAs", "ranges": [OPENSHIFT_USERS]},
}
"""OpenShift's SCC `restricted-v2`, the origin of these policies: a namespace has a range of users, and pods without one
get the first. Source: OpenShift, "Managing security context constraints"."""

PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


class RealCluster(Service):
    """The control plane of Kubernetes, and a kubelet on a Docker engine.

    Args:
        binaries: Folder with the programs built by `build.sh`.
        folder: Empty folder with a short name for certificates, logs and data.
        engine: Engine that runs the containers.
    """

    def __init__(self, binaries: Path, folder: Path, engine: DockerEngine) -> None:
        self._binaries, self._folder, self._engine = binaries, folder, engine
        self._port = free_port()
        self.kubeconfig = self._write_kubeconfig()
        config = f"--kubeconfig={self.kubeconfig}"
        etcd, peer, manager, scheduler, kubelet, healthz = (free_port() for _ in range(6))
        (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        run_program("openssl", "genrsa", "-out", f"{folder}/sa.key", "2048")
        self._write_kubelet_config(kubelet, healthz)
        self._servers = [
            self._server(
                "etcd",
                f"--data-dir={folder}/etcd",
                f"--listen-client-urls=http://127.0.0.1:{etcd}",
                f"--advertise-client-urls=http://127.0.0.1:{etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
                ready=lambda: port_answers(etcd),
            ),
            self._server(
                "kube-apiserver",
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
                "--disable-admission-plugins=ServiceAccount",
                "--enable-admission-plugins=PodSecurityPolicy",
                "--feature-gates=TTLAfterFinished=true",
                ready=self._is_ready,
            ),
            self._server(
                "kube-controller-manager",
                config,
                "--leader-elect=false",
                f"--secure-port={manager}",
                f"--cert-dir={folder}/manager-certificates",
                "--use-service-account-credentials=false",
                "--port=0",
                "--controllers=*,-nodeipam,-serviceaccount,-serviceaccount-token",
                "--feature-gates=TTLAfterFinished=true",
                "--node-monitor-grace-period=12s",
                "--pod-eviction-timeout=5s",
                ready=lambda: port_answers(manager),
            ),
            self._server(
                "kube-scheduler",
                config,
                "--leader-elect=false",
                f"--secure-port={scheduler}",
                f"--cert-dir={folder}/scheduler-certificates",
                "--port=0",
                ready=lambda: port_answers(scheduler),
            ),
        ]
        self.kubelet = self._server(
            "kubelet",
            config,
            f"--config={folder}/kubelet.json",
            f"--root-dir={folder}/kubelet",
            f"--docker-endpoint={engine.url}",
            f"--hostname-override={NODE}",
            "--node-ip=127.0.0.1",  # rejected, so that the address set by the test remains
            "--pod-infra-container-image=tfbench-pause:1",
            "--network-plugin=cni",
            f"--cni-conf-dir={folder}/cni",
            f"--cni-bin-dir={folder}/cni/bin",
            f"--cni-cache-dir={folder}/cni/cache",
            f"--port={kubelet}",
            f"--cert-dir={folder}/kubelet-certificates",
            "--container-runtime=docker",
            f"--experimental-dockershim-root-directory={folder}/dockershim",
            ready=self._node_is_ready,
        )

    def start(self) -> None:
        """Start everything, and create the namespace; the node then offers fake GPUs, like a device plugin."""
        self._build_pause()
        self._write_network_plugin()
        for server in self._servers:
            server.start()
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.admit_only("restricted", RESTRICTED)
        self.kubelet.start()
        path = f"/api/v1/nodes/{NODE}"
        capacity = {"nvidia.com/gpu": "4"}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]  # not reported by the kubelet
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
        """Stop everything, starting with the kubelet."""
        for server in (self.kubelet, *reversed(self._servers)):
            server.stop()
        unmount_below(self._folder / "kubelet")

    def admit_only(self, name: str, rules: dict) -> None:
        """Admit only pods that comply with some rules, replacing previous ones."""
        path = "/apis/policy/v1beta1/podsecuritypolicies"
        profiles = {"seccomp.security.alpha.kubernetes.io/allowedProfileNames": "runtime/default"}
        self.ask("POST", path, {"metadata": {"name": name, "annotations": profiles}, "spec": rules})
        for item in self.ask("GET", path)["items"]:
            if item["metadata"]["name"] != name:
                self.ask("DELETE", f"{path}/{item['metadata']['name']}")

    def ask(self, method: str, path: str, body: object = None) -> dict:
        """Send a request to the API server as administrator."""
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"https://127.0.0.1:{self._port}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
            return json.loads(answer.read())

    def _server(self, program: str, *arguments: str, ready) -> Server:
        return Server([str(self._binaries / program), *arguments], self._folder / f"{program}.log", ready)

    def _is_ready(self) -> bool:
        try:
            self.ask("GET", "/api/v1/namespaces/default")
            return True
        except (OSError, ValueError):
            return False

    def _write_kubeconfig(self) -> Path:
        path = self._folder / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "clusters": [{"name": "real", "cluster": cluster}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin", "namespace": NAMESPACE}}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(document))
        return path

    def _node_is_ready(self) -> bool:
        try:
            conditions = self.ask("GET", f"/api/v1/nodes/{NODE}")["status"]["conditions"]
        except (OSError, KeyError, ValueError):
            return False
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def _write_kubelet_config(self, port: int, healthz: int) -> None:
        capability = int(_capabilities(), 16) >> 24 & 1  # CAP_SYS_RESOURCE, which lowering oom_score_adj needs
        document = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
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
        for name in ("loopback", "nowhere"):
            write_program(folder / "bin" / name, CNI_PLUGIN)
        network = {"cniVersion": "0.3.1", "name": "nowhere", "plugins": [{"type": "nowhere"}]}
        (folder / "10-nowhere.conflist").write_text(json.dumps(network))

    def _build_pause(self) -> None:
        folder = self._folder / "pause"
        folder.mkdir()
        (folder / "pause.c").write_text(PAUSE_SOURCE)
        (folder / "Dockerfile").write_text(PAUSE_DOCKERFILE)
        run_program("gcc", "-static", "-Os", "-o", f"{folder}/pause", f"{folder}/pause.c")
        self._engine.client.images.build(path=str(folder), tag="tfbench-pause:1", rm=True, forcerm=True)


def _capabilities() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("CapEff:")).split()[1]
