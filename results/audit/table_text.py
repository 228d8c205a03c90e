"""Parses the texts of a published table: `8x A4000 (images/sec)` is eight A4000s, `1.029,62` a number.

Ambiguous numbers are rejected with a reason, never guessed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from results.reference.gpus import GPU_WORDS, gpus_in, is_gpu_like, specified_gpus
from results.reference.networks import is_network, model_key
from results.schema import SETTINGS, Status

_OTHER_ROLES = {
    *("model", "precision", "batch_per_gpu", "num_gpus", "num_hosts", "image_size", "communication", "min_seconds")
}
"""Settings of a case that are not settings of a published table: they have other roles, or do not occur."""

_HEADINGS = {
    "gpu": ("gpu", "gpus", "gpu_name", "gpu_model", "gpu_type", "card", "graphics_card", "accelerator", "device_name",
            "name_gpu", "hardware", "system", "device", "instance", "instance_type", "platform", "accelerators"),
    "model": ("model", "network", "neural_network", "net", "architecture", "benchmark", "workload", "model_name"),
    "precision": ("precision", "dtype", "prec", "datatype", "data_type", "math", "numeric_precision"),
    "batch": ("batch_per_gpu", "batch_size", "batch", "batch_size_per_gpu", "batch_size_gpu", "bs", "local_batch_size",
              "per_device_batch_size", "per_gpu_batch_size", "per_device_train_batch_size", "mini_batch_size",
              "micro_batch_size", "bs_gpu"),
    "count": ("num_gpus", "gpus", "gpu_count", "n_gpus", "number_of_gpus", "num_gpu", "gpus_used", "of_gpus", "ngpu",
              "gpu_s", "n_gpu", "gpu_num", "num_devices", "devices", "world_size", "of_accelerators", "a"),
    "hosts": ("num_hosts",),
    "slice": ("mig", "mig_profile", "mig_device", "mig_instance", "gpu_instance", "vgpu", "vgpu_profile", "slice"),
    "image_size": ("image_size", "img_size", "input_size", "image_resolution"),
    "settings": (
        *("fleet", "host", "source", "framework", "unit", "sequence_len", "seq_len"),
        *("tensorflow", "keras", "cuda", "driver", "image_digest", "method_version", "variables", "launcher"),
        *("power_limit_watts", "cpu", "cpu_limit", "parameters", "tf32", "task"),
        *({*SETTINGS} - _OTHER_ROLES),
    ),
}  # fmt: skip
ALIASES = {meaning: frozenset(headings) for meaning, headings in _HEADINGS.items()}
"""Headings by meaning, as returned by `heading_key`."""

_SAMPLES = (
    r"(?:images?|imgs?|im|ims|pics?|samples?|seq(?:uence)?s?|sentences?|examples?|ex|items?|records?|frames?|f|tokens?|"
    r"tok|queries|infer(?:ence)?s)\.?"
)
_SECOND = r"(?:seconds?|secs?|s)\b\.?"
_RATE_UNIT = re.compile(
    rf"[(\[]?\s*\b(?:{_SAMPLES}(?:\s+processed)?(?:\s*/\s*|\s*\bper\s*|\s+|p){_SECOND}|\b(?:fps|ips)\b)"
    r"(?P<each>\s*(?:/|per)?\s*(?:gpu|device|card|accelerator|chip)s?\b)?\s*[)\]]?",
    re.IGNORECASE,
)
"""A unit of throughput: `images/s`, `samples per second`, `img_sec`; `_` is read as a space."""

_CELL_UNIT = re.compile(rf"(?:{_SAMPLES})?\s*(?:/|per|p)\s*{_SECOND}|fps|ips", re.IGNORECASE)
"""What follows a number in a cell."""

_PER_SECOND_POWER = re.compile(r"[\s·⋅]*\bs(?:⁻¹|\^?\{?[-−]1\}?)")
_INTERVAL = re.compile(r"\b(mean|avg|average|median)\s*(±|\+/-)\s*(std(dev)?|sd|sem)?\b|\d+\s*%\s*ci\b", re.IGNORECASE)
"""What the cells of a column have after their number."""
_RATE_WORD = re.compile(r"\b(throughputs?|performance|perf|speed|results?)\b", re.IGNORECASE)
_PER_GPU = re.compile(r"\b(?:per|each)\s+(gpu|device|card|accelerator)s?\b", re.IGNORECASE)
_MODES = (
    ("train", re.compile(r"\btrain(ing|ed)?\b", re.IGNORECASE)),
    ("infer", re.compile(r"\b(infer(ence|ring)?|eval(uation)?|predict(ion)?|forward)\b", re.IGNORECASE)),
)
_FILLERS = re.compile(
    r"\b(total|rate|avg|average|mean|median|overall|global|running|curr(ent)?|steady|state|measured|aggregated?|system|"
    r"higher is better|tensorflow|tf[12]?|keras|pytorch|torch|mxnet|jax|ngc|nvidia ngc|in|of|with|the|for|on|using)\b",
    re.IGNORECASE,
)
"""Words of a heading that say nothing about the case."""

_OTHER_FIGURES = {
    "relative values": r"\brelative|\bnorm(ed)?\b|normali[sz]|speed-?\s?ups?\b|\bratio\b|\bvs\b|\bversus\b|\bfaster\b|"
    r"\bbaseline\b|=\s*1[.,]0+\b|\d\s?(?!bs|batch|gpu)\w*\s*=\s*1\b(?![.,]?\d)|=\s*100\s?%",
    "scaling": r"scal(es?|ing)|effici",
    "steps, not samples": r"\b(steps?|it(er(ation)?)?s?|batch(es)?|epochs?)\s*(/|per)\s*(s|sec|second)\b",
    "times": r"\b(run)?times?\b|\blatenc|\b(milli|micro)?seconds?\b|\b(ms|msecs?|secs?|mins?|minutes?|hours?|hrs?)\b|"
    r"\bs\s*/|(?<=[(\[])\s*[sh]\s*(?=[)\]])|(lower|smaller|less) is better|\bduration\b|\bper (batch|step|epoch)\b",
    "prices": r"price|cost|usd|\$|€",
    "power": r"watt|\btdp\b|power|energy|\bper j(oule)?\b",
    "another figure": r"memory|vram|loss|accuracy|at most|epochs?\b|repeats?|\bp\d\d\b|cv ?%|%|utili[sz]ation|tflop|"
    r"clock|\bstd|stdev|deviation|\berror\b|±|\bmin(imum)?\b|\bmax(imum)?\b|\bparam|\bmacs?\b|\bsteps?\b",
}
_COUNTS = (
    re.compile(rf"(?<![\w.])(?P<count>\d{{1,4}})\s*[x×]\s*(?={GPU_WORDS})"),
    re.compile(r"\b(?P<hosts>\d{1,4})\s*[x×]\s*(?P<count>\d{1,4})\s*[x×]?\s*(gpus?|cpus?)\b"),
    re.compile(r"(?<![\w.])(?P<count>\d{1,4})\s*[x×]?[\s_-]*(gpus?|cpus?|cards?|devices?)\b"),
    re.compile(r"(?<![\w.])(?P<count>\d{1,4})\s*[x×](?![a-z])"),
    re.compile(r"(?<!\w)[x×]\s*(?P<count>\d{1,4})(?![\w.])"),
)
_PRECISIONS = (
    ("fp32, tf32 off", re.compile(r"(fp32|float32)[\s,(]*(throughput implies )?tf32 off\)?")),
    ("tf32", re.compile(r"\btf-?32\b")),
    ("bf16", re.compile(r"\bbf(loat)?-?16\b")),
    ("fp16", re.compile(r"\bamp\s+fp16\b|\bfp-?16\b|\bfloat16\b|\bhalf\b|\bmixed([\s_-]precision)?\b|\bamp\b")),
    ("fp32", re.compile(r"\bfp-?32\b|\bfloat32\b|\bsingle[\s_-]precision\b")),
)
_BATCH = re.compile(
    r"\b(?:bs|batch(?:[\s_-]*size)?)[\s_=:]*(?P<batch>\d{1,5})\b|"
    r"\bb(?P<short>\d{1,5})(?= (?:\d+×)?\d+×[gc]pu)"  # b256 1×gpu, as we write it; b200 alone is a GPU
)
_MODEL_TEXTS = re.compile(
    r"\b(resnet|inception|googlenet|google net|vgg|alexnet|bert|densenet|mobilenet|efficientnet|xception|ssd|unet|"
    r"vit|gnmt|tacotron|waveglow|transformer|mask r-?cnn|nasnet)[\w.+-]*(?:[\s_-]+(?:v?\d+(?:\.\d+)?|large|base|squad|"
    r"v\d)(?!\d|\s*[x×]\s*(?:\d+\s*[x×]\s*)?[gc]pu))*",  # 1×gpu is a count
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Facets:
    """Parsed meaning of a text; unknown fields are empty or None.

    Attributes:
        gpu: A GPU's name as received, without its count.
        precision: `fp32`, `fp32, tf32 off`, `tf32`, `fp16` or `bf16`.
        rest: Unparsed remainder.
        mode: `train` or `infer`.
        image_size: In pixels; only of a context.
        rate: Whether it names throughputs, by a unit or a word.
        each: Whether these are of one GPU: `images/s/GPU`.
    """

    count: int | None = None
    gpu: str = ""
    model: str = ""
    precision: str = ""
    batch: int | None = None
    rest: str = ""
    mode: str = ""
    image_size: str = ""
    rate: bool = False
    each: bool = False

    @property
    def known(self) -> bool:
        """Whether anything was parsed."""
        return bool(self.count or self.gpu or self.model or self.precision)


def heading_key(text: str) -> str:
    """Normalise a heading to lower case with `_`: `Batch size (per GPU)` becomes `batch_size_per_gpu`."""
    return re.sub(r"[^a-z0-9]+", "_", _spaced(text).lower()).strip("_")


def _spaced(text: str) -> str:
    """Return a heading as words: `RunningAvgSamplesPerSec` and `images_per_sec` have four and three."""
    words = _PER_SECOND_POWER.sub("/s", plain(text).replace("_", " "))
    if words.isidentifier() and not _MODEL_TEXTS.search(words):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words)
    return " ".join(words.split())


def has_rate_unit(text: str) -> bool:
    """Return whether a text names a unit of throughput: `images/s`, `samples per second`."""
    return _RATE_UNIT.search(_spaced(text)) is not None


def other_figure(text: str) -> str:
    """Return what a heading or title names instead of throughputs: `relative values`, `times`; empty: nothing else."""
    words = _INTERVAL.sub(" ", _RATE_UNIT.sub(" ", _spaced(text)))
    return next((name for name, pattern in _OTHER_FIGURES.items() if re.search(pattern, words, re.IGNORECASE)), "")


def plain(text: str) -> str:
    """Remove Markdown from a text."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("*", "").replace("`", "").strip()


@functools.cache
def read_facets(text: str) -> Facets:
    """Parse a heading, label or title."""
    words = _spaced(text)
    unit = _RATE_UNIT.search(words)
    rest = _INTERVAL.sub(" ", _RATE_UNIT.sub(" ", words))
    rate, each = unit is not None or _RATE_WORD.search(rest) is not None, bool(unit and unit["each"])
    if rate:
        each |= _PER_GPU.search(rest) is not None
        rest = _PER_GPU.sub(" ", rest)
    modes = [mode for mode, pattern in _MODES if pattern.search(rest)]
    precision, rest = _take_precision(rest.lower(), rest)
    for pattern in (_RATE_WORD, _FILLERS, *(pattern for _, pattern in _MODES)):
        rest = pattern.sub(" ", rest)
    rest = " ".join(re.sub(r"\(\s*\)|\[\s*\]", " ", rest).split()).strip(" ,;:-–—/|@_+")
    batch = _BATCH.search(rest.lower())
    rest = _without(rest, batch)
    model = _MODEL_TEXTS.search(rest)
    rest = _without(rest, model)
    count, rest = take_count(rest)
    gpu = rest if rest and len(rest) <= 80 and (specified_gpus(rest) or is_gpu_like(rest)) else ""
    return Facets(
        count=count,
        gpu=gpu,
        model=model[0].strip() if model else "",
        precision=precision,
        batch=int(batch["batch"] or batch["short"]) if batch else None,
        rest="" if gpu else rest,
        mode=modes[0] if len(modes) == 1 else "",
        rate=rate,
        each=each,
    )


def take_count(text: str) -> tuple[int | None, str]:
    """Split a number of GPUs from a text: `8x A4000` is 8 and `A4000`."""
    lower = text.lower()
    for pattern in _COUNTS:
        match = pattern.search(lower)
        if match and not specified_gpus(text):  # the 2080 in a GPU's name is not a count
            named = match.groupdict()
            return int(named["count"]) * int(named.get("hosts") or 1) or None, _without(text, match)
    return None, text


def read_count(text: str) -> int | None:
    """Parse a number of GPUs: `8`, `8 GPUs`, `4x`, `×4`, `2×4 GPU`; None: it is not one."""
    bare = plain(text).strip()
    if re.fullmatch(r"\d{1,5}(\.0+)?", bare):
        return int(float(bare)) or None
    count, rest = take_count(bare)
    return count if not rest.strip(" ().") else None


def read_precision(text: str) -> str:
    """Parse a precision: `amp fp16` is fp16, `tf32 (default on in this build)` is tf32; others are returned as is."""
    return _take_precision(text.lower(), "")[0] or text.strip().lower()


def _take_precision(lower: str, text: str) -> tuple[str, str]:
    for name, pattern in _PRECISIONS:
        match = pattern.search(lower)
        if match:
            return name, _without(text, match)
    return "", text


def _without(text: str, match: re.Match[str] | None) -> str:
    """Remove a match, and the punctuation around it, from a text of the same length."""
    if match is None:
        return text
    return re.sub(r"\(\s*\)|\[\s*\]", " ", text[: match.start()] + " " + text[match.end() :]).strip(" ,;:-–—/|@_+")


_IMAGE_SIZE = re.compile(r"\bimage[ _]size[ :=]*(\d{2,4})\b|\b(\d{3})\s?[x×]\s?\2\b", re.IGNORECASE)
_MODE = re.compile(r"\bmode (train|infer)\b|\b(inference)\b", re.IGNORECASE)


def read_context(text: str, file_name: str) -> Facets:
    """Parse what is unambiguous in the text around a table: of two networks in a title, neither applies to a cell."""
    everything = f"{text}\n{re.sub(r'[_.-]+', ' ', file_name)}"
    parts = [read_facets(part) for part in re.split(r"[\n,;:()|]", everything) if part.strip()]
    return Facets(
        model=_only(model_key(part.model) for part in parts if is_network(part.model)),
        precision=_only(part.precision for part in parts),
        gpu=_only(_gpu(part.gpu) for part in parts),
        image_size=_only(match[1] or match[2] for match in _IMAGE_SIZE.finditer(everything)),
        mode=_only((match[1] or "infer").lower() for match in _MODE.finditer(everything)),
    )


def _only(found: Iterable[str]) -> str:
    """Return the only non-empty text; empty if there are none or several."""
    texts = {*found} - {""}
    return texts.pop() if len(texts) == 1 else ""


def _gpu(text: str) -> str:
    """Return the name of the known GPU in a text; empty: there is none."""
    members = gpus_in(text)
    if len(members) == 1:
        return members[0]
    shared = [word for word in re.findall(r"[A-Za-z0-9]+", text) if members and specified_gpus(word) == members]
    return shared[0] if shared else ""


GROUP_MARKS = " '’\u00a0\u202f\u2009_"
"""Thousands separators that are never decimal marks."""

BLANK = {
    *("", "-", "--", "---", "–", "—", ".", "?", "x", "n/a", "na", "nan", "none", "null", "tbd", "oom", "out of memory"),
    *("fail", "failed", "crash", "not supported", "not tested", "skipped"),
    *(str(status) for status in Status),
}
"""Texts of cells without a number, like zero."""

FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}

_NUMBER = re.compile(rf"(?P<digits>\d[\d.,{GROUP_MARKS}]*\d|\d)(?P<exponent>[eE][-+]?\d{{1,3}})?\s?(?P<factor>[kKM]?)")
_MARKS = re.compile(r"[†‡§¶*^#⁰¹²³⁴⁵⁶⁷⁸⁹]+|\[[a-z0-9]{1,2}\](?=\s*$)|\([a-z]\)(?=\s*$)")
_ERROR = re.compile(r"\s*(?:±|\+/[-−–]|\+[-−–]|\bpm\b)\s*")
_RANGE = re.compile(r"[(\[][^)\]]*[)\]]")
_CELL_FIGURES = {
    "percentages": re.compile(r"[\d.,]+\s*%"),
    "relative values": re.compile(r"[\d.,]+\s*[x×]"),
    "times": re.compile(
        r"[\d.,]+\s*(ms|s|secs?|seconds?|min|minutes?|h|hours?)|\d+\s*m(in)?\s*\d+\s*s|\d{1,3}(:\d\d){1,2}(\.\d+)?"
    ),
}


def cell_figure(text: str) -> str:
    """Return what a cell holds by its unit instead of a throughput: `12 ms` is `times`; empty: a number or nothing."""
    cell = plain(text).strip(" !~").lower()
    return next((name for name, pattern in _CELL_FIGURES.items() if pattern.fullmatch(cell)), "")


NO_NUMBER = "not one number"


def read_number(text: str, decimal: str) -> tuple[float, float] | str:
    """Parse a cell.

    Args:
        text: Text of the cell, which may have an interval or a unit.
        decimal: The decimal mark of its column, `.` or `,`; empty: ambiguous.

    Returns:
        The number, finite and above 0, and the unit of its last digit; or why it is none: empty for a blank cell.
    """
    core = _core(text)
    if isinstance(core, str):
        return core
    mark = _decimal_mark_of(core["digits"]) or decimal
    if not mark and {",", "."} & {*core["digits"]}:
        return "thousands separator or decimal mark? Choose with --decimal"
    whole, _, fraction = core["digits"].partition(mark or ".")
    groups = re.split(rf"[.,{GROUP_MARKS}]", whole)
    if len(groups) > 1 and not (1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])):
        return "its thousands are not groups of three digits"
    if fraction and not fraction.isdecimal():
        return "two decimal marks"
    scale = FACTORS[core["factor"]] * 10.0 ** int((core["exponent"] or "e0")[1:])
    value = float(f"{''.join(groups)}.{fraction or 0}") * scale
    return (value, 10.0 ** -len(fraction) * scale) if 0 < value < math.inf else NO_NUMBER


def decimal_mark(texts: Iterable[str]) -> str:
    """Infer the decimal mark from all numbers of a column or table; empty: ambiguous.

    It follows from a number with both marks, or with other than three digits after its only mark; else from a column
    with one mark in every number above 999 and in none below, which separates thousands.
    """
    cores = [_core(part) for text in texts for part in _ERROR.split(text)]
    digits = [core["digits"] for core in cores if not isinstance(core, str)]
    marks = {*map(_decimal_mark_of, digits)} - {""}
    if not marks:
        rest = [number for number in digits if number.isdecimal()]
        thousands = {mark for number in digits for mark in ".," if mark in number}
        marks = {_OTHER_MARK[mark] for mark in thousands if rest and all(len(number) <= 3 for number in rest)}
    return marks.pop() if len(marks) == 1 else ""


def _core(text: str) -> re.Match[str] | str:
    """Find digits, exponent and factor in a cell; or why there are none: empty for a blank cell."""
    cell = plain(text.replace("\\", "")).strip("_~≈ ")
    cell = _MARKS.sub(" ", cell).strip(" !")
    whole = _ERROR.split(cell)[0].strip(" (") if cell.startswith("(") else cell  # (802.2 ± 4.0) img/s
    cell = _ERROR.split(_RANGE.sub(" ", whole))[0]
    cell = _CELL_UNIT.sub(" ", cell).strip(" .:;")
    if cell.lower() in BLANK or re.fullmatch(r"0+([.,]0*)?", cell):
        return ""
    return _NUMBER.fullmatch(cell) or NO_NUMBER


_OTHER_MARK = {".": ",", ",": "."}


def _decimal_mark_of(digits: str) -> str:
    """Return the decimal mark that follows from a number; empty: ambiguous."""
    marks = [mark for mark in ".," if mark in digits]
    if len(marks) != 1:
        return max(marks, key=digits.rindex, default="")
    before, *after = digits.split(marks[0])
    if len(after) > 1:
        return _OTHER_MARK[marks[0]]  # it separates thousands
    fraction = len(after[0]) != 3 or len(before) > 3 or before.startswith("0") or not before.isdecimal()
    return marks[0] if fraction else ""
