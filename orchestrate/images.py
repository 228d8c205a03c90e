"""Builds, pushes and verifies images, from the installed sources."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.console import Console

from orchestrate.engines.base import Progress
from orchestrate.engines.docker.engine import DockerEngine, controller_address
from orchestrate.engines.invocation import RECORD_PATH, container
from orchestrate.errors import BuildFailed, HostError, UserError
from orchestrate.inventory.hosts import Host, HostPlace, read_hosts
from orchestrate.inventory.variants import Variant, parse_version, read_variants, unknown_variant
from orchestrate.options import Images
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import image_name
from orchestrate.project import PROJECT, containers_folder
from results.runs.reading import from_json
from results.schema import Case, Device, Record, Status
from results.schema.exit_codes import ExitCode
from results.schema.progress import RecordReader
from results.schema.record_json import MAX_RECORD_BYTES, RecordError
from results.schema.version import __version__
from results.text_table import grid_of, print_grid

Probe = Callable[[list[Host]], Mapping[HostPlace, Facts | str]]
"""Probes hosts for their drivers and chooses their images; see `probe_hosts`."""


def perform(action: str, names: Sequence[str], what: Images, probe: Probe) -> int:
    """List, build, push or verify variants; exit code 3 if some failed.

    Args:
        action: `list`, `build`, `push` or `verify`.
        names: The variants; none: all that tfbench builds, or that the hosts of a file pull: first those that query
            drivers, then the rest.
        what: How.
        probe: Of hosts.
    """
    if action == "list":
        show_list(Console(highlight=False))
        return ExitCode.OK
    if what.hosts and (action != "push" or names or what.registry):
        raise UserError("push --hosts chooses the variants and the registry. Remove VARIANT and --registry, or --hosts")
    if unknown := [unknown_variant(name) for name in names if name not in read_variants()]:
        raise UserError("\n".join(unknown))
    act = {"build": build_variant, "push": _push, "verify": _verify}[action]
    is_good: dict[str, bool] = {}
    with contextlib.closing(DockerEngine(controller_address(what.engine))) as engine:

        def act_on(wanted: Iterable[tuple[str | None, str]]) -> None:
            for reference, name in ((image_name(registry, name), name) for registry, name in wanted):
                if reference not in is_good:
                    try:
                        if what.hosts and engine.image_id(reference) is None:
                            build_variant(engine, read_variants()[name], reference, what)
                        is_good[reference] = act(engine, read_variants()[name], reference, what)
                    except HostError as error:
                        _print_status(f"{name}: {error.cause}")
                        is_good[reference] = False

        if what.hosts is None:
            built = [name for name, variant in read_variants().items() if variant.base is None]
            act_on((what.registry, name) for name in names or built)
        else:
            hosts = [host for host in read_hosts(what.hosts) if host.registry and host.pulls and host.image is None]
            if not hosts:
                raise UserError(f"{what.hosts}: no host pulls from a registry. Set registry: and remove image_source:")
            act_on((host.registry, name) for host in hosts for name in host.variant or ("cpu",))
            for host, facts in zip(hosts, probe(hosts).values(), strict=True):
                if isinstance(facts, Facts):
                    act_on((host.registry, image.variant) for image in facts.images if image.variant)
                else:
                    _print_status(f"{host.key}: not queried, so its image may be missing: {facts}")
                    is_good[host.key] = False
    return ExitCode.OK if all(is_good.values()) else ExitCode.SOME_FAILED


def _push(engine: DockerEngine, _: Variant, reference: str, __: Images) -> bool:
    _print_result(f"{reference}@{engine.push(reference, _progress(reference))}")
    return True


def _verify(engine: DockerEngine, variant: Variant, reference: str, _: Images) -> bool:
    checks = verify_image(engine, variant, reference)
    for check in checks:
        _print_result(f"{reference}: {'ok' if check.passed else 'FAILED'}: {check.what}: {check.seen}")
    return all(check.passed for check in checks)


def show_list(console: Console) -> None:
    """Show the contents of each variant, and where it has been tested."""
    rows = [
        {
            "variant": variant.name,
            "TensorFlow": variant.tensorflow,
            "Keras": variant.keras or "of its base",
            "CUDA": variant.cuda or "none",
            "cuDNN": variant.cudnn or "none",
            "machine code": " ".join(variant.sass),
            "driver from": variant.minor_driver or "none",
            "why": variant.why if variant.verified else f"{variant.why} (unverified)",
            "seen on a GPU": variant.seen.get("gpu") or ("not yet" if variant.cuda else "needs none"),
            "on a CPU": variant.seen.get("cpu") or "not yet",
        }
        for variant in read_variants().values()
    ]
    print_grid(grid_of("", rows, optional=("on a CPU", "cuDNN", "machine code", "seen on a GPU")), console)


def build_variant(engine: DockerEngine, variant: Variant, reference: str, what: Images) -> bool:
    """Build a variant.

    Raises:
        BuildFailed: A step failed.
    """
    revision = source_revision()
    _print_status(f"{reference}: building from {revision[:12]}")
    arguments = {"VARIANT": variant.name, "VERSION": __version__, "REVISION": revision}
    if variant.base is not None:
        arguments["BASE"] = variant.base
    if variant.cuda is not None and variant.minor_driver is not None:
        arguments |= {"CUDA": variant.cuda, "MIN_DRIVER": variant.minor_driver, "SM": ",".join(variant.sass)}
    arguments |= dict(map(_build_argument, what.build_arg))
    dockerfile = f"containers/Dockerfile{'' if variant.base is None else '.on-base'}"
    context = build_context(what.ca, what.pip_config)
    identity = engine.build(
        context, reference, arguments, dockerfile, lambda line: _print_status(f"{variant.name}: {line}")
    )
    _print_result(f"{reference} {identity} {engine.image_bytes(reference) / 1e6:.0f} MB")
    return True


_CREDENTIALS = re.compile(r"://[^/@\s]+@")


def _build_argument(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`; build arguments are visible to everyone who builds, and partly to those who pull."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--build-arg must be NAME=VALUE. Received: {_CREDENTIALS.sub('://***@', text)}")
    if _CREDENTIALS.search(value):
        raise UserError(
            f"--build-arg {name}: a URL in a build argument must not hold credentials, because builds record their "
            "arguments. Write it into a file like pip.conf and pass --pip-config FILE: no image contains that file"
        )
    return name, value


def _progress(what: str) -> Progress:
    """Print progress at every tenth."""
    shown = set[int]()

    def show(done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth not in shown:
            shown.add(tenth)
            _print_status(f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    return show


def _print_status(line: str) -> None:
    """Print on stderr."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _print_result(line: str) -> None:
    """Print data on stdout."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


CONTEXT = ("containers", "tfbench", "results/__init__.py", "results/schema")
"""Sources of the images."""

VERIFY_SECONDS = 600.0
TRAINS = "trains two steps on the CPU"
VERIFY_CASE = Case(model="resnet50", batch_per_gpu=2, device=Device.CPU, image_size=64, warmup_steps=1, num_steps=2)
"""Two steps on the CPU: the smallest test that an image can train."""


class ImageCheck(NamedTuple):
    """The result of one check of `verify`."""

    what: str
    passed: bool
    seen: str


def source_revision() -> str:
    """Return the commit of this checkout, with `-changed` if files differ from it.

    Return `unknown` without git and for an installed tfbench, even inside a repository of the user's.
    """
    describe = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty=-changed", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if (PROJECT / ".git").exists():
            return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


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


def verify_image(engine: DockerEngine, variant: Variant, image: str) -> list[ImageCheck]:
    """Start an image and compare it with its row of `images.toml`, without a GPU.

    Raises:
        HostError: It could not be started.
    """
    program = ["python3.11", "-m", "tfbench.doctor.trial", "image"]
    output = engine.run("verify", container(image, Entrypoint=program), VERIFY_SECONDS)
    try:
        checks = list(_contents(variant, json.loads(output.splitlines()[-1])))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        tail = output[-300:].decode("utf-8", "replace")
        return [ImageCheck("the image describes its contents", False, f"printed no JSON: {tail!r}")]
    command = [*VERIFY_CASE.flags(), f"--output={RECORD_PATH}", "--print_record"]
    reader = RecordReader(MAX_RECORD_BYTES)
    output = engine.run("verify", container(image, Cmd=command), VERIFY_SECONDS)
    for line in output.decode("utf-8", "replace").splitlines():
        reader.take(line)
    payload = reader.payload()
    try:
        record: Record = from_json(payload or b"")
    except RecordError as error:
        return [*checks, ImageCheck(TRAINS, False, str(error) if payload else "left no record")]
    return [*checks, ImageCheck(TRAINS, record.status is Status.OK, f"{record.status} {record.cause or ''}".strip())]


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
