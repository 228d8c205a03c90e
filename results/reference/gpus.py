"""GPUs: which one a name means, what is specified of it, and the rooflines that follow."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from results.reference import GIBI, all_published, read_rows
from results.reference.networks import NetworkCost

PEAKS = {
    "fp32": ("fp32", 4),
    "tf32": ("tf32_tensor", 4),
    "fp16": ("fp16_tensor_fp32_accumulate", 2),
    "bf16": ("fp16_tensor_fp32_accumulate", 2),
}
"""Quantity of `gpu_specs.csv` that bounds each precision of training, and its bytes per element."""

FREE_MEMORY = 0.8
"""Share of memory that activations can take; weights, gradients and workspace need the rest."""

CLOCK_MARGIN = 1.2
"""GPUs run up to this much above the clock that their peak is quoted for."""

UNSUPPORTED = ("MI100", "MI300X")
"""GPUs that tfbench does not run on: it trains on NVIDIA's."""

DRIVER_NAMES = {
    "nvidia h100 80gb hbm3": "H100 SXM5 80GB",
    "h100 80gb hbm3": "H100 SXM5 80GB",
    "nvidia h100 80gb hbm2e": "H100 PCIe 80GB",
    "nvidia h200": "H200 SXM",
    "a6000 ada": "RTX 6000 Ada",
    "rtx a6000 ada": "RTX 6000 Ada",
}
"""Names whose words differ from the reference's; a bare `H200` is a family, but the driver's `NVIDIA H200` the SXM."""

NOISE = frozenset(
    (
        *("nvidia", "amd", "instinct", "radeon", "geforce", "tesla", "rtx", "generation", "edition", "gpu", "gpus"),
        *("graphics", "card", "low", "ram", "high", "perf", "baremetal"),
    )
)
"""Words that distinguish no GPU: brands, and what providers add in their catalogs."""

SYNONYMS = {"mobile": "laptop", "workstation": "ws"}

OTHERS = (
    "K20,K40,K80,M4,M6,M10,M40,M60,P4,P6,P40,P100,V100S,T10,T40,A2,A16,A30,A30X,A100X,A800,H20,H800,GH200,GB200,GB300,"
    "B100,B300,L2,L20,L40G,T400,T600,T1000,A400,A500,A1000,A2000,A3000,1000 Ada,2000 Ada,3000 Ada,3500 Ada,4000 Ada,"
    "4000 SFF Ada,5880 Ada,PRO 1000 Blackwell,PRO 2000 Blackwell,PRO 3000 Blackwell,PRO 4000 Blackwell,"
    "PRO 4500 Blackwell,PRO 5000 Blackwell,PRO 6000 Blackwell Server,PRO 6000 Blackwell Max Q,3000,4000,5000,6000,8000,"
    "Quadro 3000,Quadro 4000,Quadro 5000,Quadro 6000,Quadro 8000,GP100,GV100,P400,P600,P1000,P2000,P2200,P4000,P5000,"
    "P6000,GTX 1050,GTX 1050 Ti,GTX 1060,GTX 1070,GTX 1070 Ti,GTX 1080,GTX 1080 Ti,1080 Ti,GTX 1650,GTX 1660,2050,2060,"
    "2060 Super,2070,2070 Super,2080,2080 Super,3050,3060,3060 Ti,3070 Ti,3080 Ti,3090 Ti,4050,4060,4060 Ti 8GB,4070,"
    "4070 Super,4070 Ti,4070 Ti Super,4080,4080 Super,4090 D,5050,5060,5060 Ti,5070,5070 Ti,5080,5090 D,Titan V,"
    "Titan RTX,Titan Xp,MI25,MI50,MI60,MI210,MI250,MI250X,MI300A,MI308X,MI325X,MI350X,MI355X,7900 XTX,Gaudi2,Gaudi3"
)
"""Real GPUs that the reference has no figures of: no typing errors of other ones."""

