"""Which images a host starts: by driver and GPU together, with a reason that can be read."""

import dataclasses
import re
from typing import Any

import pytest

from orchestrate.display.tables import plan_grid
from orchestrate.errors import PullFailed
from orchestrate.events import EventBus
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import IMAGES_FILE, read_variants
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.images import check_variant, choose_variant, share_images, wanted_images
from orchestrate.planning.plan import make_plan
from orchestrate.running.probing import probe_hosts
from orchestrate.suites import read_suite
from results.schema import GPU, Device, Status
from tests.unit.orchestrate.test_check import drawn


def host(name: str = "h", fleet: str = "a4000", **settings: Any) -> Host:
    address = DockerAddress(scheme="ssh", target=f"{fleet}-{name}")
    return Host(fleet=fleet, name=name, docker=address, registry="example.org/you", **settings)


def facts(driver: str | None, *capabilities: str) -> Facts:
    gpus = tuple(GPU(index=i, name="GPU", compute_capability=cc) for i, cc in enumerate(capabilities))
    return Facts(driver=driver, gpus=gpus)


NO_CAPABILITY = Facts(driver="550.127.05", gpus=(GPU(index=0, name="GPU"),))
GRACE = dataclasses.replace(facts("580.95.05", "9.0"), architecture="arm64")


@pytest.mark.parametrize(
    ("settings", "reported", "variant", "status", "said"),
    [
        ({}, facts("550.127.05", "8.6"), "cuda12.5", "ok", "driver 550.127.05"),
        ({}, facts("470.256.02", "8.6"), None, "driver_too_old", "driver 470.256.02"),
        ({}, facts("580.95.05", "12.0"), None, "unsupported", "compute capability 12.0"),
        ({}, facts(None), "cpu", "ok", ""),
        ({"device": Device.CPU}, facts("580.95.05", "8.6"), "cpu", "ok", ""),
        ({"variant": ("cuda12.5",)}, NO_CAPABILITY, "cuda12.5", "ok", "named in hosts.yml"),
        ({}, NO_CAPABILITY, None, "no_gpu", "cases for GPUs cannot run here"),
        ({"variant": ("cuda12.2",)}, facts("525.60.13", "8.6"), "cuda12.2", "driver_too_old", "535.54.03"),
        ({}, facts("580.95.05", "8.6", "12.0"), None, "unsupported", ""),
        ({"gpus": (0,)}, facts("580.95.05", "8.6", "12.0"), "cuda12.9", "ok", ""),  # only GPUs that are used count
        ({}, GRACE, None, "unsupported", "its processor is arm64 (as in GH200 and Grace), and these images are for"),
        ({"image": "mine:1"}, GRACE, None, "ok", ""),  # an image of the user's own is not judged
    ],
)
def test_the_image_of_a_host_is_named_with_its_reason_or_why_there_is_none(settings, reported, variant, status, said):
    (image,) = wanted_images(host(**settings), reported)
    assert (image.variant, image.status) == (variant, status), image
    assert said in image.reason
    registry = f"example.org/you/tfbench:0.1.0-{variant}"
    assert image.reference == settings.get("image", registry) or status != "ok"


VARIANTS = read_variants()
A4000, H200, RTX_5090 = "8.6", "9.0", "12.0"


MATRIX = """
driver       GPU   image     status          code
450.80.02    7.5   cuda11.8  ok              machine code
470.256.02   7.5   cuda11.8  ok              machine code
535.183.01   7.5   cuda12.5  ok              machine code
515.105.01   8.6   -         driver_too_old  -
520.61.05    8.6   cuda11.8  ok              compiled by the driver
525.60.13    8.6   cuda12.5  ok              machine code
535.183.01   8.6   cuda12.5  ok              machine code
570.26       8.6   cuda12.5  ok              machine code
580.126.09   8.6   cuda12.9  ok              machine code
580.126.09   8.9   cuda12.9  ok              machine code
520.61.05    9.0   cuda11.8  ok              compiled by the driver
535.183.01   9.0   cuda12.2  ok              compiled by the driver
550.127.05   9.0   cuda12.3  ok              compiled by the driver
555.42.06    9.0   cuda12.5  ok              compiled by the driver
580.126.09   9.0   cuda12.9  ok              compiled by the driver
550.127.05   10.0  -         unsupported     -
580.126.09   12.0  -         unsupported     -
470.256.02   3.5   cuda11.8  ok              machine code
470.256.02   3.0   -         unsupported     -
"""


def test_every_driver_and_architecture_gets_its_image():
    head, *lines = MATRIX.strip().splitlines()
    for line in lines:
        driver, gpu = line.split()[:2]
        choice = choose_variant([(driver, gpu)])
        code = "compiled by the driver" if choice.compiled else "machine code"
        image, code = (choice.variant.name, code) if choice.suits else ("-", "-")
        assert line == f"{driver:12} {gpu:5} {image:9} {choice.status:15} {code}", head


