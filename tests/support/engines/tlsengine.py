"""A Docker engine behind mutual TLS."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.engines.processes import Server, free_port, port_answers


class TLSEngine:
    """A Docker engine that listens on loopback, on IPv4 and IPv6, and wants a certificate.

    Attributes:
        port: Where.

    Args:
        folder: An empty folder with a short name.
        ca: Certificate of the authority whose clients it lets in.
        certificate: Its own.
        key: Of `certificate`.
    """

    def __init__(self, folder: Path, ca: Path, certificate: Path, key: Path) -> None:
        self.port = free_port()
        self._folder = folder
        configuration = folder / "daemon.json"
        configuration.write_text("{}")
        name = f"tfbench-{os.getpid()}-{folder.name}"
        self._server = Server(
            [
                "dockerd",
                f"--host=tcp://127.0.0.1:{self.port}",
                f"--host=tcp://[::1]:{self.port}",
                f"--host=unix://{folder / 'e.sock'}",
                "--tlsverify",
                f"--tlscacert={ca}",
                f"--tlscert={certificate}",
                f"--tlskey={key}",
                f"--config-file={configuration}",
                f"--data-root={folder / 'data'}",
                f"--exec-root={folder / 'exec'}",
                f"--pidfile={folder / 'pid'}",
                f"--containerd-namespace={name}",
                f"--containerd-plugins-namespace={name}-plugins",
                "--bridge=none",
                "--iptables=false",
                "--ip-masq=false",
                "--ip-forward=false",
            ],
            folder / "log",
            lambda: port_answers(self.port),
        )

    def start(self) -> None:
        """Start it."""
        self._server.start()

    def stop(self) -> None:
        """End it."""
        self._server.stop()
