"""Claims: throughputs in tables of any origin, what follows from them, and findings about them.

Cells that cannot be parsed are reported with a reason.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         | Network | A4000 (img/s) | 8x A5000 (img/s) |
RTX A4000,ResNet50,fp16,256,1,453                           | ResNet50 FP16 | 453,5 | 5.512,4 ± 3,1 † |
"""

from __future__ import annotations

import enum
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from results.audit import table_text
from results.audit.table_text import KNOWN, Facets, plain, read_count, read_facets, read_number
from results.errors import NotATable
from results.reference.gpus import SLICE, gpus_in, loosest_figures, specifications
from results.reference.networks import is_network, model_key, networks
from results.schema import SETTINGS
from results.schema.networks import NETWORKS
from results.table.comparable import grouped
from results.table_files import RawTable, heading_key, read_text, tables_of

BANDWIDTH_POWER, ARITHMETIC_POWER = 0.5, 0.3
"""Exponents of a GPU's bandwidth and arithmetic in its throughput.

Least absolute deviations over the training rows of published tables, within network, precision and source: between
(0.45, 0.30) and (0.70, 0.20) by table; medians of GPUs then deviate by 0.07 (FP32) and 0.12 (FP16), at most 0.25.
Their sum is below 1 because larger GPUs are harder to utilise.
"""

SWITCHED = 300.0
"""GB/s of NVLink in both directions from which NVLink connects all GPUs of a host.

Bridges between two GPUs have 100 to 112.
"""


class Claim(NamedTuple):
    """A throughput in a table, and what follows from it.

    Attributes:
        row: 0-based data row of the file, counted over all its tables.
        group: Table that it belongs to: source, GPU and all settings not in other columns.
        software: Settings in `group` that other GPUs can share.
        gpu_text: Name of the GPU as received, without a count; empty without a column.
        model: Canonical name of the network.
        precision: `fp32`, `tf32`, `fp16`, `bf16`, or as received.
        strict: Whether fp32 is known to be IEEE arithmetic without TF32.
        batch: Samples per GPU and step; 0: not given.
        rate: Samples per second over all GPUs.
        last_place: Unit of the last digit of `rate`.
        mode: `train` or `infer`.
        image_size: Height and width in pixels, if not the default; 0: not given.
    """

    row: int
    group: tuple[str, ...]
    software: tuple[str, ...]
    gpu_text: str
    model: str
    precision: str
    strict: bool
    batch: int
    num_gpus: int
    rate: float
    last_place: float
    mode: str
    image_size: int

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs with specifications that may have this name."""
        return () if SLICE.search(self.gpu_text) else gpus_in(self.gpu_text)

    @property
    def gpu(self) -> str:
        """The GPU, if only one has its name; empty: none or several."""
        return self.gpus[0] if len(self.gpus) == 1 else ""

    @property
    def kind(self) -> tuple[object, ...]:
        """What is trained, and how; not the batch, which is often the largest that fits."""
        return self.model, self.precision, self.strict, self.mode, self.image_size

    @property
    def case(self) -> tuple[object, ...]:
        """What two sources share; ResNet50 v1 and v1.5 are one, because they differ in work by only 6 %."""
        return self.model.removesuffix("_v1.5"), self.precision, self.num_gpus, self.mode

    @property
    def per_gpu(self) -> float:
        """Samples per second of one GPU."""
        return self.rate / self.num_gpus

    @property
    def rounding(self) -> float:
        """The largest relative rounding error."""
        return self.last_place / 2 / self.rate

    @property
    def name(self) -> str:
        """The cell, for messages."""
        return " ".join(filter(None, (self.model, self.precision, f"×{self.num_gpus}")))

    def __str__(self) -> str:
        return f"{self.name} {self.number}"

    @property
    def number(self) -> str:
        """The throughput, for messages."""
        return f"{self.rate:.10g}"

    @property
    def switched(self) -> bool:
        """Whether all GPUs that its name may refer to have switched NVLink."""
        links = [specifications()[gpu].get("nvlink_both_directions", 0.0) for gpu in self.gpus]
        return min(links, default=0.0) >= SWITCHED

    def expected(self, *, ieee: bool = False) -> float:
        """Return the logarithm of the throughput that the GPU suggests, up to a constant; NaN: unknown.

        Args:
            ieee: Whether fp32 is without TF32 where this is not known.
        """
        strict = self.strict or (ieee and self.precision == "fp32")
        bandwidth, arithmetic = map(math.log, gpu_speeds(self.gpus, self.precision, strict))
        return BANDWIDTH_POWER * bandwidth + ARITHMETIC_POWER * arithmetic


class Severity(enum.StrEnum):
    """Severity of a finding."""

    IMPOSSIBLE = "impossible"  # no hardware or honest measurement gives this
    SUSPECT = "suspect"  # needs an explanation before the number is used
    NOTE = "note"  # worth knowing


class TableFinding(NamedTuple):
    """A finding about a table.

    Attributes:
        rule: Stable name of the rule.
        rows: 0-based data rows.
        message: The numbers, and what was expected.
    """

    rule: str
    severity: Severity
    rows: tuple[int, ...]
    message: str


Finding = tuple[str, Severity | None, Iterable[Claim], str]
"""What a rule yields: its stable name, the severity (None: nothing was found), the claims, and the message."""


@functools.cache
def gpu_speeds(gpus: tuple[str, ...], precision: str, strict: bool) -> tuple[float, float]:
    """Return the bandwidth and arithmetic of GPUs in a precision; NaN: unknown."""
    figures = loosest_figures(gpus)
    if precision in ("fp32", "tf32"):
        peak = figures.get("fp32") if strict else figures.get("tf32_tensor", figures.get("fp32"))
    else:  # GeForce GPUs halve the rate of FP32 accumulation, which affects networks less than the peak
        half = figures.get("fp16_tensor_fp32_accumulate", 0.0)
        peak = math.sqrt((figures.get("fp16_tensor_fp16_accumulate") or half) * half)
    return figures.get("memory_bandwidth") or math.nan, peak or math.nan


MOST_GPUS = 4096
"""Largest number in a heading that is a number of GPUs."""

LOOKS_LIKE = 0.5
"""Share of a column's cells that must be names of a kind, or numbers, for the column to be of that kind."""

