"""The columns of the merged table, in order: name, type, unit and meaning.

The site's page of the table is written from them. New columns are added at the end of their block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from results.schema import SETTINGS, Case, Device, Environment, Measurement, Record, Telemetry, kind_of
from results.text import printable

if TYPE_CHECKING:
    from pandas.api.extensions import ExtensionArray


@dataclass(frozen=True)
class Software:
    """Software and hardware of a row. Each field is a column; numbers are merged if all fields are equal.

    Fields that are unknown or do not apply are None; see `COLUMNS`.

    Attributes:
        gpu: Distinct names of the GPUs that train.
        power_limit_watts: Their lowest enforced limit.
        cpu_limit: CPUs available to the process; may be fractional.
        variables: Environment variables that affect the measurement, `NAME=value`.
        parameters: Trainable parameters of the network.
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

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in SOFTWARE_COLUMNS))

    def __hash__(self) -> int:
        """Return a cached hash, because each of up to a million records is looked up by its software."""
        return self._hash

    @property
    def known_early(self) -> Software:
        """The part that is known before the first step loads the libraries."""
        return replace(self, cudnn=None, nccl=None, cublas=None, cuda_compat=None, parameters=None)

    def only(self, columns: Collection[str]) -> Software:
        """Return a copy with all other columns empty, to compare only `columns`."""
        return Software(*(getattr(self, name) if name in columns else None for name in SOFTWARE_COLUMNS))

    def shown(self) -> Software:
        """Return a copy with texts that are safe for a terminal."""
        texts: dict[str, Any] = {
            name: printable(value) for name in SOFTWARE_COLUMNS if isinstance(value := getattr(self, name), str)
        }
        return replace(self, **texts)


SOFTWARE_COLUMNS: tuple[str, ...] = tuple(item.name for item in fields(Software))
"""Columns of a row's identity in addition to fleet, host and case."""

_gpu_key = attrgetter("name", "power_limit_watts")
_environment_key = attrgetter(
    *("tensorflow", "keras", "cuda", "cudnn", "nccl", "cublas", "driver", "cuda_compat"),
    *("tf32_enabled", "cpu", "cpu_limit"),
)

_software = functools.lru_cache(maxsize=4096)(Software)
"""Builds each identity once: a fleet has many records but few identities."""


def software_of(record: Record) -> Software | None:
    """Return the software of a record; None: it has no environment because it never started."""
    environment = record.environment
    if environment is None:
        return None
    origin, measurement = record.origin, record.measurement
    count = record.case.num_gpus if record.case.device == "gpu" else 0
    return _software(
        *_names_and_limit(tuple(map(_gpu_key, environment.gpus[:count]))),
        *_environment_key(environment),
        _variables(environment) or None,
        origin.launcher if origin else None,
        origin.image_digest if origin else None,
        record.method_version,
        measurement.parameters_trainable if measurement else None,
    )


def _variables(environment: Environment) -> str:
    shown = environment.variables.items() - {("NVIDIA_TF32_OVERRIDE", "0")}  # that is in the column `tf32`
    return ",".join(f"{name}={value}" for name, value in sorted(shown))


@functools.lru_cache(maxsize=1024)  # a fleet has few kinds of hosts, and many records
def _names_and_limit(gpus: tuple[tuple[str, float | None], ...]) -> tuple[str | None, float | None]:
    """Return the distinct names of the GPUs and their lowest power limit in watts."""
    limits = [limit for _, limit in gpus if limit is not None]
    return " + ".join(dict.fromkeys(name for name, _ in gpus)) or None, min(limits, default=None)


Value = str | float | bool | None
"""Value of a cell; includes int, which type checkers accept as float."""

