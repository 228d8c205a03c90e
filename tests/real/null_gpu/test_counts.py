"""Steps of TensorFlow's CUDA build on GPUs that compute nothing: what they ask of a GPU, and when."""

import csv
import functools
import os
import statistics

import pytest

from results.reference import MIBI, read_rows
from results.reference.networks import PEAK_VARIATION, training_bytes
from results.schema import DEVICE_MODEL
from studies.network_memory import key_of, suite_cases
from studies.null_gpu_counts import COUNTS, FEW_STEPS, KEY, STEPS, TABLE, Counter, flags, row
from tests.support.null_gpu import needs_null_gpu
from tfbench.measuring.soft_warnings import HOST_LEAD_SHARE

with TABLE.open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))

SYNTHETIC = [line for line in ROWS if line["data"] == "synthetic"]
FROM_HOST = [line for line in ROWS if line["data"] in ("host", "tfrecord")]
FIGURES = [line for line in ROWS if line["model"] == DEVICE_MODEL]
SHORT = [("resnet50", precision, "train", gpus, "off", "synthetic") for precision in ("fp32", "fp16") for gpus in "12"]
SHORT.append((DEVICE_MODEL, "fp32", "all_reduce", "2", "off", "none"))
EVERYTHING = "TFBENCH_TEST_NULL_GPU" in os.environ

LARGEST_LIST_OF_TENSORS = 2048
"""Bytes. To join or split more than eight tensors, TensorFlow sends a list of their addresses to the GPU."""

PEAK_TOLERANCE = 0.15
"""Of the peak memory, by chance: which of two ready operations comes first. AlexNet on two GPUs: 979 or, busy, 870 MiB."""

VARYING_TOLERANCE = 0.5
"""Of copies of TFRecords, whose batches come when they are decoded."""

CAPTURE_FACTOR = 4
"""Of library calls of compiled steps, up or down: XLA captures them again for moved buffers; BERT-Large: 403 or 1,471."""


MOST_TO_PLAIN_LOOP = 1.3
"""Of the seconds of the same steps without timing, where the host is all that a step waits for."""


def on_null_gpus(test):
    return needs_null_gpu(pytest.mark.slow(test))


def name_of(line):
    return "-".join(line[name] for name in KEY)


def test_the_table_meets_the_bars_of_a_step():
    for line in SYNTHETIC:
        name, lists, of_data = name_of(line), float(line["h2d"]), float(line["d2h"])
        assert of_data == 0, name
        assert float(line["h2d_bytes"]) <= LARGEST_LIST_OF_TENSORS * lists, name
        assert float(line["waits_of_dispatching_thread"]) == 0, name
        gpus, gradients = int(line["gpus"]), int(line["gradient_bytes"])
        wanted = gradients * gpus if gpus > 1 else 0
        assert float(line["all_reduced_bytes"]) == pytest.approx(wanted, rel=0.01), name
        if (gpus, line["mode"], line["precision"]) == (1, "train", "fp32"):
            # Attention joins the gradients of query, key and value; copies of all weights would be about as large as these.
            assert float(line["d2d_bytes"]) < 0.6 * gradients, f"{name}: nothing joins gradients: weights are copied"
        assert float(line["waits"]) == gpus, f"{name}: the one that ends a step on each replica"


def test_input_from_the_host_goes_one_way_only_and_is_not_waited_for():
    for line in FROM_HOST:
        assert float(line["h2d"]) >= 2 and float(line["d2h"]) == 0, name_of(line)
        assert float(line["waits_of_dispatching_thread"]) == 0, name_of(line)


def test_a_call_of_a_devices_figure_asks_for_what_it_names_alone():
    for line in FIGURES:
        gpus, size = int(line["gpus"]), 2**28
        wanted = {
            "matrix_product": {"library_calls": 1},
            "memory_add": {"launches": 1},
            "host_to_device": {"h2d": 1, "h2d_bytes": size},
            "device_to_host": {"d2h": 1, "d2h_bytes": size},
            "all_reduce": {"launches": gpus, "all_reduces": 16 * gpus, "all_reduced_bytes": 16 * gpus * size},
        }[line["mode"]]
        found = {name: float(line[name]) for name in COUNTS if float(line[name])}
        waits = dict.fromkeys(("waits", "waits_of_dispatching_thread"), gpus / STEPS)
        assert found == wanted | waits, name_of(line)


