"""Parses the texts of a published table: `8x A4000 (images/sec)` is eight A4000s, `1.029,62` a number.

Ambiguous numbers are rejected with a reason, never guessed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import Any

from results.reference.gpus import GPU_LIKE, gpu_numbers, gpus_in, specified_gpus
from results.reference.networks import is_network, model_key
from results.schema import SETTINGS, Status

ROLES = {
    "gpu": r"(name_)?gpus?(_(name|model|type))?|(graphics_)?card|accelerators?|device_name|hardware|system|"
    r"instance(_type)?|platform",
    "model": r"model(_name)?|(neural_)?net(work)?|architecture|benchmark|workload",
    "precision": r"(numeric_)?prec(ision)?|d(ata_?)?type|math",
    "batch": r"((local|mini|micro|per_gpu|per_device(_train)?)_)?(batch(_size)?|bs)((_per)?_gpu)?",
    "count": r"((num|number_of|n|of)_)?(gpus|accelerators|devices)(_used)?|(num_|n_?)gpu|gpu_(count|num|s)|"
    r"world_size|a",
    "hosts": r"num_hosts",
    "slice": r"mig(_(profile|device|instance))?|gpu_instance|vgpu(_profile)?|slice",
    "image_size": r"(image|img|input)_size|image_resolution",
}
"""Patterns of headings by what their columns hold, as returned by `heading_key`."""

OTHER_SETTINGS = {
    *("fleet", "host", "source", "framework", "unit", "sequence_len", "seq_len", "power_limit_watts", "cpu", "tf32"),
    *("tensorflow", "keras", "cuda", "driver", "image_digest", "method_version", "variables", "launcher", "task"),
    *({"cpu_limit", "parameters", *SETTINGS} - {"communication", "min_seconds", *ROLES}),
}
"""Headings of what may differ between tables, besides `ROLES`."""

_SAMPLES = (
    r"(?:images?|imgs?|im|ims|pics?|samples?|seq(?:uence)?s?|sentences?|examples?|ex|items?|records?|frames?|f|tokens?|"
    r"tok|queries|infer(?:ence)?s)\.?"
)
_SECOND = r"(?:seconds?|secs?|s)\b\.?"
_RATE_UNIT = re.compile(
    rf"\b(?:{_SAMPLES}(?:\s+processed)?(?:\s*/\s*|\s*\bper\s*|\s+|p){_SECOND}|\b(?:fps|ips)\b)", re.IGNORECASE
)
"""A unit of throughput: `images/s`, `samples per second`, `img_sec`; `_` is read as a space."""

_CELL_UNIT = re.compile(rf"(?:{_SAMPLES})?\s*(?:/|per|p)\s*{_SECOND}|fps|ips", re.IGNORECASE)
"""What follows a number in a cell."""

_PER_SECOND_POWER = re.compile(r"[\s·⋅]*\bs(?:⁻¹|\^?\{?[-−]1\}?)")
_INTERVAL = re.compile(r"\b(mean|avg|average|median)\s*(±|\+/-)\s*(std(dev)?|sd|sem)?\b|\d+\s*%\s*ci\b", re.IGNORECASE)
"""What the cells of a column have after their number."""

_OTHER_FIGURES = {
    "relative values": r"\brelative|\bnorm(ed)?\b|normali[sz]|speed-?\s?ups?\b|\bratio\b|\bvs\b|\bversus\b|\bfaster\b|"
    r"\(\s*[x×]\s*\)|\bbaseline\b|=\s*1[.,]0+\b|\d\s?(?!bs|batch|gpu)\w*\s*=\s*1\b(?![.,]?\d)|=\s*100\s?%",
    "scaling": r"scal(es?|ing)|effici",
    "steps, not samples": r"\b(steps?|it(er(ation)?)?s?|batch(es)?|epochs?)\s*(/|per)\s*(s|sec|second)\b",
    "times": r"\b(run)?times?\b|\blatenc|\b(milli|micro)?seconds?\b|\b(ms|msecs?|secs?|mins?|minutes?|hours?|hrs?)\b|"
    r"\bs\s*/|(?<=[(\[])\s*[sh]\s*(?=[)\]])|(lower|smaller|less) is better|\bduration\b|\bper (batch|step|epoch)\b",
    "prices": r"price|cost|usd|\$|€",
    "power": r"watt|\btdp\b|power|energy|\bper j(oule)?\b",
    "percentages": r"%",
    "another figure": r"memory|vram|loss|accuracy|at most|epochs?\b|repeats?|\bp\d\d\b|utili[sz]ation|tflop|"
    r"clock|\bstd|stdev|deviation|\berror\b|±|\bmin(imum)?\b|\bmax(imum)?\b|\bparam|\bmacs?\b|\bsteps?\b",
}
_MODEL_TEXTS = (
    r"\b(resnet|inception|googlenet|google net|vgg|alexnet|bert|densenet|mobilenet|efficientnet|xception|ssd|unet|"
    r"vit|gnmt|tacotron|waveglow|transformer|mask r-?cnn|nasnet)[\w.+-]*(?:[\s_-]+(?:v?\d+(?:\.\d+)?|large|base|squad|"
    r"v\d)(?!\d|\s*[x×]\s*(?:\d+\s*[x×]\s*)?[gc]pu))*"  # 1×gpu is a count
)

_FACETS: tuple[tuple[str, Any, str], ...] = (
    ("rate", True, _RATE_UNIT.pattern),
    ("each", True, r"(/|\b(per|each))\s*(gpu|device|card|accelerator|chip)s?\b"),
    ("nothing", True, _INTERVAL.pattern),
    ("mode", "train", r"\btrain(ing|ed)?\b"),
    ("mode", "infer", r"\b(infer(ence|ring)?|eval(uation)?|predict(ion)?|forward)\b"),
    ("strict", True, r"[\s,(]*\b(throughput implies )?tf32 off\)?"),
    ("precision", "tf32", r"\btf-?32\b"),
    ("precision", "bf16", r"\bbf(loat)?-?16\b"),
    ("precision", "fp16", r"\bamp\s+fp16\b|\bfp-?16\b|\bfloat16\b|\bhalf\b|\bmixed([\s_-]precision)?\b|\bamp\b"),
    ("precision", "fp32", r"\bfp-?32\b|\bfloat32\b|\bsingle[\s_-]precision\b"),
    ("rate", True, r"\b(throughputs?|performance|perf|speed|results?)\b"),
    (
        "nothing",
        True,
        r"\b(total|rate|avg|average|mean|median|overall|global|running|curr(ent)?|steady|state|measured|aggregated?|"
        r"system|higher is better|in|of|with|the|for|on|using|tensorflow|tf[12]?|keras|pytorch|torch|mxnet|jax|ngc|"
        r"nvidia ngc)\b",
    ),
    ("batch", None, r"\b(?:bs|batch(?:[\s_-]*size)?)[\s_=:]*(?P<batch>\d{1,5})\b"),
    ("batch", None, r"\bb(?P<batch>\d{1,5})(?= (?:\d+×)?\d+×[gc]pu)"),  # b256 1×gpu, as we write it; b200 is a GPU
    ("model", None, _MODEL_TEXTS),
    ("count", None, rf"(?<![\w.])(?P<count>\d{{1,4}})\s*[x×]\s*(?={GPU_LIKE.pattern})"),
    ("count", None, r"\b(?P<hosts>\d{1,4})\s*[x×]\s*(?P<count>\d{1,4})\s*[x×]?\s*(gpus?|cpus?)\b"),
    ("count", None, r"(?<![\w.])(?P<count>\d{1,4})\s*[x×]?[\s_-]*(gpus?|cpus?|cards?|devices?)\b"),
    ("count", None, r"(?<![\w.])(?P<count>\d{1,4})\s*[x×](?![a-z])"),
    ("count", None, r"(?<!\w)[x×]\s*(?P<count>\d{1,4})(?![\w.])"),
)
"""What is taken out of a text, in this order: the facet, its value (None: the text or its numbers), and a pattern."""

Facets = dict[str, Any]
"""Meaning of a text, with those of these parts that it has.

