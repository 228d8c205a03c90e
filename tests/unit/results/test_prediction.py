"""Predictions of GPUs that nobody measured: what they rest on, what is refused, and how far they miss."""

import dataclasses

import numpy as np
import pytest

from results.recommend.prediction import (
    KINDS,
    REACH,
    Model,
    out_of_reach,
    predict,
    published_observations,
    rates_of,
)
from results.reference import all_published
from tests.benchmarks import predict_left_out


@pytest.fixture(scope="module")
def rows():
    return published_observations()


@pytest.fixture(scope="module")
def left_out(rows):
    return predict_left_out.leave_out(rows, "gpu"), predict_left_out.leave_out(rows, "family")


def one(gpu, network, precision, rows, count=1):
    return predict([(gpu, count)], network, precision, rows, "Lambda deeplearning-benchmark (raw log)")[gpu, count]


def test_the_kinds_that_are_predicted_are_those_that_hold(left_out):
    found = predict_left_out.predicted_kinds(predict_left_out.kind_errors(*left_out), left_out[1])
    assert found.keys() == KINDS.keys()
    for kind, held in KINDS.items():
        assert dataclasses.astuple(found[kind]) == pytest.approx(dataclasses.astuple(held), abs=6e-4)


def test_left_out_gpus_are_missed_by_no_more_than_the_page_says(left_out):
    assert predict_left_out.median_error(left_out[1]) < 0.11


def test_what_is_left_out_has_no_part_in_its_own_prediction(rows):
    spoilt = [dataclasses.replace(row, rate=row.rate * (10 if row.gpu == "RTX A5000" else 1)) for row in rows]
    before, after = (
        [x.log_rate for x in predict_left_out.leave_out(some, "gpu") if x.row.gpu == "RTX A5000"]
        for some in (rows, spoilt)
    )
    assert before == pytest.approx(after)


def test_every_row_of_one_gpu_that_is_not_suspect_is_evidence(rows):
    assert len(rows) == sum(not row["suspect"] and row["num_gpus"] == "1" for row in all_published())


def test_a_faulty_row_pulls_little(rows):
    chosen = np.array([i for i, row in enumerate(rows) if row.gpu == "RTX A6000"])
    fitted = np.array([i for i, row in enumerate(rows) if row.gpu != "RTX A6000"])
    rates = rates_of(rows)
    spoilt = rates.copy()
    spoilt[fitted[0]] *= 10
    before, after = (Model(rows).predict(fitted, some[fitted], chosen).log_rate for some in (rates, spoilt))
    assert np.abs(before - after).max() < 0.1


@pytest.mark.parametrize(
    ("gpu", "network", "precision", "count", "words"),
    [
        ("RTX 4090 Laptop", "vit_b16", "fp16", 1, "no row of this network"),
        ("A10G", "resnet50", "fp16", 1, "bandwidth or peak is not specified"),
        ("RTX A4000", "bert_large_squad_384", "tf32", 1, "the error would be too large"),
        ("RTX 5090", "resnet50", "fp16", 1, "no row of compute capability 12.0"),
        ("L4", "resnet50", "fp16", 2, "several GPUs"),
        ("L4", "bert_large_pretraining_512", "fp16", 1, "fewer than 3 families"),
    ],
)
def test_what_a_prediction_lacks_is_named(rows, gpu, network, precision, count, words):
    assert words in one(gpu, network, precision, rows, count)


@pytest.mark.parametrize(("factor", "refused"), [(REACH * 1.01, True), (REACH * 0.99, False)])
@pytest.mark.parametrize("figure", ["bandwidth", "arithmetic"])
def test_a_gpu_beyond_the_reach_of_all_others_is_refused(rows, figure, factor, refused):
    most = max(getattr(row, figure) for row in rows if row.precision == "fp16")
    row = next(row for row in rows if row.gpu == "RTX 4090" and row.precision == "fp16")
    assert bool(out_of_reach(dataclasses.replace(row, **{figure: most * factor}), rows)) is refused
