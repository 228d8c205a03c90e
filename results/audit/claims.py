"""Parses throughput tables of any origin into claims; unread cells are reported with a reason.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         | Network | A4000 (img/s) | 8x A5000 (img/s) |
RTX A4000,ResNet50,fp16,256,1,453                           | ResNet50 FP16 | 453,5 | 5.512,4 ± 3,1 † |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results.audit.tables import RawTable, read_tables
from results.audit.texts import (
    ALIASES,
    Decimal,
    Facets,
    Refusal,
    decimal_mark,
    find_gpus,
    heading_key,
    is_metric,
    is_rate_heading,
    plain,
    read_context,
    read_count,
    read_facets,
    read_number,
    read_precision,
    take_count,
)
from results.errors import NotATable
from results.reference.networks import is_network, model_key
from results.schema import SETTINGS

MOST_GPUS = 4096
"""Largest number in a heading that is a number of GPUs."""

ROLES = ("gpu", "count", "model", "precision", "batch", "hosts")

_RATIOS = re.compile(r"^times (as fast|the samples per dollar),", re.MULTILINE)
"""First note below a table of ratios in our own reports."""

LOOKS_LIKE = 0.5
"""Share of a column's cells that must be networks or GPUs to infer its role without a heading."""


@dataclass(frozen=True)
class Columns:
    """Roles of the columns of a table.

    Attributes:
        roles: Column by `gpu`, `model`, `precision`, `batch`, `count`, `hosts` or `label` (several in one cell).
        settings: Column by name of the setting.
        values: Parsed heading of each column of throughputs.
        ignored: Headings of all other columns.
        long: Whether one column has all throughputs.
    """

    roles: dict[str, int]
    settings: dict[str, int]
    values: dict[int, Facets]
    ignored: list[str]
    long: bool


def meant_columns(table: RawTable, context: Facets) -> Columns | None:
    """Infer the roles of a table's columns; None: it has no throughputs of networks."""
    if _RATIOS.search(table.context):
        return None
    roles = _roles_by_heading(table)
    settings = {key: i for i, text in enumerate(table.headings) if (key := heading_key(text)) in ALIASES["settings"]}
    left = [i for i in range(len(table.headings)) if i not in {*roles.values(), *settings.values()}]
    values = _values(table, left)
    for column in left:
        role = _role_by_cells(table, column) if column not in values else None
        if role and role not in roles:
            roles[role] = column
    rates = [i for i in left if i not in roles.values() and is_rate_heading(table.headings[i])]
    if rates:
        values = {rates[0]: Facets()}
    title = table.context.partition("\n")[0]
    if is_metric(title) and all(_share(table, i, lambda cell: cell.rstrip(" !").endswith("%")) == 1 for i in values):
        return None  # scaling efficiencies
    named = "model" in roles or context.model or any(facets.model for facets in values.values())
    if not values or not (named or "label" in roles):
        return None
    known = {*roles.values(), *settings.values(), *values}
    ignored = [plain(text) for i, text in enumerate(table.headings) if i not in known and text.strip()]
    return Columns(roles, settings, values, ignored, long=list(values.values()) == [Facets()])


def _roles_by_heading(table: RawTable) -> dict[str, int]:
    roles: dict[str, int] = {}
    for i, heading in enumerate(table.headings):
        role = next((role for role in ROLES if heading_key(heading) in ALIASES[role]), None)
        if role in ("gpu", "count"):  # a column `GPUs` may have names or numbers
            counts = _share(table, i, lambda cell: read_count(cell) is not None)
            role = "gpu" if _share(table, i, _is_gpu) >= LOOKS_LIKE else "count" if counts >= LOOKS_LIKE else role
        if role:
            roles.setdefault(role, i)
    return roles


def _values(table: RawTable, columns: Sequence[int]) -> dict[int, Facets]:
    """Return the columns of throughputs with their parsed headings."""
    counts = {i: count for i in columns if (count := read_count(table.headings[i])) and count <= MOST_GPUS}
    found = {}
    for i in columns:
        heading = table.headings[i]
        count = counts.get(i) if len(counts) > 1 else None
        facets = Facets(count=count) if count else read_facets(heading)
        measured = not is_metric(heading) and not facets.rest and _share(table, i, _has_digit) > 0
        if facets.known and measured and (count or _share(table, i, _is_name) <= LOOKS_LIKE):
            found[i] = facets
    return found


