"""Parses throughput tables of any origin into claims; unread cells are reported with a reason.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         | Network | A4000 (img/s) | 8x A5000 (img/s) |
RTX A4000,ResNet50,fp16,256,1,453                           | ResNet50 FP16 | 453,5 | 5.512,4 ± 3,1 † |
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from results.audit.tables import RawTable, read_tables
from results.audit.texts import (
    ALIASES,
    Decimal,
    Facets,
    Refusal,
    cell_figure,
    decimal_mark,
    find_gpus,
    has_rate_unit,
    heading_key,
    is_slice,
    other_figure,
    plain,
    read_context,
    read_count,
    read_facets,
    read_number,
    read_precision,
    take_count,
)
from results.errors import NotATable
from results.reference.networks import is_network, model_key, networks
from results.schema import SETTINGS
from results.schema.networks import NETWORKS

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in order."""
    found: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


MOST_GPUS = 4096
"""Largest number in a heading that is a number of GPUs."""

ROLES = ("gpu", "count", "model", "precision", "batch", "image_size", "hosts", "slice")

OF_A_MODE = re.compile(r"(?P<mode>train|infer)(?:ing|ence)?_(?=(?P<role>batch_size|bs|img_size|image_size)$)")
"""Headings of a setting of one mode: `train_batch_size`."""

_RATIOS = re.compile(r"^times (as fast|the samples per dollar),", re.MULTILINE)
"""First note below a table of ratios in our own reports."""

LOOKS_LIKE = 0.5
"""Share of a column's cells that must be networks or GPUs to infer its role without a heading."""


@dataclass(frozen=True)
class Columns:
    """Roles of the columns of a table.

    Attributes:
        roles: Column by `gpu`, `model`, `precision`, `batch`, `count`, `hosts` or `label` (several in one cell); with
            the mode before it if it applies to that one only: `train batch`.
        settings: Column by name of the setting.
        values: Parsed heading of each column of throughputs.
        ignored: Headings of all other columns, with what they hold instead, if known.
        long: Whether no heading of throughputs has a part of the case.
    """

    roles: dict[str, int]
    settings: dict[str, int]
    values: dict[int, Facets]
    ignored: list[str]
    long: bool


def meant_columns(table: RawTable) -> Columns:
    """Infer the roles of a table's columns."""
    roles = _roles_by_heading(table)
    settings = {key: i for i, text in enumerate(table.headings) if (key := heading_key(text)) in ALIASES["settings"]}
    settings = {key: i for key, i in settings.items() if i not in roles.values()}
    left = [i for i in range(len(table.headings)) if i not in {*roles.values(), *settings.values()}]
    values, reasons = _values(table, left)
    for column in left:
        role = _role_by_cells(table, column) if column not in values else None
        if role and role not in roles:
            roles[role] = column
    bare = [i for i, facets in values.items() if not facets.known and i not in roles.values()]
    if bare:  # one column of each mode, of all GPUs if there is one
        first = {values[i].mode: i for i in sorted(bare, key=lambda i: (not values[i].each, -i))}
        values = {i: values[i] for i in sorted(first.values())}
    ignored = [
        f"{plain(heading)!r} ({reasons[i]})" if i in reasons else repr(plain(heading))
        for i, heading in enumerate(table.headings)
        if i not in {*roles.values(), *settings.values(), *values} and heading.strip()
    ]
    return Columns(roles, settings, values, ignored, long=not any(facets.known for facets in values.values()))


