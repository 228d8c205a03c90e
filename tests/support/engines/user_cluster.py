"""A Slurm cluster for unprivileged users, with login by ssh and a local disk per node.

Login host and nodes are mount namespaces with their own files in `/etc` and one local folder; they share this machine's
network. Nothing on this machine changes.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.engines.roots import ENTER, USER
from tests.support.engines.servers import SshHost
from tests.support.engines.slurm import NODES, SlurmCluster

NAME = "bench"
PACKAGES = (
    *("apptainer", "ca-certificates", "squashfs-tools", "squashfuse", "fuse-overlayfs", "fakeroot", "uidmap"),
    *("munge", "openssh-server", "slurm-client", "slurmctld", "slurmd", "environment-modules"),
)
MACHINES = ("login", *NODES)

DEVICES = """\
umount /dev/fuse && rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229
ln -s /proc/self/fd/0 /dev/stdin; ln -s /proc/self/fd/1 /dev/stdout; ln -s /proc/self/fd/2 /dev/stderr
exec "$@"
"""
"""Devices for users, who mount images with fuse; apptainer needs the names of the standard streams."""

MACHINE = """\
set -e; work=$1 machine=$2; shift 2
mkdir -p /run/sshd
for file in "$work"/etc/*; do mount --bind "$file" "/etc/${file##*/}"; done
mount --bind "$work/$machine" "$work/local"
mount --rbind "$work" "$work/$machine/tmp/${work#/tmp/}"
mount --rbind "$work/$machine/tmp" /tmp
cd /
exec "$@"
"""


class UserCluster(SlurmCluster):
    """A cluster of two nodes for an unprivileged user.

    Args:
        folder: An empty folder in /tmp, which is otherwise local to each machine.
        root: Root folder whose Slurm is used; None: this machine's.
        path: Folders on PATH before those of the system.
        variables: Of daemons and of the user; `LOCAL` is replaced by each machine's local folder.
        plugin: A line of `plugstack.conf`; None: no plugin.

    Attributes:
        login: The login host.
        local: Path of each machine's local folder on this machine.
    """

    def __init__(
        self,
        folder: Path,
        root: Path | None = None,
        path: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        plugin: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self._folder, self._root = folder, root
        self._CGROUPS = "cgroup/v1" if root is None else "disabled"
        local = folder / "local"
        self.local = {machine: folder / machine for machine in MACHINES}
        home = folder / "home"
        for own in (local, home, folder / "etc", *self.local.values()):
            own.mkdir()
        for machine in self.local.values():
            (machine / "tmp" / folder.name).mkdir(parents=True)
            (machine / "tmp").chmod(0o1777)
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._variables = {
            "PATH": ":".join([*map(str, path), system]),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LC_ALL": "C.UTF-8",
            **{name: value.replace("LOCAL", str(local)) for name, value in (variables or {}).items()},
        }
        self._MORE_SETTINGS = ""
        if plugin is not None:
            (folder / "plugstack.conf").write_text(plugin.replace("LOCAL", str(local)) + "\n")
            self._MORE_SETTINGS = f"PlugStackConfig={folder / 'plugstack.conf'}\n"
        (home / ".profile").write_text("".join(f"export {key}='{value}'\n" for key, value in self._variables.items()))
        etc = (root or Path("/")) / "etc"
        for name, line in (("passwd", f"{NAME}:x:{USER}:{USER}::{home}:/bin/sh"), ("group", f"{NAME}:x:{USER}:")):
            others = [other for other in (etc / name).read_text().splitlines() if other.split(":")[2] != str(USER)]
            (folder / "etc" / name).write_text("\n".join([*others, line, ""]))
        shutil.copy("/etc/hosts", folder / "etc" / "hosts")
        super().__init__(folder)
        for own in (home, *home.iterdir(), self.shared, *self.local.values()):
            os.chown(own, USER, USER)
        self.login = SshHost(folder, Path("/nowhere"), "login", user=NAME, enter=self._enter("login"))

    def start(self) -> None:
        """Start the controller, both nodes and the login host's sshd."""
        super().start()
        self.login.start()

    def stop(self) -> None:
        """Stop all servers and the processes on the nodes."""
        self.login.stop()
        super().stop()

    def _enter(self, machine: str) -> list[str]:
        begin = ["unshare", "--mount", "--propagation=private"]
        if self._root is not None:
            begin += ["sh", "-c", ENTER, "enter", str(self._root), str(self._folder), "sh", "-c", DEVICES, "enter"]
        begin += ["sh", "-c", MACHINE, "enter", str(self._folder), machine, "env", "--ignore-environment"]
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        return ["env", f"TFBENCH_USER={USER}", *begin, *variables]

    def _on_login_host(self) -> list[str]:
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        return ["nsenter", f"--mount=/proc/{self._munged.pid}/ns/mnt", "env", "--ignore-environment", *variables]
