"""Parses throughput tables of any origin into claims; unread cells are reported with a reason.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         | Network | A4000 (img/s) | 8x A5000 (img/s) |
RTX A4000,ResNet50,fp16,256,1,453                           | ResNet50 FP16 | 453,5 | 5.512,4 ± 3,1 † |
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from results.audit import table_text
from results.audit.findings import CLAIM, Severity, TableFinding
from results.audit.table_text import ALIASES, Facets, heading_key, plain, read_count, read_facets, read_number
from results.audit.tables import RawTable, read_tables
from results.errors import NotATable
from results.reference.gpus import gpus_in, is_slice
from results.reference.networks import is_network, model_key, networks
from results.schema import SETTINGS
from results.schema.networks import NETWORKS

MOST_GPUS = 4096
"""Largest number in a heading that is a number of GPUs."""

LOOKS_LIKE = 0.5
"""Share of a column's cells that must be networks or GPUs to infer its role without a heading."""

OF_A_MODE = re.compile(r"(?P<mode>train|infer)(?:ing|ence)?_(?=(?:batch_size|bs|img_size|image_size)$)")
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
limits of `copies.py`.
"""

ENOUGH_READ = 0.8
"""Minimum share of non-blank cells that must be read for an absence of findings to be meaningful."""

NEEDED = (
    "needs networks and throughputs: columns 'model' and 'samples_per_second', or a column per GPU count "
    "('1 GPU', '2 GPUs'), GPU or network"
)


def _is_gpu(cell: str) -> bool:
    return bool(gpus_in(cell)) or bool(read_facets(cell).gpu)


def _is_count(cell: str) -> bool:
    return read_count(cell) is not None


ROLES: tuple[tuple[str, frozenset[str], Callable[[str], bool] | None], ...] = (
    ("gpu", ALIASES["gpu"] | ALIASES["count"] | ALIASES["precision"], _is_gpu),  # `GPUs` may have names or numbers
    ("count", ALIASES["gpu"] | ALIASES["count"], _is_count),
    ("gpu", ALIASES["gpu"] - {*SETTINGS}, None),
    ("count", ALIASES["count"], lambda cell: not _is_gpu(cell)),
    *((role, ALIASES[role], None) for role in ("model", "precision", "batch", "image_size", "hosts", "slice")),
)
"""Roles of columns by heading and by what most cells are; the first row that a column fits counts."""

ROLES_BY_CELLS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("model", lambda cell: bool(read_facets(cell).model)),
    ("gpu", lambda cell: bool(read_facets(cell).gpu)),
    ("precision", lambda cell: bool(read_facets(cell).precision)),
    ("count", lambda cell: read_facets(cell).count is not None and not read_facets(cell).rest),
)
"""Roles of columns without a known heading; one that fits several of the first three is a `label`."""


@dataclass
class Reading:
    """What was read of a file, and what its audit found.

    Attributes:
        claims: A row per throughput:

            row: 0-based data row of the file, counted over all its tables; `column`: heading of its column.
            group: table that it belongs to: source, GPU and all settings not in other columns.
            software: settings in `group` that other GPUs can share.
            gpu_text: name of the GPU as received, without a count; empty without a column.
            gpus: all GPUs in `reference/gpu_specs.csv` that may have this name.
            model: canonical name of the network; `precision`: `fp32`, `tf32`, `fp16`, `bf16`, or as received.
            strict: whether fp32 is known to be IEEE arithmetic without TF32.
            batch: samples per GPU and step, `image_size`: height and width in pixels, if not the default; 0: not given.
            num_gpus: number of GPUs; `mode`: `train` or `infer`.
            rate: samples per second over all GPUs; `last_place`: unit of its last digit.
        unread: A note for each cell of a throughput that could not be parsed.
        blank: Number of cells without a number: empty, `-`, `n/a`, `OOM`.
        ignored: Headings of columns without throughputs or known settings.
        findings: Worst first, with the notes on unread cells; empty before the audit.
    """

    claims: pd.DataFrame
    unread: list[TableFinding] = field(default_factory=list)
    blank: int = 0
    ignored: list[str] = field(default_factory=list)
    findings: list[TableFinding] = field(default_factory=list)

    @property
    def read_enough(self) -> bool:
        """Whether enough of the non-blank cells was parsed for an absence of findings to be meaningful."""
        cells = len(self.claims) + len(self.unread)
        return cells > 0 and len(self.claims) >= ENOUGH_READ * cells


def read_claims(path: Path) -> pd.DataFrame:
    """Read the claims of a file.

    Raises:
        NotATable: No table in it has throughputs of networks.
    """
    return read_throughputs(path).claims


def read_throughputs(path: Path, decimal: str | None = None) -> Reading:
    """Read all tables of a file that have throughputs.

    Args:
        path: The file, whose name may contain the network or the precision.
        decimal: The decimal mark; None: infer it.

    Raises:
        NotATable: No table has throughputs.
    """
    readings, refused, first_row = [], [], 0
    for table in read_tables(path):
        context = _merged(table_text.read_context(table.title, ""), table_text.read_context(table.context, path.stem))
        reading = _read(table, context, decimal, first_row)
        if other := _not_rates(reading.claims):
            refused.append(f"holds {other}, not throughputs. Give samples per second")
        elif len(reading.claims) or reading.unread:
            readings.append(reading)
        else:
            refused.append(f"{NEEDED}. Received: {', '.join(reading.ignored)}")
        first_row += len(table.rows)
    if not readings:
        raise NotATable(f"{path}: {'; '.join(refused)[:600]}")
    return Reading(
        pd.concat([reading.claims for reading in readings], ignore_index=True),
        [cell for reading in readings for cell in reading.unread],
        sum(reading.blank for reading in readings),
        [*dict.fromkeys(name for reading in readings for name in reading.ignored)],
    )


def _not_rates(claims: pd.DataFrame) -> str:
    """Return what values are that cannot be throughputs, by themselves: each network has a 1, or all are small."""
    for base, most in RELATIVE.items():
        bases = claims[claims.rate == base]
        enough = len(claims) > len(bases) and (base == 1 or claims.model.nunique() > 1)
        if enough and {*bases.model} == {*claims.model} and (claims.rate < most).all():
            parts = zip(bases.gpu_text, bases.precision, bases.num_gpus, strict=True)
            names = {f"{gpu} {precision} ×{count}".strip() for gpu, precision, count in parts}
            return f"values relative to {names.pop() if len(names) == 1 else 'one of each network'} (= {base:g})"
    units = claims.model.map({name: network.unit for name, network in NETWORKS.items()})
    if (claims.gpus.map(bool) & (units == "images")).sum() > 1 and (claims.rate < SLOWEST_GPU).all():
        low, high = claims.rate.min(), claims.rate.max()
        return f"values of {low:g} to {high:g}, too small for a GPU (relative values, times or thousands?)"
    return ""


def _columns(table: RawTable) -> tuple[dict[str, int], dict[int, Facets], list[str]]:
    """Infer what columns hold from their headings and cells.

    Returns:
        Column by `gpu`, `model`, `precision`, `batch`, `count`, `hosts` or `label` (several in one cell), with the mode
        before it if it applies to that one only (`train batch`), or by name of a setting; parsed heading of each column
        of throughputs; headings of all other columns, with what they hold instead, if known.
    """
    keys = [*map(heading_key, table.headings)]
    roles = _roles_by_heading(table, keys)
    settings = {key: i for i, key in enumerate(keys) if key in ALIASES["settings"] and i not in roles.values()}
    left = [i for i in range(len(keys)) if i not in {*roles.values(), *settings.values()}]
    values, others = _values(table, left)
    for i in left:
        if i not in values and (role := _role_by_cells(table, i)):
            roles.setdefault(role, i)
    bare = [i for i, facets in values.items() if not facets.known and i not in roles.values()]
    if bare:  # one column of each mode, of all GPUs if there is one
        first = {values[i].mode: i for i in sorted(bare, key=lambda i: (not values[i].each, -i))}
        values = {i: values[i] for i in sorted(first.values())}
    used = {*roles.values(), *settings.values(), *values}
    ignored = [
        repr(plain(heading)) + (f" ({others[i]})" if i in others else "")
        for i, heading in enumerate(table.headings)
        if i not in used and heading.strip()
    ]
    return settings | roles, values, ignored


def _share(table: RawTable, column: int, test: Callable[[str], object]) -> float:
    """Return the share of a column's non-blank cells that pass a test."""
    cells = [row[column] for row in table.rows if row[column].strip()]
    return sum(bool(test(cell)) for cell in cells) / len(cells) if cells else 0.0