def _role_by_cells(table: RawTable, column: int) -> str | None:
    """Infer a column's role from its cells: networks, GPUs, precisions, or several of them in one cell."""
    if is_metric(table.headings[column]) or is_rate_heading(table.headings[column]):
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
    """

    claims: list[Claim] = field(default_factory=list)
    unread: list[UnreadCell] = field(default_factory=list)
    blank: int = 0
    ignored: list[str] = field(default_factory=list)

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
    tables, reading, left, first_row = read_tables(path), Reading(), [], 0
    for table in tables:
        context = read_context(table.context, path.stem)
        columns = meant_columns(table, context)
        if columns is None:
            left.append(", ".join(filter(None, map(plain, table.headings))))
        else:
            reading.ignored += [name for name in columns.ignored if name not in reading.ignored]
            _Reader(table, columns, context, decimal, first_row, reading).read()
        first_row += len(table.rows)
    if len(left) == len(tables):
        raise NotATable(
            f"{path}: needs networks and throughputs: columns 'model' and 'samples_per_second', or a column per GPU "
            f"count ('1 GPU', '2 GPUs'), GPU or network. Received: {'; '.join(left)[:300]}"
        )
    return reading


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

    def read(self) -> None:
        marks = self._decimal_marks()
        for number, cells in enumerate(self.table.rows):
            labels = self._labels(cells)
            if not any(cells[column].strip() for column in self.columns.values):
                continue  # a heading within the table
            for column, facets in self.columns.values.items():
                facts = _merged(_merged(labels, facets), self.context)
                self._read_cell(number + self.first_row, column, cells, facts, marks[column])

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
        batch = re.match(r"\d+", texts.get("batch", ""))
        gpus, hosts = (read_count(texts.get(role, "")) for role in ("count", "hosts"))
        cells_of_roles = Facets(
            count=gpus * (hosts or 1) if gpus else None,
            precision=texts.get("precision", ""),
            batch=(int(batch[0]) or None) if batch else None,
        )
        return _merged(cells_of_roles, labels)

    def _read_cell(self, row: int, column: int, cells: Sequence[str], facts: Facets, decimal: Decimal | None) -> None:
        text, heading = cells[column], plain(self.table.headings[column])
        number = read_number(text, decimal)
        count_text = plain(cells[self.columns.roles["count"]]) if "count" in self.columns.roles else ""
        if isinstance(number, Refusal):
            if number.reason:
                self._refuse(row, heading, text, number.reason)
            else:
                self.reading.blank += 1
        elif count_text and read_count(count_text) is None:
            self._refuse(row, heading, text, f"number of GPUs {count_text!r} cannot be read")
        elif not facts.model:
            self._refuse(row, heading, text, "no network")
        else:
            claim = self._claim(row, cells, facts, heading, number.value, number.last_place)
            self.reading.claims.append(claim)

    def _refuse(self, row: int, heading: str, text: str, reason: str) -> None:
        self.reading.unread.append(UnreadCell(row, heading, text.strip(), reason))

    def _claim(
        self, row: int, cells: Sequence[str], facts: Facets, heading: str, rate: float, last_place: float
    ) -> Claim:
        settings = {name: cells[i].strip() for name, i in self.columns.settings.items() if cells[i].strip()}
        precision_text = facts.precision.lower()
        size = re.match(r"\d+", settings.get("image_size", facts.image_size))
        mode = settings.get("mode", facts.mode) or "train"
        return Claim(
            row=row,
            column=heading,
            group=(facts.gpu, *(f"{name}={value}" for name, value in settings.items())),
            software=tuple(f"{name}={value}" for name, value in settings.items() if name in SOFTWARE),
            gpu=found[0] if len(found := find_gpus(facts.gpu)) == 1 else None,
            gpus=found,
            gpu_text=facts.gpu,
            model=_model(facts.model),
            precision=read_precision(precision_text).partition(",")[0],
            strict="tf32 off" in precision_text or settings.get("tf32", "").lower() == "false",
            batch=facts.batch,
            count=facts.count or 1,
            rate=rate,
            last_place=last_place,
            mode="infer" if mode.lower().startswith("infer") else "train",
            image_size=int(size[0]) if size else None,
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