OF_A_MODE = re.compile(r"(train|infer)(?:ing|ence)?_(batch_size|bs|img_size|image_size)")
"""Headings of a setting of one mode: `train_batch_size`."""

_RATIOS = re.compile(r"^times (as fast|the samples per dollar),", re.MULTILINE)
"""First note below a table of ratios in our own reports."""

OF_WHOLE_TABLES = ("relative values", "times", "steps, not samples")
"""Figures that a title names for all columns; that of a throughput may also name scaling or power."""

RELATIVE = {1.0: 30.0, 100.0: 2000.0}
"""Largest value of a table relative to 1, or to 100 %."""

SLOWEST_GPU = 5.0
"""Images per second that every GPU of the reference exceeds in training."""

SOFTWARE = {"source", "unit", "task", "method_version", *SETTINGS} - {"xla", "device", "warmup_steps", "num_steps"}
"""Settings that GPUs must share to be compared.

Excludes the framework and its version, which in many published tables differ between GPUs; these are still within the
limits of `consistency.py`.
"""

ENOUGH_READ = 0.8
"""Minimum share of non-blank cells that must be read for an absence of findings to be meaningful."""

NEEDED = (
    "needs networks and throughputs: columns 'model' and 'samples_per_second', or a column per GPU count "
    "('1 GPU', '2 GPUs'), GPU or network"
)


