"""A registry that wants a user's name and password."""

from __future__ import annotations

from pathlib import Path

from tests.support.engines.processes import Server, free_port, port_answers

USER, PASSWORD = "bench", "correct-horse-battery"
PASSWORD_FILE = "bench:$2y$05$abcdefghijklmnopqrstuuSnF5tLPqPFqc0z9CY0HcSLFbSRlL67u\n"
"""For htpasswd: the hash (bcrypt) of PASSWORD."""


class GuardedRegistry:
    """A registry on loopback that lets in `USER` with `PASSWORD` only.

    Attributes:
        address: `127.0.0.1:PORT`, the first part of an image's name.
    """

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        passwords, configuration = folder / "guarded.htpasswd", folder / "guarded.yml"
        passwords.write_text(PASSWORD_FILE)
        configuration.write_text(
            "version: 0.1\n"
            "log: {level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder / 'guarded'}}}}}\n"
            f"auth: {{htpasswd: {{realm: tests, path: {passwords}}}}}\n"
            f"http: {{addr: '{self.address}'}}\n"
        )
        command = ["docker-registry", "serve", str(configuration)]
        self._server = Server(command, folder / "guarded.log", lambda: port_answers(port))

    def start(self) -> None:
        """Start serving."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop()