VARIANTS = frozenset({"laptop", "ti", "super", "max", "d", "ada", "server"})
"""Words that make another GPU of the one whose name they follow."""


@dataclass(frozen=True)
class Roofline:
    """What one GPU cannot exceed in training one network, in samples per second.

    Attributes:
        unfused: By memory bandwidth, each layer by itself; infinite where the network's traffic is not known.
        fused: Likewise with batch norm, ReLU and additions fused.
        arithmetic: By the peak of the precision.
        largest_batch: Samples whose saved activations fit; None when these are not known.

    Source: Williams, Waterman, Patterson, Roofline, CACM 52 (4), 2009.
    """

    unfused: float
    fused: float
    arithmetic: float
    largest_batch: int | None

    @property
    def limit(self) -> str:
        """The bottleneck without fusion: `memory bandwidth` or `arithmetic`."""
        return "memory bandwidth" if self.unfused < self.arithmetic else "arithmetic"

    @property
    def hard_limit(self) -> float:
        """What no software passes: all layers fused, and the highest clock."""
        return min(self.fused, self.arithmetic * CLOCK_MARGIN)


@functools.cache
def specification_rows() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return each row of `gpu_specs.csv` (value, unit, source, note) by GPU and quantity."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in read_rows("gpu_specs.csv"):
        found.setdefault(row["gpu"], {})[row["quantity"]] = row
    return MappingProxyType(found)


@functools.cache
def specifications() -> Mapping[str, Mapping[str, float]]:
    """Return the figures of each GPU by quantity, as `gpu_specs.csv` names them."""
    return MappingProxyType(
        {
            gpu: {name: float(row["value"]) for name, row in rows.items() if re.fullmatch(r"[\d.]+", row["value"])}
            for gpu, rows in specification_rows().items()
        }
    )


def contradictions() -> list[dict[str, str]]:
    """Return what other sources state of a GPU's figures, and why another figure is used."""
    return read_rows("contradictions.csv")


def compute_capability(gpu: str) -> str:
    """Return a GPU's compute capability, e.g. `8.6` or `gfx908`; empty when it is not in the reference."""
    row = specification_rows().get(gpu, {}).get("compute_capability")
    return row["value"] if row else ""


def loosest_figures(gpus: Sequence[str]) -> dict[str, float]:
    """Return, of each quantity that all of several GPUs have, the largest: a limit that none of them passes."""
    tables = [specifications()[gpu] for gpu in gpus if gpu in specifications()]
    shared = set.intersection(*(set(table) for table in tables)) if tables else set()
    return {quantity: max(table[quantity] for table in tables) for quantity in sorted(shared)}


def memory_of(gpu: str) -> float | None:
    """Return the memory of a GPU in GB: as specified, else as in its name; None without either."""
    named = re.search(r"\b(\d+) ?GB\b", gpu)
    return specifications().get(gpu, {}).get("memory") or (float(named[1]) if named else None)


@functools.cache
def known_gpus() -> tuple[str, ...]:
    """Return every GPU that has a specification or a published row."""
    return tuple(dict.fromkeys([*specifications(), *(row["gpu"] for row in all_published())]))


@functools.cache
def gpus_named(name: str) -> tuple[str, ...]:
    """Return the GPUs that a name means, whether a driver, a catalog, a shop or a paper gave it.

    `NVIDIA RTX A5000`, `A5000`, `A5000_PCIE` and `RTXA5000` are one GPU, `A100` four, `A100 80GB` two, `4090` the
    desktop GPU and not the laptop's; empty for a GPU that is not in the reference.
    """
    plain = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    wanted = gpu_words(DRIVER_NAMES.get(plain, name))
    if wanted in _others() or not any(re.search(r"\d", word) and not word.endswith("gb") for word in wanted):
        return ()  # `RTX` or `80GB` alone names no GPU
    fitting = {gpu: len(gpu_words(gpu) - wanted) for gpu in known_gpus() if _fits(wanted, gpu)}
    exact = tuple(gpu for gpu, more in fitting.items() if not more)
    return exact or tuple(fitting)


