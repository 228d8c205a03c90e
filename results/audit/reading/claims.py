"""A throughput table of whatever origin, read into claims; what could not be read is counted and explained.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         | Network | A4000 (img/s) | 8x A5000 (img/s) |
RTX A4000,ResNet50,fp16,256,1,453                           | ResNet50 FP16 | 453,5 | 5.512,4 ± 3,1 † |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results.audit.reading.columns_meant import Columns, meant_columns
from results.audit.reading.context import read_context
from results.audit.reading.headings import (
    Facets,
    find_gpus,
    heading_key,
    known_model,
    plain,
    read_count,
    read_facets,
    read_precision,
    take_count,
)
from results.audit.reading.numerals import Decimal, Refusal, decimal_mark, is_unclear, read_number
from results.audit.reading.raw_tables import RawTable, read_tables
from results.errors import NotATable
from results.reference.networks import model_key
from results.schema import SETTINGS

_MAY_DIFFER = frozenset(
    {
        *("model", "precision", "batch_per_gpu", "num_gpus", "num_hosts", "communication", "xla", "device"),
        *("warmup_steps", "num_steps", "min_seconds"),
    }
)
"""Settings of a case that are compared by other means, or that honest cards of one source may differ in."""

SOFTWARE = (
    *("source", "unit", "task", "method_version"),
    *(name for name in SETTINGS if name not in _MAY_DIFFER),
)
"""Settings that cards must share before their throughputs are compared.

Not the framework or its version: many published tables have another one for each card, and honest cards of one source
are within the limits of `copies.py` all the same.
"""


@dataclass(frozen=True)
class Claim:
    """One throughput that a table claims.

    Attributes:
        row: 0-based data row of the file; rows of several tables are counted through.
        column: Heading that it stands under.
        group: What table it belongs to: source, GPU and everything that is not in the other attributes.
        software: The settings in `group` that other cards can share.
        gpu: Name in `reference/gpu_specs.csv`; None when it fits none there, or several.
        gpus: All cards there that the name fits.
        gpu_text: Name as it came, without a count; empty without a column.
        model: Our name of the network.
        precision: `fp32`, `tf32`, `fp16`, `bf16`, or what came.
        strict: Whether fp32 surely means IEEE arithmetic, without TF32.
        batch: Samples per GPU and step; None when not given.
        count: Number of GPUs.
        rate: Samples per second over all GPUs.
        last_place: Unit of the last digit that was written.
        mode: `train` or `infer`.
        image_size: Pixels per side; None for the network's own.
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
        """The claim in words."""
        return " ".join(part for part in (self.model, self.precision, f"×{self.count}") if part)

    @property
    def rounding(self) -> float:
        """How far the written number may be from the measured one, relative to it."""
        return self.last_place / 2 / self.rate

    @property
    def per_gpu(self) -> float:
        """Samples per second of one GPU."""
        return self.rate / self.count


@dataclass(frozen=True)
class UnreadCell:
    """A cell that should hold a throughput and could not be read.

    Attributes:
        row: 0-based data row of the file.
        column: Its heading.
        text: As it stands there.
    """

    row: int
    column: str
    text: str
    reason: str


@dataclass
class Reading:
    """What was read of a file, and what was not.

    Attributes:
        blank: Cells that say themselves that they hold no number: empty, `-`, `n/a`, `OOM`.
        ignored: Headings of columns that hold no throughput and no known setting.
        not_tables: Tables of the file without any throughput, by their headings.
    """

    claims: list[Claim] = field(default_factory=list)
    unread: list[UnreadCell] = field(default_factory=list)
    blank: int = 0
    ignored: list[str] = field(default_factory=list)
    not_tables: list[str] = field(default_factory=list)

    @property
    def share_read(self) -> float:
        """Share of the cells with a text that were read."""
        cells = len(self.claims) + len(self.unread)
        return len(self.claims) / cells if cells else 0.0


def read_claims(path: Path) -> list[Claim]:
    """Read the throughputs that a file claims.

    Raises:
        NotATable: No table in it has throughputs of networks.
    """
    return read_throughputs(path, read_tables(path)).claims


