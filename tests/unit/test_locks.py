"""Every lock file is complete, hashed and free of addresses; what it names is what an image holds."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import PROJECT

CONTAINER_LOCKS = sorted((PROJECT / "containers" / "requirements").glob("*.txt"))
ALL_LOCKS = [*CONTAINER_LOCKS, *sorted((PROJECT / "requirements").glob("*.txt"))]


def locked(lock: Path) -> dict[str, list[str]]:
    """Return versions and hashes by package, of a lock for one platform."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lock.read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+?)(?: ;.*)? \\$", line):
            name = canonicalize_name(match[1])
            found[name] = [match[2]]
        else:
            match = re.fullmatch(r"    --hash=(sha256:[0-9a-f]{64})(?: \\)?", line)
            assert match, f"{lock.name}: neither a version nor a hash: {line}"
            found[name].append(match[1])
    return found


@pytest.mark.parametrize("lock", ALL_LOCKS, ids=lambda lock: f"{lock.parents[0].name}-{lock.stem}")
def test_every_package_has_a_version_and_hashes_and_no_address(lock: Path):
    assert "://" not in lock.read_text()
    packages = locked(lock)
    assert len(packages) >= 5
    assert [name for name, (_, *hashes) in packages.items() if not hashes] == []


@pytest.mark.parametrize("lock", CONTAINER_LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_holds_what_its_variant_asks_for(lock: Path):
    packages = locked(lock)
    asked = [line.partition("#")[0].strip() for line in lock.with_suffix(".in").read_text().splitlines()]
    requirements = [Requirement(line) for line in asked if line]
    assert requirements
    for requirement in requirements:
        version = packages[canonicalize_name(requirement.name)][0]
        assert requirement.specifier.contains(version), f"{lock.name}: {requirement} is locked at {version}"


def test_every_variant_has_its_lock_and_every_lock_its_variant():
    table = (PROJECT / "containers" / "images.toml").read_text()
    variants = set(re.findall(r'^\[variants\."?([a-z0-9.]+)"?\]', table, re.MULTILINE)) - {"ngc25.02"}
    assert {lock.stem for lock in CONTAINER_LOCKS} - {"sbom"} == variants