def _roles_by_heading(table: RawTable, keys: Sequence[str]) -> dict[str, int]:
    roles: dict[str, int] = {}
    for role, aliases, test in ROLES:
        for i, key in enumerate(keys):
            of_mode = OF_A_MODE.match(key)
            name = f"{of_mode['mode']} {role}" if of_mode else role
            fits = key[of_mode.end() if of_mode else 0 :] in aliases and name not in roles
            if fits and i not in roles.values() and (test is None or _share(table, i, test) >= LOOKS_LIKE):
                roles[name] = i
    return roles


def _values(table: RawTable, columns: Sequence[int]) -> tuple[dict[int, Facets], dict[int, str]]:
    """Return the columns of throughputs with their parsed headings, and what other columns of numbers hold."""
    counts = {i: read_count(table.headings[i]) or 0 for i in columns if not gpus_in(table.headings[i])}  # not a 3090
    counts = {i: count for i, count in counts.items() if 0 < count <= MOST_GPUS}
    values, others = {}, {}
    for i in columns:
        heading, is_count = table.headings[i], len(counts) > 1 and i in counts
        facets = Facets(count=counts[i]) if is_count else read_facets(heading)
        if not _share(table, i, _has_digit):
            continue
        if other := _other_figure(table, i):
            others[i] = other
        elif (facets.known or facets.rate) and (is_count or _share(table, i, _is_name) <= LOOKS_LIKE):
            if facets.rest and not table_text.has_rate_unit(heading):
                others[i] = f"{facets.rest!r} is not understood"
            else:
                values[i] = facets
    return values, others