TEXT, WHOLE, NUMBER, FLAG = "string", "Int64", "Float64", "boolean"
"""Nullable pandas types, so that empty cells do not become NaN or 0."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        dtype: pandas type.
        unit: `-`: none.
        meaning: One sentence, including when the cell is empty.
        of_repeat: Reads the value of a repeat; None: not a measured number.
        over: Aggregation over repeats: `mean` or `median`.
    """

    dtype: str
    unit: str
    meaning: str
    of_repeat: Callable[[Measurement, Telemetry], float | None] | None = None
    over: str = "mean"

    def array(self, cells: Sequence[Value]) -> ExtensionArray:
        """Return cells as a column of a pandas frame; texts are safe for a terminal."""
        import pandas as pd

        if self.dtype == TEXT:
            cells = [None if cell is None else printable(str(cell)) for cell in cells]
        known: Any = [None if cell != cell else cell for cell in cells]  # NaN: not measured
        return cast("ExtensionArray", pd.array(known, dtype=cast(Any, self.dtype)))


def _column(name: str) -> Column:
    """Return the column of a case's setting."""
    setting, kinds = SETTINGS[name], {bool: FLAG, int: WHOLE, float: NUMBER}
    return Column(kinds.get(kind_of(name), TEXT), setting.unit, setting.meaning)


def _mean(unit: str, meaning: str, read: Callable[[Measurement, Telemetry], float | None]) -> Column:
    """Return a column of means over the repeats."""
    return Column(NUMBER, unit, meaning, read)


def _median(unit: str, meaning: str, read: Callable[[Measurement], float | None]) -> Column:
    """Return a column of medians over the repeats."""
    return Column(NUMBER, unit, meaning, lambda measured, _: read(measured), over="median")


