"""`python -m orchestrate images list | build | push | verify`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from orchestrate.engines.docker.images import (
    DockerEngine,
    controller_address,
)
from orchestrate.engines.pulls import Progress
from orchestrate.errors import HostError, UserError
from orchestrate.images.builds import build_variant, source_revision, verify_image
from orchestrate.inventory.hosts import Host, HostPlace, read_hosts
from orchestrate.inventory.variants import Variant, read_variants, unknown_variant
from orchestrate.options import BuiltImages, Images
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import image_name
from results.schema.exit_codes import ExitCode
from results.text_table import Grid, print_grid

ABOUT = ("variant", "TensorFlow", "Keras", "CUDA", "cuDNN", "machine code", "driver from", "why")
SEEN = ("seen on a GPU", "on a CPU")


Probe = Callable[[list[Host]], Mapping[HostPlace, Facts | str]]
"""Probes hosts for their drivers and chooses their images; see `probe_hosts`."""


def list_variants() -> int:
    """Show the variants."""
    show_list(read_variants(), Console(highlight=False))
    return ExitCode.OK


def build_images(what: BuiltImages) -> int:
    """Build variants; exit code 3 if some failed."""
    return _each(what, partial(_build, what))


def verify_images(what: Images) -> int:
    """Start variants and compare them with the table; exit code 3 if some failed."""
    return _each(what, _verify)


def push_images(what: BuiltImages, hosts: Path | None, probe: Probe) -> int:
    """Push variants, or build and push what the hosts of a file need; exit code 3 if some failed."""
    if hosts is None:
        return _each(what, _push)
    if what.variants or what.registry:
        raise UserError("--hosts chooses the variants and the registry. Remove VARIANT and --registry, or --hosts")
    with contextlib.closing(DockerEngine(controller_address(what.engine))) as engine:
        return _push_for_hosts(what, hosts, engine, probe)


def _each(what: Images, act: Action) -> int:
    chosen = _chosen(what.variants, read_variants())
    with contextlib.closing(DockerEngine(controller_address(what.engine))) as engine:
        is_good = [_tried(act, engine, variant, what.registry) for variant in chosen]
    return ExitCode.OK if all(is_good) else ExitCode.SOME_FAILED


Action = Callable[[DockerEngine, Variant, str], bool]
"""Performs an action on a variant, by its reference; returns whether it succeeded."""


def _tried(act: Action, engine: DockerEngine, variant: Variant, registry: str | None) -> bool:
    try:
        return act(engine, variant, image_name(registry, variant.name))
    except HostError as error:
        _print_status(f"{variant.name}: {error.cause}")
        return False


def _push(engine: DockerEngine, _: Variant, reference: str) -> bool:
    _print_result(f"{reference}@{engine.push(reference, _progress(reference))}")
    return True


def _push_for_hosts(what: BuiltImages, file: Path, engine: DockerEngine, probe: Probe) -> int:
    """Build and push each variant that the hosts of a file pull: first those that query drivers, then the rest."""
    known = {variant.name: variant for variant in read_variants()}
    hosts = [host for host in read_hosts(file) if host.registry and host.pulls and host.image is None]
    if not hosts:
        raise UserError(f"{file}: no host pulls from a registry. Set registry: and remove image_source:")
    is_good: dict[tuple[str, str], bool] = {}

    def push(wanted: Iterable[tuple[str, str]]) -> None:
        for registry, name in wanted:
            if (registry, name) not in is_good:
                is_good[registry, name] = _tried(partial(_built_and_pushed, what), engine, known[name], registry)

    push((str(host.registry), name) for host in hosts for name in host.variants or ("cpu",))
    probed = probe(hosts)
    unknown = {host.key: cause for host in hosts if isinstance(cause := probed[host.place], str)}
    for key, cause in unknown.items():
        _print_status(f"{key}: not queried, so its image may be missing: {cause}")
    images = [(host, image) for host in hosts for image in getattr(probed[host.place], "images", ())]
    push((str(host.registry), image.variant) for host, image in images if image.variant)
    return ExitCode.SOME_FAILED if unknown or not all(is_good.values()) else ExitCode.OK


def _built_and_pushed(what: BuiltImages, engine: DockerEngine, variant: Variant, reference: str) -> bool:
    if engine.image_id(reference) is None:
        _build(what, engine, variant, reference)
    return _push(engine, variant, reference)


def _verify(engine: DockerEngine, variant: Variant, reference: str) -> bool:
    checks = verify_image(engine, variant, reference)
    for check in checks:
        _print_result(f"{reference}: {'ok' if check.passed else 'FAILED'}: {check.what}: {check.seen}")
    return all(check.passed for check in checks)


def _chosen(names: Sequence[str], variants: Sequence[Variant]) -> list[Variant]:
    """Return the named variants, or all that tfbench builds."""
    known = {variant.name: variant for variant in variants}
    unknown = [unknown_variant(name, list(known)) for name in names if name not in known]
    if unknown:
        raise UserError("\n".join(unknown))
    return [known[name] for name in names] or [variant for variant in variants if variant.base is None]


def show_list(variants: Sequence[Variant], console: Console) -> None:
    """Show the contents of each variant, and where it has been tested."""
    rows = [
        (
            *(variant.name, variant.tensorflow, variant.keras or "of its base", variant.cuda or "none"),
            *(variant.cudnn or "none", " ".join(variant.sass), variant.minor_driver or "none"),
            variant.why if variant.verified else f"{variant.why} (unverified)",
            variant.seen.gpu or ("not yet" if variant.cuda else "needs none"),
            variant.seen.cpu or "not yet",
        )
        for variant in variants
    ]
    optional = ("on a CPU", "cuDNN", "machine code", "seen on a GPU")
    print_grid(Grid("", (*ABOUT, *SEEN), rows, optional=optional), console)


def _build(what: BuiltImages, engine: DockerEngine, variant: Variant, reference: str) -> bool:
    arguments = dict(_build_argument(text) for text in what.build_arg)
    _print_status(f"{reference}: building from {source_revision()[:12]}")
    identity = build_variant(
        engine,
        variant,
        reference,
        arguments=arguments,
        certificates=what.ca,
        pip_config=what.pip_config,
        on_line=lambda line: _print_status(f"{variant.name}: {line}") if line.strip() else None,
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
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            _print_status(f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    return show


def _print_status(line: str) -> None:
    """Print on stderr."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _print_result(line: str) -> None:
    """Print data on stdout."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
