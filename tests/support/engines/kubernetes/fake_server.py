"""A fake Kubernetes API server over HTTP, whose scheduler, Job controller and kubelet are controlled by tests.

It answers the launcher's requests; objects are validated against the official schema.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

Object = dict[str, Any]

SCHEMA = "1.33"
NAMESPACE = "bench"
COLLECTIONS = {
    "/api/v1/nodes": "nodes",
    f"/api/v1/namespaces/{NAMESPACE}/pods": "pods",
    f"/api/v1/namespaces/{NAMESPACE}/events": "events",
    f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs": "jobs",
}


class Answer(Exception):
    """An error response: a Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Do not log connections cut by tests."""


class FakeServer:
    """The server.

    Attributes:
        play: Called in a thread for each new Job; changes it and its pods.
        faults: Called before each request with method and path; may raise `Answer` or `ConnectionResetError`.
        requests: Requests, as `METHOD PATH?QUERY`.
    """

    def __init__(self, play: Callable[[FakeServer, Object], None]) -> None:
        self.play = play
        self.faults: Callable[[str, str], None] = lambda method, path: None
        self.requests: list[str] = []
        self.changed = threading.Condition()
        self._objects: dict[tuple[str, str], Object] = {}
        self._logs: dict[str, list[str]] = {}
        self._numbers = itertools.count(1)
        self._server = _QuietServer(("127.0.0.1", 0), _handler(self))
        self._players: list[threading.Thread] = []
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig with two contexts: `bench`, and the current one, which is unreachable."""
        contexts = [
            {"name": "bench", "context": {"cluster": "fake", "user": "me", "namespace": NAMESPACE}},
            {"name": "elsewhere", "context": {"cluster": "nowhere", "user": "me"}},
        ]
        servers = {"fake": f"http://127.0.0.1:{self._server.server_port}", "nowhere": "http://127.0.0.1:9"}
        clusters = [{"name": name, "cluster": {"server": url}} for name, url in servers.items()]
        users = [{"name": "me", "user": {"token": "secret"}}]
        document = {"apiVersion": "v1", "kind": "Config", "current-context": "elsewhere"}
        path.write_text(json.dumps({**document, "clusters": clusters, "contexts": contexts, "users": users}))
        return path

    def close(self) -> None:
        """Stop the server and its threads."""
        self.closed.set()
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for player in self._players:
            player.join(10)

    def put(self, kind: str, item: Object, *, new: bool = False) -> Object:
        """Store an object."""
        with self.changed:
            key = kind, item["metadata"]["name"]
            if new and key in self._objects:
                raise Answer(409, "AlreadyExists", f'{kind} "{key[1]}" already exists')
            metadata = item["metadata"]
            metadata.setdefault("uid", f"uid-{next(self._numbers)}")
            metadata.setdefault("creationTimestamp", f"2026-11-21T10:00:{next(self._numbers):06d}Z")
            self._objects[key] = item
            self.changed.notify_all()
        return item

    def drop(self, kind: str, name: str) -> None:
        """Delete an object."""
        with self.changed:
            self._objects.pop((kind, name), None)
            self.changed.notify_all()

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object."""
        with self.changed:
            return self._objects.get((kind, name))

    def find(self, kind: str, name: str) -> Object:
        """Return an object, or raise 404."""
        if (item := self.get(kind, name)) is None:
            raise Answer(404, "NotFound", f'{kind} "{name}" not found')
        return item

    def all(self, kind: str) -> list[Object]:
        """Return all objects of a kind."""
        with self.changed:
            return [item for (of, _), item in sorted(self._objects.items()) if of == kind]

    def log(self, pod: str, line: str) -> None:
        """Add a line to a pod's log."""
        with self.changed:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            self._logs.setdefault(pod, []).append(f"{stamp} {line}")
            self.changed.notify_all()

    def create(self, kind: str, item: Object) -> Object:
        """Create an object; for a Job, start `play`."""
        try:
            kubernetes_validate.validate(item, SCHEMA, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Answer(422, "Invalid", f"{kind} is invalid: {error.message}") from error
        item["metadata"]["namespace"] = NAMESPACE
        self.put(kind, item, new=True)
        if kind == "jobs":
            player = threading.Thread(target=self.play, args=(self, item), daemon=True)
            self._players.append(player)
            player.start()
        return item

    def delete(self, kind: str, name: str) -> Object:
        """Mark a Job as deleted; it is removed once `play` has ended its pods."""
        item = self.find(kind, name)
        item["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
        self.put(kind, item)
        threading.Thread(target=self._collect_garbage, args=(name,), daemon=True).start()
        return item

    def _collect_garbage(self, name: str) -> None:
        """Remove a deleted Job's pods once they have ended, then the Job."""
        pods = [pod for pod in self.all("pods") if pod["metadata"]["labels"]["job-name"] == name]
        with self.changed:
            self.changed.wait_for(lambda: all(pod["status"]["phase"] != "Running" for pod in pods), timeout=5)
        for pod in pods:
            self.drop("pods", pod["metadata"]["name"])
        self.drop("jobs", name)

    def list(self, kind: str, query: dict[str, str]) -> Object:
        """Return a list of the objects with some labels, or with a name."""
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
        with self.changed:
            items = [item for item in self.all(kind) if wanted.items() <= item["metadata"].get("labels", {}).items()]
            _, selects, name = query.get("fieldSelector", "").partition("metadata.name=")
            items = [item for item in items if not selects or item["metadata"]["name"] == name]
            return {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": json.loads(json.dumps(items))}

    def follow(self, pod: str, *, follow: bool) -> Iterator[str]:
        """Yield a pod's log until it has ended."""
        sent = 0
        while not self.closed.is_set():
            with self.changed:
                lines = self._logs.get(pod, [])[sent:]
                item = self._objects.get(("pods", pod))
                ended = item is None or item["status"].get("phase") != "Running"
                if not lines and follow and not ended:
                    self.changed.wait(0.5)
            yield from lines
            sent += len(lines)
            if not lines and (ended or not follow):
                return


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Do not log."""

        def do_GET(self) -> None:
            self._answer(self._get)

        def do_POST(self) -> None:
            self._answer(lambda path, _: server.create(COLLECTIONS[path], self._body))

        def do_DELETE(self) -> None:
            self._answer(lambda path, _: server.delete(COLLECTIONS[path.rpartition("/")[0]], path.rpartition("/")[2]))

        def _answer(self, work: Callable[[str, dict[str, str]], Object | None]) -> None:
            server.requests.append(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length") or 0)
            self._body = json.loads(self.rfile.read(length) or b"{}")
            parts = urlsplit(self.path)
            try:
                if self.headers.get("Authorization") != "Bearer secret":
                    raise Answer(401, "Unauthorized", "Unauthorized")
                server.faults(self.command, self.path)
                answer = work(parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()})
                if answer is not None:
                    self._send(201 if self.command == "POST" else 200, answer)
            except Answer as refusal:
                status = {"kind": "Status", "status": "Failure", "reason": refusal.reason, "message": str(refusal)}
                self._send(refusal.code, status)
            except OSError:
                self.close_connection = True  # cut by a fault or by the client
                with contextlib.suppress(OSError):
                    self.connection.close()

        def _get(self, path: str, query: dict[str, str]) -> Object | None:
            if path.endswith("/log"):
                pod = server.find("pods", path.split("/")[-2])["metadata"]["name"]
                stamped = query.get("timestamps") == "true"
                lines = server.follow(pod, follow=query.get("follow") == "true")
                self._stream(f"{line if stamped else line.partition(' ')[2]}\n" for line in lines)
                return None
            if path in COLLECTIONS:
                return server.list(COLLECTIONS[path], query)
            collection, _, name = path.rpartition("/")
            return server.find(COLLECTIONS[collection], name)

        def _send(self, code: int, document: Object) -> None:
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, pieces: Iterator[str]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in pieces:
                server.faults("STREAM", self.path)
                data = piece.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    return Handler
