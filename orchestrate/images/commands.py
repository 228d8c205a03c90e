"""`python -m orchestrate images list | build | push | verify | save | load`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from orchestrate.errors import HostError, UserError
from orchestrate.images.builds import ImageCheck, build_variant, source_revision, verify_image
from orchestrate.inventory.variants import Variant, read_variants, unknown_variant
from orchestrate.launchers.docker.images import (
    DockerEngine,
    controller_address,
    image_content,
    load_from_file,
    save_to_file,
)
from orchestrate.launchers.pulls import Progress
from results.grid import Grid, print_grid
from results.schema.exit_codes import ExitCode
from results.schema.version import __version__

INDEX_NAME = "images.json"
ABOUT = ("variant", "TensorFlow", "Keras", "CUDA", "cuDNN", "machine code", "driver from", "why")
SEEN = ("seen on a GPU", "on a CPU")


def images(parsed: argparse.Namespace) -> int:
    """Do what `parsed.action` says; exit code 3 when an image failed and the others did not."""
    variants = read_variants()
    if parsed.action == "list":
        _list(variants)
        return ExitCode.OK
    if parsed.action == "inspect-wheel":
        raise UserError("images inspect-wheel was removed. Use NVIDIA's: cuobjdump --list-elf --list-ptx LIBRARY")
    engine = DockerEngine(controller_address(parsed.engine))
    try:
        if parsed.action == "load":
            return _load(engine, parsed.folder)
        failed = False
        for variant in _chosen(parsed.variants, variants):
            try:
                failed = not _act(parsed, engine, variant) or failed
            except HostError as error:
                _say(f"{variant.name}: {error.cause}")
                failed = True
        return ExitCode.SOME_FAILED if failed else ExitCode.OK
    finally:
        engine.close()


def _act(parsed: argparse.Namespace, engine: DockerEngine, variant: Variant) -> bool:
    """Do one thing with one variant."""
    reference = image_name(parsed.registry, variant)
    if parsed.action == "build":
        _build(parsed, engine, variant, reference)
    elif parsed.action == "push":
        digest = engine.push(reference, _progress(reference))
        _answer(f"{reference}@{digest}")
    elif parsed.action == "save":
        _save(engine, variant, reference, parsed.output)
    else:
        findings = verify_image(engine, variant, reference)
        _show_findings(reference, findings)
        return all(finding.passed for finding in findings)
    return True


def image_name(registry: str | None, variant: Variant) -> str:
    """Name a variant's image: `REGISTRY/tfbench:VERSION-VARIANT`."""
    prefix = f"{registry.rstrip('/')}/" if registry else ""
    return f"{prefix}tfbench:{__version__}-{variant.name}"


def _chosen(names: Sequence[str], variants: Sequence[Variant]) -> list[Variant]:
    """Return the named variants; without names, all that are built here."""
    known = {variant.name: variant for variant in variants}
    unknown = [unknown_variant(name, list(known)) for name in names if name not in known]
    if unknown:
        raise UserError("\n".join(unknown))
    return [known[name] for name in names] or [variant for variant in variants if variant.base is None]


def _list(variants: Sequence[Variant]) -> None:
    rows = []
    for variant in variants:
        rows.append(
            [
                variant.name,
                variant.tensorflow,
                variant.keras or "of its base",
                variant.cuda or "none",
                variant.cudnn or "none",
                " ".join(variant.sass),
                variant.minor_driver or "none",
                variant.why if variant.verified else f"{variant.why} (unverified)",
                variant.seen.gpu or ("not yet" if variant.cuda else "needs none"),
                variant.seen.cpu or "not yet",
            ]
        )
    print_grid(Grid("", (*ABOUT, *SEEN), rows), Console(highlight=False))


def _build(parsed: argparse.Namespace, engine: DockerEngine, variant: Variant, reference: str) -> None:
    arguments = dict(_build_argument(text) for text in parsed.build_arg)
    _say(f"{reference}: building from {source_revision()[:12]}")
    identity = build_variant(
        engine,
        variant,
        reference,
        arguments=arguments,
        certificates=parsed.ca,
        pip_config=parsed.pip_config,
        on_line=lambda line: _say(f"{variant.name}: {line}") if line.strip() else None,
    )
    _answer(f"{reference} {identity} {engine.image_bytes(reference) / 1e6:.0f} MB")


_CREDENTIALS = re.compile(r"://[^/@\s]+@")


def _build_argument(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE`; what a build argument holds can be read by everybody who builds, and in places who pulls."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--build-arg must be NAME=VALUE. Received: {_CREDENTIALS.sub('://***@', text)}")
    if _CREDENTIALS.search(value):
        raise UserError(
            f"--build-arg {name}: a URL in a build argument must not hold credentials, because builds record their "
            "arguments. Write it into a file like pip.conf and pass --pip-config FILE: no image contains that file"
        )
    if name == "SLIM":
        raise UserError("--build-arg SLIM: slim images were removed. Remove it: every image is full")
    return name, value


def _save(engine: DockerEngine, variant: Variant, reference: str, folder: Path) -> None:
    """Write an image and its entry in the folder's index."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tfbench-{__version__}-{variant.name}.tar"
    save_to_file(engine, reference, path, _progress(reference))
    index_path = folder / INDEX_NAME
    index = json.loads(index_path.read_text(encoding="utf-8")) if index_path.exists() else {}
    document = engine.image_document(reference)
    index[reference] = {"file": path.name, "id": document["Id"], "content": image_content(document)}
    index_path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    _answer(str(path))


def _load(engine: DockerEngine, folder: Path) -> int:
    """Take in all images of a folder that `save` wrote; those that are there already are skipped."""
    try:
        index = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
        entries = {str(name): (str(entry["file"]), dict(entry)) for name, entry in index.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: not a folder written by `images save`: {error}") from error
    for reference, (file, entry) in entries.items():
        if _is_there(engine, reference, entry):
            _say(f"{reference}: already present")
            continue
        loaded = load_from_file(engine, folder / Path(file).name, _progress(reference))
        if not _is_there(engine, reference, entry) and _is_there(engine, loaded, entry):
            place, _, tag = reference.rpartition(":")  # Podman saves tfbench:1 as localhost/tfbench:1
            engine.tag(str(engine.image_document(loaded)["Id"]), place, tag)
        if not _is_there(engine, reference, entry):
            raise UserError(
                f"{folder / file}: the engine has another image under {reference} than {INDEX_NAME} describes. "
                "Save it again"
            )
        _answer(f"{reference} {engine.image_id(reference)}")
    return ExitCode.OK


def _is_there(engine: DockerEngine, reference: str, entry: dict[str, object]) -> bool:
    """Return whether an engine has an image of the index, by its content: its id depends on the store."""
    if engine.image_id(reference) is None:
        return False
    document = engine.image_document(reference)
    return document["Id"] == entry.get("id") or image_content(document) == entry.get("content")


def _show_findings(reference: str, findings: Sequence[ImageCheck]) -> None:
    for finding in findings:
        _answer(f"{reference}: {'ok' if finding.passed else 'FAILED'}: {finding.what}: {finding.seen}")


def _progress(what: str) -> Progress:
    """Print how far something is, at every tenth."""
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            _say(f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    return show


def _say(line: str) -> None:
    """Print on stderr."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _answer(line: str) -> None:
    """Print data on stdout."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