def read_throughputs(path: Path, tables: Sequence[RawTable], decimal: Decimal | None = None) -> Reading:
    """Read all tables of a file that hold throughputs.

    Args:
        path: For messages; its name may say the network or the precision.
        tables: Those of the file.
        decimal: The decimal mark, where the user says it.

    Raises:
        NotATable: None does.
    """
    reading = Reading()
    first_row, found = 0, False
    for table in tables:
        context = read_context(table.context, path.stem)
        columns = meant_columns(table, context)
        if columns is None:
            reading.not_tables.append(", ".join(filter(None, map(plain, table.headings))))
        else:
            found = True
            reading.ignored += [name for name in columns.ignored if name not in reading.ignored]
            _Reader(table, columns, context, decimal, first_row, reading).read()
        first_row += len(table.rows)
    if not found:
        raise NotATable(
            f"{path}: needs networks and throughputs: columns 'model' and 'samples_per_second', or a column per GPU "
            f"count ('1 GPU', '2 GPUs'), GPU or network. Received: {'; '.join(reading.not_tables)[:300]}"
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
        """Decide on the decimal mark of each column of throughputs, by its own numbers, else by the table's."""
        texts = {column: [row[column] for row in self.table.rows] for column in self.columns.values}
        everything = [cell for row in self.table.rows for cell in row]
        table_mark = self.decimal or decimal_mark([cell for cells in texts.values() for cell in cells])
        if table_mark is None:
            numeric = [cell for cell in everything if is_unclear(cell) or re.fullmatch(r"\d+[.,]\d+", cell.strip())]
            table_mark = decimal_mark(numeric)
        unclear = "".join(cell for cells in texts.values() for cell in cells if is_unclear(cell))
        if table_mark is None and self.table.kind == "csv," and "," not in unclear:
            table_mark = Decimal.POINT  # what writes CSV with commas writes points
        return {column: self.decimal or decimal_mark(cells) or table_mark for column, cells in texts.items()}

    def _labels(self, cells: Sequence[str]) -> Facets:
        """Return what the labels of a row say; an empty network, or GPU of a wide table, is that of the row above."""
        texts = {role: plain(cells[column]) for role, column in self.columns.roles.items()}
        for role in ("model", "gpu", "label") if not self.columns.long else ("model",):
            if role in texts:
                texts[role] = texts[role] or self.above.get(role, "")
                self.above[role] = texts[role]
        labels = Facets()
        for role in ("gpu", "model", "label"):
            if texts.get(role):
                labels = _merged(_label(role, texts[role]), labels)
        precision = texts.get("precision", "")
        batch = re.match(r"\d+", texts.get("batch", ""))
        column = Facets(
            count=self._count(texts), precision=precision, batch=int(batch[0]) if batch and int(batch[0]) else None
        )
        return _merged(column, labels)

    def _count(self, texts: Mapping[str, str]) -> int | None:
        count = read_count(texts.get("count", ""))
        hosts = read_count(texts.get("hosts", "")) or 1
        return count * hosts if count else None

    def _read_cell(self, row: int, column: int, cells: Sequence[str], facts: Facets, decimal: Decimal | None) -> None:
        text, heading = cells[column], plain(self.table.headings[column])
        number = read_number(text, decimal)
        count_text = plain(cells[self.columns.roles["count"]]) if "count" in self.columns.roles else ""
        if isinstance(number, Refusal):
            if number.blank:
                self.reading.blank += 1
            else:
                self._refuse(row, heading, text, number.reason)
        elif number.value <= 0:
            self._refuse(row, heading, text, "not above zero")
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
    """Read a label; the whole text is the name where only a part of it was understood."""
    facets = read_facets(text)
    if role == "gpu":
        count, rest = take_count(text.replace("_", " "))
        return Facets(count=count, gpu=" ".join(rest.split()), precision=facets.precision, model=facets.model)
    if role == "model" and (known_model(text) or not known_model(facets.model)):
        return Facets(model=text, precision=facets.precision, batch=facets.batch, count=facets.count)
    return facets


def _merged(first: Facets, second: Facets) -> Facets:
    """Return what the first says, and the second where the first says nothing."""
    return Facets(
        count=first.count or second.count,
        gpu=first.gpu or second.gpu,
        model=first.model or second.model,
        precision=first.precision or second.precision,
        batch=first.batch or second.batch,
        mode=first.mode or second.mode,
        image_size=first.image_size or second.image_size,
    )


def _model(text: str) -> str:
    part = read_facets(text).model
    begins = heading_key(text).startswith(heading_key(part))
    return model_key(part if not known_model(text) and known_model(part) and begins else text)
