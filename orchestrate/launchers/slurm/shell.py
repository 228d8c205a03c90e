"""Scripts of POSIX sh on a login host, or here: one connection for each, in which everything is asked at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import IO

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.links.connections import persist, starting
from orchestrate.links.refusals import ssh_failure
from orchestrate.links.ssh import OWN_CONNECTION, ssh_command
from orchestrate.text import plain_text

SCRIPT_SECONDS = 120.0
"""After this time a script hangs: in a shared folder that is gone, or in a busy scheduler."""

MAX_ANSWER_BYTES = 96 * 1024 * 1024
SSH_FAILED = 255
CHUNK_BYTES = 1 << 20


class LoginShell:
    """Runs scripts where Slurm's commands are.

    Args:
        login: Where ssh goes; None: this machine.
        keys: Which host keys ssh accepts.
    """

    def __init__(self, login: SSHAddress | None, keys: HostKeys = AS_CONFIGURED) -> None:
        self.name = "this machine" if login is None else f"ssh {login.target}"
        self._login = login
        self._keys = keys
        self._flags = ["-T"]

    def run(self, script: str, seconds: float = SCRIPT_SECONDS) -> list[str]:
        """Run a script to its end.

        Args:
            script: Lines of POSIX sh; what they read on standard input is empty.
            seconds: It is ended after this time.

        Returns:
            The lines that it printed, however hostile; what profiles print before is not among them.

        Raises:
            Unreachable: No connection, an exit code that is not 0, or an answer that is cut off.
        """
        mark = f"tfbench-{secrets.token_hex(8)}"
        # As a function the shell reads all of it before anything runs: no command can eat the rest of the script.
        text = f"main() {{\necho {mark}\n{script}\n:\n}}\nmain </dev/null || exit\necho {mark}\n"
        code, answer, said = persist(lambda: self._connect(text.encode(), seconds))
        if code != 0:
            why = f"no answer within {seconds:.0f} s" if code == -signal.SIGKILL else _last_words(said, code)
            raise Unreachable(f"{self.name}: {why}")
        parts = answer.decode("utf-8", "replace").split(f"{mark}\n")
        if len(parts) != 3:
            raise Unreachable(f"{self.name}: its answer is incomplete, or longer than {MAX_ANSWER_BYTES} bytes")
        return parts[1].split("\n")

    def _connect(self, text: bytes, seconds: float) -> tuple[int, bytes, bytes]:
        """Run a script, and return exit code, output and errors.

        Raises:
            Unreachable: No connection, or it broke; Dropped: before anything ran.
        """
        if self._login is None:
            with tempfile.TemporaryFile() as errors:
                return *self._run(["sh", "-s"], text, errors, seconds, lambda: None), _read(errors)
        # A login shell: clusters set PATH in its profile.
        command = ssh_command(self._login, self._keys, *self._flags, remote="exec sh -l -s")
        with tempfile.TemporaryFile() as errors, starting(self._login) as opened:
            code, answer = self._run(command, text, errors, seconds, opened)
            said = _read(errors)
        if code == -signal.SIGKILL:  # a connection that the user shares may be dead without ssh's noticing
            self._flags = ["-T", OWN_CONNECTION]
        if code == SSH_FAILED:
            failure = ssh_failure(self._login.target, said, code)
            raise Unreachable(failure.cause) if answer else failure
        return code, answer, said

    def _run(
        self, command: list[str], text: bytes, errors: IO[bytes], seconds: float, on_output: Callable[[], None]
    ) -> tuple[int, bytes]:
        """Return exit code and output; a process that takes too long or says too much is killed."""
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise Unreachable(f"{command[0]} cannot be started: {error}") from error
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(seconds, _kill, [process])
        timer.daemon = True
        timer.start()
        answer = bytearray()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(text)
                process.stdin.close()
            while chunk := os.read(process.stdout.fileno(), CHUNK_BYTES):
                on_output()
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    _kill(process)
                    break
            return process.wait(), bytes(answer)
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started, unless it has ended and been waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _read(errors: IO[bytes]) -> bytes:
    errors.seek(0)
    return errors.read(10_000)


def _last_words(said: bytes, code: int) -> str:
    lines = [plain_text(line, 300).strip() for line in said.decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), f"exit code {code}")