def _other_figure(table: RawTable, column: int) -> str:
    """Return what a column holds instead of throughputs, by its heading, its cells or the title; empty: unknown."""
    heading = table.headings[column]
    if figure := table_text.other_figure(heading):
        return figure
    cells = [row[column] for row in table.rows if _has_digit(row[column])]
    titles = [line for line in table.title.splitlines() if not table_text.has_rate_unit(line)]
    figures = {figure: line for line in titles if (figure := table_text.other_figure(line))}
    if figures and all(cell.rstrip(" !").endswith("%") for cell in cells):
        return "percentages"
    named = next((figure for figure in OF_WHOLE_TABLES if figure in figures), "")
    meant = named == "relative values" or (named and not read_facets(figures[named]).rate)
    if meant and not table_text.has_rate_unit(heading):
        return f"{named}, by its title"
    units = {*map(table_text.cell_figure, cells)}
    return units.pop() if len(units) == 1 else ""


def _role_by_cells(table: RawTable, column: int) -> str | None:
    heading = table.headings[column]
    if table_text.other_figure(heading) or read_facets(heading).rate:
        return None
    roles = [role for role, test in ROLES_BY_CELLS if _share(table, column, test) >= LOOKS_LIKE]
    return "label" if len({*roles} - {"count"}) > 1 else roles[0] if roles else None


def _read(table: RawTable, context: Facets, decimal: str | None, first_row: int) -> Reading:
    """Read the rows of a table, which may hold no throughputs."""
    roles, values, ignored = _columns(table)
    reading = Reading(pd.DataFrame(columns=CLAIM), ignored=ignored)
    named = {"model", "label"} & roles.keys() or context.model
    if not (named or any(facets.model for facets in values.values())) or _RATIOS.search(table.context):
        return reading  # no networks, or ratios of our own report
    wide = any(facets.known for facets in values.values())
    marks, claims, above = _decimal_marks(table, values, decimal), [], dict[str, str]()
    for row, cells in enumerate(table.rows, first_row):
        texts = {role: plain(cells[i]) for role, i in roles.items()}
        for role in ("model", "gpu", "label") if wide else ("model",):
            if role in texts:  # an empty name is that of the row above
                above[role] = texts[role] = texts[role] or above.get(role, "")
        labels = _labels(texts)
        if not any(cells[i].strip() for i in values):
            continue  # a heading within the table
        for i, facets in values.items():
            facts, heading = _merged(_merged(labels, facets), context), plain(table.headings[i])
            number = read_number(cells[i], marks[i])
            reason = number if isinstance(number, str) else _refusal(texts, facts, heading)
            if reason:
                text = f"column {heading!r}: {cells[i].strip()!r}: {reason}"
                reading.unread.append(TableFinding("unread_cell", Severity.NOTE, (row,), text))
            elif isinstance(number, str):
                reading.blank += 1
            else:
                claims.append((row, heading, *_claim(texts, facts, *number)))
    reading.claims = pd.DataFrame(claims, columns=CLAIM)
    return reading


