"""What tests of faults share: fake images by behaviour, and a user's folder."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.controller import Runs, remove_ours
from tests.support.engines.docker import Engines
from tests.support.engines.fake_image import build_fake, build_variant
from tests.support.engines.images import push_image
from tests.support.engines.processes import short_folder
from tests.support.engines.servers import Registry


class FakeImages:
    """Images of the fake benchmark, in the registry and on the first engine, each built when first asked for."""

    def __init__(self, engines: Engines, registry: Registry, folder: Path) -> None:
        self._engines, self._registry, self._folder = engines, registry, folder
        self._built: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def image(self, does: str = "work", **behaviour: Any) -> str:
        """Return the name of the image that behaves so."""
        key = repr((does, sorted(behaviour.items())))
        if key not in self._built:
            self._built[key] = self.push(f"{does}-{next(self._numbers)}".replace("_", "-"), does=does, **behaviour)
        return self._built[key]

    def push(self, name: str, **behaviour: Any) -> str:
        """Build an image and push it under a name of its own, replacing what was there."""
        reference = f"{self._registry.address}/{name}:1"
        build_variant(self._engines.first, reference, self._folder / f"{name}-{next(self._numbers)}", **behaviour)
        push_image(self._engines.first, reference)
        return reference


@pytest.fixture(scope="session")
def fake_images(
    engines: Engines, registry: Registry, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> FakeImages:
    """Give images by behaviour."""
    folder = tmp_path_factory.mktemp("fake_images")
    build_fake(engines.first, base_image, folder / "base")
    return FakeImages(engines, registry, folder)


@pytest.fixture
def runs(tmp_path: Path, engines: Engines) -> Iterator[Runs]:
    """Give a user's folder; containers that a failed test leaves do not disturb the next one."""
    yield Runs(tmp_path)
    for engine in (engines.first, engines.second):
        if engine.answers():
            remove_ours(engine)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Give a folder with a short name, for sockets."""
    with short_folder("tfb-s-") as folder:
        yield folder
