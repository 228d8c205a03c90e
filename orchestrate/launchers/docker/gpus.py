"""How an engine gives GPUs to containers: what it says about itself, and what has to be tried.

An engine is without GPUs only when it says so. Docker lists neither the toolkit's hook, with which `--gpus` works
without a registered runtime, nor, before API 1.50, the devices of CDI; Podman lists nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.errors import HostError, LaunchFailed
from orchestrate.launchers.container import CDI_GPU, ContainerSpec, unique_name
from orchestrate.launchers.docker.client import NoGPUs
from orchestrate.launchers.docker.images import DockerEngine

CDI = "CDI"
RUNTIME = "NVIDIA runtime"
TOOLKIT = "NVIDIA toolkit"

NO_PROGRAM = "/tfbench-no-such-program"
"""What the empty container is asked to run: that it is missing is found after devices were given."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of giving GPUs to containers.

    Attributes:
        name: For people.
        cdi: Devices are asked for by their CDI names; else the NVIDIA runtime or hook is asked.
        announced: The engine says that it has it; else it has to be tried.
        devices: CDI names that the engine lists; empty: it lists none.
    """

    name: str
    cdi: bool = False
    announced: bool = False
    devices: frozenset[str] = frozenset()


def gpu_ways(info: dict[str, Any], *, is_podman: bool = False, lists_devices: bool = True) -> tuple[Way, ...]:
    """Return the ways in which an engine may give GPUs, the likeliest first.

    Args:
        info: The engine's report about itself; nothing in it is trusted.
        is_podman: Podman answers a request by capabilities with a container that has no GPU, so only CDI is asked for.
        lists_devices: It would list what CDI offers.
    """
    if is_podman:
        return (Way(name=CDI, cdi=True),)
    runtimes = info.get("Runtimes")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return (Way(name=RUNTIME, announced=True),)
    if devices := _cdi_gpus(info):
        return (Way(name=CDI, cdi=True, announced=True, devices=devices),)
    toolkit = Way(name=TOOLKIT)
    return (toolkit,) if lists_devices else (toolkit, Way(name=CDI, cdi=True))


def working_ways(engine: DockerEngine, ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return the ways that an engine does not refuse; those that it does not announce are tried.

    No image is pulled for that: an empty one shows how far a start gets. Where that cannot be made, e.g. behind a proxy
    that allows few requests, only what is announced counts.
    """
    announced = tuple(way for way in ways if way.announced)
    if len(announced) == len(ways):
        return announced
    try:
        with _empty_image(engine) as image:
            return tuple(way for way in ways if way.announced or not _is_refused(engine, image, way))
    except LaunchFailed:
        return announced


def _is_refused(engine: DockerEngine, image: str, way: Way) -> bool:
    """Try to start a container that sees all GPUs; the engine's words decide, because it cannot run anything."""
    spec = ContainerSpec(
        image=image,
        name=unique_name("gpus"),
        entrypoint=(NO_PROGRAM,),
        all_gpus=True,
        gpus=(f"{CDI_GPU}=all",) if way.cdi else (),
        cdi=way.cdi,
    )
    try:
        engine.create(spec)
        engine.start(spec.name)
    except NoGPUs:
        return True
    except LaunchFailed:
        return False  # only the program is missing
    finally:
        with contextlib.suppress(HostError):
            engine.remove(spec.name)
    return False


@contextlib.contextmanager
def _empty_image(engine: DockerEngine) -> Iterator[str]:
    """Give an image without files."""
    name = f"{unique_name('empty')}:1"
    engine.import_empty(name)
    try:
        yield name
    finally:
        with contextlib.suppress(HostError):
            engine.remove_image(name)


def is_rootless(info: dict[str, Any]) -> bool:
    """Return whether an engine says that it runs without root: it cannot lift limits then."""
    options = info.get("SecurityOptions")
    return isinstance(options, list) and "name=rootless" in options


def _cdi_gpus(info: dict[str, Any]) -> frozenset[str]:
    """Return the names of the GPUs that an engine has found by CDI."""
    devices = info.get("DiscoveredDevices")
    found = devices if isinstance(devices, list) else []
    names = (str(device.get("ID", "")) for device in found if isinstance(device, dict))
    return frozenset(name for name in names if name.startswith(f"{CDI_GPU}="))
