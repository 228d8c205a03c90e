"""Scripts of POSIX sh on a login host, or here: one connection for each, in which everything is asked at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import threading
from typing import IO

from orchestrate.errors import Unreachable
from orchestrate.launchers.tunnel import OPTIONS, explain_ssh
from orchestrate.text import plain_text

SCRIPT_SECONDS = 120.0
"""After this time a script hangs: in a shared folder that is gone, or in a busy scheduler."""

MAX_ANSWER_BYTES = 96 * 1024 * 1024
SSH_FAILED = 255
CHUNK_BYTES = 1 << 20


class LoginShell:
    """Runs scripts where Slurm's commands are.

    Args:
        destination: Of ssh; None: this machine.
        ssh_config: An ssh configuration file; None: the user's own.
    """

    def __init__(self, destination: str | None, ssh_config: str | None = None) -> None:
        self.name = "this machine" if destination is None else f"ssh {destination}"
        self._command = ["sh", "-s"]
        if destination is not None:
            config = [] if ssh_config is None else ["-F", ssh_config]
            # A login shell: clusters set PATH in its profile.
            self._command = ["ssh", "-T", *OPTIONS, *config, "--", destination, "exec sh -l -s"]
        self._destination = destination

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
        with tempfile.TemporaryFile() as errors:
            code, answer = self._run(text.encode(), errors, seconds)
            errors.seek(0)
            said = errors.read(10_000)
        if self._destination is not None and code == SSH_FAILED:
            raise Unreachable(explain_ssh(self._destination, said, code))
        if code != 0:
            why = f"no answer within {seconds:.0f} s" if code == -signal.SIGKILL else _last_words(said, code)
            raise Unreachable(f"{self.name}: {why}")
        parts = answer.decode("utf-8", "replace").split(f"{mark}\n")
        if len(parts) != 3:
            raise Unreachable(f"{self.name}: its answer is incomplete, or longer than {MAX_ANSWER_BYTES} bytes")
        return parts[1].split("\n")

    def _run(self, text: bytes, errors: IO[bytes], seconds: float) -> tuple[int, bytes]:
        """Return exit code and output; a process that takes too long or says too much is killed."""
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise Unreachable(f"{self._command[0]} cannot be started: {error}") from error
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


def _last_words(said: bytes, code: int) -> str:
    lines = [plain_text(line, 300).strip() for line in said.decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), f"exit code {code}")
