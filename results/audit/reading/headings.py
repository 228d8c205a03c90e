"""What a heading says: `8x A4000 (images/sec)` is eight A4000s, `ResNet-50 FP16` a network and a precision."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from results.reference.gpus import specified_gpus
from results.reference.networks import MODEL_NAMES, model_key
from results.schema import SETTINGS

_OTHER_ROLES = (
    "model",
    "precision",
    "batch_per_gpu",
    "num_gpus",
    "num_hosts",
    "communication",
    "min_seconds",
)
"""Settings of a case that are no settings of a published table: it names them elsewhere, or not at all."""

ALIASES = {
    "gpu": ("gpu", "gpus", "gpu_name", "gpu_model", "gpu_type", "card", "graphics_card", "accelerator", "device_name",
            "name_gpu", "hardware", "system"),
    "model": ("model", "network", "neural_network", "net", "architecture", "benchmark", "workload"),
    "precision": ("precision", "dtype", "prec", "datatype", "data_type", "math", "numeric_precision"),
    "batch": ("batch_per_gpu", "batch_size", "batch", "batch_size_per_gpu", "batch_size_gpu", "bs", "local_batch_size"),
    "count": ("num_gpus", "gpus", "gpu_count", "n_gpus", "number_of_gpus", "num_gpu", "gpus_used", "of_gpus", "ngpu"),
    "hosts": ("num_hosts",),
    "settings": (
        *("fleet", "host", "source", "framework", "unit", "sequence_len", "seq_len"),
        *("tensorflow", "keras", "cuda", "driver", "image_digest", "method_version", "variables", "launcher"),
        *("power_limit_watts", "cpu", "cpu_limit", "parameters", "tf32", "task"),
        *(name for name in SETTINGS if name not in _OTHER_ROLES),
    ),
}  # fmt: skip
"""Headings by what they mean; compared in lower case with `_` for everything that is not a letter or digit."""

RATE_WORDS = (
    *("samples_per_second", "images_per_s", "images_per_second", "images_per_sec", "images_sec", "images_s", "img_s"),
    *("imgs_s", "img_sec", "throughput", "training_throughput", "training_performance", "performance", "speed", "fps"),
    *("training_speed", "avg_throughput", "average_throughput", "samples_s", "samples_sec", "sequences_s"),
    *("sequences_sec", "seq_s", "result", "total_images_sec"),
)
"""Headings of the one column of throughputs that a long table has."""

NUMBER_WORDS = {"one": 1, "single": 1, "two": 2, "dual": 2, "three": 3, "four": 4, "quad": 4, "six": 6, "eight": 8,
                "sixteen": 16}  # fmt: skip

_UNITS = re.compile(
    r"\(?\b(total\s+)?(images?|imgs?|samples?|seq(uence)?s?|sentences?|examples?|items?|frames?)\s*(/|per)\s*"
    r"(s|sec|second)\b\s*\)?|\b(fps|throughput|training|performance|speed|total|rate|avg|average|mean)\b",
    re.IGNORECASE,
)
_NOT_A_RATE = re.compile(
    r"speed-?\s?up|scal(es?|ing)|effici|ratio|price|cost|usd|\$|€|watt|\btdp\b|power|energy|memory|vram|\btime\b|loss|"
    r"accuracy|latency|seconds\b|\bms\b|epochs?\b|repeats?|p50|cv ?%|%|utili[sz]ation|tflop|clock",
    re.IGNORECASE,
)
_GPU_WORDS = (
    r"(\b(rtx|gtx|geforce|tesla|quadro|titan|radeon|instinct|nvidia)|((?<![a-z])|(?<=\dx))(a\d{1,4}|[hb]\d{3}|v100|t4|l(4|20|40)|g[hb]\d{3}|mi\d{2,3}|[pk](4|40|80|100))[a-z]?\b|"
    r"\b(10|16|20|30|40|50)[5-9]0(\s?ti)?\b|\b[a-z]{0,3}\d{4}\s?(ada|max-?q)\b)"
)
_GPU_LIKE = re.compile(_GPU_WORDS, re.IGNORECASE)
_VARIANTS = {"ti", "super", "max", "maxq", "max-q", "laptop", "mobile", "ada", "d", "nvl", "pcie", "sxm"}
"""Words behind a GPU's name that make it another card."""

