"""Resolves names of GPUs, and reads their specifications."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence

from results.reference import all_published, figures_in, names, read_rows

PEAKS = {
    "fp32": ("fp32", 4),
    "tf32": ("tf32_tensor", 4),
    "fp16": ("fp16_tensor_fp32_accumulate", 2),
    "bf16": ("fp16_tensor_fp32_accumulate", 2),
}
"""By precision of training, the limiting quantity of `gpu_specs.csv` and the bytes per element."""

CLOCK_MARGIN = 1.2
"""Largest ratio of a GPU's clock to that of its quoted peak."""

UNSUPPORTED = ("MI100", "MI300X")
"""GPUs of other vendors than NVIDIA, which tfbench does not run on."""

NOISE = {
    *("nvidia", "amd", "instinct", "radeon", "geforce", "tesla", "rtx", "generation", "edition", "gpu", "gpus"),
    *("graphics", "card", "low", "ram", "high", "perf", "baremetal", "nvlink", "hgx"),
}
"""Words that do not distinguish GPUs: brands, and additions of providers' catalogs."""

SYNONYMS = {"mobile": "laptop", "workstation": "ws", "wk": "ws"}

VARIANTS = frozenset({"laptop", "ti", "super", "max", "d", "ada", "server"})
"""Suffixes that designate another GPU model."""


GPU_LIKE = re.compile(
    r"(\b(rtx|gtx|geforce|tesla|quadro|titan|radeon|instinct|nvidia)|((?<![a-z])|(?<=\dx))(a\d{1,4}|[hb]\d{3}|v100|t4|"
    r"l(4|20|40)|g[hb]\d{3}|mi\d{2,3}|[pk](4|40|80|100))[a-z]?\b|\b(10|16|20|30|40|50)[5-9]0(\s?ti)?\b|"
    r"\b[a-z]{0,3}\d{4}\s?(ada|max-?q)\b)",
    re.IGNORECASE,
)
"""Pattern of brands and model numbers of GPUs, also of unknown ones."""


@functools.cache
def specification_rows() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the rows of `gpu_specs.csv` (value, unit, source, note) by GPU and quantity; do not change them."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in read_rows("gpu_specs.csv"):
        found.setdefault(row["gpu"], {})[row["quantity"]] = row
    return found


@functools.cache
def specifications() -> Mapping[str, Mapping[str, float]]:
    """Return the numeric figures of `gpu_specs.csv` by GPU and quantity."""
    rows = specification_rows()
    return {gpu: figures_in({name: row["value"] for name, row in of.items()}) for gpu, of in rows.items()}


def loosest_figures(gpus: Sequence[str]) -> dict[str, float]:
    """Return the largest value of each quantity that all GPUs have: a limit that none of them exceeds."""
    tables = [specifications()[gpu] for gpu in gpus if gpu in specifications()]
    shared = set.intersection(*(set(table) for table in tables)) if tables else set()
    return {quantity: max(table[quantity] for table in tables) for quantity in sorted(shared)}


def memory_of(gpu: str) -> float | None:
    """Return the memory of a GPU in GB, from its specification or its name; None: unknown."""
    named = re.search(r"\b(\d+) ?GB\b", gpu)
    return specifications().get(gpu, {}).get("memory") or (float(named[1]) if named else None)


@functools.cache
def known_gpus() -> tuple[str, ...]:
    """Return all GPUs with a specification or a published row."""
    return tuple(dict.fromkeys([*specifications(), *(row["gpu"] for row in all_published())]))


@functools.cache
def gpus_named(name: str) -> tuple[str, ...]:
    """Resolve a name from a driver, catalog, shop or paper to GPUs.

    `NVIDIA RTX A5000`, `A5000`, `A5000_PCIE` and `RTXA5000` are one GPU, `A100` is four, `A100 80GB` two, `4090` the
    desktop GPU and not the laptop's; empty: not in the reference.
    """
    plain = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    wanted = gpu_words(dict(names("gpu")).get(plain) or name)
    if wanted in _others() or not any(re.search(r"\d", word) and not word.endswith("gb") for word in wanted):
        return ()  # `RTX` or `80GB` alone is not a GPU
    fitting = {gpu: len(gpu_words(gpu) - wanted) for gpu in known_gpus() if _fits(wanted, gpu)}
    exact = tuple(gpu for gpu, more in fitting.items() if not more)
    return exact or tuple(fitting)


_COUNTED = re.compile(
    r"(?:gpu_)?(?P<n>\d{1,3}(?:\.\d+)?)[ _]*[x×][ _]*(?P<gpu>.+)|"  # 8x H100, gpu_8x_h100_sxm5
    r"(?P<gpu_before>.+?)(?:[ _]*[x×][ _]*|:|\.(?=\d+x))(?P<n_after>\d{1,2})x?",  # A4000 x4, A100-80GB:8, l40s.1x
    re.IGNORECASE,
)