def gpu_key(name: str) -> str | None:
    """Return the one GPU with specifications that a name means; None where it means none or several.

    An A100 without its memory size gives None: a guess would judge by wrong limits.
    """
    fitting = specified_gpus(name)
    return fitting[0] if len(fitting) == 1 else None


def specified_gpus(name: str) -> tuple[str, ...]:
    """Return those GPUs that a name means which have specifications."""
    return tuple(gpu for gpu in gpus_named(name) if gpu in specifications())


def unknown_gpu(name: str) -> str:
    """Return the message for a name that means no GPU: another GPU is never suggested for a real one."""
    text, wanted = f"GPU {name.strip()!r} is not in the reference", gpu_words(name)
    numbers = [word for word in wanted if re.search(r"\d", word)]
    near = [gpu for gpu in known_gpus() if not (wanted & VARIANTS) - gpu_words(gpu)]
    near = [gpu for gpu in near if any(difflib.get_close_matches(word, gpu_words(gpu), 1, 0.75) for word in numbers)]
    if wanted in _others() or (wanted & VARIANTS and not near):
        return f"{text}: no figures of it are known there. Measure it, or leave it out."
    if not near:
        return f"{text}. Known: {', '.join(known_gpus())}"
    return f"{text}. Did you mean one of: {', '.join(near)}?"


def roofline(figures: Mapping[str, float], network: NetworkCost, precision: str) -> Roofline | None:
    """Return what a GPU cannot exceed in training a network; None where its peak or bandwidth is not known.

    Args:
        figures: Specifications by quantity, as `specifications` has them.
        network: What a sample costs.
        precision: A key of `PEAKS`.
    """
    peak, size = PEAKS[precision]
    if peak not in figures or "memory_bandwidth" not in figures:
        return None
    moved = figures["memory_bandwidth"] * 1e9 / size
    unfused, fused = (moved / n if n else math.inf for n in (network.elements_unfused, network.elements_fused))
    saved = network.saved_bytes.get(size)
    return Roofline(
        unfused=unfused,
        fused=fused,
        arithmetic=figures[peak] * 1e12 / network.flop_per_sample,
        largest_batch=math.floor(FREE_MEMORY * figures["memory"] * GIBI / saved) if saved else None,
    )


def gpu_words(name: str) -> frozenset[str]:
    """Split a name into what distinguishes GPUs: `NVIDIA A100-SXM4-40GB` and `A100 SXM4 40GB` are one."""
    text = re.sub(r"[^a-z0-9]+", " ", name.lower())
    text = re.sub(r"\b(\d+) ?g(?:i?b)?\b", r"\1gb", text)
    text = re.sub(r"\brtx ?(?=pro|[a-z]?\d)", "rtx ", text)
    text = re.sub(r"\bpro(?=\d)", "pro ", text)
    text = re.sub(r"(?<=\d)(ti|super|ada|laptop|mobile|sxm\d?|nvl|pcie)\b", r" \1", text)
    words = {SYNONYMS.get(word, word) for word in text.split()} - NOISE
    # Early drivers report `Quadro RTX A6000`; a `Quadro RTX 6000` is another GPU.
    return frozenset(words - {"quadro"} if any(re.fullmatch(r"a\d{4}", word) for word in words) else words)


@functools.cache
def _others() -> frozenset[frozenset[str]]:
    return frozenset(gpu_words(name) for name in OTHERS.split(","))


def _fits(wanted: frozenset[str], gpu: str) -> bool:
    """Return whether a GPU has all words of a name, or the missing ones are true of it anyway."""
    words, memory = gpu_words(gpu), specifications().get(gpu, {}).get("memory", 0)
    if "sxm" in wanted:
        words = frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in words)
    missing = wanted - words - {f"{memory:g}gb"}
    only_pcie = not any(re.match(r"sxm|nvl|dgx", word) for word in words)
    return not (missing - {"pcie"} if only_pcie else missing)
