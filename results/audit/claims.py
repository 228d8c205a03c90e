"""Parses throughput tables of any origin into claims; unread cells are reported with a reason.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         | Network | A4000 (img/s) | 8x A5000 (img/s) |
RTX A4000,ResNet50,fp16,256,1,453                           | ResNet50 FP16 | 453,5 | 5.512,4 ± 3,1 † |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from results.audit.findings import CLAIM, Severity, TableFinding
from results.audit.table_text import (
    ALIASES,
    Facets,
    cell_figure,
    decimal_mark,
    has_rate_unit,
    heading_key,
    other_figure,
    plain,
    read_context,
    read_count,
    read_facets,
    read_number,
    read_precision,
    take_count,
)
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

NEEDED = (
    "needs networks and throughputs: columns 'model' and 'samples_per_second', or a column per GPU count "
    "('1 GPU', '2 GPUs'), GPU or network"
)


def _is_gpu(cell: str) -> bool:
    return bool(gpus_in(cell)) or bool(read_facets(cell).gpu)


def _is_count(cell: str) -> bool:
    return read_count(cell) is not None


def _is_anything(_: str) -> bool:
    return True


ROLES: tuple[tuple[str, frozenset[str], Callable[[str], bool]], ...] = (
    ("gpu", ALIASES["gpu"] | ALIASES["count"] | ALIASES["precision"], _is_gpu),  # `GPUs` may have names or numbers
    ("count", ALIASES["gpu"] | ALIASES["count"], _is_count),
    ("gpu", ALIASES["gpu"] - {*SETTINGS}, _is_anything),
    ("count", ALIASES["count"], lambda cell: not _is_gpu(cell)),
    *((role, ALIASES[role], _is_anything) for role in ("model", "precision", "batch", "image_size", "hosts", "slice")),
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
    """Claims and unread cells of a file.

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
    """

    claims: pd.DataFrame
    unread: list[TableFinding] = field(default_factory=list)
    blank: int = 0
    ignored: list[str] = field(default_factory=list)

    @property
    def share_read(self) -> float:
        """Share of the non-blank cells that were parsed."""
        cells = len(self.claims) + len(self.unread)
        return len(self.claims) / cells if cells else 0.0


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
        context = _merged(read_context(table.title, ""), read_context(table.context, path.stem))
        reading = _TableReader(table, context, decimal, first_row).read()
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


class _TableReader:
    """Reads one table.

    Attributes:
        roles: Column by `gpu`, `model`, `precision`, `batch`, `count`, `hosts` or `label` (several in one cell); with
            the mode before it if it applies to that one only: `train batch`.
        settings: Column by name of the setting.
        values: Parsed heading of each column of throughputs.
        ignored: Headings of all other columns, with what they hold instead, if known.
    """

    def __init__(self, table: RawTable, context: Facets, decimal: str | None, first_row: int) -> None:
        self.table, self.context, self.decimal, self.first_row = table, context, decimal, first_row
        keys = [*map(heading_key, table.headings)]
        self.roles = self._roles_by_heading(keys)
        self.settings = {
            key: i for i, key in enumerate(keys) if key in ALIASES["settings"] and i not in self.roles.values()
        }
        used = {*self.roles.values(), *self.settings.values()}
        left = [i for i in range(len(keys)) if i not in used]
        self.values, others = self._values(left)
        for column in left:
            if column not in self.values and (role := self._role_by_cells(column)):
                self.roles.setdefault(role, column)
        self.long = not any(facets.known for facets in self.values.values())
        bare = [i for i, facets in self.values.items() if not facets.known and i not in self.roles.values()]
        if bare:  # one column of each mode, of all GPUs if there is one
            first = {self.values[i].mode: i for i in sorted(bare, key=lambda i: (not self.values[i].each, -i))}
            self.values = {i: self.values[i] for i in sorted(first.values())}
        used = {*self.roles.values(), *self.settings.values(), *self.values}
        self.ignored = [
            f"{plain(heading)!r} ({others[i]})" if i in others else repr(plain(heading))
            for i, heading in enumerate(table.headings)
            if i not in used and heading.strip()
        ]
        self.above: dict[str, str] = {}  # texts of label columns, for the empty cells below

    def _share(self, column: int, test: Callable[[str], bool]) -> float:
        cells = [row[column] for row in self.table.rows if row[column].strip()]
        return sum(map(test, cells)) / len(cells) if cells else 0.0

    def _roles_by_heading(self, keys: Sequence[str]) -> dict[str, int]:
        roles: dict[str, int] = {}
        for role, aliases, test in ROLES:
            for i, key in enumerate(keys):
                of_mode = OF_A_MODE.match(key)
                name = f"{of_mode['mode']} {role}" if of_mode else role
                fits = key[of_mode.end() if of_mode else 0 :] in aliases and name not in roles
                if fits and i not in roles.values() and (test is _is_anything or self._share(i, test) >= LOOKS_LIKE):
                    roles[name] = i
        return roles

    def _values(self, columns: Sequence[int]) -> tuple[dict[int, Facets], dict[int, str]]:
        """Return the columns of throughputs with their parsed headings, and what other columns of numbers hold."""
        headings = self.table.headings
        counts = {i: count for i in columns if (count := read_count(headings[i])) and count <= MOST_GPUS}
        counts = {i: count for i, count in counts.items() if not gpus_in(headings[i])}  # 3090
        values, others = {}, {}
        for i in columns:
            count = counts.get(i) if len(counts) > 1 else None
            facets = Facets(count=count) if count else read_facets(headings[i])
            if not self._share(i, _has_digit):
                continue
            if other := self._other_figure(i):
                others[i] = other
            elif (facets.known or facets.rate) and (count or self._share(i, _is_name) <= LOOKS_LIKE):
                if facets.rest and not has_rate_unit(headings[i]):
                    others[i] = f"{facets.rest!r} is not understood"
                else:
                    values[i] = facets
        return values, others

    def _other_figure(self, column: int) -> str:
        """Return what a column holds instead of throughputs, by its heading, its cells or the title; empty: unknown."""
        heading = self.table.headings[column]
        cells = [row[column] for row in self.table.rows if _has_digit(row[column])]
        titles = [line for line in self.table.title.splitlines() if not has_rate_unit(line)]
        figures = {figure: line for line in titles if (figure := other_figure(line))}
        if figure := other_figure(heading):
            return figure
        if figures and all(cell.rstrip(" !").endswith("%") for cell in cells):
            return "percentages"
        named = next((figure for figure in OF_WHOLE_TABLES if figure in figures), "")
        meant = named == "relative values" or (named and not read_facets(figures[named]).rate)
        if meant and not has_rate_unit(heading):
            return f"{named}, by its title"
        units = {*map(cell_figure, cells)}
        return units.pop() if len(units) == 1 else ""

    def _role_by_cells(self, column: int) -> str | None:
        heading = self.table.headings[column]
        if other_figure(heading) or read_facets(heading).rate:
            return None
        roles = [role for role, test in ROLES_BY_CELLS if self._share(column, test) >= LOOKS_LIKE]
        return "label" if len({*roles} - {"count"}) > 1 else roles[0] if roles else None

    def read(self) -> Reading:
        """Read the rows."""
        reading = Reading(pd.DataFrame(columns=CLAIM), ignored=self.ignored)
        named = {"model", "label"} & self.roles.keys() or self.context.model
        if not (named or any(f.model for f in self.values.values())) or _RATIOS.search(self.table.context):
            return reading  # no networks, or ratios of our own report
        marks, claims = self._decimal_marks(), []
        for row, cells in enumerate(self.table.rows, self.first_row):
            labels = self._labels(cells)
            if not any(cells[column].strip() for column in self.values):
                continue  # a heading within the table
            for column, facets in self.values.items():
                facts, heading = _merged(_merged(labels, facets), self.context), plain(self.table.headings[column])
                number = read_number(cells[column], marks[column])
                reason = number if isinstance(number, str) else self._refusal(cells, facts, heading)
                if reason:
                    text = f"column {heading!r}: {cells[column].strip()!r}: {reason}"
                    reading.unread.append(TableFinding("unread_cell", Severity.NOTE, (row,), text))
                elif isinstance(number, str):
                    reading.blank += 1
                else:
                    claims.append((row, heading, *self._claim(cells, facts, *number)))
        reading.claims = pd.DataFrame(claims, columns=CLAIM)
        return reading

    def _decimal_marks(self) -> dict[int, str]:
        """Return the decimal mark of each column of throughputs, inferred from its numbers, else from the table's."""
        texts = {column: [row[column] for row in self.table.rows] for column in self.values}
        usual = decimal_mark(cell for cells in texts.values() for cell in cells)
        usual = usual or ("." if self.table.commas else "")  # files with commas as delimiters have decimal points
        return {column: self.decimal or decimal_mark(cells) or usual for column, cells in texts.items()}

    def _labels(self, cells: Sequence[str]) -> Facets:
        """Parse the labels of a row; an empty network, or GPU in a wide table, is that of the row above."""
        texts = {role: plain(cells[column]) for role, column in self.roles.items()}
        for role in ("model",) if self.long else ("model", "gpu", "label"):
            if role in texts:
                self.above[role] = texts[role] = texts[role] or self.above.get(role, "")
        labels = Facets()
        for role in ("gpu", "model", "label"):
            if texts.get(role):
                labels = _merged(_label(role, texts[role]), labels)
        if labels.gpu and texts.get("slice", "").lower() not in ("", "no", "none", "full", "off", "false", "-"):
            labels = replace(labels, gpu=f"{labels.gpu} MIG {texts['slice']}")
        gpus, hosts = (read_count(texts.get(role, "")) for role in ("count", "hosts"))
        cells_of_roles = Facets(count=gpus * (hosts or 1) if gpus else None, precision=texts.get("precision", ""))
        return _merged(cells_of_roles, labels)

    def _refusal(self, cells: Sequence[str], facts: Facets, heading: str) -> str:
        """Return why a number is no throughput of a known case; empty: it is one."""
        count = plain(cells[self.roles["count"]]) if "count" in self.roles else ""
        network = NETWORKS.get(_model(facts.model)) if facts.model else None
        if count and read_count(count) is None:
            return f"number of GPUs {count!r} cannot be read"
        if network and network.unit != "tokens" and re.search(r"\btok", heading, re.IGNORECASE):
            return f"tokens, but {facts.model} is counted in {network.unit}"
        return "" if facts.model else "no network"

    def _setting(self, role: str, mode: str, cells: Sequence[str]) -> int:
        """Return the number in a setting's column, of its mode if there is one; 0: not given."""
        column = self.roles.get(f"{mode} {role}", self.roles.get(role))
        digits = re.match(r"\d+", plain(cells[column])) if column is not None else None
        return int(digits[0]) if digits else 0

    def _claim(self, cells: Sequence[str], facts: Facets, rate: float, last_place: float) -> Iterator[object]:
        """Yield the columns of a claim after its place."""
        settings = {name: cells[i].strip() for name, i in self.settings.items() if cells[i].strip()}
        mode = "infer" if (settings.get("mode", facts.mode) or "train").lower().startswith("infer") else "train"
        model, count = _model(facts.model), facts.count or 1
        size = self._setting("image_size", mode, cells) or int(facts.image_size or 0)
        if size and (network := networks().get(model)) and size == network.size:
            size = 0
        settings |= {"image_size": str(size)} if size else {}
        precision, of_all = facts.precision.lower(), count if facts.each else 1
        yield (facts.gpu, *(f"{name}={value}" for name, value in settings.items()))
        yield tuple(f"{name}={value}" for name, value in settings.items() if name in SOFTWARE)
        yield from (facts.gpu, () if is_slice(facts.gpu) else gpus_in(facts.gpu), model)
        yield read_precision(precision).partition(",")[0]
        yield "tf32 off" in precision or settings.get("tf32", "").lower() == "false"
        yield self._setting("batch", mode, cells) or facts.batch or 0
        yield from (count, rate * of_all, last_place * of_all, mode, size)


def _has_digit(cell: str) -> bool:
    return any(character.isdigit() for character in cell)


def _is_name(cell: str) -> bool:
    """Return whether a cell is a name rather than a number, so that its column is a label whatever its heading."""
    return isinstance(read_number(cell, ""), str) and read_facets(cell).known


def _label(role: str, text: str) -> Facets:
    """Parse a label; the whole text is the name if only a part is known."""
    facets = read_facets(text)
    if role == "gpu":
        count, rest = take_count(text.replace("_", " "))
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
