"""Images for tests: a Debian base built on this machine, and the images of containers/Dockerfile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

import results
from tests.support import PROJECT
from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import EngineError, run_program

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-pip")
CA_BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
MODULES = ("/usr/lib/python3.11", "/usr/lib/python3/dist-packages")
NOT_NEEDED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry.

    Attributes:
        reference: `REGISTRY/tfbench:VERSION-VARIANT`.
        digest: Digest of its manifest, `sha256:…`.
    """

    reference: str
    digest: str


def make_base_image(engine: DockerEngine, cache: Path) -> str:
    """Import a small Debian with Python 3.11, in place of `python:3.11-slim-bookworm`; return its name.

    It is built from Debian packages, because tests use no public registry. It includes the machine's certificates, for
    networks that inspect TLS.

    Args:
        cache: Folder that keeps the archive between sessions.
    """
    machine_bundle = Path("/") / CA_BUNDLE
    certificates = machine_bundle.read_bytes() if machine_bundle.exists() else b""
    recipe = f"unpacked, listed {SUITE} {PACKAGES} {NOT_NEEDED}".encode()
    digest = hashlib.sha256(recipe + certificates).hexdigest()[:16]
    reference = f"tfbench-test-base:{digest}"
    if engine.client.images.list(name=reference):
        return reference
    archive = cache / f"base-{digest}.tar"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(archive.with_suffix(".lock")):  # built by one of several processes
        if not archive.exists():
            _write_debian(archive, certificates)
    engine.client.api.import_image(str(archive), repository=reference)
    return reference


def _write_debian(archive: Path, certificates: bytes) -> None:
    """Write the root of a minimal Debian as a tar file.

    Packages are unpacked but not configured, because their scripts take two thirds of the time and have little effect on
    an image.
    """
    work = archive.with_suffix(f".{os.getpid()}.partial")
    fetched, root = work / "fetched", work / "root"
    work.mkdir(parents=True)
    try:
        run_program(
            "debootstrap", "--variant=minbase", "--download-only", f"--include={','.join(PACKAGES)}", SUITE, fetched
        )
        _unpack(sorted((fetched / "var/cache/apt/archives").glob("*.deb")), root)
        for name in ("passwd", "group"):
            shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
        authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
        (root / CA_BUNDLE).write_bytes(certificates or b"".join(path.read_bytes() for path in authorities))
        run_program("ldconfig", "-r", root)
        # Containers cannot write them, so each would compile again.
        run_program("chroot", root, "python3.11", "-m", "compileall", "-q", "-x", "lib2to3|idlelib", *MODULES)
        for name in NOT_NEEDED:
            shutil.rmtree(root / name, ignore_errors=True)
        partial = work / "root.tar"
        with tarfile.open(partial, "w") as tar:
            tar.add(root, arcname=".")
        partial.rename(archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(packages: Sequence[Path], root: Path) -> None:
    """Unpack Debian packages into a root whose `/bin` is `/usr/bin`, and so on."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    database = []
    for package in packages:
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", root], input=data, check=True)
        fields = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, check=True, text=True).stdout
        database.append(fields.replace("\n", "\nStatus: install ok installed\n", 1))
    (root / "var/lib/dpkg/status").write_text("\n".join(database))


def pip_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return this machine's pip settings as build arguments, without file URLs, which a build cannot access."""
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
    return {
        name: environment[name] for name in names if environment.get(name) and not environment[name].startswith("file:")
    }


def build_image(engine: DockerEngine, base: str, variant: str, tag: str, *, context: Path = PROJECT) -> str:
    """Build a variant as `tag` and return the image's id.

    Args:
        variant: Its name.
        context: The repository, or a copy of it.

    Raises:
        EngineError: A step failed; the message has the end of the build's output.
    """
    stream = engine.client.api.build(
        path=str(context),
        dockerfile="containers/Dockerfile",
        tag=tag,
        buildargs={"BASE": base, "VARIANT": variant, "VERSION": results.__version__, **pip_settings()},
        network_mode="host",
        rm=True,
        forcerm=True,
        decode=True,
    )
    output: list[str] = []
    for message in stream:
        output.append(str(message.get("stream", "")))
        if "error" in message:
            raise EngineError(f"build of {variant} failed: {message['error']}\n{''.join(output[-40:])}")
    return str(engine.client.images.get(tag).id)


def push_image(engine: DockerEngine, reference: str) -> PushedImage:
    """Push an image to the registry in its name.

    Raises:
        EngineError: The push failed.
    """
    for message in engine.client.api.push(reference, stream=True, decode=True):
        if "error" in message:
            raise EngineError(f"push of {reference} failed: {message['error']}")
        if digest := message.get("aux", {}).get("Digest"):
            return PushedImage(reference, digest)
    raise EngineError(f"push of {reference} ended without a digest")


@dataclass(frozen=True)
class Manifest:
    """An image in a registry; `layers`: compressed size in bytes by digest, from the bottom."""

    digest: str
    layers: dict[str, int]


def manifest_of(reference: str) -> Manifest:
    """Read the manifest of an image from its registry."""
    registry, _, name = reference.partition("/")
    repository, _, tag = name.rpartition(":")
    request = urllib.request.Request(
        f"http://{registry}/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        layers = {layer["digest"]: layer["size"] for layer in json.load(answer)["layers"]}
        return Manifest(answer.headers["Docker-Content-Digest"], layers)


def pull_bytes(engine: DockerEngine, reference: str) -> int:
    """Pull an image and return the compressed size of the pulled layers.

    Raises:
        EngineError: The pull failed.
    """
    repository, _, tag = reference.rpartition(":")
    fetched: set[str] = set()
    for message in engine.client.api.pull(repository, tag, stream=True, decode=True):
        if "error" in message:
            raise EngineError(f"pull of {reference} failed: {message['error']}")
        if message.get("status") == "Pull complete":
            fetched.add(message["id"])
    sizes = {digest.removeprefix("sha256:")[:12]: size for digest, size in manifest_of(reference).layers.items()}
    return sum(sizes[layer] for layer in fetched)
