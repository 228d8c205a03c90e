"""Suites are data: blocks multiply, and a mistake in a user's file names its line."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from orchestrate.errors import DocumentError, UserError
from orchestrate.suites import read_suite, suite_names
from results.schema import DEVICE_MODEL, XLA, BatchNorm, Device, Mode, Precision


def test_every_suite_that_comes_along_is_valid_and_says_what_it_is():
    assert suite_names() == [
        *("aime", "device", "first", "inference", "published", "quick", "science", "standard", "transformers"),
    ]
    for name in suite_names():
        suite = read_suite(name)
        assert suite.description and suite.repeats >= 3 and suite.cases(Device.GPU)


def test_the_standard_suite_is_the_cards_matrix():
    cases = read_suite("standard").cases(Device.CPU)
    assert {case.device for case in cases} == {Device.GPU}, "a host without a GPU says no_gpu, never a CPU number"
    assert {(case.precision, case.batch_per_gpu) for case in cases} == {(Precision.FP32, 128), (Precision.FP16, 256)}
    assert {case.num_gpus for case in cases} == {1, 2, 4, 8} and len(cases) == 3 * 2 * 4


def test_the_published_suite_has_the_fields_own_googlenet():
    cases = read_suite("published").cases(Device.GPU)
    assert {case.batch_norm for case in cases if case.model == "googlenet"} == {BatchNorm.NONE}


def test_the_quick_suite_measures_the_four_networks_on_what_the_host_has():
    cases = read_suite("quick").cases(Device.CPU)
    assert {case.model for case in cases} == {"resnet50", "resnet152", "inception_v3", "googlenet"}
    assert {case.device for case in cases} == {Device.CPU}


def test_the_aime_suite_is_the_sources_matrix():
    """Source: AIME, "Deep Learning GPU Benchmarks": 50 steps, the mean of three runs, fp32 and AMP, compiled or not."""
    suite = read_suite("aime")
    cases = suite.cases(Device.GPU)
    assert suite.repeats == 3
    assert {case.num_steps for case in cases} == {50}
    assert {case.model for case in cases} == {"bert_large", "resnet50_v1.5"}
    for model in ("bert_large", "resnet50_v1.5"):
        matrix = {(case.precision, case.xla, case.num_gpus) for case in cases if case.model == model}
        assert matrix == set(product((Precision.FP32, Precision.FP16), (XLA.OFF, XLA.REPLICA), (1, 2, 4, 8)))


def test_the_inference_suite_only_infers():
    assert {case.mode for case in read_suite("inference").cases(Device.GPU)} == {Mode.INFER}


def test_the_device_has_one_case_for_each_count_and_says_nothing_of_a_batch():
    cases = [case for case in read_suite("science").cases(Device.CPU) if case.model == DEVICE_MODEL]
    assert cases == read_suite("device").cases(Device.CPU)
    assert [(case.mode, case.batch_per_gpu, case.num_gpus) for case in cases] == [
        (Mode.DEVICE, 1, count) for count in (1, 2, 4, 8)
    ]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("{model: resnet50}", "batch_per_gpu is missing. Example: batch_per_gpu: {fp32: 128, fp16: 256}"),
        ("{model: device, precision: fp16}", "precision has no effect with model: device. Remove it"),
        ("{model: [device, resnet50]}", "device is not a network: write a separate case for it"),
        ("{model: device, mode: infer}", "model: device implies mode: device. Remove mode"),
        ("{model: resnet50, batch_per_gpu: 8, mode: device}", "mode: device is for model: device only"),
        (
            "{model: resnet50, batch_per_gpu: 8, mode: [train, infer], data: tfrecord}",
            "data: tfrecord is for mode: train only",
        ),
        ("{model: resnet50, batch_per_gpu: 8, mode: serve}", "mode must be train, infer or both"),
        (
            "{model: resnet50, batch_per_gpu: 8, min_seconds: [x]}",
            "min_seconds must be a number or a list: After --num_steps, continue timing until this many seconds have "
            "passed. Default: stop at --num_steps. Received: 'x'. Example: min_seconds: 1.0",
        ),
        (
            "{model: resnet50, batch_per_gpu: 8, num_hosts: [1, 2], mode: infer}",
            "several hosts require mode: train",
        ),
        (
            "{model: resnet50, batch_per_gpu: 8, num_hosts: 2, data: tfrecord}",
            "several hosts require mode: train and data: synthetic or host",
        ),
        ("{model: resnet50, batch_per_gpu: 8, communication: ring}", "communication is for several hosts only"),
        (
            "{model: resnet50, batch_per_gpu: 8, mode: infer, all_reduce: false}",
            "all_reduce: false is for mode: train only",
        ),
        (
            "{model: resnet50, batch_per_gpu: 8, mode: [train, infer], accumulate: [1, 4]}",
            "accumulate is for mode: train only",
        ),
        (
            "{model: bert_large, batch_per_gpu: 8, sequence_length: [512, 600]}",
            "sequence_length: 600 is not for bert_large: it has 512 positions. Remove it, or write a separate case",
        ),
        ("{model: gpt2_small, batch_per_gpu: 8, sequence_length: 4}", "sequence_length: 4 is not for gpt2_small"),
        (
            "{model: [vgg16, bert_large], batch_per_gpu: 8, image_size: 224}",
            "image_size: 224 is not for bert_large: it takes sequences. Use sequence_length",
        ),
        (
            "{model: resnet50, batch_per_gpu: 8, sequence_length: 128}",
            "sequence_length: 128 is not for resnet50: it takes images",
        ),
        (
            "{model: inception_v4, batch_per_gpu: 8, image_size: 64}",
            "image_size: 64 is not for inception_v4: it needs at least 75",
        ),
        (
            "{model: vit_b16, batch_per_gpu: 8, image_size: 225}",
            "image_size: 225 is not for vit_b16: it needs a multiple of 16",
        ),
        (
            "{model: [resnet50, vgg16], batch_per_gpu: 8, batch_norm: keras}",
            "batch_norm: keras is not for vgg16: it has none",
        ),
        ("{model: bert_large, batch_per_gpu: 8, data: [host, tfrecord]}", "data: tfrecord is not for bert_large"),
        ("{model: bert_larg, batch_per_gpu: 8}", "model: there is no network 'bert_larg'. Did you mean 'bert_large'?"),
        ("{model: [resnet50, lenet5], batch_per_gpu: 8}", "model: there is no network 'lenet5'. "),
        ("{model: zzz, batch_per_gpu: 8}", "model: there is no network 'zzz'. Networks: resnet50, resnet152,"),
    ],
)
def test_what_does_not_go_together_is_named_with_its_line(tmp_path: Path, block: str, said: str):
    path = tmp_path / "my.yml"
    path.write_text(f"cases:\n  - {{model: resnet50, batch_per_gpu: 8}}\n  - {block}\n")
    with pytest.raises(DocumentError) as caught:
        read_suite(str(path))
    assert f"{path}:3: case 2: {said}" in str(caught.value)


def test_a_suite_of_the_users_own_names_its_mistakes(tmp_path: Path):
    path = tmp_path / "my.yml"
    path.write_text(
        "cases:\n"
        "  - {model: resnet50, precision: [fp32, fp64], batch_per_gpu: 8}\n"
        "  - {model: resnet50, precision: [fp32, fp16], batch_per_gpu: {fp32: 8}}\n"
        "  - {modle: resnet50, batch_per_gpu: 0}\n"
        "  - {model: resnet5, precision: fp12, batch: 4}\n"
    )
    with pytest.raises(DocumentError) as caught:
        read_suite(str(path))
    text = str(caught.value)
    assert f"{path}:2: case 1: precision must be one or more of fp32, tf32, fp16 and bf16" in text
    assert f"{path}:4: case 3: unknown key 'modle'. Did you mean 'model'?" in text
    assert f"{path}:4: case 3: model is missing" in text
    assert f"{path}:4: case 3: batch_per_gpu must be" in text
    assert f"{path}:5: case 4: model: there is no network 'resnet5'. Did you mean 'resnet50'?" in text
    assert f"{path}:5: case 4: precision must be" in text and f"{path}:5: case 4: unknown key 'batch'" in text


def test_a_batch_that_is_missing_for_a_precision_is_named(tmp_path: Path):
    path = tmp_path / "my.yml"
    path.write_text("cases:\n  - {model: resnet50, precision: [fp32, fp16], batch_per_gpu: {fp32: 8}}\n")
    with pytest.raises(DocumentError, match=r"my\.yml:2: case 1: batch_per_gpu has no value for fp16"):
        read_suite(str(path))


def test_an_unknown_suite_lists_those_that_exist():
    with pytest.raises(
        UserError,
        match=r"there is no suite 'fast'\. Suites: aime, device, first, inference, published, quick, science, standard",
    ):
        read_suite("fast")


def test_several_hosts_multiply_and_only_they_choose_how_they_communicate(tmp_path: Path):
    path = tmp_path / "my.yml"
    path.write_text(
        "cases:\n  - {model: resnet50, batch_per_gpu: 8, num_gpus: [1, 4], num_hosts: [1, 2], communication: ring,\n"
        "     all_reduce: [true, false]}\n"
    )
    cases = read_suite(str(path)).cases(Device.GPU)
    named = {(case.num_hosts, case.num_gpus, str(case.communication), case.all_reduce) for case in cases}
    alone = {(1, 1, "auto", True), (1, 4, "auto", True), (1, 4, "auto", False)}
    assert named == alone | {(2, gpus, "ring", whole) for gpus in (1, 4) for whole in (True, False)}
    assert len({case.name for case in cases}) == len(cases) == 7