COLUMNS: dict[str, Column] = {
    # where
    "fleet": Column(
        TEXT, "-", "Group of equal hosts, as `hosts.yml` names it; without an orchestrator, the GPU or processor."
    ),
    "host": Column(TEXT, "-", "The machine; `-` without an orchestrator."),
    "gpu": Column(TEXT, "-", "Name of the GPUs that train, by their driver; empty on a CPU and when unknown."),
    "device": _column("device"),
    # the case
    **{name: _column(name) for name in SETTINGS if name != "device"},
    "global_batch": Column(WHOLE, "samples", "Images or sequences of an update, over all replicas."),
    # the outcome
    "unit": Column(TEXT, "-", "What a sample is: `images`, `sequences`, `tokens`; empty without a number."),
    "input_size": Column(
        WHOLE, "pixels or tokens", "Height and width of an image, or length of a sequence, as trained; may be empty."
    ),
    "status": Column(TEXT, "-", "`ok` if a repeat gave a number, else the most frequent status of the repeats."),
    "cause": Column(TEXT, "-", "Status and cause of failed repeats; empty if none failed."),
    "repeats_ok": Column(WHOLE, "-", "Repeats (fresh processes) that gave a number."),
    "repeats": Column(WHOLE, "-", "Repeats that were tried."),
    "samples_per_second": _mean(
        "samples/s",
        "Mean throughput of all replicas over repeats, or over the means of several runs; may be empty.",
        lambda m, _: m.samples_per_second,
    ),
    "ci95_low": Column(
        NUMBER, "samples/s", "Lower end of its 95 % t-interval over repeats, or over runs; empty with fewer than 2."
    ),
    "ci95_high": Column(NUMBER, "samples/s", "Upper end of that interval; empty with fewer than 2."),
    "step_p50_seconds": _median("seconds", "Median over the repeats of the median step.", lambda m: m.step_p50_seconds),
    "step_p95_seconds": _median(
        "seconds", "Median over the repeats of the 95th percentile step.", lambda m: m.step_p95_seconds
    ),
    "step_cv": _median(
        "-", "Median over the repeats of standard deviation over mean of the steps.", lambda m: m.step_cv
    ),
    "latency_p50_seconds": _median(
        "seconds",
        "Median over the repeats of the median latency at batch 1; inference only.",
        lambda m: m.latency.p50_seconds if m.latency else None,
    ),
    "latency_p95_seconds": _median(
        "seconds", "Likewise of the 95th percentile.", lambda m: m.latency.p95_seconds if m.latency else None
    ),
    "latency_p99_seconds": _median(
        "seconds", "Likewise of the 99th percentile.", lambda m: m.latency.p99_seconds if m.latency else None
    ),
    "samples_per_joule": _mean(
        "samples/J",
        "Samples per joule of GPU energy, averaged over the repeats; empty if no energy was measured.",
        lambda m, seen: m.samples / seen.energy_joules if seen.energy_joules else None,
    ),
    "power_mean_watts": _mean(
        "W",
        "Mean over the repeats of the total power of all GPUs; empty if not reported.",
        lambda _, seen: seen.power_mean_watts,
    ),
    "temperature_steady_celsius": _mean(
        "°C",
        "Mean over the repeats of the hottest GPU in the last third of the timed steps; may be empty.",
        lambda _, seen: seen.temperature_steady_celsius,
    ),
    "all_reduce_bytes_per_second": _mean(
        "bytes/s",
        "Mean over the repeats of the all-reduce's bus bandwidth between hosts; empty for one host.",
        lambda m, _: m.all_reduce_bytes_per_second,
    ),
    "flops_utilisation": _mean(
        "-",
        "Mean over the repeats of the share of the device's measured peak FLOP/s; empty without peaks.",
        lambda m, _: m.flops_utilisation,
    ),
    "bandwidth_utilisation": _mean(
        "-",
        "The same share of its memory bandwidth, as if nothing were fused; above 1 if fusion or caches save traffic.",
        lambda m, _: m.bandwidth_utilisation,
    ),
    "device_memory_peak_bytes": _mean(
        "bytes",
        "Mean over the repeats of TensorFlow's peak memory on a GPU; empty on a CPU.",
        lambda _, seen: seen.device_memory_peak_bytes,
    ),
    "sm_clock_mean_mhz": _mean(
        "MHz",
        "Mean over the repeats of the slowest GPU's clock; empty if not reported.",
        lambda _, seen: seen.sm_clock_mean_mhz,
    ),
    "valid": Column(
        FLAG,
        "-",
        "True: every number passed its validity checks; false: one failed; empty: no check was reached.",
    ),
    "warnings": Column(TEXT, "-", "Codes of the warnings, with a count if only some repeats have them."),
    "runs": Column(WHOLE, "-", "Runs that the repeats come from."),
    "last_started_at": Column(TEXT, "UTC", "Start of the latest repeat, ISO 8601."),
    "usd_per_gpu_hour": Column(NUMBER, "USD/h", "Price of one GPU of this host, as given for the latest repeat."),
    # the identity
    "power_limit_watts": Column(NUMBER, "W", "Lowest enforced limit of the GPUs that train; empty when unknown."),
    "tensorflow": Column(TEXT, "-", "Version; empty when no repeat reached TensorFlow, like the columns below."),
    "keras": Column(TEXT, "-", "Version."),
    "cuda": Column(TEXT, "-", "CUDA version that TensorFlow was built with; empty for a CPU build."),
    "cudnn": Column(TEXT, "-", "Loaded cuDNN version; `built for 9` if a repeat ended before loading it."),
    "nccl": Column(TEXT, "-", "Loaded NCCL version; empty if nothing was all-reduced on GPUs."),
    "driver": Column(TEXT, "-", "NVIDIA driver version."),
    "tf32": Column(FLAG, "-", "TensorFlow's TF32 setting while timing; GPUs before Ampere ignore it."),
    "cpu": Column(TEXT, "-", "Processor."),
    "cpu_limit": Column(NUMBER, "CPUs", "CPUs available to the process; may be fractional in a container."),
    "variables": Column(TEXT, "-", "Environment variables that affect the measurement, `NAME=value`."),
    "launcher": Column(TEXT, "-", "How the repeat was started: `docker`, `process`, …"),
    "image_digest": Column(TEXT, "-", "Container image that was started; empty without a container."),
    "method_version": Column(WHOLE, "-", "Version of what is measured."),
    "parameters": Column(WHOLE, "-", "Trainable parameters, which distinguish networks of one name."),
    "cublas": Column(TEXT, "-", "Loaded cuBLAS version; empty on a CPU or if not loaded."),
    "cuda_compat": Column(
        TEXT,
        "-",
        "Version of NVIDIA's compatibility package that replaced the driver's `libcuda`; empty if none did.",
    ),
}

