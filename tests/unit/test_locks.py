"""Every lock file is complete, hashed and free of addresses; what it names is what an image holds."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import PROJECT

CONTAINER_LOCKS = sorted((PROJECT / "containers" / "requirements").glob("*.txt"))
ALL_LOCKS = [*CONTAINER_LOCKS, *sorted((PROJECT / "requirements").glob("*.txt"))]
PACKAGE = re.compile(r"([A-Za-z0-9._-]+)==(\S+?)(?: ;.*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked(lock: Path) -> dict[str, str]:
    """Return versions by package, of a lock for one platform."""
    text = lock.read_text()
    assert text and PACKAGE.sub("", text) == "", "a version and hashes in each entry, and nothing else"
    return {canonicalize_name(name): version for name, version, _ in PACKAGE.findall(text)}


@pytest.mark.parametrize("lock", ALL_LOCKS, ids=lambda lock: f"{lock.parents[0].name}-{lock.stem}")
def test_a_lock_holds_hashed_versions_of_what_is_asked_for_and_no_address(lock: Path):
    versions = locked(lock)
    if lock in CONTAINER_LOCKS:
        asked = [line.partition("#")[0].strip() for line in lock.with_suffix(".in").read_text().splitlines()]
        for requirement in [Requirement(line) for line in asked if line]:
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{lock.name}: {requirement} is locked at {version}"


def test_every_variant_has_its_lock_and_every_lock_its_variant():
    table = (PROJECT / "containers" / "images.toml").read_text()
    variants = set(re.findall(r'^\[variants\."?([a-z0-9.]+)"?\]', table, re.MULTILINE)) - {"ngc25.02"}
    assert {lock.stem for lock in CONTAINER_LOCKS} - {"sbom"} == variants
