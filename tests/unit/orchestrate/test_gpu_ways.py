"""An engine is without GPUs only when it says so: what it does not announce is tried, and nothing of that stays."""

from __future__ import annotations

import pytest

from orchestrate.errors import LaunchFailed, Unreachable
from orchestrate.launchers.container import ContainerSpec
from orchestrate.launchers.docker.client import launch_refusal
from orchestrate.launchers.docker.gpus import Way, working_ways

TOOLKIT, CDI = Way(name="NVIDIA toolkit"), Way(name="CDI", cdi=True)
NO_PROGRAM = 'unable to start container process: exec: "/tfbench-no-such-program": no such file or directory'
NO_DRIVER = 'could not select device driver "" with capabilities: [[gpu compute utility]]'
NO_DEVICE = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all"


class Engine:
    """An engine that answers the start of an empty container with GPUs.

    Attributes:
        there: Images and containers that exist.
    """

    def __init__(self, toolkit: str = NO_PROGRAM, cdi: str = NO_PROGRAM, *, imports: bool = True) -> None:
        self._said = {False: toolkit, True: cdi}
        self._imports = imports
        self._specs: dict[str, ContainerSpec] = {}
        self.there: set[str] = set()

    def import_empty(self, name: str) -> None:
        if not self._imports:
            raise launch_refusal("403 Forbidden by the socket's proxy")
        self.there.add(name)

    def remove_image(self, name: str) -> None:
        self.there.remove(name)

    def create(self, spec: ContainerSpec) -> None:
        assert spec.image in self.there and spec.all_gpus
        self._specs[spec.name] = spec
        self.there.add(spec.name)

    def start(self, name: str) -> None:
        raise launch_refusal(self._said[self._specs[name].cdi])

    def remove(self, name: str) -> None:
        self.there.remove(name)


def working(engine: Engine, *ways: Way) -> list[str]:
    found = working_ways(engine, ways)  # type: ignore[arg-type]
    assert engine.there == set(), "left behind"
    return [way.name for way in found]


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        (Engine(), ["NVIDIA toolkit", "CDI"]),
        (Engine(toolkit=NO_DRIVER), ["CDI"]),
        (Engine(cdi=NO_DEVICE), ["NVIDIA toolkit"]),
        (Engine(NO_DRIVER, NO_DEVICE), []),
        (Engine(toolkit="nvidia-container-cli: initialization error"), ["NVIDIA toolkit", "CDI"]),
        (Engine(imports=False), []),
    ],
)
def test_only_what_the_engine_refuses_for_want_of_gpus_is_left_out(engine, names):
    assert working(engine, TOOLKIT, CDI) == names


def test_what_is_announced_is_not_tried():
    announced = Way(name="NVIDIA runtime", announced=True)
    assert working(Engine(imports=False), announced) == ["NVIDIA runtime"]


def test_an_engine_that_is_lost_meanwhile_is_no_engine_without_gpus():
    class Lost(Engine):
        def import_empty(self, name: str) -> None:
            raise Unreachable("gone")

    with pytest.raises(Unreachable):
        working(Lost(), TOOLKIT)
    assert not issubclass(Unreachable, LaunchFailed)
