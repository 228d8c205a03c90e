"""The reference: its sources, its own arithmetic, its names, and GPUs side by side."""

import csv

import pytest

import results.__main__ as program
from results.reference import FOLDER, gpus, read_rows
from results.reference.gpu_comparison import named_gpus
from results.reference.networks import model_key, networks, training_bytes
from tests.unit.results.factory import make_case

PER_MULTIPROCESSOR = {
    **{"7.0": (64, 8, 1024), "7.5": (64, 8, 1024), "8.0": (64, 4, 2048), "8.6": (128, 4, 1024)},
    **{"8.9": (128, 4, 1024), "9.0": (128, 4, 4096), "12.0": (128, 4, 1024), "gfx908": (64, 4, 1024)},
}
"""FP32 cores, tensor cores and dense FP16 FLOP per cycle by compute capability. Source: NVIDIA's and AMD's whitepapers."""


@pytest.mark.parametrize("gpu", gpus.specifications())
def test_the_figures_of_a_gpu_follow_from_each_other(gpu):
    found, capability = gpus.specifications()[gpu], gpus.specification_rows()[gpu].get("compute_capability", {})
    count, boost = found.get("multiprocessors"), found.get("boost_clock")
    cores, tensor_cores, flop = PER_MULTIPROCESSOR.get(capability.get("value"), (None, None, None))
    full, half = found.get("fp16_tensor_fp16_accumulate"), found.get("fp16_tensor_fp32_accumulate")
    expected = {}
    if cores and count:
        expected |= {"cores": count * cores, "tensor_cores": count * tensor_cores}
        clock = found.get("tensor_clock", boost)
        expected |= {"fp16_tensor_fp16_accumulate": count * flop * clock / 1e6} if clock else {}
    if boost and "cores" in found:
        expected["fp32"] = found["cores"] * 2 * boost / 1e6
    if half:
        expected["tf32_tensor"] = half / 2
        expected |= {"fp16_tensor_fp32_accumulate": full if half > 0.75 * full else full / 2} if full else {}
    for name in expected.keys() & found.keys():
        assert found[name] == pytest.approx(expected[name], rel=0.03), name
    if "memory_bus" in found:
        low, high = (5.0, 34.0) if found["memory_bus"] <= 512 else (0.9, 10.0)  # Gbit/s per pin of GDDR, HBM: JEDEC
        assert low <= found["memory_bandwidth"] * 8 / found["memory_bus"] <= high


def test_every_figure_has_a_source():
    for name in ("published.csv", "gpu_specs.csv", "prices.csv", "contradictions.csv"):
        with (FOLDER / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and all(row.get("source", row.get("by")) for row in rows), name
    rows = [row for quantities in gpus.specification_rows().values() for row in quantities.values()]
    assert len(rows) > 370 and not any("memory, to be checked" in row["source"] for row in rows)
    assert not any(row["source"].startswith("NVIDIA") for row in gpus.specification_rows()["MI100"].values())
    known = set(gpus.specifications())
    stated = read_rows("contradictions.csv")
    assert {row["gpu"] for row in stated} <= known and len(known) >= 39
    assert all(all(row.values()) for row in stated)
    assert set(networks()) >= {"resnet50", "resnet152", "inception_v3", "googlenet"}


NAMES = {
    **{"NVIDIA RTX A4000": "RTX A4000", "NVIDIA A100-SXM4-40GB": "A100 SXM4 40GB", "A100": None, "Radeon": None},
    **{"NVIDIA GeForce RTX 3090": "RTX 3090", "NVIDIA GeForce RTX 3090 Ti": None, "NVIDIA H200 NVL": "H200 NVL"},
    **{"": None, "Tesla V100-SXM2-16GB": "V100 SXM2 16GB"},
}


def test_gpus_and_networks_are_recognised_by_their_names(capsys):
    assert {name: gpus.gpu_key(name) for name in NAMES} == NAMES
    assert {*map(model_key, ("InceptionV3", "Inception v3", "inception3", "inception_v3"))} == {"inception_v3"}
    assert named_gpus(["A100"]) == ["A100 PCIe 40GB", "A100 PCIe 80GB", "A100 SXM4 40GB", "A100 SXM4 80GB"]
    assert named_gpus(["A4000,a5000", "A4000"]) == ["RTX A4000", "RTX A5000"]
    assert program.main(["results", "gpus", "A4000", "A50000"]) == 2
    assert "'A50000' is not in the reference. Did you mean one of: RTX A5000" in capsys.readouterr().err


def test_the_memory_of_a_step_grows_with_the_area_of_images():
    sizes = ((224, 8), (224, 32), (448, 8))
    small, twice, large = (training_bytes(make_case(image_size=size, batch_per_gpu=of)) for size, of in sizes)
    assert large == pytest.approx(twice) and large > 2 * small


def test_all_gpus_are_printed(capsys):
    assert program.main(["results", "gpus", *gpus.specifications()]) == 0
    printed = capsys.readouterr().out
    assert "memory bandwidth" in printed and "MI100" in printed