def _roles_by_heading(table: RawTable) -> dict[str, int]:
    roles: dict[str, int] = {}
    for i, heading in enumerate(table.headings):
        key = heading_key(heading)
        of_mode = OF_A_MODE.match(key)
        role = next(
            (role for role in ROLES if key in ALIASES[role] or (of_mode and of_mode["role"] in ALIASES[role])), None
        )
        gpus = _share(table, i, _is_gpu) >= LOOKS_LIKE
        if role in ("gpu", "count", "precision") and gpus:  # a column `GPUs` may have names or numbers
            role = "gpu"
        elif role in ("gpu", "count") and _share(table, i, lambda cell: read_count(cell) is not None) >= LOOKS_LIKE:
            role = "count"
        elif role == "gpu" and key in SETTINGS:
            role = None
        name = f"{of_mode['mode']} {role}" if of_mode else role
        if name and (name not in roles or (role == "gpu" and gpus and not _share(table, roles[name], _is_gpu))):
            roles[name] = i
    return roles


def _values(table: RawTable, columns: Sequence[int]) -> tuple[dict[int, Facets], dict[int, str]]:
    """Return the columns of throughputs with their parsed headings, and what other columns of numbers hold."""
    counts = {i: count for i in columns if (count := read_count(table.headings[i])) and count <= MOST_GPUS}
    counts = {i: count for i, count in counts.items() if not find_gpus(table.headings[i])}  # 3090
    values, others = {}, {}
    for i in columns:
        heading = table.headings[i]
        count = counts.get(i) if len(counts) > 1 else None
        facets = Facets(count=count) if count else read_facets(heading)
        if not _share(table, i, _has_digit):
            continue
        if other := _other_figure(table, i):
            others[i] = other
        elif (facets.known or facets.rate) and (count or _share(table, i, _is_name) <= LOOKS_LIKE):
            if facets.rest and not has_rate_unit(heading):
                others[i] = f"{facets.rest!r} is not understood"
            else:
                values[i] = facets
    return values, others


OF_WHOLE_TABLES = ("relative values", "times", "steps, not samples")
"""Figures that a title names for all columns; that of a throughput may also name scaling or power."""


def _other_figure(table: RawTable, column: int) -> str:
    """Return what a column holds instead of throughputs, by its heading, its cells or the title; empty: unknown."""
    cells = [row[column] for row in table.rows if _has_digit(row[column])]
    titles = [line for line in table.title.splitlines() if not has_rate_unit(line)]
    figures = {figure: line for line in titles if (figure := other_figure(line))}
    if figure := other_figure(table.headings[column]):
        return figure
    if figures and all(cell.rstrip(" !").endswith("%") for cell in cells):
        return "percentages"
    named = next((figure for figure in OF_WHOLE_TABLES if figure in figures), "")
    meant = named == "relative values" or (named and not read_facets(figures[named]).rate)
    if meant and not has_rate_unit(table.headings[column]):
        return f"{named}, by its title"
    units = {*map(cell_figure, cells)}
    return units.pop() if len(units) == 1 else ""


def _role_by_cells(table: RawTable, column: int) -> str | None:
    """Infer a column's role from its cells: networks, GPUs, precisions, or several of them in one cell."""
    if other_figure(table.headings[column]) or read_facets(table.headings[column]).rate:
        return None
    roles = [
        role
        for role in ("model", "gpu", "precision")
        if _share(table, column, lambda cell: bool(getattr(read_facets(cell), role))) >= LOOKS_LIKE  # noqa: B023
    ]
    if len(roles) > 1:
        return "label"
    counts = _share(table, column, lambda cell: read_facets(cell).count is not None and not read_facets(cell).rest)
    return roles[0] if roles else "count" if counts >= LOOKS_LIKE else None


def _share(table: RawTable, column: int, test: Callable[[str], bool]) -> float:
    cells = [row[column] for row in table.rows if row[column].strip()]
    return sum(map(test, cells)) / len(cells) if cells else 0.0


def _is_gpu(cell: str) -> bool:
    return bool(find_gpus(cell)) or bool(read_facets(cell).gpu)


def _has_digit(cell: str) -> bool:
    return any(character.isdigit() for character in cell)


def _is_name(cell: str) -> bool:
    """Return whether a cell is a name rather than a number, so that its column is a label whatever its heading."""
    return isinstance(read_number(cell, None), Refusal) and read_facets(cell).known