_NUMBER_WORD = "|".join(NUMBER_WORDS)
_COUNTS = (
    re.compile(rf"(?<![\w.])(?P<count>\d{{1,4}}|{_NUMBER_WORD})\s*[x×]\s*(?={_GPU_WORDS})"),
    re.compile(r"\b(?P<hosts>\d{1,4})\s*[x×]\s*(?P<count>\d{1,4})\s*(gpus?|cpus?)\b"),
    re.compile(rf"(?<![\w.])(?P<count>\d{{1,4}}|{_NUMBER_WORD})\s*[x×]?[\s_-]*(gpus?|cpus?|cards?|devices?)\b"),
    re.compile(rf"(?<![\w.])(?P<count>\d{{1,4}}|{_NUMBER_WORD})\s*[x×](?![a-z])"),
    re.compile(r"(?<!\w)[x×]\s*(?P<count>\d{1,4})(?![\w.])"),
    re.compile(rf"\b(?P<count>{_NUMBER_WORD})\b"),
)
_PRECISIONS = (
    ("fp32, tf32 off", re.compile(r"(fp32|float32)[\s,(]*(throughput implies )?tf32 off\)?")),
    ("tf32", re.compile(r"\btf-?32\b")),
    ("bf16", re.compile(r"\bbf(loat)?-?16\b")),
    ("fp16", re.compile(r"\bamp\s+fp16\b|\bfp-?16\b|\bfloat16\b|\bhalf\b|\bmixed([\s_-]precision)?\b|\bamp\b")),
    ("fp32", re.compile(r"\bfp-?32\b|\bfloat32\b|\bsingle[\s_-]precision\b")),
)
_BATCH = re.compile(r"\b(?:bs|batch(?:[\s_-]*size)?)[\s_=:]*(\d{1,5})\b")
_MODEL_TEXTS = re.compile(
    r"\b(resnet|inception|googlenet|google net|vgg|alexnet|bert|densenet|mobilenet|efficientnet|xception|ssd|unet|"
    r"vit|gnmt|tacotron|waveglow|transformer|mask r-?cnn|nasnet)[\w.+-]*(?:[\s_-]+(?:v?\d+(?:\.\d+)?|large|base|squad|"
    r"v\d))*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Facets:
    """What a text says about a throughput; empty or None where it says nothing.

    Attributes:
        gpu: A GPU's name as it came, its count taken off.
        precision: `fp32`, `fp32, tf32 off`, `tf32`, `fp16` or `bf16`.
        rest: What was not understood.
        mode: `train` or `infer`; of a context only, like `image_size` in pixels.
    """

    count: int | None = None
    gpu: str = ""
    model: str = ""
    precision: str = ""
    batch: int | None = None
    rest: str = ""
    mode: str = ""
    image_size: str = ""

    @property
    def says_something(self) -> bool:
        """Whether anything was understood."""
        return bool(self.count or self.gpu or self.model or self.precision)


def heading_key(text: str) -> str:
    """Return a heading in lower case with `_` for everything else: `Batch size (per GPU)` is `batch_size_per_gpu`."""
    return re.sub(r"[^a-z0-9]+", "_", plain(text).lower()).strip("_")


def is_rate_heading(text: str) -> bool:
    """Return whether a column holds throughputs: `Throughput (images/sec)`, `img/s`."""
    bare = re.sub(r"[(\[].*?[)\]]", " ", plain(text))
    return heading_key(text) in RATE_WORDS or heading_key(bare) in RATE_WORDS


def is_metric(text: str) -> bool:
    """Return whether a heading names a figure that is no throughput: a price, a speed-up, a time."""
    return _NOT_A_RATE.search(plain(text)) is not None


def plain(text: str) -> str:
    """Take a text out of its Markdown."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("*", "").replace("`", "").strip()


@functools.cache
def read_facets(text: str) -> Facets:
    """Take the facts out of a heading, a label or a title, one kind after the other."""
    rest = re.sub(r"\s+", " ", _UNITS.sub(" ", plain(text).replace("_", " "))).strip(" ,;:-")
    precision, rest = _take_precision(rest.lower(), rest)
    batch = _BATCH.search(rest.lower())
    rest = _without(rest, batch)
    model = _MODEL_TEXTS.search(rest)
    rest = _without(rest, model)
    count, rest = take_count(rest)
    gpu = rest if rest and len(rest) <= 80 and (specified_gpus(rest) or _GPU_LIKE.search(rest)) else ""
    return Facets(
        count=count,
        gpu=gpu,
        model=model[0].strip() if model else "",
        precision=precision,
        batch=int(batch[1]) if batch else None,
        rest="" if gpu else rest,
    )


def take_count(text: str) -> tuple[int | None, str]:
    """Take a number of GPUs off a text: `8x A4000` is 8 and `A4000`."""
    lower = text.lower()
    for pattern in _COUNTS:
        match = pattern.search(lower)
        if match and not specified_gpus(text):  # the 2080 of a GPU's own name is no count
            named = match.groupdict()
            count = NUMBER_WORDS.get(named["count"]) or int(named["count"])
            return count * int(named.get("hosts") or 1) or None, _without(text, match)
    return None, text


def read_count(text: str) -> int | None:
    """Read a number of GPUs by itself: `8`, `8 GPUs`, `4x`, `×4`, `two`, `2×4 GPU`; None for anything else."""
    bare = plain(text).strip()
    if re.fullmatch(r"\d{1,5}(\.0+)?", bare):
        return int(float(bare)) or None
    count, rest = take_count(bare)
    return count if not rest.strip(" ().") else None


def read_precision(text: str) -> str:
    """Read a precision: `amp fp16` is fp16, `tf32 (default on in this build)` is tf32; what is unknown stays."""
    return _take_precision(text.lower(), "")[0] or text.strip().lower()


@functools.cache
def find_gpus(text: str) -> tuple[str, ...]:
    """Return the cards of the reference that a text speaks of: `Lambda Cloud, RTX A6000 (NVLink)` is one A6000."""
    direct = specified_gpus(text)
    for match in [] if direct else _GPU_LIKE.finditer(text):
        words = re.split(r"[\s,;()/—–]+", text[match.start() :].strip())[:6]
        for length in range(len(words), 0, -1):
            dropped = words[length].lower() if length < len(words) else ""
            members = specified_gpus(" ".join(words[:length]))
            if members and dropped not in _VARIANTS:
                return members
    return direct


def gpu_numbers(text: str) -> frozenset[str]:
    """Return what distinguishes one GPU's name from another's, without brand and memory: `3080`, `gh200`."""
    found = (match[0].lower().replace(" ", "") for match in _GPU_LIKE.finditer(text))
    return frozenset(name for name in found if any(map(str.isdigit, name)))


def known_model(text: str) -> bool:
    """Return whether a network's name is one of those known here, whatever is known about it."""
    return model_key(text) in MODEL_NAMES.values()


def _take_precision(lower: str, text: str) -> tuple[str, str]:
    for name, pattern in _PRECISIONS:
        match = pattern.search(lower)
        if match:
            return name, _without(text, match)
    return "", text


def _without(text: str, match: re.Match[str] | None) -> str:
    """Cut a match out of a text of the same length, and the punctuation that it leaves."""
    if match is None:
        return text
    return re.sub(r"\(\s*\)|\[\s*\]", " ", text[: match.start()] + " " + text[match.end() :]).strip(" ,;:-–—/|@_+")
