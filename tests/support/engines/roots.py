"""Engines of other Debian releases: Docker and Podman, rootful and rootless, in a root folder of that release.

Each runs in its own mount namespace with that folder as `/` and uses this machine's network; nothing else on this
machine changes. `TFBENCH_TEST_ROOTS` is a folder that caches the roots, a few hundred megabytes each.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import run_program

USER = 1001
NVML = "libnvidia-ml.so.1"
PACKAGES = {
    "trixie": ("ca-certificates", "docker.io", "iptables"),
    "sid": (
        *("ca-certificates", "docker.io", "containerd", "iptables", "uidmap", "slirp4netns", "rootlesskit", "iproute2"),
        *("podman", "catatonit", "passt", "fuse-overlayfs", "crun"),
    ),
}
"""Debian packages by release."""

ENTER = r"""set -e
root=$1; work=$2; shift 2
mount --bind "$root" "$root"
for part in proc sys; do mount --rbind "/$part" "$root/$part"; done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"; cd "$root/dev"; mkdir pts shm mqueue net
for node in null zero full random urandom tty ptmx fuse; do touch $node; mount --bind /dev/$node $node; done
mount --bind /dev/pts pts; mount -t tmpfs -o mode=1777 tmpfs shm; ln -s /proc/self/fd fd
mknod -m 666 net/tun c 10 200; for number in 0 1; do mknod -m 666 nvidia$number c 1 3; done
mount -t tmpfs tmpfs "$root/run"; mount -t tmpfs tmpfs "$root/tmp"; chmod 1777 "$root/tmp"
mkdir -p "$root$work"; mount --bind "$work" "$root$work"
# crun rejects a mixed cgroup hierarchy.
umount "$root/sys/fs/cgroup/unified" 2>/dev/null || true
mkdir -p "$root/etc/cdi"; if [ -d "$work/cdi" ]; then mount --bind "$work/cdi" "$root/etc/cdi"; fi
cd "$root"; pivot_root . mnt; umount -l /mnt; mount --make-rshared /
mkdir -p "/run/user/$TFBENCH_USER"; chown "$TFBENCH_USER" "/run/user/$TFBENCH_USER"
exec "$@"
"""
"""Makes the folder the root of the mount namespace, because user namespaces cannot be created in a chroot."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of engine.

    Attributes:
        name: Display name, also in the table.
        release: Debian release; `bookworm` is this machine's own engine.
    """

    name: str
    release: str
    podman: bool = False
    rootless: bool = False
    containerd_store: bool = False


KINDS = (
    Kind(name="Docker 20.10, overlay2", release="bookworm"),
    Kind(name="Docker 26.1, overlay2", release="trixie"),
    Kind(name="Docker 28.5, overlay2", release="sid"),
    Kind(name="Docker 28.5, containerd store", release="sid", containerd_store=True),
    Kind(name="Docker 28.5, rootless", release="sid", rootless=True),
    Kind(name="Podman 5.8", release="sid", podman=True),
    Kind(name="Podman 5.8, rootless", release="sid", podman=True, rootless=True),
)


def roots_folder(otherwise: Path) -> Path:
    """Return the folder that caches roots between sessions."""
    return Path(os.environ.get("TFBENCH_TEST_ROOTS") or otherwise)


def make_root(name: str, release: str, packages: Sequence[str], folder: Path) -> Path:
    """Return a root folder of a Debian release with some packages, creating it if missing."""
    root = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        if not root.exists():
            partial = folder / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            run_program("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", release, partial)
            (partial / "etc/hosts").touch()
            partial.rename(root)
    return root


def make_engine_root(release: str, folder: Path) -> Path:
    """Return a root folder of a Debian release with its engines and an unprivileged user."""
    root = make_root(release, release, PACKAGES[release], folder)
    for name in ("subuid", "subgid"):  # for engines without root
        (root / "etc" / name).write_text(f"{USER}:200000:65536\n")
    passwd, line = root / "etc/passwd", f"bench:x:{USER}:{USER}::/tmp:/bin/sh\n"
    passwd.write_text(passwd.read_text().replace(line, "") + line)
    return root


class RootEngine(DockerEngine):
    """An engine of another release, optionally with two GPUs by CDI.

    Args:
        kind: Its kind.
        root: From `make_engine_root`.
        folder: Folder with a short name for its socket, images and containers.
        registry: Address of a trusted registry without TLS.
        driver: Folder with the fake `libnvidia-ml.so.1`; None: no GPUs.
    """

    def __init__(self, kind: Kind, root: Path, folder: Path, registry: str, driver: Path | None = None) -> None:
        self.folder = folder / "".join(word[0] for word in kind.name.replace(",", "").lower().split())
        self.folder.mkdir()
        # A rootless engine has its own network, in which this machine's loopback has another address.
        self.registry = registry.replace("127.0.0.1", "10.0.2.2") if kind.rootless and not kind.podman else registry
        if kind.rootless:
            os.chown(self.folder, USER, USER)
        if driver is not None:
            self._describe_gpus(driver)
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if kind.rootless else []
        runtime = f"/run/user/{USER}"
        environment = {
            "HOME": str(self.folder),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "TFBENCH_USER": str(USER),
            "XDG_RUNTIME_DIR": runtime,
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }
        variables = [f"{name}={value}" for name, value in environment.items()]
        enter = ["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, "enter", str(root), str(self.folder)]
        command = self._podman(kind, runtime) if kind.podman else self._docker(kind, runtime)
        command = ["env", "--ignore-environment", *variables, *enter, *as_user, *command]
        super().__init__("d", self.folder, self.folder / "data", command)

    def _docker(self, kind: Kind, runtime: str) -> list[str]:
        settings = {
            "insecure-registries": [self.registry],
            # For a rootless engine /etc has symbolic links, which it does not follow for these files.
            **({"cdi-spec-dirs": [str(self.folder / "cdi")]} if kind.rootless else {}),
            **({"features": {"containerd-snapshotter": True}} if kind.containerd_store else {}),
        }
        (self.folder / "daemon.json").write_text(json.dumps(settings))
        without_root = ["rootlesskit", f"--state-dir={runtime}/rootlesskit", "--net=slirp4netns", "--mtu=65520"]
        without_root += ["--port-driver=builtin", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave"]
        return [
            *([*without_root, "dockerd", "--rootless"] if kind.rootless else ["dockerd"]),
            f"--host=unix://{self.folder}/d.sock",
            f"--config-file={self.folder / 'daemon.json'}",
            f"--data-root={self.folder / 'data'}",
            f"--exec-root={f'{runtime}/exec' if kind.rootless else self.folder / 'd-exec'}",
            f"--pidfile={self.folder / 'd.pid'}",
            *("--bridge=none", "--iptables=false", "--shutdown-timeout=5"),
        ]

    def _podman(self, kind: Kind, runtime: str) -> list[str]:
        (self.folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{self.registry}"\ninsecure = true\n')
        return [
            "podman",
            "--cgroup-manager=cgroupfs",
            f"--root={self.folder / 'data'}",
            f"--runroot={f'{runtime}/containers' if kind.rootless else self.folder / 'run'}",
            *("system", "service", "--time=0"),
            f"unix://{self.folder}/d.sock",
        ]

    def _describe_gpus(self, driver: Path) -> None:
        """Write a CDI specification like `nvidia-ctk cdi generate`: two GPUs, by index, by UUID and all."""
        library = self.folder / NVML
        shutil.copy(driver / NVML, library)
        of_gpus = {"0": [0], "1": [1], "GPU-0": [0], "GPU-1": [1], "all": [0, 1]}
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{gpu}"} for gpu in gpus]}}
            for name, gpus in of_gpus.items()
        ]
        path, options = f"/usr/lib/x86_64-linux-gnu/{NVML}", ["ro", "nosuid", "nodev", "bind"]
        mount = {"hostPath": str(library), "containerPath": path, "options": options}
        kind = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}
        document = {**kind, "devices": devices, "containerEdits": {"mounts": [mount]}}
        (self.folder / "cdi").mkdir()
        (self.folder / "cdi" / "nvidia.json").write_text(json.dumps(document))

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)
