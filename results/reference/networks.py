"""Networks: operations, memory traffic and memory per sample, and their names."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping, Sequence

from results.reference import MIBI, all_published, figures_in, names, read_rows
from results.schema import Case, Mode, Precision, kind_of
from results.schema.networks import NETWORKS

WINOGRAD = 2.25
"""Reduction of multiplications by Winograd's algorithm in a 3×3 convolution: the factor by which a device may exceed
its peak.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, F(2×2, 3×3).
"""

BYTES = {Precision.FP32: 4, Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2}
"""Bytes per element of activations."""

OF_BYTES = {4: "fp32", 2: "fp16"}
"""Part of the names of columns of memory, by bytes per element."""

NetworkCost = Mapping[str, float]
"""Cost of one image or sequence of a network, at the network's default size, as a row of `networks.csv`.

`size`: height and width in pixels, or length in tokens; `sequences`: 1 if it takes sequences of tokens, 0 if images;
`layers`: of the Keras model, which building and compiling times depend on; `gflop_train`, `gflop_infer`: forward and
backward pass, and forward pass, of convolutions and dense layers (1 multiply-add = 2 FLOP);
`elements_train_millions`, `elements_infer_millions`: tensor elements that are read and written without fusion;
`elements_fused_millions`: likewise in training with batch norm, ReLU and additions fused, a lower bound;
`saved_fp16_mb`: activations kept for the backward pass; `memory_fp16_mib`, `memory_sample_fp16_mib`: memory of a
training step on one GPU, independent of the batch and per sample; context and workspaces of libraries take 1 to 2 GiB
more. What is unknown is absent.
"""


@functools.cache
def networks() -> Mapping[str, NetworkCost]:
    """Return the networks with a known cost per sample, by name."""
    return {row["model"]: figures_in(row) for row in read_rows("networks.csv")}


def training_bytes(case: Case) -> float | None:
    """Return the memory in bytes that a training step of a case takes on each GPU; None: unknown.

    Counted on a null GPU (`python -m studies.network_memory`), without `PEAK_VARIATION` and
    `BESIDE_THE_STEP_BYTES`: a line through two batches, times what cases of the same kind in the suites take of it.
    """
    found = networks().get(case.model)
    if found is None or case.mode is not Mode.TRAIN or "memory_fp16_mib" not in found:
        return None
    return _line(case, found) * max(_corrections().get(_kind(case), [1.0]))


@functools.cache
def _corrections() -> Mapping[tuple[object, ...], list[float]]:
    """Return counted peaks of suites' cases relative to the line, by the kind of case."""
    found = collections.defaultdict(list)
    for row in read_rows("memory.csv"):
        peak = float(row.pop("peak_mib")) * MIBI
        case = Case(**{name: kind_of(name)(text) for name, text in row.items() if text != "0"})
        found[_kind(case)].append(peak / _line(case, networks()[case.model]))
    return found


def _kind(case: Case) -> tuple[object, ...]:
    """Return what changes the memory of a network's step besides the batch."""
    return case.model, BYTES[case.precision], case.xla, case.replicas > 1, length_of(case)


def length_of(case: Case) -> int:
    """Return the tokens of a case's sequences; 0: images."""
    network = networks()[case.model]
    return case.sequence_length or int(network["size"]) if network["sequences"] else 0


def _line(case: Case, network: NetworkCost) -> float:
    kind = OF_BYTES[BYTES[case.precision]]
    fixed, sample = network[f"memory_{kind}_mib"], network[f"memory_sample_{kind}_mib"]
    return (fixed + sample * _scale(case, network) * case.batch_per_gpu) * MIBI


def _scale(case: Case, network: NetworkCost) -> float:
    """Return the cost of a sample relative to one of the network's default size.

    The cost is proportional to the area of images, or to the length of sequences, ignoring that the cost of attention
    is quadratic.
    """
    if case.image_size is not None:
        return (case.image_size / network["size"]) ** 2
    return (case.sequence_length or network["size"]) / network["size"]


BESIDE_THE_STEP_BYTES = 2.0 * 2**30
"""TensorFlow reserves 1.5 GiB on GPUs of compute capability 8 (`MinSystemMemory` in its gpu_device.cc); the rest is for
the CUDA context, libraries' workspaces and fragmentation."""

PEAK_VARIATION = 1.07
"""Peaks of other batches and numbers of GPUs are up to this factor above `training_bytes`."""


def fitting_batch(case: Case, memory_bytes: float) -> int:
    """Return the case's batch, halved until its training step fits a GPU's memory, if that is known."""
    needed = training_bytes(case)
    if case.batch_per_gpu == 1 or needed is None or PEAK_VARIATION * needed <= memory_bytes - BESIDE_THE_STEP_BYTES:
        return case.batch_per_gpu
    return fitting_batch(dataclasses.replace(case, batch_per_gpu=case.batch_per_gpu // 2), memory_bytes)


def work_of(case: Case) -> tuple[float, float, int] | None:
    """Return operations and bytes of one step of one replica, and the layers of the network; None: unknown."""
    found = networks().get(case.model)
    if found is None or "layers" not in found:
        return None
    kind = "train" if case.mode is Mode.TRAIN else "infer"
    samples = case.batch_per_gpu * case.accumulate * _scale(case, found)
    traffic = found[f"elements_{kind}_millions"] * 1e6 * samples * BYTES[case.precision]
    return found[f"gflop_{kind}"] * 1e9 * samples, traffic, int(found["layers"])


@functools.cache
def network_names() -> tuple[str, ...]:
    """Return all networks that can be measured, have a published row, or have a known cost."""
    return tuple(dict.fromkeys([*NETWORKS, *networks(), *(row["model"] for row in all_published())]))


def model_key(name: str) -> str:
    """Return the canonical name of a network: `inception_v3` for `Inception v3`, `inception3` and `InceptionV3`."""
    text = _letters(name)
    known = next((own for own in network_names() if _letters(own) == text), None)
    return dict(names("network")).get(text) or known or text


def is_network(name: str) -> bool:
    """Return whether a name is that of a known network."""
    return model_key(name) in network_names()


def published_names(model: str) -> list[str]:
    """Return the names of a network, its variants and its tasks in published rows."""
    found = dict.fromkeys(row["model"] for row in all_published())
    return [name for name in found if name == model or name.startswith(f"{model}_")]


def unknown_network(name: str, known: Sequence[str]) -> str:
    """Return the message for an unknown network, with up to five suggestions or all known networks."""
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.6)
    hint = f"Did you mean one of: {', '.join(near)}?" if near else f"Known: {', '.join(known)}"
    return f"--model: {name!r} is not a known network. {hint}"


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