SOFTWARE = {"source", "unit", "task", "method_version", *SETTINGS} - {"xla", "device", "warmup_steps", "num_steps"}
"""Settings that GPUs must share to be compared.

Excludes the framework and its version, which in many published tables differ between GPUs; these are still within the
limits of `copies.py`.
"""


@dataclass(frozen=True)
class Claim:
    """A throughput claimed by a table.

    Attributes:
        row: 0-based data row of the file, counted over all its tables.
        column: Heading of its column.
        group: Table that it belongs to: source, GPU and all settings not in other attributes.
        software: Settings in `group` that other GPUs can share.
        gpu: Name in `reference/gpu_specs.csv`; None: none or several match.
        gpus: All matching GPUs there.
        gpu_text: Name as received, without a count; empty without a column.
        model: Canonical name of the network.
        precision: `fp32`, `tf32`, `fp16`, `bf16`, or as received.
        strict: Whether fp32 is known to be IEEE arithmetic without TF32.
        batch: Samples per GPU and step; None: not given.
        count: Number of GPUs.
        rate: Samples per second over all GPUs.
        last_place: Unit of the last digit.
        mode: `train` or `infer`.
        image_size: Height and width in pixels; None: the network's default.
    """

    row: int
    group: tuple[str, ...]
    gpu: str | None
    gpu_text: str
    model: str
    precision: str
    strict: bool
    batch: int | None
    count: int
    rate: float
    last_place: float
    column: str = ""
    software: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    mode: str = "train"
    image_size: int | None = None

    @property
    def name(self) -> str:
        """Display name: network, precision and GPU count."""
        return " ".join(part for part in (self.model, self.precision, f"×{self.count}") if part)

    @property
    def number(self) -> str:
        """The throughput as text."""
        return f"{self.rate:.10g}"

    @property
    def rounding(self) -> float:
        """Largest relative rounding error of the number."""
        return self.last_place / 2 / self.rate

    @property
    def per_gpu(self) -> float:
        """Samples per second of one GPU."""
        return self.rate / self.count


@dataclass(frozen=True)
class UnreadCell:
    """A cell of a throughput that could not be parsed.

    Attributes:
        row: 0-based data row of the file.
        column: Heading of its column.
        text: Text of the cell.
    """

    row: int
    column: str
    text: str
    reason: str


@dataclass
class Reading:
    """Claims and unread cells of a file.

    Attributes:
        blank: Number of cells without a number: empty, `-`, `n/a`, `OOM`.
        ignored: Headings of columns without throughputs or known settings.
        refused: Why each of the other tables has no throughputs.
    """

    claims: list[Claim] = field(default_factory=list)
    unread: list[UnreadCell] = field(default_factory=list)
    blank: int = 0
    ignored: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, part: Reading) -> None:
        """Add what was read of another table."""
        self.claims += part.claims
        self.unread += part.unread
        self.blank += part.blank
        self.ignored += [name for name in part.ignored if name not in self.ignored]

    @property
    def share_read(self) -> float:
        """Share of the non-blank cells that were parsed."""
        cells = len(self.claims) + len(self.unread)
        return len(self.claims) / cells if cells else 0.0


def read_claims(path: Path) -> list[Claim]:
    """Read the claims of a file.

    Raises:
        NotATable: No table in it has throughputs of networks.
    """
    return read_throughputs(path).claims


def read_throughputs(path: Path, decimal: Decimal | None = None) -> Reading:
    """Read all tables of a file that have throughputs.

    Args:
        path: The file, whose name may contain the network or the precision.
        decimal: The decimal mark; None: infer it.

    Raises:
        NotATable: No table has throughputs.
    """
    tables, reading, first_row = read_tables(path), Reading(), 0
    for table in tables:
        context = _merged(read_context(table.title, ""), read_context(table.context, path.stem))
        columns = meant_columns(table)
        part = Reading(ignored=columns.ignored)
        if _has_networks(table, columns, context):
            part = _Reader(table, columns, context, decimal, first_row, part).read()
        if other := _not_rates(part.claims):
            reading.refused.append(f"holds {other}, not throughputs. Give samples per second")
        elif part.claims or part.unread:
            reading.add(part)
        else:
            reading.refused.append(f"{NEEDED}. Received: {', '.join(columns.ignored)}")
        first_row += len(table.rows)
    if len(reading.refused) == len(tables):
        raise NotATable(f"{path}: {'; '.join(reading.refused)[:600]}")
    return reading


