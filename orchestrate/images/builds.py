"""Images of tfbench: built from the installed sources, pushed, verified, kept as files."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrate.errors import BuildFailed
from orchestrate.inventory.variants import Variant, parse_version
from orchestrate.launchers.container import RECORD_PATH, ContainerSpec, unique_name
from orchestrate.launchers.docker.images import DockerEngine
from orchestrate.project import PROJECT, containers_folder
from results.runs.reading import from_json
from results.schema import Case, Device, Precision, Record, Status
from results.schema.record_json import RecordError
from results.schema.version import __version__

CONTEXT = ("containers", "tfbench", "results/__init__.py", "results/schema")
"""All that an image is made of."""

VERIFY_SECONDS = 600.0
MAX_OUTPUT_BYTES = 1 << 20
VERIFY_CASE = Case(
    model="resnet50",
    precision=Precision.FP32,
    batch_per_gpu=2,
    device=Device.CPU,
    image_size=64,
    warmup_steps=1,
    num_steps=2,
)
"""Two steps on the CPU: the smallest thing that shows that an image trains."""

Line = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ImageCheck:
    """One thing that `verify` looked at.

    Attributes:
        passed: Whether it is as it should be.
    """

    what: str
    passed: bool
    seen: str


def source_revision() -> str:
    """Return the commit of this checkout, with `-changed` when files differ from it.

    `unknown` without git, and for an installed tfbench, also one that lies inside a repository of the user's.
    """
    try:
        if not Path(_git("rev-parse", "--show-toplevel")).samefile(PROJECT):
            return "unknown"
        revision = _git("rev-parse", "HEAD")
        return revision + ("-changed" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build_context(certificates: Iterable[Path] = (), pip_config: Path | None = None) -> IO[bytes]:
    """Pack what images are made of into a tar file in memory: a few hundred kilobytes.

    Args:
        certificates: PEM files of further authorities that the build trusts, for networks that inspect TLS.
        pip_config: pip's configuration, which may hold a password: only a stage that is discarded reads it. A BuildKit
            secret would do the same, but the Docker SDK builds without BuildKit.

    Raises:
        BuildFailed: A file cannot be read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in CONTEXT:
            source = containers_folder() if name == "containers" else PROJECT / name
            tar.add(source, arcname=name, filter=_without_rest)
        given = [("--ca", path, f"containers/ca/user-{number}.crt") for number, path in enumerate(certificates)]
        if pip_config is not None:
            given.append(("--pip-config", pip_config, "containers/pip/pip.conf"))
        for flag, path, name in given:
            try:
                tar.add(path, arcname=name, filter=_without_rest)
            except OSError as error:
                raise BuildFailed(f"{flag} {path}: {error.strerror}") from error
    buffer.seek(0)
    return buffer


def _without_rest(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what Python made, and what a wheel has not: it builds from the layers that its checkout has built."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if "__pycache__" in member.name or member.name.endswith("/.gitignore") else member


def build_variant(
    engine: DockerEngine,
    variant: Variant,
    tag: str,
    *,
    arguments: dict[str, str],
    certificates: Iterable[Path] = (),
    pip_config: Path | None = None,
    on_line: Line,
) -> str:
    """Build a variant and return the image's id.

    Args:
        engine: Where.
        variant: Row of `images.toml`.
        tag: Its name.
        arguments: Further build arguments, e.g. BASE or PIP_INDEX_URL; they are public.
        certificates: See `build_context`.
        pip_config: Likewise.
        on_line: Receives the build's output.

    Raises:
        BuildFailed: A step failed.
    """
    given = {**variant.build_arguments(version=__version__, revision=source_revision()), **arguments}
    dockerfile = "Dockerfile" if variant.base is None else "Dockerfile.on-base"
    context = build_context(certificates, pip_config)
    return engine.build(context, tag, given, on_line, dockerfile=f"containers/{dockerfile}")


def verify_image(engine: DockerEngine, variant: Variant, image: str) -> list[ImageCheck]:
    """Start an image and hold it against its row of `images.toml`; no GPU is needed.

    Raises:
        HostError: It could not be started.
    """
    spec = ContainerSpec(image=image, name=unique_name("verify"), entrypoint=("python3.11", "-m", "tfbench.verify"))
    output, _ = _run(engine, spec)
    try:
        reported: dict[str, Any] = json.loads(output.splitlines()[-1])
        findings = _versions(variant, reported) + _libraries(reported)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        tail = output[-300:].decode("utf-8", "replace")
        return [ImageCheck(what="the image describes its contents", passed=False, seen=f"printed no JSON: {tail!r}")]
    trains = ContainerSpec(
        image=image, name=unique_name("verify"), command=(*VERIFY_CASE.flags(), f"--output={RECORD_PATH}")
    )
    return [*findings, _training(_run(engine, trains)[1])]


def _run(engine: DockerEngine, spec: ContainerSpec) -> tuple[bytes, bytes | None]:
    """Run a container to its end; return its output and its record."""
    engine.create(spec)
    try:
        engine.start(spec.name)
        engine.wait(spec.name, VERIFY_SECONDS)
        return engine.output(spec.name, MAX_OUTPUT_BYTES), engine.read_file(spec.name, RECORD_PATH)
    finally:
        engine.remove(spec.name)


def _versions(variant: Variant, reported: dict[str, Any]) -> list[ImageCheck]:
    wanted = {
        "Python": (variant.python, reported["python"]),
        "TensorFlow": (variant.tensorflow, reported["tensorflow"]),
        "Keras": (variant.keras, reported["keras"]),
    }
    findings = [
        ImageCheck(what=what, passed=_matches(expected, seen), seen=f"{seen}, expected {expected}")
        for what, (expected, seen) in wanted.items()
    ]
    findings.append(
        ImageCheck(
            what="TensorFlow was built with this CUDA or an older one of its major version",
            passed=_admits(variant.cuda, reported["cuda"]),
            seen=f"built with {reported['cuda']}, libraries of {variant.cuda}",
        )
    )
    findings.append(
        ImageCheck(what="runs as an unprivileged user", passed=reported["user"] != 0, seen=f"uid {reported['user']}")
    )
    return findings


def _matches(expected: str | None, seen: str | None) -> bool:
    """Return whether a version is the expected one, or a patch release of it: `12.5.1` of `12.5`."""
    if expected is None or seen is None:
        return expected == seen
    return seen == expected or seen.startswith(f"{expected}.")


def _admits(libraries: str | None, built_with: str | None) -> bool:
    """Return whether CUDA libraries serve a TensorFlow that was built with some CUDA version."""
    if libraries is None or built_with is None:
        return libraries == built_with
    ours, theirs = parse_version(libraries), parse_version(built_with)
    return ours[0] == theirs[0] and ours[:2] >= theirs[:2]


def _libraries(reported: dict[str, Any]) -> list[ImageCheck]:
    return [
        ImageCheck(what=f"{name} loads", passed=problem is None, seen=str(problem or "yes"))
        for name, problem in reported["libraries"].items()
    ]


def _training(payload: bytes | None) -> ImageCheck:
    what = "trains two steps on the CPU"
    if payload is None:
        return ImageCheck(what=what, passed=False, seen="left no record")
    try:
        record: Record = from_json(payload)
    except RecordError as error:
        return ImageCheck(what=what, passed=False, seen=str(error))
    return ImageCheck(
        what=what, passed=record.status is Status.OK, seen=f"{record.status} {record.cause or ''}".strip()
    )
