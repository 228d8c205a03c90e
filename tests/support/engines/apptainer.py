"""Apptainer of Debian sid, run as a user without rights, and a registry with one image that looks like a benchmark's."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from filelock import FileLock

from tests.support.engines.processes import EngineError, find_program
from tests.support.engines.roots import ENTER, USER

PACKAGES = ("apptainer", "ca-certificates", "squashfs-tools", "squashfuse", "fuse-overlayfs", "fakeroot", "uidmap")
PROGRAMS = ("dash", "sh", "cat", "df", "sleep", "id", "dd", "tail", "rm")
BIG_FILE_BYTES = 300 << 20
"""Of the image: more than a benchmark may write."""

DEVICES = """\
umount /dev/fuse && rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229
ln -s /proc/self/fd/0 /dev/stdin; ln -s /proc/self/fd/1 /dev/stdout; ln -s /proc/self/fd/2 /dev/stderr
exec "$@"
"""
"""A user mounts images by fuse; apptainer wants the names of its streams."""

OCI = "application/vnd.oci.image"


def make_root(folder: Path) -> Path:
    """Return a root folder of Debian sid with apptainer; made once.

    Raises:
        EngineError: debootstrap failed.
    """
    root = folder / "apptainer"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "apptainer.lock"):
        if not root.exists():
            partial = folder / "apptainer.partial"
            command = [find_program("debootstrap") or "debootstrap", "--variant=minbase"]
            command += [f"--include={','.join(PACKAGES)}", "sid", str(partial)]
            made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                raise EngineError(f"debootstrap failed:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")
            with (partial / "etc/passwd").open("a") as file:
                file.write(f"bench:x:{USER}:{USER}::/tmp:/bin/sh\n")
            (partial / "etc/hosts").touch()
            partial.rename(root)
    return root


def run_as_user(root: Path, folder: Path, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command as a user without rights, with `root` as its root folder and `folder` where it is here."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "TFBENCH_USER": str(USER), **environment}
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    enter = ["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, "enter", str(root), str(folder)]
    return subprocess.Popen(
        [*enter, "sh", "-c", DEVICES, "enter", *as_user, *command],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


class OneImage:
    """A registry on loopback that has one image, and counts how often its manifest is asked for.

    Args:
        root: Whose shell and few programs the image has.
        benchmark: Text of its `python3.11`.
    """

    def __init__(self, root: Path, benchmark: str) -> None:
        layer = gzip.compress(_layer(root, benchmark), compresslevel=1)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin", "KERAS_HOME=/tmp/keras"], "WorkingDir": "/opt/tfbench"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(gzip.decompress(layer))]},
        }
        blobs = [json.dumps(config).encode(), layer]
        descriptors = [
            {"mediaType": f"{OCI}.{kind}", "digest": _digest(blob), "size": len(blob)}
            for kind, blob in zip(("config.v1+json", "layer.v1.tar+gzip"), blobs, strict=True)
        ]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{OCI}.manifest.v1+json",
                "config": descriptors[0],
                "layers": descriptors[1:],
            }
        ).encode()
        self.pulls = 0
        files = {_digest(blob): blob for blob in blobs}
        counter = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                place, _, name = self.path.rpartition("/")
                body = manifest if place.endswith("/manifests") else files.get(name)
                if body is manifest and self.command == "GET":
                    counter.pulls += 1
                kind = f"{OCI}.manifest.v1+json" if body is manifest else "application/octet-stream"
                known = self.path == "/v2/" or body is not None
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body or b"")))
                if body is manifest:
                    self.send_header("Docker-Content-Digest", _digest(manifest))
                self.end_headers()
                if self.command == "GET" and body:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Be silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.repository = f"127.0.0.1:{self._server.server_port}/bench/tfbench"
        self.digest = _digest(manifest)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End the registry."""
        self._server.shutdown()
        self._server.server_close()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _layer(root: Path, benchmark: str) -> bytes:
    """Make a root folder of a shell, a few programs with their libraries, and a file that is too large to write."""
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
        for name in ("passwd", "group", "hosts", "resolv.conf"):  # apptainer reads or covers them
            add(f"etc/{name}", b"root:x:0:0::/root:/bin/sh\n" if name == "passwd" else b"", 0o644)
        add("opt/big", bytes(BIG_FILE_BYTES), 0o644)
    return buffer.getvalue()
