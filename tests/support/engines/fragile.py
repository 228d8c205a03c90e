"""A Docker engine that tests can kill, and whose disk they can fill."""

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import read_proc, send, wait_until


class FragileEngine(DockerEngine):
    """An engine with its data on a small disk in memory.

    Args:
        disk_bytes: Size of the disk.
    """

    def __init__(self, name: str, folder: Path, disk_bytes: int) -> None:
        self._disk = folder / f"{name}-disk"
        self._disk.mkdir()
        size = ["-o", f"size={disk_bytes}"]
        subprocess.run(["mount", "-t", "tmpfs", *size, f"tfbench-{name}", self._disk], check=True)
        super().__init__(name, folder, self._disk / "data")

    def kill(self) -> None:
        """Kill the engine and its containerd, like a crash; `start` starts it again."""
        process, self._process = self._process, None
        assert process is not None, "it does not run"
        self.client.close()
        process.kill()
        process.wait()
        pid_file = self._exec_folder / "containerd" / "containerd.pid"
        if pid_file.exists():
            pid = int(pid_file.read_text())

            def has_ended() -> bool:
                if not read_proc(pid, "comm").startswith(b"containerd"):
                    return True
                send(signal.SIGKILL, [pid])
                return False

            wait_until(has_ended, "the end of containerd")
            pid_file.unlink(missing_ok=True)  # the pid may be reused
        self.socket.unlink()

    def answers(self) -> bool:
        """See `DockerEngine.answers`; does not use the SDK before the socket accepts connections."""
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.socket)) != 0:
                return False
        return super().answers()

    def fill_disk(self, leave_bytes: int = 0) -> None:
        """Fill the disk up to `leave_bytes`."""
        room = os.statvfs(self._disk)
        filler = self._disk / "filler"
        filler.touch()
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(room.f_bavail * room.f_frsize - leave_bytes, 1))

    def free_disk(self) -> None:
        """Free the space used by `fill_disk`."""
        (self._disk / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self.free_disk()
        super().close()
        subprocess.run(["umount", "--lazy", self._disk], check=False, capture_output=True)
