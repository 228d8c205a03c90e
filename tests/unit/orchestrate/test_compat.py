"""NVIDIA's compatibility package: which hosts gain from it, where it is offered, and that it is never chosen unasked."""

from __future__ import annotations

import pytest

from orchestrate.inventory.addresses import DockerAddress, SSHAddress
from orchestrate.inventory.compat import is_data_centre
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import check_variant, choose_variant, read_variants
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import wanted_images
from orchestrate.planning.shared_images import share_images
from results.schema import GPU, Status

VARIANTS = read_variants()
ADDRESS = DockerAddress(scheme="ssh", target="h")
CARDS = {
    "Tesla V100-SXM2-16GB": "7.0",
    "Tesla T4": "7.5",
    "NVIDIA A100-SXM4-80GB": "8.0",
    "NVIDIA A10": "8.6",
    "NVIDIA L40S": "8.9",
    "NVIDIA H100 80GB HBM3": "9.0",
    "NVIDIA RTX A5000": "8.6",
    "NVIDIA GeForce RTX 3090": "8.6",
}
DRIVERS = (
    "450.80.02",
    "470.256.02",
    "520.61.05",
    "525.147.05",
    "535.183.01",
    "545.23.08",
    "550.127.05",
    "555.42.06",
    "580.95.05",
)


def host(name: str = "h", **settings: object) -> Host:
    return Host(fleet="f", name=name, **({"docker": ADDRESS} | settings))  # type: ignore[arg-type]


def facts(driver: str, card: str) -> Facts:
    return Facts(driver=driver, gpus=(GPU(index=0, name=card, compute_capability=CARDS[card]),))


GAINS = """
driver       card                      alone    with the package
470.256.02   Tesla V100-SXM2-16GB      2.14.1   2.21.0
470.256.02   Tesla T4                  2.14.1   2.21.0
470.256.02   NVIDIA A100-SXM4-80GB     -        2.21.0
470.256.02   NVIDIA A10                -        2.21.0
470.256.02   NVIDIA L40S               -        2.21.0
470.256.02   NVIDIA H100 80GB HBM3     -        2.21.0
535.183.01   NVIDIA H100 80GB HBM3     2.15.1   2.21.0
550.127.05   NVIDIA H100 80GB HBM3     2.17.1   2.21.0
"""
"""All that gain; driver 470 knows neither Ada nor Hopper, so that those two rows are of no host."""


def test_the_hosts_that_gain_a_newer_tensorflow_are_these_and_no_others():
    lines = [GAINS.strip().splitlines()[0]]
    for driver in DRIVERS:
        for card, capability in CARDS.items():
            alone = choose_variant(driver, capability, VARIANTS).variant
            (image,) = wanted_images(host(), facts(driver, card), VARIANTS)
            if "cuda12.5-compat would run TensorFlow 2.21.0 here" in (image.problem or image.reason):
                lines.append(f"{driver:12} {card:25} {alone.tensorflow if alone else '-':8} 2.21.0")
    assert "\n".join(lines) == GAINS.strip()


def test_it_is_offered_with_what_to_write_and_never_chosen():
    (image,) = wanted_images(host(), facts("535.183.01", "NVIDIA H100 80GB HBM3"), VARIANTS)
    assert (image.variant, image.status) == ("cuda12.2", Status.OK)
    assert image.reason.endswith(
        ". cuda12.5-compat would run TensorFlow 2.21.0 here, by NVIDIA's CUDA 12.8 compatibility package for data-centre "
        "GPUs. To try it: run images build cuda12.5-compat, push it, and set variant: cuda12.5-compat"
    )
    (image,) = wanted_images(host(), facts("470.256.02", "NVIDIA A100-SXM4-80GB"), VARIANTS)
    assert image.status is Status.DRIVER_TOO_OLD and "set variant: cuda12.5-compat" in (image.problem or "")
    only = [variant for variant in VARIANTS if variant.compat is not None]
    assert choose_variant("535.183.01", "9.0", only).variant is None


def test_an_ssh_host_starts_no_image_and_is_offered_none():
    there = host(docker=None, ssh=SSHAddress(target="h"))
    (image,) = wanted_images(there, facts("535.183.01", "NVIDIA H100 80GB HBM3"), VARIANTS)
    assert "compat" not in image.reason


