"""The engines of the matrix, one after another, and the table of what works on which."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.conftest import CACHE
from tests.support import PROJECT, fake_driver
from tests.support.controller import Runs
from tests.support.engines.docker import DockerEngine
from tests.support.engines.fake_image import FAKE_IMAGE, build_fake, build_variant
from tests.support.engines.images import make_base_image, push_image
from tests.support.engines.processes import short_folder
from tests.support.engines.roots import KINDS, Kind, RootEngine, make_engine_root, roots_folder
from tests.support.engines.servers import Registry

WITH_PROBE = f"""
FROM {FAKE_IMAGE}
ENV FAKE_BENCHMARK='{{"does": "devices"}}'
COPY tfbench/ /opt/tfbench/
COPY pynvml.py /opt/
"""
_cells: dict[str, dict[str, str]] = defaultdict(dict)


@dataclass(frozen=True)
class Home:
    """What stands on this machine for all engines of the matrix.

    Attributes:
        engine: Debian bookworm's own, which plays the engine of the user's machine; `other` is a second one.
        image: Name of the fake's image in `engine`, whose repeats take half a second.
        slow: Likewise; its repeats take long enough to kill a controller.
        gpus: Likewise; it has the probe, and its repeats print their devices.
        pushed: Path of `image` in the registry, without the registry's address; `digest`: of it there.
    """

    engine: DockerEngine
    other: DockerEngine
    image: str
    slow: str
    gpus: str
    pushed: str
    digest: str


@dataclass(frozen=True)
class Target:
    """An engine of the matrix, the registry's address as it reaches that, and whether it has two fake GPUs by CDI."""

    kind: Kind
    engine: DockerEngine
    registry: str
    has_gpus: bool


@pytest.fixture(scope="session")
def home(engine_folder: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Start the user's machine, with the fake's images."""
    folder = tmp_path_factory.mktemp("home")
    with (
        DockerEngine("home", engine_folder, engine_folder / "home-data") as first,
        DockerEngine("other", engine_folder, engine_folder / "other-data") as second,
    ):
        build_fake(first, make_base_image(first, CACHE), folder / "base")
        pushed = "matrix/fake:1"
        reference = f"{registry.address}/{pushed}"
        image = build_variant(first, reference, folder / "work", does="work", seconds=0.5)
        slow = build_variant(first, "matrix-slow:1", folder / "slow", does="work", seconds=8)
        # The fake with what asks the driver.
        shutil.copytree(PROJECT / "tfbench", folder / "tfbench", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(pynvml.__file__, folder / "pynvml.py")
        (folder / "Dockerfile").write_text(WITH_PROBE)
        first.client.images.build(path=str(folder), tag="matrix-gpus:1", rm=True, forcerm=True)
        yield Home(first, second, image, slow, "matrix-gpus:1", pushed, push_image(first, reference).digest)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def target(
    request: pytest.FixtureRequest, home: Home, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """Start one engine of the matrix; what it needs and lacks fails its cells with the reason."""
    kind: Kind = request.param
    with short_folder("tfb-m-") as folder:
        folder.chmod(0o755)  # engines without root reach it, too
        if kind.release == "bookworm":
            with DockerEngine("b20", folder, folder / "data") as engine:
                yield Target(kind, engine, registry.address, has_gpus=False)
            return
        driver = None
        if kind.release == "sid":
            driver = fake_driver.build(fake_driver.two_a4000(), tmp_path_factory.mktemp("driver"))
        root = make_engine_root(kind.release, roots_folder(CACHE / "roots"))
        with RootEngine(kind, root, folder, registry.address, driver) as engine:
            yield Target(kind, engine, engine.registry, driver is not None)


@pytest.fixture
def runs(tmp_path: Path, home: Home, target: Target) -> Runs:
    """Give a user's folder; the user's own engine is the one of `home`."""
    return Runs(tmp_path, DOCKER_HOST=home.engine.url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    row, kind = str(getattr(item, "obj", item).__doc__), getattr(item, "callspec", None)
    if kind is not None and (report.when == "call" or report.outcome != "passed"):
        _cells[row][kind.id] = "works" if report.outcome == "passed" else "FAILS"
        if report.outcome == "skipped":
            _cells[row][kind.id] = report.longrepr[2].removeprefix("Skipped: ")
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _cells:
        return
    names = [kind.name for kind in KINDS if any(kind.name in row for row in _cells.values())]
    terminalreporter.section("engines")
    terminalreporter.write_line("| | " + " | ".join(names) + " |")
    terminalreporter.write_line("|---" * (len(names) + 1) + "|")
    for row, cells in _cells.items():
        terminalreporter.write_line(f"| {row} | " + " | ".join(cells.get(name, "did not run") for name in names) + " |")