def counted_gpu(name: str) -> tuple[float | None, str]:
    """Split a name with a count as clouds write it, such as `gpu_8x_h100_sxm5`; None: it has no count."""
    found = None if gpus_named(name) else _COUNTED.fullmatch(name.strip())
    if found is None:
        return None, name.strip()
    return float(found["n"] or found["n_after"]), found["gpu"] or found["gpu_before"]


def gpu_key(name: str) -> str | None:
    """Resolve a name to one GPU with specifications; None: none or several match.

    An A100 without its memory size is ambiguous, because a guess may have wrong limits.
    """
    fitting = specified_gpus(name)
    return fitting[0] if len(fitting) == 1 else None


def specified_gpus(name: str) -> tuple[str, ...]:
    """Resolve a name to GPUs with specifications."""
    return tuple(gpu for gpu in gpus_named(name) if gpu in specifications())


def unknown_gpu(name: str) -> str:
    """Return the message for an unknown GPU; it never suggests another GPU for a real one."""
    text, wanted = f"GPU {name.strip()!r} is not in the reference", gpu_words(name)
    if wanted in _others() or wanted & VARIANTS:
        return f"{text} and has no known figures. Measure it, or omit it."
    near = [
        gpu for gpu in known_gpus() if any(difflib.get_close_matches(word, gpu_words(gpu), 1, 0.75) for word in wanted)
    ]
    return f"{text}. Did you mean one of: {', '.join(near)}?" if near else f"{text}. Known: {', '.join(known_gpus())}"


def gpu_words(name: str) -> frozenset[str]:
    """Split a name into distinguishing words: equal for `NVIDIA A100-SXM4-40GB` and `A100 SXM4 40GB`."""
    text = re.sub(r"[^a-z0-9]+", " ", name.lower())
    text = re.sub(r"\b(\d+) ?g(?:i?b)?\b", r"\1gb", text)
    text = re.sub(r"\b(geforce ?)?rtx ?(?=pro|[a-z]?\d)", "rtx ", text)
    text = re.sub(r"\bpro(?=\d)", "pro ", text)
    text = re.sub(r"(?<=\d)(ti|super|ada|laptop|mobile|sxm\d?|nvl|pcie|wk)\b", r" \1", text)
    words = {SYNONYMS.get(word, word) for word in text.split()} - NOISE
    # Early drivers report `Quadro RTX A6000`; a `Quadro RTX 6000` is another GPU.
    return frozenset(words - {"quadro"} if any(re.fullmatch(r"a\d{4}", word) for word in words) else words)


SLICE = re.compile(
    r"\bmig\b|\b\d+g[. ]\d+gb\b|\b[a-z]+\d+\w*-\d+[qcab]\b|\bvgpu\b|^grid\b|(?<!\d)1/\d\b|\btime[- ]slic", re.IGNORECASE
)

"""Pattern of names of a part of a GPU: `A100 MIG 1g.5gb`, `NVIDIA A10-4Q`, `GRID A100D-80C`."""


@functools.cache
def gpus_in(text: str) -> tuple[str, ...]:
    """Return the GPUs with specifications in a text: `Lambda Cloud, RTX A6000 (NVLink)` has one A6000."""
    direct = specified_gpus(text)
    for match in [] if direct else GPU_LIKE.finditer(text):
        words = re.split(r"[\s,;()/—–]+", text[match.start() :].strip())[:6]
        for length in range(len(words), 0, -1):
            dropped = gpu_words(words[length]) if length < len(words) else frozenset()
            members = specified_gpus(" ".join(words[:length]))
            if members and not dropped & VARIANTS:
                return members
    return direct


def gpu_numbers(text: str) -> frozenset[str]:
    """Return the model numbers in a GPU's name, without brand and memory: `3080`, `gh200`."""
    found = (match[0].lower().replace(" ", "") for match in GPU_LIKE.finditer(text))
    return frozenset(name for name in found if any(map(str.isdigit, name)))


@functools.cache
def _others() -> set[frozenset[str]]:
    return {gpu_words(name) for name, gpu in names("gpu") if not gpu} - {*map(gpu_words, specifications())}


def _fits(wanted: frozenset[str], gpu: str) -> bool:
    """Return whether a GPU's name has all words, except its own memory size or a redundant `PCIe`."""
    words, memory = gpu_words(gpu), specifications().get(gpu, {}).get("memory", 0)
    if "sxm" in wanted:
        words = frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in words)
    missing = wanted - words - {f"{memory:g}gb"}
    only_pcie = not any(re.match(r"sxm|nvl|dgx", word) for word in words)
    return not (missing - {"pcie"} if only_pcie else missing)
