"""Nodes for a control plane of any version: pods run as processes of this machine, each in a network of its own.

They stand for kubelet and container runtime, which a newer Kubernetes wants on a machine of their own. All that decides
whether and where a pod runs is real: admission, the controllers, the scheduler, and the API server, which fetches logs here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrate.launchers.container import JOB_LABEL
from tests.real.faults.certificates import Authority
from tests.support.engines.images import REPOSITORY
from tests.support.engines.kubernetes.control_plane import NAMESPACE, ControlPlane, run

Object = dict[str, Any]

BRIDGE = "tfbhollow"
HOSTS = Path("/etc/netns")
"""Where `ip netns exec` looks for the files that a network sees in place of those of /etc."""

LOOK_SECONDS = 0.2


class HollowNodes:
    """Nodes that offer CPUs and memory, and what runs on them.

    Args:
        plane: Whose nodes they are.
        folder: Empty: for outputs and certificates.
        names: Of the nodes.
    """

    def __init__(self, plane: ControlPlane, folder: Path, names: tuple[str, ...]) -> None:
        self._plane = plane
        self._folder = folder
        self._names = names
        self._pods: dict[str, _Process] = {}
        self._closed = threading.Event()
        self._server = _log_server(self._pods, folder)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._work, daemon=True),
        ]

    def start(self) -> None:
        """Register the nodes and begin to take pods."""
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        for name in self._names:
            self._plane.ask("POST", "/api/v1/nodes", self._describe(name))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all that runs, and take the networks away."""
        self._closed.set()
        if self._threads[1].is_alive():
            self._threads[1].join()
            self._server.shutdown()
        self._server.server_close()
        for process in self._pods.values():
            process.end()
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)

    def _describe(self, name: str) -> Object:
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "10", "ephemeral-storage": "100Gi"}
        return {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Hollow"}],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_port}},
            },
        }

    def _work(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with contextlib.suppress(urllib.error.HTTPError):  # changed or gone in between: the next look sees it
                self._look()

    def _look(self) -> None:
        items = self._plane.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        placed = [item for item in items if item["spec"].get("nodeName") in self._names]
        for item in placed:
            name = item["metadata"]["name"]
            if name not in self._pods:
                if item["status"]["phase"] == "Pending" and all(
                    "nodeName" in peer["spec"] for peer in _peers(item, items)
                ):
                    self._pods[name] = _Process(item, len(self._pods) + 2, self._folder / name)
            elif item["metadata"].get("deletionTimestamp") and item["status"]["phase"] in ("Succeeded", "Failed"):
                self._plane.ask("DELETE", f"{_path(item)}?gracePeriodSeconds=0")
        for item in placed:
            process = self._pods.get(item["metadata"]["name"])
            if process is None or item["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            peers = [self._pods.get(peer["metadata"]["name"]) for peer in _peers(item, items)]
            if not process.begun and None not in peers:
                process.begin({peer.address: peer.names for peer in peers if peer is not None})
            if process.begun and item["metadata"].get("deletionTimestamp"):
                process.end()
            self._plane.ask("PATCH", f"{_path(item)}/status", {"status": process.status()})


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"


def _peers(pod: Object, pods: list[Object]) -> list[Object]:
    """Return all pods of a pod's Job."""
    name = pod["metadata"]["labels"][JOB_LABEL]
    return [item for item in pods if item["metadata"]["labels"].get(JOB_LABEL) == name]


class _Process:
    """A pod's container: the benchmark itself, as a process in a network namespace."""

    def __init__(self, pod: Object, number: int, folder: Path) -> None:
        self.address = f"10.89.0.{number}"
        spec = pod["spec"]
        host, domain = spec.get("hostname", pod["metadata"]["name"]), spec.get("subdomain")
        self.names = [f"{host}.{domain}", host] if domain else [host]
        self.lines: list[str] = []
        self.changed = threading.Condition()
        self._pod = pod
        self._network = f"tfbhollow{number}"
        self._folder = folder
        self._started = ""
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    @property
    def begun(self) -> bool:
        return self._process is not None

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None and not self._reader.is_alive()

    def begin(self, hosts: dict[str, list[str]]) -> None:
        """Start it, in a network that knows some names."""
        self._folder.mkdir(parents=True)
        (HOSTS / self._network).mkdir(parents=True, exist_ok=True)
        text = "127.0.0.1 localhost\n" + "".join(f"{address} {' '.join(names)}\n" for address, names in hosts.items())
        (HOSTS / self._network / "hosts").write_text(text)
        inside = ("ip", "-n", self._network)
        run("ip", "netns", "add", self._network)
        run("ip", "link", "add", f"{self._network}h", "type", "veth", "peer", "name", "eth0", "netns", self._network)
        run("ip", "link", "set", f"{self._network}h", "master", BRIDGE, "up")
        run(*inside, "address", "add", f"{self.address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")
        (container,) = self._pod["spec"]["containers"]
        arguments = [text.replace("=/out/", f"={self._folder}/") for text in container["args"]]
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", self._network, sys.executable, "-m", "tfbench", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **self._environment(container)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader.start()

    def end(self) -> None:
        """Ask it to end, wait for that, and take its network away."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join()
        subprocess.run(["ip", "netns", "delete", self._network], check=False, capture_output=True)
        shutil.rmtree(HOSTS / self._network, ignore_errors=True)

    def status(self) -> Object:
        """Describe it as a kubelet does."""
        if self._process is None:
            return {"phase": "Pending"}
        code = self._process.returncode if self.ended else None
        state: Object = {"running": {"startedAt": self._started}}
        if code is not None:
            ended = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            why = "Error" if code else "Completed"
            state = {
                "terminated": {"exitCode": code % 256, "reason": why, "startedAt": self._started, "finishedAt": ended}
            }
        (container,) = self._pod["spec"]["containers"]
        shown = {"name": container["name"], "image": container["image"], "imageID": container["image"]}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        statuses = [{**shown, "ready": code is None, "restartCount": 0, "state": state}]
        return {"phase": phase, "podIP": self.address, "containerStatuses": statuses}

    def follow(self, *, follow: bool) -> Iterator[str]:
        """Yield what it prints, until it has ended."""
        sent = 0
        while True:
            with self.changed:
                lines = self.lines[sent:]
                if not lines and follow and not self.ended:
                    self.changed.wait(0.2)
                elif not lines:
                    return
            yield from lines
            sent += len(lines)

    def _environment(self, container: Object) -> dict[str, str]:
        """Return the container's variables, expanded as a kubelet does."""
        found: dict[str, str] = {}
        for item in container["env"]:
            text = item.get("value", "")
            if "valueFrom" in item:
                (key,) = re.findall(r"metadata\.annotations\['(.*)'\]", item["valueFrom"]["fieldRef"]["fieldPath"])
                text = self._pod["metadata"]["annotations"].get(key, "")
            found[item["name"]] = re.sub(r"\$\$|\$\((\w+)\)", lambda hit: found[hit[1]] if hit[1] else "$", text)
        return found

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            with self.changed:
                self.lines.append(f"{datetime.now(UTC).isoformat().replace('+00:00', '000Z')} {line}")
                self.changed.notify_all()
        self._process.wait()


def _log_server(pods: dict[str, _Process], folder: Path) -> ThreadingHTTPServer:
    """Serve logs where the API server asks a kubelet for them."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            process = pods.get(parts.path.split("/")[3])
            self.send_response(200 if process else 404)
            self.end_headers()
            with contextlib.suppress(OSError):
                for line in process.follow(follow="follow=true" in parts.query) if process else ():
                    self.wfile.write(line.encode())
                    self.wfile.flush()

    identity = Authority(folder / "authority", "hollow").issue("kubelet", server=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
