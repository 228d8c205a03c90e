"""The columns of the merged table, one row of `columns.csv` each: name, unit, type and meaning, in their order.

The site's page of the table is written from them. New columns are added at the end of their block.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from results.reference import read_rows
from results.schema import SETTINGS, Case, Device, Record, kind_of
from results.text import printable

Value = str | float | bool | None
"""Value of a cell; includes int, which type checkers accept as float."""

TEXT, WHOLE, NUMBER, FLAG = "string", "Int64", "Float64", "boolean"
"""Nullable pandas types, so that empty cells do not become NaN or 0."""


class Column(NamedTuple):
    """One column; a row of `columns.csv`.

    Attributes:
        meaning: One sentence, including when the cell is empty.
        unit: `-`: none.
        dtype: pandas type.
        over: Aggregation of measured numbers over repeats, `mean` or `median`; empty: not a measured number.
        noted: How notes show a value of the software, e.g. `driver {}`; empty: no note has it.
    """

    meaning: str
    unit: str = "-"
    dtype: str = TEXT
    over: str = ""
    noted: str = ""


_DTYPES = {bool: FLAG, int: WHOLE, float: NUMBER}
"""By type of a value; all others are texts."""


def _column(name: str, meaning: str, **others: str) -> Column:
    """Return the column of a row; if only its name is given, that of a case's setting."""
    if meaning:
        return Column(meaning, **others)
    setting = SETTINGS[name]
    return Column(setting.meaning, setting.unit, _DTYPES.get(kind_of(name), TEXT))


COLUMNS = {row["name"]: _column(**row) for row in read_rows(Path(__file__).with_suffix(".csv"))}
"""By name, in the order of the table."""


@dataclass(frozen=True)
class Software:
    """Software and hardware of a row; None: unknown, or it does not apply.

    Each field is a column; numbers are merged if all fields are equal. Texts are safe for a terminal.
    """

    gpu: str | None = None
    power_limit_watts: float | None = None
    tensorflow: str | None = None
    keras: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    cublas: str | None = None
    driver: str | None = None
    cuda_compat: str | None = None
    tf32: bool | None = None
    cpu: str | None = None
    cpu_limit: float | None = None
    variables: str | None = None
    launcher: str | None = None
    image_digest: str | None = None
    method_version: int | None = None
    parameters: int | None = None

    @property
    def known_early(self) -> Software:
        """The part that is known before the first step loads the libraries."""
        return replace(self, cudnn=None, nccl=None, cublas=None, cuda_compat=None, parameters=None)

    def text(self, without: Collection[str] = (), *, brief: bool = False) -> str:
        """Describe it for a note, e.g. `NVIDIA RTX A4000, power limit 140 W, TensorFlow 2.21.0`.

        Args:
            without: Columns to omit.
            brief: Only those of `BRIEF`; without a GPU the processor, too.
        """
        names = [name for name in NOTED if not brief or name in BRIEF or (name == "cpu" and self.gpu is None)]
        known = {name: value for name in names if name not in without and (value := getattr(self, name)) is not None}
        return ", ".join(NOTED[name].format(identity_text(name, value)) for name, value in known.items())


SOFTWARE_COLUMNS: tuple[str, ...] = tuple(item.name for item in fields(Software))
"""Columns of a row's identity in addition to fleet, host and case."""

NOTED = {name: COLUMNS[name].noted for name in SOFTWARE_COLUMNS if COLUMNS[name].noted}
"""How notes show the values of an identity, by column."""

BRIEF = ("gpu", "power_limit_watts", "tensorflow", "cuda", "driver")
"""Those of a brief note."""

DIGEST_LENGTH = 19
"""Characters shown of `sha256:…`: 12 digits, as in Docker."""


def identity_text(column: str, value: Value) -> str:
    """Format a value of a software identity; `none` if unknown."""
    if value is None:
        return "none"
    if column == "power_limit_watts":
        return f"{value:g} W"
    return str(value)[:DIGEST_LENGTH] if column == "image_digest" else str(value)


def software_of(record: Record) -> Software | None:
    """Return the software of a record; None: it has no environment because it never started."""
    environment, origin, measurement = record.environment, record.origin, record.measurement
    if environment is None:
        return None
    gpus = environment.gpus[: record.case.num_gpus] if record.case.device is Device.GPU else []
    limits = [gpu.power_limit_watts for gpu in gpus if gpu.power_limit_watts is not None]
    shown = environment.variables.items() - {("NVIDIA_TF32_OVERRIDE", "0")}  # that is in the column `tf32`
    values = vars(environment) | {
        "gpu": " + ".join(dict.fromkeys(gpu.name for gpu in gpus)) or None,
        "power_limit_watts": min(limits, default=None),
        "tf32": environment.tf32_enabled,
        "variables": ",".join(f"{name}={value}" for name, value in sorted(shown)) or None,
        "launcher": origin and origin.launcher,
        "image_digest": origin and origin.image_digest,
        "method_version": record.method_version,
        "parameters": measurement and measurement.parameters_trainable,
    }
    return _software(*[values[name] for name in SOFTWARE_COLUMNS])


@functools.lru_cache(maxsize=4096)  # a fleet has many records but few identities
def _software(*values: Value) -> Software:
    safe: Any = [printable(value) if isinstance(value, str) else value for value in values]
    return Software(*safe)


CASE_COLUMNS: tuple[str, ...] = tuple(SETTINGS)
"""Columns of the case; numbers are compared if all of them are equal."""

OF_REPEAT: tuple[str, ...] = tuple(name for name, column in COLUMNS.items() if column.over)
"""Columns of the measured values of a repeat."""

NO_ORIGIN = "-"
"""Host of a record without an orchestrator; also its fleet, if its device is unknown."""


class CaseOnHost(NamedTuple):
    """A case and the host that measured it; names are safe for a terminal."""

    fleet: str
    host: str
    case: Case

    def __str__(self) -> str:
        """Return `fleet/host`, or the fleet if the host is unknown."""
        return self.fleet if self.host == NO_ORIGIN else f"{self.fleet}/{self.host}"

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Order of rows: fleet, kind of work, network and settings, then host; last what is empty, or no training."""
        case, length = self.case, self.case.sequence_length
        kind = (case.device, case.model, str(case.batch_norm), case.precision, case.xla, case.data, case.mode)
        size = (length is None, length or 0, case.batch_per_gpu, case.num_gpus, case.num_hosts)
        return not case.all_reduce, self.fleet, *kind, *size, self.host


def place_of(record: Record) -> CaseOnHost:
    """Return the place of a record; without an orchestrator, its GPU's or processor's name stands for the fleet."""
    case, origin = record.case, record.origin
    if origin:
        return CaseOnHost(origin.fleet, origin.host, case)
    software = software_of(record)
    device = software and (software.gpu if case.device is Device.GPU else software.cpu)
    return CaseOnHost(device or NO_ORIGIN, NO_ORIGIN, case)


Row = Any
"""A row of `merge.Merged.rows`: its attributes are the columns of `COLUMNS`, None if empty, and `place` (`CaseOnHost`),
`case` and `software`."""