@dataclass
class Reading:
    """What was read of a file, and what its audit found.

    Attributes:
        claims: One for each throughput.
        unread: A note for each column and reason for which its cells could not be parsed, with the first one's text.
        blank: Number of cells without a number: empty, `-`, `n/a`, `OOM`.
        ignored: Headings of columns without throughputs or known settings.
        findings: Worst first, with the notes on unread cells; empty before the audit.
    """

    claims: list[Claim] = field(default_factory=list)
    unread: list[TableFinding] = field(default_factory=list)
    blank: int = 0
    ignored: list[str] = field(default_factory=list)
    findings: list[TableFinding] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """Number of cells with a throughput, read or not."""
        return len(self.claims) + sum(len(note.rows) for note in self.unread)

    @property
    def read_enough(self) -> bool:
        """Whether enough of the non-blank cells was parsed for an absence of findings to be meaningful."""
        return self.cells > 0 and len(self.claims) >= ENOUGH_READ * self.cells


def read_throughputs(path: Path, decimal: str | None = None) -> Reading:
    """Read all tables of a file that have throughputs.

    Args:
        path: The file, whose name may contain the network or the precision.
        decimal: The decimal mark; None: infer it.

    Raises:
        NotATable: No table has throughputs.
    """
    whole, refused, first_row = Reading(), [], 0
    for table in tables_of(read_text(path), path):
        reading = _read(table, re.sub("[_.-]+", " ", path.stem), decimal, first_row)
        if other := _not_rates(reading.claims):
            refused.append(f"holds {other}, not throughputs. Give samples per second")
        elif reading.claims or reading.unread:
            whole.claims += reading.claims
            whole.unread += reading.unread
            whole.blank += reading.blank
            whole.ignored = [*dict.fromkeys(whole.ignored + reading.ignored)]
        else:
            refused.append(f"{NEEDED}. Received: {', '.join(reading.ignored)}")
        first_row += len(table.rows)
    if not (whole.claims or whole.unread):
        raise NotATable(f"{path}: {'; '.join(refused)[:600]}")
    return whole


def _not_rates(claims: Sequence[Claim]) -> str:
    """Return what values are that cannot be throughputs, by themselves: each network has a 1, or all are small."""
    rates, models = [claim.rate for claim in claims], {claim.model for claim in claims}
    for base, most in RELATIVE.items():
        bases = [claim for claim in claims if claim.rate == base]
        enough = len(claims) > len(bases) and (base == 1 or len(models) > 1)
        if enough and {claim.model for claim in bases} == models and max(rates) < most:
            names = {f"{claim.gpu_text} {claim.precision} ×{claim.num_gpus}".strip() for claim in bases}
            return f"values relative to {names.pop() if len(names) == 1 else 'one of each network'} (= {base:g})"
    known = [claim for claim in claims if claim.gpus and claim.model in NETWORKS]
    if sum(NETWORKS[claim.model].unit == "images" for claim in known) > 1 and max(rates) < SLOWEST_GPU:
        return f"values of {min(rates):g} to {max(rates):g}, too small for a GPU (relative values, times or thousands?)"
    return ""


def _columns(table: RawTable) -> tuple[dict[str, int], dict[int, Facets], list[str]]:
    """Infer what columns hold from their headings and cells.

    Returns:
        Column by `gpu`, `model`, `precision`, `batch`, `count`, `hosts` or `label` (several in one cell), with the mode
        before it if it applies to that one only (`train batch`), or by name of a setting; parsed heading of each column
        of throughputs; headings of all other columns, with what they hold instead, if known.
    """
    roles, inferred, values, others = dict[str, int](), dict[str, int](), dict[int, Facets](), dict[int, str]()
    counts = {heading: read_count(heading) or 0 for heading in table.headings if not gpus_in(heading)}  # not a 3090
    counts = {heading: count for heading, count in counts.items() if 0 < count <= MOST_GPUS}
    for i, heading in enumerate(table.headings):
        cells = [row[i] for row in table.rows if row[i].strip()]
        looks = Counter(kind for cell in cells for kind in _kinds(cell))
        kinds = {kind for kind, number in looks.items() if number >= LOOKS_LIKE * len(cells)}
        facets = {"count": counts[heading]} if heading in counts and len(counts) > 1 else read_facets(heading)
        role, other = _role(heading, kinds), _other_figure(table, heading, cells, facets)
        if role and role not in roles:
            roles[role] = i
        elif other is None and "name" not in kinds:
            values[i] = facets
        else:
            others[i] = f" ({other})" if other else ""
            names = [name for name in ("model", "gpu", "precision", "count") if name in kinds]
            if names and "rate" not in facets and not table_text.other_figure(heading):
                inferred.setdefault("label" if len({*names} - {"count"}) > 1 else names[0], i)
    if bare := [i for i, facets in values.items() if not facets.keys() & KNOWN]:
        # one column of each mode, of all GPUs if there is one
        first = {values[i].get("mode"): i for i in sorted(bare, key=lambda i: ("each" not in values[i], -i))}
        values = {i: values[i] for i in sorted(first.values())}
    roles = inferred | roles
    unused = [i for i, heading in enumerate(table.headings) if heading.strip() and i not in {*roles.values(), *values}]
    return roles, values, [repr(plain(table.headings[i])) + others.get(i, "") for i in unused]