NEEDED = (
    "needs networks and throughputs: columns 'model' and 'samples_per_second', or a column per GPU count "
    "('1 GPU', '2 GPUs'), GPU or network"
)


def _has_networks(table: RawTable, columns: Columns, context: Facets) -> bool:
    """Return whether a table has throughputs of networks, and not ratios of our own report."""
    named = {"model", "label"} & columns.roles.keys() or context.model or any(f.model for f in columns.values.values())
    return bool(named) and _RATIOS.search(table.context) is None


RELATIVE = {1.0: 30.0, 100.0: 2000.0}
"""Largest value of a table relative to 1, or to 100 %."""

SLOWEST_GPU = 5.0
"""Images per second that every GPU of the reference exceeds in training."""


def _not_rates(claims: Sequence[Claim]) -> str:
    """Return what values are that cannot be throughputs, by themselves: each network has a 1, or all are small."""
    networks_claimed = {claim.model for claim in claims}
    for base, most in RELATIVE.items():
        bases = [claim for claim in claims if claim.rate == base]
        enough = len(claims) > len(bases) and (base == 1 or len(networks_claimed) > 1)
        if (
            enough
            and {claim.model for claim in bases} == networks_claimed
            and all(claim.rate < most for claim in claims)
        ):
            names = {f"{claim.gpu_text} {claim.precision} ×{claim.count}".strip() for claim in bases}
            name = names.pop() if len(names) == 1 else "one of each network"
            return f"values relative to {name} (= {base:g})"
    images = [
        claim for claim in claims if claim.gpus and claim.model in NETWORKS and NETWORKS[claim.model].unit == "images"
    ]
    if len(images) > 1 and all(claim.rate < SLOWEST_GPU for claim in claims):
        low, high = min(claim.rate for claim in claims), max(claim.rate for claim in claims)
        return f"values of {low:g} to {high:g}, too small for a GPU (relative values, times or thousands?)"
    return ""


