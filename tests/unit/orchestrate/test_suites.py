"""Suites are data: blocks multiply, and a mistake in a user's file names its line."""

import dataclasses
import json
from itertools import product
from pathlib import Path

import pytest

from orchestrate.errors import DocumentError, UserError
from orchestrate.suites import Suite, read_suite, suite_names
from results.schema import DEVICE_MODEL, XLA, Device, Mode, Precision


def test_every_suite_that_comes_along_is_valid_and_says_what_it_is():
    names = ["aime", "device", "first", "inference", "published", "quick", "science", "standard", "transformers"]
    assert suite_names() == names
    for name in names:
        suite = read_suite(name)
        assert suite.description and suite.repeats >= 3 and suite.cases(Device.GPU)


def test_the_suites_measure_what_they_are_named_for():
    cases = read_suite("standard").cases(Device.CPU)
    assert {case.device for case in cases} == {Device.GPU}, "a host without a GPU says no_gpu, never a CPU number"
    assert {(case.precision, case.batch_per_gpu) for case in cases} == {(Precision.FP32, 128), (Precision.FP16, 256)}
    assert {case.num_gpus for case in cases} == {1, 2, 4, 8} and len(cases) == 3 * 2 * 4
    quick = read_suite("quick").cases(Device.CPU)
    assert {case.model for case in quick} == {"resnet50", "resnet152", "inception_v3", "googlenet"}
    assert {case.device for case in quick} == {Device.CPU}, "what the host has"
    device = [case for case in read_suite("science").cases(Device.CPU) if case.model == DEVICE_MODEL]
    assert device == read_suite("device").cases(Device.CPU) and [case.num_gpus for case in device] == [1, 2, 4, 8]
    assert {(case.mode, case.batch_per_gpu) for case in device} == {(Mode.DEVICE, 1)}


def test_the_aime_suite_is_the_sources_matrix():
    """Source: AIME, "Deep Learning GPU Benchmarks": 50 steps, the mean of three runs, fp32 and AMP, compiled or not."""
    suite = read_suite("aime")
    matrix = {(case.model, case.precision, case.xla, case.num_gpus) for case in suite.cases(Device.GPU)}
    kinds = (Precision.FP32, Precision.FP16), (XLA.OFF, XLA.REPLICA)
    assert matrix == set(product(("bert_large", "resnet50_v1.5"), *kinds, (1, 2, 4, 8)))
    assert suite.repeats == 3 and {case.num_steps for case in suite.cases(Device.GPU)} == {50}


RESNET = "model: resnet50, batch_per_gpu: 8"
MISTAKES = json.loads(Path(__file__).with_name("cases").joinpath("mistakes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("block", "said"), MISTAKES["suite"])
def test_what_does_not_go_together_is_named_with_its_line(tmp_path: Path, block: str, said: str):
    path = tmp_path / "my.yml"
    path.write_text(f"cases:\n  - {{{RESNET}}}\n  - {{{block}}}\n")
    with pytest.raises(DocumentError) as caught:
        read_suite(str(path))
    assert f"{path}:3: case 2: {said}" in str(caught.value)


def test_an_unknown_suite_is_named():
    with pytest.raises(UserError, match=r"there is no suite 'quik'\. Did you mean 'quick'\?"):
        read_suite("quik")


def suite_of(folder: Path, block: str) -> Suite:
    path = folder / "my.yml"
    path.write_text(f"cases:\n  - {{{block}}}\n")
    return read_suite(str(path))


def test_several_hosts_multiply_and_only_they_choose_how_they_communicate(tmp_path: Path):
    counts = "num_gpus: [1, 4], num_hosts: [1, 2], communication: ring, all_reduce: [true, false]"
    cases = suite_of(tmp_path, f"{RESNET}, {counts}").cases(Device.GPU)
    named = {(case.num_hosts, case.num_gpus, str(case.communication), case.all_reduce) for case in cases}
    alone = {(1, 1, "auto", True), (1, 4, "auto", True), (1, 4, "auto", False)}
    assert named == alone | {(2, gpus, "ring", whole) for gpus in (1, 4) for whole in (True, False)}
    assert len({case.name for case in cases}) == len(cases) == 7


def test_a_batch_may_be_as_large_as_fits_the_smallest_gpu_of_a_run(tmp_path: Path):
    suite = suite_of(tmp_path, "model: [resnet152, googlenet], batch_per_gpu: fit, precision: [fp32, fp16]")

    def batches(gibibytes: float | None) -> list[int]:
        memory = None if gibibytes is None else gibibytes * 2**30
        return [case.batch_per_gpu for case in dataclasses.replace(suite, memory_bytes=memory).cases(Device.GPU)]

    assert batches(None) == batches(48) == [128, 256, 128, 256]
    assert batches(16) == [64, 128, 128, 256]
    assert batches(8) == [16, 32, 128, 256]