CASE_COLUMNS: tuple[str, ...] = tuple(SETTINGS)
"""Columns of the case; numbers are compared if all of them are equal."""

OF_REPEAT = {name: column.of_repeat for name, column in COLUMNS.items() if column.of_repeat is not None}
"""Functions that read the measured values of a repeat, by column."""

REPEAT_COLUMNS: dict[str, Column] = {
    **{name: COLUMNS[name] for name in ("fleet", "host")},
    "run": Column(TEXT, "-", "The run, or the file of a record without an orchestrator."),
    "repeat": Column(WHOLE, "-", "Number of the repeat, from 1."),
    "started_at": Column(TEXT, "UTC", "ISO 8601."),
    **{name: COLUMNS[name] for name in ("status", "cause", *CASE_COLUMNS, "unit", *OF_REPEAT)},
}
"""Columns of the table of repeats, where numbers are those of one repeat."""

NO_ORIGIN = "-"
"""Host of a record without an orchestrator; also its fleet, if its device is unknown."""


@dataclass(frozen=True)
class CaseOnHost:
    """A case and the host that measured it."""

    fleet: str
    host: str
    case: Case

    def __str__(self) -> str:
        """Return `fleet/host`, or the fleet if the host is unknown."""
        return self.fleet if self.host == NO_ORIGIN else f"{self.fleet}/{self.host}"


def place_of(record: Record) -> CaseOnHost:
    """Return the place of a record; without an orchestrator, its GPU's or processor's name stands for the fleet."""
    if record.origin:
        return CaseOnHost(record.origin.fleet, record.origin.host, record.case)
    software = software_of(record) or Software()
    device = software.gpu if record.case.device is Device.GPU else software.cpu
    return CaseOnHost(device or NO_ORIGIN, NO_ORIGIN, record.case)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table; `COLUMNS` defines its values. Texts are safe for a terminal.

    Attributes:
        numbers: Aggregates over repeats, by column; None: not measured.
        unit: What a sample is; None without a number.
        input_size: Height and width of an image in pixels, or tokens of a sequence, as trained.
        status: `ok` if a repeat gave a number, else the most frequent status of the repeats.
        cause: Status and cause of failed repeats; None: none failed.
        repeats_ok: Repeats that gave a number.
        repeats: Repeats that were tried.
        valid: None: no validity check was reached.
        warnings: Codes, with a count if only some repeats have them.
        runs: Number of runs that the repeats come from.
        last_started_at: In UTC, ISO 8601.
        usd_per_gpu_hour: As given for the latest repeat.
    """

    fleet: str
    host: str
    case: Case
    software: Software
    numbers: Mapping[str, float | None]
    status: str
    repeats_ok: int
    repeats: int
    runs: int
    last_started_at: str
    unit: str | None = None
    input_size: int | None = None
    cause: str | None = None
    valid: bool | None = None
    warnings: str | None = None
    usd_per_gpu_hour: float | None = None

    @property
    def place(self) -> CaseOnHost:
        """Fleet, host and case."""
        return CaseOnHost(self.fleet, self.host, self.case)

    def named(self, column: str) -> Value:
        """Return the value of a column of `COLUMNS`."""
        if column in self.numbers:
            return self.numbers[column]
        if column in SOFTWARE_COLUMNS:
            return cast(Value, getattr(self.software, column))
        is_of_case = column in CASE_COLUMNS or column == "global_batch"
        return cast(Value, getattr(self.case if is_of_case else self, column))


def sort_key(place: CaseOnHost) -> tuple[object, ...]:
    """Return the sort key of a row: fleet, kind of work, network and settings, then host; empty values last."""
    case = place.case
    length = case.sequence_length
    return (
        *(place.fleet, case.device, case.model, str(case.batch_norm), case.precision, case.xla, case.data, case.mode),
        *(length is None, length or 0, case.batch_per_gpu, case.num_gpus, case.num_hosts, place.host),
    )