def _kinds(cell: str) -> set[str]:
    """Return what a cell may be: `gpu`, `model`, `precision`, a `count`; and whether it is a `number` or a `name`."""
    facets = read_facets(cell)
    kinds = facets.keys() & (KNOWN if facets.keys() == {"count"} else KNOWN - {"count"})
    if not isinstance(read_number(cell, ""), str):
        return kinds | {"number"}
    return kinds | {"name"} if facets.keys() & KNOWN else kinds


def _role(heading: str, kinds: set[str]) -> str:
    """Return the role that a heading names, or its cells if they differ; empty: unknown."""
    key = heading_key(heading)
    of_mode = OF_A_MODE.fullmatch(key)
    named = [
        role for role, pattern in table_text.ROLES.items() if re.fullmatch(pattern, of_mode[2] if of_mode else key)
    ]
    if "gpu" in kinds and (key == "device" or {"gpu", "count", "precision"} & {*named}):
        return "gpu"  # `GPUs` may have names or numbers
    if {"count", "number"} & kinds and {"gpu", "count"} & {*named}:
        return "count"
    if not named:
        return key if key in table_text.OTHER_SETTINGS else ""
    return f"{of_mode[1]} {named[0]}" if of_mode else named[0]


def _other_figure(table: RawTable, heading: str, cells: Sequence[str], facets: Facets) -> str | None:
    """Return what a column holds instead of throughputs, by its heading, the title or its cells.

    Returns:
        None: it holds throughputs; empty: unknown.
    """
    unit, numbers = table_text.has_rate_unit(heading), [cell for cell in cells if any(map(str.isdigit, cell))]
    if not numbers or (figure := table_text.other_figure(heading)):
        return figure if numbers else ""
    for line in table.title.splitlines():
        figure = table_text.other_figure(line)
        named = figure == "relative values" or (figure in OF_WHOLE_TABLES and "rate" not in read_facets(line))
        if named and not unit and not table_text.has_rate_unit(line):
            return f"{figure}, by its title"
    units = {"".join(re.findall(r"^[~!\d.,\s]+([a-z×%]+)$", plain(cell).lower())) for cell in numbers}
    if len(units) == 1 and (figure := table_text.other_figure(f"({units.pop()})")):
        return figure
    if not facets.keys() & {*KNOWN, "rate"}:
        return ""
    return f"{facets['rest']!r} is not understood" if "rest" in facets and not unit else None