@dataclass
class _Reader:
    """Reads the rows of one table."""

    table: RawTable
    columns: Columns
    context: Facets
    decimal: Decimal | None
    first_row: int
    reading: Reading
    above: dict[str, str] = field(default_factory=dict)  # texts of label columns, for the empty cells below

    def read(self) -> Reading:
        marks = self._decimal_marks()
        for number, cells in enumerate(self.table.rows):
            labels = self._labels(cells)
            if not any(cells[column].strip() for column in self.columns.values):
                continue  # a heading within the table
            for column, facets in self.columns.values.items():
                facts = _merged(_merged(labels, facets), self.context)
                self._read_cell(number + self.first_row, column, cells, facts, marks[column])
        return self.reading

    def _decimal_marks(self) -> dict[int, Decimal | None]:
        """Return the decimal mark of each column of throughputs, inferred from its numbers, else from the table's."""
        texts = {column: [row[column] for row in self.table.rows] for column in self.columns.values}
        # Files with commas as delimiters have decimal points.
        usual = decimal_mark([cell for cells in texts.values() for cell in cells]) or (
            Decimal.POINT if self.table.commas else None
        )
        return {column: self.decimal or decimal_mark(cells) or usual for column, cells in texts.items()}

    def _labels(self, cells: Sequence[str]) -> Facets:
        """Parse the labels of a row; an empty network, or GPU in a wide table, is that of the row above."""
        texts = {role: plain(cells[column]) for role, column in self.columns.roles.items()}
        for role in ("model", "gpu", "label") if not self.columns.long else ("model",):
            if role in texts:
                texts[role] = texts[role] or self.above.get(role, "")
                self.above[role] = texts[role]
        labels = Facets()
        for role in ("gpu", "model", "label"):
            if texts.get(role):
                labels = _merged(_label(role, texts[role]), labels)
        if labels.gpu and texts.get("slice", "").lower() not in ("", "no", "none", "full", "off", "false", "-"):
            labels = replace(labels, gpu=f"{labels.gpu} MIG {texts['slice']}")
        gpus, hosts = (read_count(texts.get(role, "")) for role in ("count", "hosts"))
        cells_of_roles = Facets(count=gpus * (hosts or 1) if gpus else None, precision=texts.get("precision", ""))
        return _merged(cells_of_roles, labels)

    def _setting(self, role: str, mode: str, cells: Sequence[str]) -> int | None:
        """Return the number in a setting's column, of its mode if there is one; None: not given."""
        column = self.columns.roles.get(f"{mode} {role}", self.columns.roles.get(role))
        digits = re.match(r"\d+", plain(cells[column])) if column is not None else None
        return int(digits[0]) or None if digits else None

    def _read_cell(self, row: int, column: int, cells: Sequence[str], facts: Facets, decimal: Decimal | None) -> None:
        text, heading = cells[column], plain(self.table.headings[column])
        number = read_number(text, decimal)
        count_text = plain(cells[self.columns.roles["count"]]) if "count" in self.columns.roles else ""
        network = NETWORKS.get(_model(facts.model)) if facts.model else None
        if isinstance(number, Refusal):
            if number.reason:
                self._refuse(row, heading, text, number.reason)
            else:
                self.reading.blank += 1
        elif count_text and read_count(count_text) is None:
            self._refuse(row, heading, text, f"number of GPUs {count_text!r} cannot be read")
        elif not facts.model:
            self._refuse(row, heading, text, "no network")
        elif network and network.unit != "tokens" and re.search(r"\btok", heading, re.IGNORECASE):
            self._refuse(row, heading, text, f"tokens, but {facts.model} is counted in {network.unit}")
        else:
            claim = self._claim(row, cells, facts, heading, number.value, number.last_place)
            self.reading.claims.append(claim)

    def _refuse(self, row: int, heading: str, text: str, reason: str) -> None:
        self.reading.unread.append(UnreadCell(row, heading, text.strip(), reason))

    def _claim(
        self, row: int, cells: Sequence[str], facts: Facets, heading: str, rate: float, last_place: float
    ) -> Claim:
        settings = {name: cells[i].strip() for name, i in self.columns.settings.items() if cells[i].strip()}
        mode = "infer" if (settings.get("mode", facts.mode) or "train").lower().startswith("infer") else "train"
        model, count = _model(facts.model), facts.count or 1
        size = self._setting("image_size", mode, cells) or int(facts.image_size or 0) or None
        if size and (usual := networks().get(model)) and size == usual.size:
            size = None
        settings |= {"image_size": str(size)} if size else {}
        found = () if is_slice(facts.gpu) else find_gpus(facts.gpu)
        precision_text = facts.precision.lower()
        of_all = count if facts.each else 1
        return Claim(
            row=row,
            column=heading,
            group=(facts.gpu, *(f"{name}={value}" for name, value in settings.items())),
            software=tuple(f"{name}={value}" for name, value in settings.items() if name in SOFTWARE),
            gpu=found[0] if len(found) == 1 else None,
            gpus=found,
            gpu_text=facts.gpu,
            model=model,
            precision=read_precision(precision_text).partition(",")[0],
            strict="tf32 off" in precision_text or settings.get("tf32", "").lower() == "false",
            batch=self._setting("batch", mode, cells) or facts.batch,
            count=count,
            rate=rate * of_all,
            last_place=last_place * of_all,
            mode=mode,
            image_size=size,
        )


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