def test_the_reason_can_be_read():
    for gpu, said in (
        (H200, "the driver compiles the others for compute capability 9.0"),
        (RTX_5090, "To try ngc25.02"),
    ):
        assert said in choose_variant([("580.126.09", gpu)]).reason


def test_a_named_image_is_checked_like_a_chosen_one():
    for name, driver, gpu, status, compiled in (
        ("cuda12.2", "525.147.05", A4000, Status.DRIVER_TOO_OLD, 1),
        ("cuda12.5", "525.60.13", H200, Status.DRIVER_TOO_OLD, 1),  # no machine code of another major architecture
        ("ngc25.02", "580.126.09", RTX_5090, Status.OK, 0),
        ("cpu", "580.126.09", A4000, Status.UNSUPPORTED, 2),
    ):
        fit = check_variant(VARIANTS[name], (driver, gpu))
        assert (fit.status, fit.compiled) == (status, compiled), name


@pytest.mark.parametrize(
    "variant", [one for one in VARIANTS.values() if one.base is None], ids=lambda variant: variant.name
)
def test_the_table_says_what_the_lock_holds(variant):
    lock = IMAGES_FILE.parent / "requirements" / f"{variant.name}.txt"
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE))
    assert locked.get("tensorflow", locked.get("tensorflow-cpu")) == variant.tensorflow
    assert locked["keras"] == variant.keras
    if variant.cuda is None:
        assert not [name for name in locked if name.startswith("nvidia-") and name != "nvidia-ml-py"]
    else:
        suffix = f"cu{variant.cuda.split('.')[0]}"
        assert locked[f"nvidia-cuda-runtime-{suffix}"].startswith(f"{variant.cuda}.")
        assert locked[f"nvidia-cudnn-{suffix}"].startswith(f"{variant.cudnn}.")


# ---- one image for a run whose hosts have different drivers

DRIVERS = {"a": "535.183.01", "b": "550.127.05", "c": "570.86.10", "d": "580.95.05"}


def reported_by(of: Host, driver: str | None, *capabilities: str) -> Facts:
    reported = facts(driver, *capabilities)
    return dataclasses.replace(reported, images=wanted_images(of, reported))


def shared(*asked: tuple[Host, Facts | str]) -> dict[str, str | None]:
    found = share_images([of for of, _ in asked], {of.place: reported for of, reported in asked})
    return {place.host: image.variant for place, image in found.items()}


def of_drivers(**settings: Any) -> list[tuple[Host, Facts | str]]:
    hosts = [host(name, **settings) for name in DRIVERS]
    return [(of, reported_by(of, DRIVERS[of.name], A4000)) for of in hosts]


def test_hosts_share_the_newest_image_that_suits_all_unless_they_must_not():
    assert shared(*of_drivers()) == dict.fromkeys(DRIVERS, "cuda12.5")
    assert shared(*of_drivers()[:2]) == {}, "they chose the same one"
    assert shared(*of_drivers(variant=("cuda12.3",))) == {}
    cpu = host("cpu")
    found = shared(*of_drivers(), (host("gone"), "connection refused"), (cpu, reported_by(cpu, None)))
    assert found == dict.fromkeys(DRIVERS, "cuda12.5"), "who was not asked or has no GPU plays no part"


def test_no_gpu_gives_up_machine_code_for_the_sake_of_others():
    # CUDA 11.8, the only one for driver 520, has no machine code for Hopper; the others have some.
    hopper, old = host("h", "h100"), host("o", "old")
    asked = [(hopper, reported_by(hopper, "580.95.05", "9.0")), (old, reported_by(old, "520.61.05", "7.5"))]
    assert shared(*asked) == {"h": "cuda12.9", "o": "cuda11.8"}


class Answers:
    """A launcher that knows what its host would tell, and what the registry has."""

    def __init__(self, of: Host, pinned: list[tuple[str, str | None]]) -> None:
        self._host, self._pinned = of, pinned

    def probe(self) -> Facts:
        return reported_by(self._host, DRIVERS[self._host.name], A4000)

    def pin(self, image: Image) -> Image:
        self._pinned.append((self._host.name, image.variant))
        if self._host.name == "d":
            return dataclasses.replace(image, status=Status.PULL_FAILED, reason=PullFailed("not there").cause)
        return dataclasses.replace(image, digest="sha256:1")

    def close(self) -> None: ...


def test_the_plan_has_one_image_with_its_digest_and_says_why():
    hosts, pinned = [host(name) for name in DRIVERS], []
    probed = probe_hosts(hosts, lambda host: Answers(host, pinned), EventBus())
    assert pinned == [("d", "cuda12.5")], "only a host whose image changes has its tag looked up again"
    plan = make_plan(hosts, probed, read_suite, run_id="r", seed=1)
    assert {job.origin.image for job in plan.jobs} == {"example.org/you/tfbench:0.1.0-cuda12.5"}
    assert {job.origin.host for job in plan.jobs if job.blocked} == {"d"}
    text = drawn(plan_grid(plan))
    assert text.count("the newest image that suits every host of the run") == 3