def _decimal_marks(table: RawTable, columns: Iterable[int], decimal: str | None) -> dict[int, str]:
    """Return the decimal mark of each column of throughputs, inferred from its numbers, else from the table's."""
    texts = {i: [row[i] for row in table.rows] for i in columns}
    usual = table_text.decimal_mark(itertools.chain(*texts.values()))
    usual = usual or ("." if table.commas else "")  # files with commas as delimiters have decimal points
    return {i: decimal or table_text.decimal_mark(cells) or usual for i, cells in texts.items()}


def _labels(texts: Mapping[str, str]) -> Facets:
    """Parse the labels of a row."""
    labels = Facets()
    for role in ("gpu", "model", "label"):
        if texts.get(role):
            labels = _merged(_label(role, texts[role]), labels)
    if labels.gpu and texts.get("slice", "").lower() not in ("", "no", "none", "full", "off", "false", "-"):
        labels = replace(labels, gpu=f"{labels.gpu} MIG {texts['slice']}")
    gpus, hosts = (read_count(texts.get(role, "")) for role in ("count", "hosts"))
    return _merged(Facets(count=gpus and gpus * (hosts or 1), precision=texts.get("precision", "")), labels)


def _refusal(texts: Mapping[str, str], facts: Facets, heading: str) -> str:
    """Return why a number is no throughput of a known case; empty: it is one."""
    network = NETWORKS.get(_model(facts.model)) if facts.model else None
    if texts.get("count") and read_count(texts["count"]) is None:
        return f"number of GPUs {texts['count']!r} cannot be read"
    if network and network.unit != "tokens" and re.search(r"\btok", heading, re.IGNORECASE):
        return f"tokens, but {facts.model} is counted in {network.unit}"
    return "" if facts.model else "no network"


def _claim(texts: Mapping[str, str], facts: Facets, rate: float, last_place: float) -> Iterator[object]:
    """Yield the columns of a claim after its place."""
    settings = {name: text for name, text in texts.items() if name in ALIASES["settings"] and text}
    mode = "infer" if settings.get("mode", facts.mode).lower().startswith("infer") else "train"
    batch, size = (_first_number(texts.get(f"{mode} {role}", texts.get(role, ""))) for role in ("batch", "image_size"))
    model, count, size = _model(facts.model), facts.count or 1, size or int(facts.image_size or 0)
    size = 0 if model in networks() and size == networks()[model].size else size
    settings |= {"image_size": str(size)} if size else {}
    precision, of_all = facts.precision.lower(), count if facts.each else 1
    yield (facts.gpu, *(f"{name}={value}" for name, value in settings.items()))
    yield tuple(f"{name}={value}" for name, value in settings.items() if name in SOFTWARE)
    yield from (facts.gpu, () if is_slice(facts.gpu) else gpus_in(facts.gpu), model)
    yield table_text.read_precision(precision).partition(",")[0]
    yield "tf32 off" in precision or settings.get("tf32", "").lower() == "false"
    yield from (batch or facts.batch or 0, count, rate * of_all, last_place * of_all, mode, size)


def _first_number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def _has_digit(cell: str) -> bool:
    return any(character.isdigit() for character in cell)


def _is_name(cell: str) -> bool:
    """Return whether a cell is a name rather than a number, so that its column is a label whatever its heading."""
    return isinstance(read_number(cell, ""), str) and read_facets(cell).known


def _label(role: str, text: str) -> Facets:
    """Parse a label; the whole text is the name if only a part is known."""
    facets = read_facets(text)
    if role == "gpu":
        count, rest = table_text.take_count(text.replace("_", " "))
        return Facets(count=count, gpu=" ".join(rest.split()), precision=facets.precision, model=facets.model)
    if role == "model" and (is_network(text) or not is_network(facets.model)):
        return Facets(model=text, precision=facets.precision, batch=facets.batch, count=facets.count)
    return facets


def _merged(first: Facets, second: Facets) -> Facets:
    """Return `first` with its empty fields replaced by those of `second`."""
    return Facets(**{name: value or getattr(second, name) for name, value in vars(first).items() if name != "rest"})


def _model(text: str) -> str:
    part = read_facets(text).model
    begins = heading_key(text).startswith(heading_key(part))
    return model_key(part if not is_network(text) and is_network(part) and begins else text)
