"""Figures of others: specifications, networks, published throughput and prices, each with its source.

The CSV files beside this one are the data; `README.md` says where they come from, which contradictions were found, and
how they were resolved. A figure of ours never comes from here.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).parent

GIBI = 1024**3


@dataclass(frozen=True)
class Network:
    """What one sample of a network costs in training.

    Attributes:
        flop_per_sample: Forward and backward pass, convolutions and dense layers; 1 multiply-add = 2 FLOP.
        elements_unfused: Tensor elements moved to and from memory, each layer by itself.
        elements_fused: Likewise with batch norm, ReLU and additions fused: a bound that nothing goes below.
        saved_bytes: Activations kept for the backward pass by bytes per element (2 or 4); empty when not known.
    """

    model: str
    image_size: int
    parameters: float
    flop_per_sample: float
    elements_unfused: float
    elements_fused: float
    saved_bytes: Mapping[int, float]


@functools.cache
def specifications() -> Mapping[str, Mapping[str, float]]:
    """Return the figures of each GPU by quantity, as `gpu_specs.csv` names them."""
    found: dict[str, dict[str, float]] = {}
    for row in _read("gpu_specs.csv"):
        if re.fullmatch(r"[\d.]+", row["value"]):
            found.setdefault(row["gpu"], {})[row["quantity"]] = float(row["value"])
    return MappingProxyType(found)


@functools.cache
def specification_rows() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return each row of `gpu_specs.csv` (value, unit, source, note) by GPU and quantity."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in _read("gpu_specs.csv"):
        found.setdefault(row["gpu"], {})[row["quantity"]] = row
    return MappingProxyType(found)


def compute_capability(gpu: str) -> str:
    """Return a card's compute capability, e.g. `8.6` or `gfx908`; empty when the card is not in the reference."""
    row = specification_rows().get(gpu, {}).get("compute_capability")
    return row["value"] if row else ""


def loosest_figures(gpus: Sequence[str]) -> dict[str, float]:
    """Return, of each quantity that all of several cards have, the largest: a limit that none of them passes."""
    tables = [specifications()[gpu] for gpu in gpus]
    shared = set.intersection(*(set(table) for table in tables)) if tables else set()
    return {quantity: max(table[quantity] for table in tables) for quantity in sorted(shared)}


@functools.cache
def networks() -> Mapping[str, Network]:
    """Return the networks whose cost per sample is known, by name."""
    found = {}
    for row in _read("networks.csv"):
        saved = {2: row["saved_fp16_mb"], 4: row["saved_fp32_mb"]}
        found[row["model"]] = Network(
            model=row["model"],
            image_size=int(row["image_size"]),
            parameters=float(row["parameters_millions"]) * 1e6,
            flop_per_sample=float(row["gflop_train"]) * 1e9,
            elements_unfused=float(row["elements_unfused_millions"]) * 1e6,
            elements_fused=float(row["elements_fused_millions"]) * 1e6,
            saved_bytes={size: float(text) * 1e6 for size, text in saved.items() if text},
        )
    return MappingProxyType(found)


def published() -> list[dict[str, str]]:
    """Return the published throughputs, row by row; `suspect` is `yes` where the source cannot be believed."""
    return _read("published.csv")


@functools.cache
def all_published() -> tuple[Mapping[str, str], ...]:
    """Return those rows and the ones of `published_pytorch.csv`: one software on nine cards, from A6000 to H100."""
    return (*published(), *_read("published_pytorch.csv"))


def published_path() -> Path:
    """Return the file of published throughputs."""
    return FOLDER / "published.csv"


def shipped_prices() -> list[dict[str, str]]:
    """Return the dated prices that come with tfbench: examples, to be replaced by the user's own."""
    return _read("prices.csv")


def contradictions() -> list[dict[str, str]]:
    """Return what other sources state of a card's figures, and why another figure stands here."""
    return _read("contradictions.csv")


def gpu_key(name: str) -> str | None:
    """Return the name in `gpu_specs.csv` that a driver, a shop or a paper means; None when it is not there.

    A name that fits several cards (an A100 without its memory size) gives None: a guess would judge by wrong limits.
    """
    fitting = gpu_members(name)
    return fitting[0] if len(fitting) == 1 else None


@functools.cache
def gpu_members(name: str) -> tuple[str, ...]:
    """Return every card in `gpu_specs.csv` that a name fits: four for `A100`, none for a card that is not there."""
    wanted = gpu_words(DRIVER_NAMES.get(name.lower().removeprefix("nvidia ").strip(), name))
    if not any(re.search(r"\d", word) and not word.endswith("gb") for word in wanted):
        return ()  # `RTX` or `80GB` alone names no card
    words = {key: gpu_words(key) for key in specifications()}
    if "sxm" in wanted:
        words = {key: frozenset(re.sub(r"^sxm\d", "sxm", word) for word in found) for key, found in words.items()}
    exact = tuple(key for key, found in words.items() if wanted == found)
    return exact or tuple(key for key, found in words.items() if wanted and wanted <= found)


DRIVER_NAMES = {"h100 80gb hbm3": "H100 SXM5 80GB"}
"""What the driver calls a card where its words differ from the reference's."""


def gpu_words(name: str) -> frozenset[str]:
    """Split a name into what distinguishes cards: `NVIDIA A100-SXM4-40GB` and `A100 SXM4 40GB` are one."""
    text = re.sub(r"(\d+)[ _]?gi?b\b", r"\1gb", name.lower())
    text = re.sub(r"\brtx[ _-]?(?=[a-z0-9])", "rtx ", text)
    text = re.sub(r"(?<=\d)ti\b", " ti", text)
    words = set(re.findall(r"[a-z0-9]+", text)) - {"nvidia", "geforce", "tesla", "quadro", "generation", "gpu", "gpus"}
    return frozenset(words)


def model_key(name: str) -> str:
    """Return our name of a network: `Inception v3`, `inception3` and `InceptionV3` are `inception_v3`."""
    text = re.sub(r"[^a-z0-9.]", "", name.lower())
    return MODEL_NAMES.get(text, text)


MODEL_NAMES = {
    "resnet50": "resnet50",
    "resnet50v1": "resnet50",
    "resnet50v1.0": "resnet50",
    "resnet50v1.5": "resnet50_v1.5",
    "resnet152": "resnet152",
    "inception3": "inception_v3",
    "inceptionv3": "inception_v3",
    "inception4": "inception_v4",
    "inceptionv4": "inception_v4",
    "googlenet": "googlenet",
    "vgg16": "vgg16",
    "alexnet": "alexnet",
    "bertlargesquad": "bert_large_squad_384",
    "bertlargesquad384": "bert_large_squad_384",
    "bertlargesquadfinetune": "bert_large_squad_384",
    "bertlargepretrainingseq128": "bert_large_pretraining_128",
    "bertlargepretraining128": "bert_large_pretraining_128",
    "bertlargepretrainingseq512": "bert_large_pretraining_512",
    "bertlargepretraining512": "bert_large_pretraining_512",
}
"""Names of networks by their letters and digits alone."""


def _read(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
