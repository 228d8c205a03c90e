"""The columns of the merged table, in order: name, type, unit and meaning.

The site's page of the table is written from them. New columns are added at the end of their block.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from results.schema import SETTINGS, Case, Device, Measurement, Record, Telemetry, kind_of
from results.text import printable

if TYPE_CHECKING:
    from pandas.api.extensions import ExtensionArray


class Software(NamedTuple):
    """Software and hardware of a row. Each field is a column; numbers are merged if all fields are equal.

    Texts are safe for a terminal. Fields that are unknown or do not apply are None; see `COLUMNS`.

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

    @property
    def known_early(self) -> Software:
        """The part that is known before the first step loads the libraries."""
        return self._replace(cudnn=None, nccl=None, cublas=None, cuda_compat=None, parameters=None)

    def only(self, columns: Collection[str]) -> Software:
        """Return a copy with all other columns empty, to compare only `columns`."""
        return self._replace(**{name: None for name in self._fields if name not in columns})


SOFTWARE_COLUMNS: tuple[str, ...] = Software._fields
"""Columns of a row's identity in addition to fleet, host and case."""

_VERSIONS = ("tensorflow", "keras", "cuda", "cudnn", "nccl", "cublas", "driver", "cuda_compat", "cpu", "cpu_limit")
"""Columns that are fields of an environment."""


def software_of(record: Record) -> Software | None:
    """Return the software of a record; None: it has no environment because it never started."""
    environment, origin, measurement = record.environment, record.origin, record.measurement
    if environment is None:
        return None
    gpus = environment.gpus[: record.case.num_gpus] if record.case.device is Device.GPU else []
    shown = environment.variables.items() - {("NVIDIA_TF32_OVERRIDE", "0")}  # that is in the column `tf32`
    software = Software(
        gpu=" + ".join(dict.fromkeys(gpu.name for gpu in gpus)) or None,
        power_limit_watts=min(
            (gpu.power_limit_watts for gpu in gpus if gpu.power_limit_watts is not None), default=None
        ),
        tf32=environment.tf32_enabled,
        variables=",".join(f"{name}={value}" for name, value in sorted(shown)) or None,
        launcher=origin.launcher if origin else None,
        image_digest=origin.image_digest if origin else None,
        method_version=record.method_version,
        parameters=measurement.parameters_trainable if measurement else None,
        **{name: getattr(environment, name) for name in _VERSIONS},
    )
    return _printable_software(software)


@functools.lru_cache(maxsize=4096)  # a fleet has many records but few identities
def _printable_software(software: Software) -> Software:
    return Software(*(printable(value) if isinstance(value, str) else value for value in software))  # type: ignore[arg-type]


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
        over: Aggregation of measured numbers over repeats, `mean` or `median`; empty: not a measured number.
    """

    dtype: str
    unit: str
    meaning: str
    over: str = ""

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


def _mean(unit: str, meaning: str) -> Column:
    """Return the column of a mean over the repeats."""
    return Column(NUMBER, unit, meaning, "mean")


def _median(unit: str, meaning: str) -> Column:
    """Return the column of a median over the repeats."""
    return Column(NUMBER, unit, meaning, "median")


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
        "samples/s", "Mean throughput of all replicas over repeats, or over the means of several runs; may be empty."
    ),
    "ci95_low": Column(
        NUMBER, "samples/s", "Lower end of its 95 % t-interval over repeats, or over runs; empty with fewer than 2."
    ),
    "ci95_high": Column(NUMBER, "samples/s", "Upper end of that interval; empty with fewer than 2."),
    "step_p50_seconds": _median("seconds", "Median over the repeats of the median step."),
    "step_p95_seconds": _median("seconds", "Median over the repeats of the 95th percentile step."),
    "step_cv": _median("-", "Median over the repeats of standard deviation over mean of the steps."),
    "latency_p50_seconds": _median(
        "seconds", "Median over the repeats of the median latency at batch 1; inference only."
    ),
    "latency_p95_seconds": _median("seconds", "Likewise of the 95th percentile."),
    "latency_p99_seconds": _median("seconds", "Likewise of the 99th percentile."),
    "samples_per_joule": _mean(
        "samples/J", "Samples per joule of GPU energy, averaged over the repeats; empty if no energy was measured."
    ),
    "power_mean_watts": _mean("W", "Mean over the repeats of the total power of all GPUs; empty if not reported."),
    "temperature_steady_celsius": _mean(
        "°C", "Mean over the repeats of the hottest GPU in the last third of the timed steps; may be empty."
    ),
    "all_reduce_bytes_per_second": _mean(
        "bytes/s", "Mean over the repeats of the all-reduce's bus bandwidth between hosts; empty for one host."
    ),
    "flops_utilisation": _mean(
        "-", "Mean over the repeats of the share of the device's measured peak FLOP/s; empty without peaks."
    ),
    "bandwidth_utilisation": _mean(
        "-",
        "The same share of its memory bandwidth, as if nothing were fused; above 1 if fusion or caches save traffic.",
    ),
    "device_memory_peak_bytes": _mean(
        "bytes", "Mean over the repeats of TensorFlow's peak memory on a GPU; empty on a CPU."
    ),
    "sm_clock_mean_mhz": _mean("MHz", "Mean over the repeats of the slowest GPU's clock; empty if not reported."),
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

OF_REPEAT: tuple[str, ...] = tuple(name for name, column in COLUMNS.items() if column.over)
"""Columns of the measured values of a repeat."""


def values_of_repeat(measured: Measurement, telemetry: Telemetry) -> list[float | None]:
    """Return the measured values of a repeat, in the order of `OF_REPEAT`; most are fields of that name."""
    latency = vars(measured.latency) if measured.latency else {}
    known: dict[str, float | None] = {f"latency_{name}": value for name, value in latency.items()}
    if telemetry.energy_joules:
        known["samples_per_joule"] = measured.samples / telemetry.energy_joules
    known |= vars(telemetry) | vars(measured)
    return [known.get(name) for name in OF_REPEAT]


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
        """Order of rows: fleet, kind of work, network and settings, then host; empty values last."""
        case, length = self.case, self.case.sequence_length
        kind = (case.device, case.model, str(case.batch_norm), case.precision, case.xla, case.data, case.mode)
        size = (length is None, length or 0, case.batch_per_gpu, case.num_gpus, case.num_hosts)
        return self.fleet, *kind, *size, self.host


def place_of(record: Record) -> CaseOnHost:
    """Return the place of a record; without an orchestrator, its GPU's or processor's name stands for the fleet."""
    case, origin = record.case, record.origin
    if not case.model.isprintable():
        case = replace(case, model=printable(case.model))
    if origin:
        return CaseOnHost(printable(origin.fleet), printable(origin.host), case)
    software = software_of(record)
    device = software and (software.gpu if case.device is Device.GPU else software.cpu)
    return CaseOnHost(device or NO_ORIGIN, NO_ORIGIN, case)


Row = Any
"""A row of `merge.Merged.rows`: its attributes are the columns of `COLUMNS`, None if empty, and `place` (`CaseOnHost`),
`case` and `software`."""
