"""What an engine refuses to give, and a benchmark can do without, is excluded; the rest of the run knows it then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrate.errors import LaunchFailed
from orchestrate.launchers.container import ContainerSpec
from orchestrate.launchers.docker.client import launch_refusal
from orchestrate.launchers.docker.launcher import ContainerLauncher
from orchestrate.launchers.pulls import PullLimits
from results.schema import Status
from tests.unit.orchestrate.test_check import host
from tests.unit.orchestrate.test_container import job


class Engine:
    """An engine that refuses a start as a rule says.

    Attributes:
        started: What was started.
        left: Containers that exist.
    """

    def __init__(self, refuses: Callable[[ContainerSpec], str | None], info: dict[str, Any], **is_: bool) -> None:
        self._refuses = refuses
        self._info = info
        self.is_podman = is_.get("is_podman", False)
        self.lists_devices = is_.get("lists_devices", True)
        self.started: list[ContainerSpec] = []
        self.left: dict[str, ContainerSpec] = {}
        self.looked: list[str] = []

    def info(self) -> dict[str, Any]:
        return self._info

    def create(self, spec: ContainerSpec) -> bool:
        self.left[spec.name] = spec
        return True

    def start(self, name: str) -> None:
        if (said := self._refuses(self.left[name])) is not None:
            del self.left[name]
            raise launch_refusal(said)
        self.started.append(self.left[name])

    def check_folder(self, image: str, name: str, folder: str) -> None:
        self.looked.append(folder)


def launcher(engine: Engine, reported: list[str]) -> ContainerLauncher:
    made = ContainerLauncher(host(), PullLimits(notify=lambda _host, message: reported.append(message)))
    made._engine = engine  # type: ignore[assignment]
    return made


def refuses_lock(spec: ContainerSpec) -> str | None:
    return "error setting rlimit type 8: operation not permitted" if "memlock" in spec.limits else None


def test_a_limit_that_an_engine_may_not_lift_is_left_out_with_one_warning():
    reported: list[str] = []
    engine = Engine(refuses_lock, {"Runtimes": {"nvidia": {}}})
    made = launcher(engine, reported)
    for _ in range(2):
        assert made.start(job()) is False
        engine.left.clear()
    assert [spec.limits for spec in engine.started] == [{"fsize": 256 << 20}] * 2
    assert len(reported) == 1 and "may not raise the limit on locked memory" in reported[0]


def test_an_engine_that_says_it_runs_without_root_is_not_asked_for_it():
    reported: list[str] = []
    engine = Engine(refuses_lock, {"Runtimes": {"nvidia": {}}, "SecurityOptions": ["name=seccomp", "name=rootless"]})
    launcher(engine, reported).start(job())
    assert reported == [] and len(engine.started) == 1


def test_gpus_are_asked_for_in_the_next_way_where_the_engine_lists_none():
    def no_toolkit(spec: ContainerSpec) -> str | None:
        return None if spec.cdi else 'could not select device driver "" with capabilities: [[gpu compute utility]]'

    engine = Engine(no_toolkit, {}, lists_devices=False)
    launcher(engine, []).start(job())
    assert [spec.gpus for spec in engine.started] == [("nvidia.com/gpu=0", "nvidia.com/gpu=1")]


def test_an_engine_that_gives_none_in_any_way_is_without_gpus():
    engine = Engine(lambda spec: 'could not select device driver "cdi" with capabilities: []', {}, lists_devices=False)
    with pytest.raises(LaunchFailed) as caught:
        launcher(engine, []).start(job())
    assert caught.value.status is Status.NO_GPU


def test_podman_is_asked_by_cdi_only_because_it_ignores_capabilities():
    engine = Engine(lambda spec: None, {"Runtimes": {"nvidia": {}}}, is_podman=True)
    launcher(engine, []).start(job())
    assert [spec.cdi for spec in engine.started] == [True]
