"""A Docker engine that tests may kill, and whose disk they may fill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import read_proc, send, wait_until


class FragileEngine(DockerEngine):
    """An engine whose data lies on a small disk of its own, in memory.

    Args:
        disk_bytes: Size of that disk.
    """

    def __init__(self, name: str, folder: Path, disk_bytes: int) -> None:
        self._disk = folder / f"{name}-disk"
        self._disk.mkdir()
        size = ["-o", f"size={disk_bytes}"]
        subprocess.run(["mount", "-t", "tmpfs", *size, f"tfbench-{name}", self._disk], check=True)
        super().__init__(name, folder, self._disk / "data")

    def kill(self) -> None:
        """End the engine at once, as a crash does; `start` starts it again."""
        process, self._process = self._process, None
        assert process is not None, "it does not run"
        self.client.close()
        process.kill()
        process.wait()
        self._end_containerd()
        self.socket.unlink()

    def _end_containerd(self) -> None:
        """Make sure that the engine's containerd died with it, and is not looked for under a number that is used again."""
        pid_file = self._exec_folder / "containerd" / "containerd.pid"
        if not pid_file.exists():
            return
        pid = int(pid_file.read_text())

        def has_ended() -> bool:
            if not read_proc(pid, "comm").startswith(b"containerd"):
                return True
            send(signal.SIGKILL, [pid])
            return False

        wait_until(has_ended, "the end of containerd", 10)
        pid_file.unlink(missing_ok=True)

    def answers(self) -> bool:
        """See `DockerEngine.answers`; the SDK is not bothered before the socket takes connections."""
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.socket)) != 0:
                return False
        return super().answers()

    def fill_disk(self, leave_bytes: int = 0) -> None:
        """Leave so much room on the disk."""
        room = os.statvfs(self._disk)
        filler = self._disk / "filler"
        filler.touch()
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(room.f_bavail * room.f_frsize - leave_bytes, 1))

    def free_disk(self) -> None:
        """Give the room back."""
        (self._disk / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self.free_disk()
        super().close()
        subprocess.run(["umount", "--lazy", self._disk], check=False, capture_output=True)
