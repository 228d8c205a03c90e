"""Which images a host starts: golden answers in words for real cards and drivers."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import probe_reference, wanted_images
from results.schema import GPU, Device, Status

ADDRESS = DockerAddress(scheme="ssh", target="h")


def host(**settings: object) -> Host:
    return Host(fleet="f", name="h", docker=ADDRESS, registry="example.org/you", **settings)  # type: ignore[arg-type]


def facts(driver: str | None, *capabilities: str) -> Facts:
    gpus = tuple(GPU(index=i, name="card", compute_capability=cc) for i, cc in enumerate(capabilities))
    return Facts(driver=driver, gpus=gpus)


def test_the_chosen_image_is_named_with_its_reason_or_why_there_is_none():
    (image,) = wanted_images(host(), facts("550.127.05", "8.6"), read_variants())
    assert (image.reference, image.status) == ("example.org/you/tfbench:0.1.0-cuda12.5", Status.OK)
    assert "driver 550.127.05" in image.reason
    for driver, capability, status in (("470.256.02", "8.6", "driver_too_old"), ("580.95.05", "12.0", "unsupported")):
        (image,) = wanted_images(host(), facts(driver, capability), read_variants())
        assert (image.variant, image.status) == (None, status) and image.problem


def test_a_host_without_a_gpu_or_told_to_use_its_processor_gets_the_cpu_image():
    for settings, reported in (({}, facts(None)), ({"device": Device.CPU}, facts("580.95.05", "8.6"))):
        (image,) = wanted_images(host(**settings), reported, read_variants())
        assert (image.variant, image.status) == ("cpu", Status.OK)


def test_without_a_compute_capability_only_a_named_variant_is_taken():
    reported = Facts(driver="550.127.05", gpus=(GPU(index=0, name="card"),))
    (image,) = wanted_images(host(variants=("cuda12.5",)), reported, read_variants())
    assert (image.variant, image.status) == ("cuda12.5", Status.OK)
    (image,) = wanted_images(host(), reported, read_variants())
    assert image.status is Status.NO_GPU and image.problem


def test_a_named_variant_that_cannot_run_says_why_before_anything_is_pulled():
    old, good = wanted_images(host(variants=("cuda12.2", "cuda12.5")), facts("525.60.13", "8.6"), read_variants())
    assert old.status is Status.DRIVER_TOO_OLD and "535.54.03" in (old.problem or "")
    assert good.status is Status.OK and "named in hosts.yml" in good.reason


def test_mixed_gpus_get_one_image_that_suits_all_or_a_remedy():
    (image,) = wanted_images(host(), facts("580.95.05", "8.6", "7.5"), read_variants())
    assert image.status is Status.OK
    (image,) = wanted_images(host(), facts("580.95.05", "8.6", "12.0"), read_variants())
    assert image.status is Status.UNSUPPORTED
    (image,) = wanted_images(host(gpus=(0,)), facts("580.95.05", "8.6", "12.0"), read_variants())
    assert image.status is Status.OK, "only the GPUs that are used count"


def test_another_processor_is_refused_unless_the_image_is_the_users_own():
    grace = dataclasses.replace(facts("580.95.05", "9.0"), architecture="arm64")
    (image,) = wanted_images(host(), grace, read_variants())
    assert image.status is Status.UNSUPPORTED
    assert (image.problem or "").startswith("its processor is arm64 (as in GH200 and Grace), and these images are for")
    for reported in (grace, facts("470.256.02", "8.6")):  # an image of the user's own is not judged
        (image,) = wanted_images(host(image="mine:1"), reported, read_variants())
        assert (image.reference, image.status, image.variant) == ("mine:1", Status.OK, None)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "example.org/you/tfbench:0.1.0-cpu"),
        ({"variants": ("cuda12.3", "cuda12.5")}, "example.org/you/tfbench:0.1.0-cuda12.3"),
        ({"image": "tfbench:mine"}, "tfbench:mine"),
    ],
)
def test_the_probe_needs_no_second_image_where_one_is_named(settings: dict[str, object], name: str):
    assert probe_reference(host(**settings)) == name