def _read(table: RawTable, file_name: str, decimal: str | None, first_row: int) -> Reading:
    """Read the rows of a table, which may hold no throughputs."""
    context = table_text.read_context(f"{table.context}\n{file_name}") | table_text.read_context(table.title)
    roles, values, ignored = _columns(table)
    reading, texts, unread = Reading(ignored=ignored), dict[str, str](), list[tuple[tuple[str, str], tuple[str, int]]]()
    named = {"model", "label"} & roles.keys() or any("model" in facets for facets in (context, *values.values()))
    if not named or _RATIOS.search(table.context):
        return reading  # no networks, or ratios of our own report
    mark = decimal or table_text.decimal_mark(row[i] for row in table.rows for i in values)
    mark = mark or ("." if table.commas else "")  # files with commas as delimiters have decimal points
    for row, cells in enumerate(table.rows, first_row):
        above = {role: texts.get(role, "") for role in ("label", "model", "gpu")}  # of an empty name
        texts = {role: plain(cells[i]) or above.get(role, "") for role, i in roles.items()}
        labels = _labels(texts)
        if not any(cells[i].strip() for i in values):
            continue  # a heading within the table
        for i, facets in values.items():
            facts, heading = context | facets | labels, plain(table.headings[i])
            number = read_number(cells[i], mark)
            reason = number if isinstance(number, str) else _refusal(texts, facts, heading)
            if reason:
                unread.append(((heading, reason), (cells[i].strip(), row)))
            elif isinstance(number, str):
                reading.blank += 1
            else:
                reading.claims.append(_claim(row, texts, facts, *number))
    for (heading, reason), places in grouped(unread).items():
        rows, text = tuple(row for _, row in places), f"column {heading!r}: {places[0][0]!r}: {reason}"
        reading.unread.append(TableFinding("unread_cell", Severity.NOTE, rows, text))
    return reading


def _labels(texts: Mapping[str, str]) -> Facets:
    """Parse the labels of a row; a column of its own counts more than a label of several."""
    labels = Facets()
    for role in ("label", "model", "gpu"):
        text = texts.get(role, "")
        facets = read_facets(text)
        labels |= {name: value for name, value in facets.items() if name != "each"}
        if role == "gpu" and text:
            labels["gpu"] = facets.get("gpu") or facets.get("rest", "")
        if role == "model" and text and (is_network(text) or not is_network(facets.get("model", ""))):
            labels["model"] = text  # the whole text is the name if only a part is known
    if labels.get("gpu") and texts.get("slice", "").lower() not in ("", "no", "none", "full", "off", "false", "-"):
        labels["gpu"] += f" MIG {texts['slice']}"
    if precision := texts.get("precision"):
        labels |= {"precision": precision.lower()} | read_facets(precision)
    if count := read_count(texts.get("count", "")):
        labels["count"] = count * (read_count(texts.get("hosts", "")) or 1)
    return labels


def _refusal(texts: Mapping[str, str], facts: Facets, heading: str) -> str:
    """Return why a number is no throughput of a known case; empty: it is one."""
    model = facts.get("model", "")
    network = NETWORKS.get(model_key(model))
    if texts.get("count") and read_count(texts["count"]) is None:
        return f"number of GPUs {texts['count']!r} cannot be read"
    if network and network.unit != "tokens" and re.search(r"\btok", heading, re.IGNORECASE):
        return f"tokens, but {model} is counted in {network.unit}"
    return "" if model else "no network"


def _claim(row: int, texts: Mapping[str, str], facts: Facets, rate: float, last_place: float) -> Claim:
    settings = {name: text for name, text in texts.items() if name in table_text.OTHER_SETTINGS and text}
    mode = "infer" if (settings.get("mode") or facts.get("mode", "")).lower().startswith("infer") else "train"
    sizes = (texts.get(f"{mode} {role}", texts.get(role, "")) for role in ("batch", "image_size"))
    batch, size = (int("".join(takewhile(str.isdecimal, text)) or 0) for text in sizes)
    batch, size = batch or facts.get("batch", 0), size or facts.get("image_size", 0)
    gpu, model, count = facts.get("gpu", ""), model_key(facts["model"]), facts.get("count") or 1
    size = 0 if size == networks().get(model, {}).get("size") else size
    settings |= {"image_size": str(size)} if size else {}
    group, software = (
        tuple(f"{name}={text}" for name, text in settings.items() if name in names) for names in (settings, SOFTWARE)
    )
    strict, of_all = "strict" in facts or settings.get("tf32", "").lower() == "false", count if "each" in facts else 1
    case = model, facts.get("precision", ""), strict, batch, count
    return Claim(row, (gpu, *group), software, gpu, *case, rate * of_all, last_place * of_all, mode, size)
