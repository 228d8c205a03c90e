"""Images for tests: a Debian base built on this machine, and the images of containers/Dockerfile."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from filelock import FileLock

import results
from tests.support import PROJECT
from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import EngineError, run_program

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-pip")
CA_BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"
MODULES = ("/usr/lib/python3.11", "/usr/lib/python3/dist-packages")
NOT_NEEDED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry, with the digest of its manifest, `sha256:…`."""

    reference: str
    digest: str


def make_base_image(engine: DockerEngine, cache: Path) -> str:
    """Import a small Debian with Python 3.11, in place of `python:3.11-slim-bookworm`; return its name.

    It is built from Debian packages, because tests use no public registry. It includes the machine's certificates, for
    networks that inspect TLS. A folder, `cache`, keeps the archive between sessions.
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
    """Put an image into the registry in its name.

    An engine's own push compresses all layers, which takes a minute of CPU time for TensorFlow's: here, large ones stay
    as they are.
    """
    address, tag = _repository(reference)
    with contextlib.suppress(requests.HTTPError):
        known, manifest = manifest_of(reference)
        if manifest["config"]["digest"] == engine.client.images.get(reference).id:
            return PushedImage(reference, known)
    with tempfile.TemporaryFile() as saved, requests.Session() as session:
        session.trust_env = False
        saved.writelines(engine.client.api.get_image(reference))
        saved.seek(0)
        with tarfile.open(fileobj=saved) as tar:
            small = {member.name for member in tar if member.size <= 10 << 20}

            def upload(part: str, kind: str) -> dict[str, object]:
                blob = tar.extractfile(part)
                if part in small and kind == LAYER_TYPE:
                    blob, kind = io.BytesIO(gzip.compress(blob.read(), mtime=0)), f"{kind}.gzip"
                digest = f"sha256:{hashlib.file_digest(blob, 'sha256').hexdigest()}"
                size = blob.seek(0, os.SEEK_END)
                blob.seek(0)
                if not session.head(f"{address}/blobs/{digest}").ok:
                    place = session.post(f"{address}/blobs/uploads/").headers["Location"]
                    session.put(place, params={"digest": digest}, data=blob).raise_for_status()
                return {"mediaType": kind, "digest": digest, "size": size}

            (parts,) = json.load(tar.extractfile("manifest.json"))
            layers = [upload(part, LAYER_TYPE) for part in parts["Layers"]]
            manifest = {"mediaType": MANIFEST_TYPE, "config": upload(parts["Config"], CONFIG_TYPE), "layers": layers}
        body, headers = json.dumps({"schemaVersion": 2, **manifest}), {"Content-Type": MANIFEST_TYPE}
        answer = session.put(f"{address}/manifests/{tag}", data=body, headers=headers)
    answer.raise_for_status()
    return PushedImage(reference, answer.headers["Docker-Content-Digest"])


def _repository(reference: str) -> tuple[str, str]:
    """Return the URL of an image's repository, and the image's tag."""
    name, _, tag = reference.rpartition(":")
    registry, _, repository = name.partition("/")
    return f"http://{registry}/v2/{repository}", tag


def manifest_of(reference: str) -> tuple[str, dict[str, Any]]:
    """Read the digest and the manifest of an image from its registry."""
    address, tag = _repository(reference)
    answer = requests.get(f"{address}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE}, timeout=30)
    answer.raise_for_status()
    return answer.headers["Docker-Content-Digest"], answer.json()
