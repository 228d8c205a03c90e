"""A registry on loopback with one image for fake benchmarks: a shell, a few programs, and a large file."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROGRAMS = ("dash", "sh", "cat", "df", "sleep", "id", "dd", "tail", "rm", "mkdir")
BIG_FILE_BYTES = 300 << 20
"""Size of the image's file, larger than a benchmark may write."""

OCI = "application/vnd.oci.image"
MANIFEST = f"{OCI}.manifest.v1+json"


class OneImage:
    """A registry on loopback with one image, which counts requests of its manifest.

    Args:
        root: Root folder whose shell and programs the image has.
        benchmark: Text of its `python3.11`.
        environment: Variables set by the image.
        seconds: Duration of pulling its layer.

    Attributes:
        repository: Its name, without a tag.
        digest: Digest of its manifest.
        pulls: Number of requests of the manifest.
    """

    def __init__(
        self, root: Path, benchmark: str, environment: Mapping[str, str] | None = None, seconds: float = 0.0
    ) -> None:
        variables = [f"{name}={value}" for name, value in {"PATH": "/usr/bin:/bin", **(environment or {})}.items()]
        data = _layer(root, benchmark)
        layer = gzip.compress(data, compresslevel=1)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": variables, "WorkingDir": "/opt/tfbench"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(data)]},
        }
        parts = {"config.v1+json": json.dumps(config).encode(), "layer.v1.tar+gzip": layer}
        described, described_layer = (
            {"mediaType": f"{OCI}.{kind}", "digest": _digest(blob), "size": len(blob)} for kind, blob in parts.items()
        )
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": [described_layer]}
        manifest = json.dumps(document).encode()
        files = {"": b"", **{_digest(blob): blob for blob in (*parts.values(), manifest)}}
        self.digest, self.pulls, counter = _digest(manifest), 0, self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                place, _, name = self.path.rpartition("/")
                body = manifest if place.endswith("/manifests") else files.get(name)
                if self.command == "GET":
                    counter.pulls += body is manifest
                    time.sleep(seconds if body is layer else 0)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Type", MANIFEST if body is manifest else "application/octet-stream")
                self.send_header("Content-Length", str(len(body or b"")))
                self.send_header("Docker-Content-Digest", _digest(body or b""))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Do not log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.repository = f"127.0.0.1:{self._server.server_port}/bench/tfbench"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _layer(root: Path, benchmark: str) -> bytes:
    """Return a layer with a shell, a few programs with their libraries, and a large file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(name: str, data: bytes = b"", mode: int = 0o755, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
            entry = tarfile.TarInfo(name)
            entry.mode, entry.type, entry.linkname, entry.size = mode, kind, link, len(data)
            tar.addfile(entry, io.BytesIO(data))

        folders = ["usr", "usr/bin", "usr/lib", "usr/lib64", "opt", "opt/tfbench", "out", "tmp", "proc", "sys", "dev"]
        for folder in [*folders, "etc", "data"]:
            add(folder, kind=tarfile.DIRTYPE, mode=0o1777 if folder == "tmp" else 0o755)
        for name in ("bin", "lib", "lib64"):
            add(name, kind=tarfile.SYMTYPE, link=f"usr/{name}")
        for name in PROGRAMS:
            add(f"usr/bin/{name}", (root / "usr/bin" / name).read_bytes())
        libraries = root / "usr/lib/x86_64-linux-gnu"
        add("usr/lib64/ld-linux-x86-64.so.2", (libraries / "ld-linux-x86-64.so.2").read_bytes())
        for name in ("libc.so.6", "libselinux.so.1", "libpcre2-8.so.0", "libcrypto.so.3", "libz.so.1", "libzstd.so.1"):
            if (libraries / name).exists():
                add(f"usr/lib/{name}", (libraries / name).read_bytes())
        add("usr/bin/python3.11", benchmark.encode())
        for name in ("passwd", "group", "hosts", "resolv.conf"):  # apptainer reads or mounts over them
            add(f"etc/{name}", b"root:x:0:0::/root:/bin/sh\n" if name == "passwd" else b"", 0o644)
        add("opt/big", bytes(BIG_FILE_BYTES), 0o644)
    return buffer.getvalue()
