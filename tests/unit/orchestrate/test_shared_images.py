"""One image for a run whose hosts have different drivers: which, and why."""

from __future__ import annotations

import dataclasses
import io
from typing import Any, ClassVar

from rich.console import Console

from orchestrate.display.tables import render_plan
from orchestrate.errors import PullFailed
from orchestrate.events import EventBus
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.images import share_images, wanted_images
from orchestrate.planning.plan import make_plan
from orchestrate.running.run import probe_hosts
from orchestrate.suites import read_suite
from results.schema import GPU, Status

VARIANTS = read_variants()
DRIVERS = {"a": "535.183.01", "b": "550.127.05", "c": "570.86.10", "d": "580.95.05"}


def host(name: str, fleet: str = "a4000", **settings: Any) -> Host:
    address = DockerAddress(scheme="ssh", target=f"{fleet}-{name}")
    return Host(fleet=fleet, name=name, docker=address, registry="example.org/you", **settings)


def facts(of: Host, driver: str, *capabilities: str) -> Facts:
    gpus = tuple(GPU(index=i, name="card", compute_capability=cc) for i, cc in enumerate(capabilities or ("8.6",)))
    reported = Facts(driver=driver, gpus=gpus)
    return dataclasses.replace(reported, images=tuple(wanted_images(of, reported, VARIANTS)))


def shared(*asked: tuple[Host, Facts | str]) -> dict[str, str | None]:
    probed = {of.place: reported for of, reported in asked}
    found = share_images([of for of, _ in asked], probed, VARIANTS)
    return {place.host: image.variant for place, image in found.items()}


def of_drivers(**settings: Any) -> list[tuple[Host, Facts | str]]:
    hosts = [host(name, **settings) for name in DRIVERS]
    return [(of, facts(of, DRIVERS[of.name])) for of in hosts]


def test_hosts_share_the_newest_image_that_suits_all_unless_they_must_not():
    assert shared(*of_drivers()) == dict.fromkeys(DRIVERS, "cuda12.5")
    assert shared(*of_drivers()[:2]) == {}, "they chose the same one"
    assert shared(*of_drivers(variants=("cuda12.3",))) == {}
    cpu = host("cpu")
    without = dataclasses.replace(Facts(), images=tuple(wanted_images(cpu, Facts(), VARIANTS)))
    found = shared(*of_drivers(), (host("gone"), "connection refused"), (cpu, without))
    assert found == dict.fromkeys(DRIVERS, "cuda12.5"), "who was not asked or has no GPU plays no part"


def test_no_gpu_gives_up_machine_code_for_the_sake_of_others():
    # CUDA 11.8, the only one for driver 520, has no machine code for Hopper; the others have some.
    hopper, old = host("h", "h100"), host("o", "old")
    asked = [(hopper, facts(hopper, "580.95.05", "9.0")), (old, facts(old, "520.61.05", "7.5"))]
    assert shared(*asked) == {"h": "cuda12.9", "o": "cuda11.8"}
    reasons = {image.reason for image in share_images([hopper, old], {o.place: f for o, f in asked}, VARIANTS).values()}
    assert all(reason.endswith("suits all hosts of the run, so software differs between them") for reason in reasons)


def test_a_host_that_could_not_be_asked_is_planned_with_its_fleets_image():
    asked = of_drivers()[:2]
    hosts = [*(of for of, _ in asked), host("gone"), host("other", "a5000")]
    probed: dict[HostPlace, Facts | str] = {
        **{of.place: reported for of, reported in asked},
        **{of.place: "?" for of in hosts[2:]},
    }
    plan = make_plan(hosts, probed, read_suite, run_id="r", seed=1)
    assert [entry.host.variants for entry in plan.hosts] == [(), (), ("cuda12.5",), ()]


class Answers:
    """A launcher that knows what its host would tell, and what the registry has."""

    pinned: ClassVar[list[tuple[str, str | None]]] = []

    def __init__(self, of: Host) -> None:
        self._host = of

    def probe(self) -> Facts:
        return facts(self._host, DRIVERS[self._host.name])

    def pin(self, image: Image) -> Image:
        Answers.pinned.append((self._host.name, image.variant))
        if self._host.name == "d":
            return dataclasses.replace(image, status=Status.PULL_FAILED, problem=PullFailed("not there").cause)
        return dataclasses.replace(image, digest="sha256:1")

    def close(self) -> None: ...


def test_the_plan_has_one_image_with_its_digest_and_says_why():
    Answers.pinned.clear()
    hosts = [host(name) for name in DRIVERS]
    probed = probe_hosts(hosts, Answers, EventBus())  # type: ignore[arg-type]
    assert Answers.pinned == [("d", "cuda12.5")], "only a host whose image changes has its tag looked up again"
    plan = make_plan(hosts, probed, read_suite, run_id="r", seed=1)
    assert {job.origin.image for job in plan.jobs} == {"example.org/you/tfbench:0.1.0-cuda12.5"}
    assert {job.origin.host for job in plan.jobs if job.blocked} == {"d"}
    stream = io.StringIO()
    render_plan(plan, Console(file=stream, width=400))
    text = stream.getvalue()
    assert text.count("the newest image that suits every host of the run") == 3
    found = share_images(hosts, {of.place: facts(of, DRIVERS[of.name]) for of in hosts}, VARIANTS)
    assert "(this host alone: cuda12.9)" in found[hosts[-1].place].reason