`gpu`: a GPU's name as received, without its count; `count`: number of GPUs; `model`; `precision`: `fp32`, `tf32`,
`fp16` or `bf16`; `strict`: TF32 is off; `batch`; `mode`: `train` or `infer`; `image_size`: in pixels, only of a
context; `rate`: it names throughputs, by a unit or a word; `each`: these are of one GPU, as `images/s/GPU`; `rest`:
what is unknown.
"""

KNOWN = {"gpu", "count", "model", "precision"}
"""Facets that columns differ in."""


def _spaced(text: str) -> str:
    """Return a heading as words: `RunningAvgSamplesPerSec` and `images_per_sec` have four and three."""
    words = _PER_SECOND_POWER.sub("/s", plain(text).replace("_", " "))
    if words.isidentifier() and "Per" in words:
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
    """Parse a heading, label or title. The answer is shared: do not change it."""
    facets, rest = Facets(), _spaced(text)
    for name, value, pattern in _FACETS:
        match = re.search(pattern, rest, re.IGNORECASE)
        if match and not (name == "count" and (name in facets or specified_gpus(rest))):  # a 2080 is not a count
            numbers = [int(number) for number in match.groupdict().values()]
            facets.setdefault(name, value or (math.prod(numbers) if numbers else match[0].strip()))
            rest = re.sub(pattern, " ", rest, count=0 if value else 1, flags=re.IGNORECASE)
    facets.pop("nothing", None)
    rest = " ".join(re.sub(r"[(\[][\s,]*[)\]]", " ", rest).split()).strip(" ,;:-–—/|@_+")
    if rest:
        facets["gpu" if len(rest) <= 80 and (specified_gpus(rest) or GPU_LIKE.search(rest)) else "rest"] = rest
    return facets


def read_count(text: str) -> int | None:
    """Parse a number of GPUs: `8`, `8 GPUs`, `4x`, `×4`, `2×4 GPU`; None: it is not one."""
    bare = plain(text)
    facets = {"count": int(float(bare))} if re.fullmatch(r"\d{1,5}(\.0+)?", bare) else read_facets(bare)
    return facets["count"] or None if facets.keys() == {"count"} else None


_IMAGE_SIZE = re.compile(r"\bimage[ _]size[ :=]*(\d{2,4})\b|\b(\d{3})\s?[x×]\s?\2\b", re.IGNORECASE)


def read_context(text: str) -> Facets:
    """Parse what is unambiguous in the text around a table: of two networks in a title, neither applies to a cell."""
    parts = [read_facets(part) for part in re.split(r"[\n,;:()|]", text)]
    found: dict[str, set[Any]] = {
        "model": {model_key(model) for part in parts if is_network(model := part.get("model", ""))},
        "gpu": {_gpu(part.get("gpu", "")) for part in parts},
        **{name: {part.get(name) for part in parts} for name in ("precision", "mode")},
        "image_size": {int(side or of_both) for side, of_both in _IMAGE_SIZE.findall(text)},
    }
    return {name: named.pop() for name, texts in found.items() if len(named := texts - {"", None}) == 1}


def _gpu(text: str) -> str:
    """Return the name of the known GPU in a text, or of the known GPUs with one number; empty: there is none."""
    members = gpus_in(text)
    return members[0] if len(members) == 1 else " ".join(gpu_numbers(text)) if members else ""


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
_AS_WRITTEN = {
    mark: re.compile(rf"(\d+|[1-9]\d{{0,2}}(?:([{other}{GROUP_MARKS}])\d{{3}})(?:\2\d{{3}})*)(?:[{mark}](\d+))?")
    for mark, other in (".,", ",.")
}
"""Digits with thousands and a fraction, by decimal mark."""

_MARKS = re.compile(r"[†‡§¶*^#⁰¹²³⁴⁵⁶⁷⁸⁹]+|\[[a-z0-9]{1,2}\](?=\s*$)|\([a-z]\)(?=\s*$)")
_ERROR = re.compile(r"\s*(?:±|\+/[-−–]|\+[-−–]|\bpm\b)\s*")
_RANGE = re.compile(r"[(\[][^)\]]*[)\]]")

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
    written = _as_written(core["digits"])
    if len(written) > 1 and not decimal and {",", "."} & {*core["digits"]}:
        return "thousands separator or decimal mark? Choose with --decimal"
    if not written:
        return "its thousands are not groups of three digits"
    whole, _, fraction = (written.get(decimal) or next(iter(written.values()))).groups("")
    scale = FACTORS[core["factor"]] * 10.0 ** int((core["exponent"] or "e0")[1:])
    value = float(re.sub(r"\D", "", whole) + f".{fraction or 0}") * scale
    return (value, 10.0 ** -len(fraction) * scale) if 0 < value < math.inf else NO_NUMBER


def _as_written(digits: str) -> dict[str, re.Match[str]]:
    """Return how digits can be read, by decimal mark."""
    return {mark: match for mark, pattern in _AS_WRITTEN.items() if (match := pattern.fullmatch(digits))}


def decimal_mark(texts: Iterable[str]) -> str:
    """Infer the decimal mark from all numbers of a column or table; empty: ambiguous.

    It follows from a number with both marks, or with other than three digits after its only mark; else from a column
    with one mark in every number above 999 and in none below, which separates thousands.
    """
    cores = [_core(part) for text in texts for part in _ERROR.split(text)]
    digits = [core["digits"] for core in cores if not isinstance(core, str)]
    marks = {mark for number in digits if len(written := _as_written(number)) == 1 for mark in written}
    if not marks:
        rest = [number for number in digits if number.isdecimal()]
        small = rest and all(len(number) <= 3 for number in rest)
        marks = {mark for mark, other in (".,", ",.") if small and any(other in number for number in digits)}
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
