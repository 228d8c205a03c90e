"""Images of tfbench: built from the installed sources and verified."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from orchestrate.engines.docker.images import DockerEngine
from orchestrate.engines.invocation import RECORD_PATH, ContainerSpec, unique_name
from orchestrate.errors import BuildFailed
from orchestrate.inventory.variants import Variant, parse_version
from orchestrate.project import PROJECT, containers_folder
from results.runs.reading import from_json
from results.schema import Case, Device, Precision, Record, Status
from results.schema.record_json import RecordError
from results.schema.version import __version__

CONTEXT = ("containers", "tfbench", "results/__init__.py", "results/schema")
"""Sources of the images."""

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
"""Two steps on the CPU: the smallest test that an image can train."""

Line = Callable[[str], None]


class ImageCheck(NamedTuple):
    """The result of one check of `verify`."""

    what: str
    passed: bool
    seen: str


def source_revision() -> str:
    """Return the commit of this checkout, with `-changed` if files differ from it.

    Return `unknown` without git and for an installed tfbench, even inside a repository of the user's.
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
    """Pack the build context into a tar file of a few hundred kilobytes in memory.

    Args:
        certificates: PEM files of additional CAs that the build trusts, for networks that inspect TLS.
        pip_config: pip's configuration, which may contain a password: only a discarded stage reads it. A BuildKit
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
    """Exclude generated files and those that a wheel lacks, so that a wheel and its checkout build equal layers."""
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
        engine: Where to build.
        variant: Row of `images.toml`.
        tag: Name of the image.
        arguments: Additional build arguments, e.g. BASE or PIP_INDEX_URL; they are public.
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
    """Start an image and compare it with its row of `images.toml`, without a GPU.

    Raises:
        HostError: It could not be started.
    """
    program = ("python3.11", "-m", "tfbench.doctor.trial", "image")
    output, _ = _run(engine, ContainerSpec(image=image, name=unique_name("verify"), entrypoint=program))
    try:
        checks = list(_contents(variant, json.loads(output.splitlines()[-1])))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        tail = output[-300:].decode("utf-8", "replace")
        return [ImageCheck("the image describes its contents", False, f"printed no JSON: {tail!r}")]
    command = (*VERIFY_CASE.flags(), f"--output={RECORD_PATH}")
    _, payload = _run(engine, ContainerSpec(image=image, name=unique_name("verify"), command=command))
    what = "trains two steps on the CPU"
    if payload is None:
        return [*checks, ImageCheck(what, False, "left no record")]
    try:
        record: Record = from_json(payload)
    except RecordError as error:
        return [*checks, ImageCheck(what, False, str(error))]
    return [*checks, ImageCheck(what, record.status is Status.OK, f"{record.status} {record.cause or ''}".strip())]


def _run(engine: DockerEngine, spec: ContainerSpec) -> tuple[bytes, bytes | None]:
    """Run a container to its end; return its output and its record."""
    engine.create(spec)
    try:
        engine.start(spec.name)
        engine.wait(spec.name, VERIFY_SECONDS)
        return engine.output(spec.name, MAX_OUTPUT_BYTES), engine.read_file(spec.name, RECORD_PATH)
    finally:
        engine.remove(spec.name)


def _contents(variant: Variant, reported: dict[str, Any]) -> Iterator[ImageCheck]:
    """Compare an image's own report with its row."""
    for what, expected in {"Python": variant.python, "TensorFlow": variant.tensorflow, "Keras": variant.keras}.items():
        seen = reported[what.lower()]
        fits = expected is None or f"{seen}.".startswith(f"{expected}.")  # accept a patch release: `3.11.2` of `3.11`
        yield ImageCheck(what, fits, f"{seen}, expected {expected}")
    ours, theirs = (parse_version(version or "0")[:2] for version in (variant.cuda, reported["cuda"]))
    yield ImageCheck(
        "TensorFlow was built with this CUDA or an older one of its major version",
        ours[0] == theirs[0] and ours >= theirs,
        f"built with {reported['cuda']}, libraries of {variant.cuda}",
    )
    yield ImageCheck("runs as an unprivileged user", reported["user"] != 0, f"uid {reported['user']}")
    for name, problem in reported["libraries"].items():
        yield ImageCheck(f"{name} loads", problem is None, str(problem or "yes"))
