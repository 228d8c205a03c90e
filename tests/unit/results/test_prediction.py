"""Predictions of GPUs that nobody measured: what they rest on, what is refused, and how far they miss."""

import numpy as np
import pytest

from results.recommend.prediction import KINDS, REACH, forecast, predict, published_observations
from results.reference import all_published
from results.reference.gpus import PEAKS, specifications
from studies import predict_held_out

ROWS = published_observations()


@pytest.fixture(scope="module")
def held_out():
    return predict_held_out.hold_out(ROWS, "gpu"), predict_held_out.hold_out(ROWS, "family")


def one(gpu, network, precision, rows=ROWS, count=1):
    return predict(gpu, count, network, precision, "Lambda deeplearning-benchmark (raw log)", rows)


def test_kinds_that_are_predicted_miss_by_what_the_page_states(held_out):
    found = predict_held_out.predicted_kinds(predict_held_out.kind_errors(*held_out), held_out[1])
    assert found == pytest.approx(KINDS, abs=6e-4)
    assert predict_held_out.median_error(held_out[1]) < 0.08


def test_rows_of_one_gpu_are_all_used_and_a_faulty_one_pulls_little():
    assert len(ROWS) == sum(not row["suspect"] and row["num_gpus"] == "1" for row in all_published())
    chosen, fitted = (ROWS[(ROWS["gpu"] == "RTX A6000") == mine] for mine in (True, False))
    spoilt = fitted.assign(rate=fitted["rate"].where(fitted.index != fitted.index[0], 10 * fitted["rate"]))
    before, after = (forecast(rows, chosen)[0] for rows in (fitted, spoilt))
    assert np.abs(before - after).max() < 0.1


REFUSED = [
    ("RTX 4090 Laptop", "vit_b16", "fp16", 1, "no row of this network"),
    ("Banana", "resnet50", "fp16", 1, "bandwidth or peak is not specified"),
    ("RTX A4000", "bert_large_squad_384", "tf32", 1, "the error would be too large"),
    ("RTX 5090", "resnet50", "fp16", 1, "no row of compute capability 12.0"),
    ("L4", "resnet50", "fp16", 2, "several GPUs"),
    ("L4", "bert_large_pretraining_512", "fp16", 1, "fewer than 3 families"),
]


@pytest.mark.parametrize(("gpu", "network", "precision", "count", "words"), REFUSED)
def test_what_a_prediction_lacks_is_named(gpu, network, precision, count, words):
    assert words in one(gpu, network, precision, count=count)


@pytest.mark.parametrize("quantity", ["memory_bandwidth", PEAKS["fp16"][0]])
def test_a_gpu_beyond_the_reach_of_all_others_is_refused(monkeypatch, quantity):
    most = max(specifications()[gpu][quantity] for gpu in ROWS["gpu"] if gpu in specifications())
    for factor, refused in ((REACH * 1.01, True), (REACH * 0.99, False)):
        known = {**specifications(), "RTX 4090": {**specifications()["RTX 4090"], quantity: most * factor}}
        with monkeypatch.context() as patched:
            patched.setattr("results.recommend.prediction.specifications", lambda known=known: known)
            assert isinstance(one("RTX 4090", "resnet50_v1.5", "fp16"), str) is refused