@pytest.fixture(scope="module")
def counter():
    counter = Counter()
    yield counter
    counter.close()


counted = functools.cache(lambda counter, *arguments: counter.count(list(arguments)))


@on_null_gpus
@pytest.mark.parametrize(
    "line", [line for line in ROWS if EVERYTHING or tuple(line.values())[: len(SHORT[0])] in SHORT], ids=name_of
)
def test_a_step_asks_for_what_the_table_says(counter, line):
    key = {name: line[name] for name in KEY}
    found = row(key, counted(counter, *flags(key)))
    factors = {"peak_mib": (1 - PEAK_TOLERANCE, 1 + PEAK_TOLERANCE)}
    if line["data"] == "tfrecord":
        factors |= dict.fromkeys(("h2d", "h2d_bytes"), (1 - VARYING_TOLERANCE, 1 + VARYING_TOLERANCE))
    if line["xla"] != "off":
        factors["library_calls"] = (1 / CAPTURE_FACTOR, CAPTURE_FACTOR)
    exact = [name for name in COUNTS if name not in factors]
    assert {name: found[name] for name in exact} == {name: line[name] for name in exact}
    for name, (lowest, highest) in factors.items():
        assert float(line[name]) * lowest <= float(found[name]) <= float(line[name]) * highest, name


def test_the_estimate_of_memory_holds_for_every_case_of_the_suites():
    peaks = {tuple(key): float(peak) for *key, peak in (tuple(row.values()) for row in read_rows("memory.csv"))}
    for case in suite_cases():
        assert 0.999 < training_bytes(case) / (peaks[key_of(case)] * MIBI) < PEAK_VARIATION, case.name


@on_null_gpus
@pytest.mark.parametrize(
    "form", [("alexnet", "--accumulate=2"), ("alexnet", "--mode=infer"), ("gpt2_small", "--batch_size=2")]
)
def test_no_form_of_a_step_copies_to_the_host_or_waits_for_it(counter, form):
    model, flag = form
    case = (f"--model={model}", "--precision=fp16", "--batch_size=8", "--num_gpus=2", flag)
    found = row({}, counter.count([*case, *FEW_STEPS], small=True))
    assert (found["d2h"], found["waits_of_dispatching_thread"]) == ("0", "0")


@on_null_gpus
def test_batch_norm_and_relu_are_one_kernel_in_both_directions(counter):
    key = dict(zip(KEY, ("resnet50", "fp16", "train", "1", "off", "synthetic", "8"), strict=True))
    found = counted(counter, *flags(key))
    assert found["kernels"] and not [name for name in found["kernels"] if "ReluGrad" in name]
    assert found["lead"] < HOST_LEAD_SHARE, "a GPU that computes nothing waits for the host"


@pytest.mark.rare  # a busy machine is no slower GPU
@on_null_gpus
@pytest.mark.parametrize("gpus", [1, 2])
def test_timing_each_step_costs_little_beside_a_plain_loop(counter, gpus):
    case = ["--model=resnet50", "--batch_size=8", f"--num_gpus={gpus}", *FEW_STEPS, "--num_steps=20"]
    assert counter.count(case, rounds=7)["to_plain_loop"] < MOST_TO_PLAIN_LOOP


@pytest.mark.rare  # a busy machine is no slower GPU
@on_null_gpus
def test_steps_do_not_come_out_in_pairs(counter):
    found = counter.count(["--model=resnet50", "--batch_size=8", *FEW_STEPS, "--num_steps=20"], NULLGPU_KERNEL_US=200)
    seconds = found["step_seconds"]
    every_second, others = statistics.median(seconds[::2]), statistics.median(seconds[1::2])
    assert max(every_second, others) < 3 * min(every_second, others), seconds
    assert found["lead"] > 1, "a GPU that works for 200 us per kernel does not wait for the host"