def test_hosts_that_share_an_image_are_offered_it_too():
    card, hosts = "Tesla V100-SXM2-16GB", [host("one"), host("two")]
    probed = {}
    for one, driver in zip(hosts, ("470.256.02", "535.183.01"), strict=True):
        reported = facts(driver, card)
        images = tuple(wanted_images(one, reported, VARIANTS))
        probed[one.place] = Facts(driver=driver, gpus=reported.gpus, images=images)
    shared = share_images(hosts, probed, VARIANTS)
    assert {image.variant for image in shared.values()} == {"cuda11.8"}
    assert all("set variant: cuda12.5-compat" in image.reason for image in shared.values())


@pytest.mark.parametrize(
    ("driver", "card", "reason"),
    [
        ("535.183.01", "NVIDIA H100 80GB HBM3", None),
        ("470.256.02", "NVIDIA A10", None),
        (
            "470.256.02",
            "NVIDIA RTX A5000",
            "cuda12.5-compat: NVIDIA's compatibility package is for data-centre GPUs only, and NVIDIA RTX A5000 is not "
            "known to be one",
        ),
        (
            "545.23.08",
            "NVIDIA H100 80GB HBM3",
            "cuda12.5-compat: NVIDIA's CUDA 12.8 compatibility package is for driver branches 470, 535, 550, but this is "
            "545.23.08",
        ),
        (
            "580.95.05",
            "NVIDIA H100 80GB HBM3",
            "cuda12.5-compat: driver 580.95.05 serves CUDA 12.5 by itself (from 555.42.06): name cuda12.5",
        ),
    ],
)
def test_a_host_that_names_it_gets_it_or_the_reason_why_not(driver: str, card: str, reason: str | None):
    (image,) = wanted_images(host(variants=("cuda12.5-compat",)), facts(driver, card), VARIANTS)
    assert (image.variant, image.problem) == ("cuda12.5-compat", reason)
    if reason is None:
        assert "CUDA 12.8 compatibility package in place of the library of driver" in image.reason
    else:
        assert image.status is Status.UNSUPPORTED


def test_without_names_of_the_gpus_it_is_refused():
    (compat,) = [variant for variant in VARIANTS if variant.compat is not None]
    assert "names of the GPUs are not known" in check_variant(compat, "535.183.01", "9.0").reason


def test_its_package_compiles_what_the_wheel_has_for_newer_gpus():
    (compat,) = [variant for variant in VARIANTS if variant.compat is not None]
    assert compat.compat is not None and compat.cuda is not None
    assert tuple(map(int, compat.compat.cuda.split("."))) >= tuple(map(int, compat.cuda.split(".")))
    assert (compat.row, compat.default, compat.drivers) == ("cuda12.5", False, "470, 535, 550 only")


@pytest.mark.parametrize(
    "name",
    [
        *("Tesla K80", "Tesla P100-PCIE-16GB", "Tesla P4", "Tesla V100-SXM2-32GB", "Tesla T4", "A100-SXM4-40GB"),
        *("NVIDIA A100 80GB PCIe", "NVIDIA A10G", "NVIDIA A2", "NVIDIA A16", "NVIDIA A30", "NVIDIA A40"),
        *("NVIDIA A800-SXM4-80GB", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"),
        *("NVIDIA H200", "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"),
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    ],
)
def test_data_centre_gpus_are_known_by_their_names(name: str):
    assert is_data_centre(name)


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA RTX A4000", "RTX A6000", "NVIDIA RTX 6000 Ada Generation", "Quadro RTX 6000", "Quadro GV100"),
        *("NVIDIA GeForce RTX 4090", "NVIDIA TITAN V", "NVIDIA T400 4GB", "NVIDIA T1000", "NVIDIA A800 40GB Active"),
        *("NVIDIA RTX A400", "NVIDIA A5000", "NVIDIA GeForce GTX 1080 Ti", "NVIDIA CMP 170HX", "GPU", ""),
    ],
)
def test_other_cards_are_not(name: str):
    assert not is_data_centre(name)
