"""The columns of the merged table, in order: name, type, unit and meaning.

The site's page of the table is written from them. New columns are added at the end of their block.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from results.schema import SETTINGS, Case, Device, Record, kind_of
from results.text import printable

Value = str | float | bool | None
"""Value of a cell; includes int, which type checkers accept as float."""

TEXT, WHOLE, NUMBER, FLAG = "string", "Int64", "Float64", "boolean"
"""Nullable pandas types, so that empty cells do not become NaN or 0."""


class Column(NamedTuple):
    """One column.

    Attributes:
        meaning: One sentence, including when the cell is empty.
        unit: `-`: none.
        dtype: pandas type.
        over: Aggregation of measured numbers over repeats, `mean` or `median`; empty: not a measured number.
    """

    meaning: str
    unit: str = "-"
    dtype: str = TEXT
    over: str = ""


_DTYPES = {bool: FLAG, int: WHOLE, float: NUMBER}
"""By type of a value; all others are texts."""


def _column(name: str) -> Column:
    """Return the column of a case's setting."""
    setting = SETTINGS[name]
    return Column(setting.meaning, setting.unit, _DTYPES.get(kind_of(name), TEXT))


def _mean(meaning: str, unit: str = "-", over: str = "mean") -> Column:
    """Return the column of a mean over the repeats."""
    return Column(meaning, unit, NUMBER, over)


_median = functools.partial(_mean, over="median")


def _known(meaning: str, unit: str = "-", dtype: str = TEXT, *, noted: str | None = None) -> Any:  # noqa: ANN401
    """Return a field of `Software` that may be None: unknown, or it does not apply.

    Args:
        meaning: See `Column`.
        unit: See `Column`.
        dtype: See `Column`.
        noted: What precedes its value in notes; None: no note has it.
    """
    return field(default=None, metadata={"column": Column(meaning, unit, dtype), "noted": noted})


@dataclass(frozen=True)
class Software:
    """Software and hardware of a row. Each field is a column; numbers are merged if all fields are equal.

    Texts are safe for a terminal.
    """

    gpu: str | None = _known("Name of the GPUs that train, by their driver; empty on a CPU and when unknown.", noted="")
    power_limit_watts: float | None = _known(
        "Lowest enforced limit of the GPUs that train; empty when unknown.", "W", NUMBER, noted="power limit "
    )
    tensorflow: str | None = _known(
        "Version; empty when no repeat reached TensorFlow, like the columns below.", noted="TensorFlow "
    )
    keras: str | None = _known("Version.", noted="Keras ")
    cuda: str | None = _known("CUDA version that TensorFlow was built with; empty for a CPU build.", noted="CUDA ")
    cudnn: str | None = _known("Loaded cuDNN version; `built for 9` if a repeat never loaded it.", noted="cuDNN ")
    nccl: str | None = _known("Loaded NCCL version; empty if nothing was all-reduced on GPUs.", noted="NCCL ")
    cublas: str | None = _known("Loaded cuBLAS version; empty on a CPU or if not loaded.", noted="cuBLAS ")
    driver: str | None = _known("NVIDIA driver version.", noted="driver ")
    cuda_compat: str | None = _known(
        "Version of NVIDIA's compatibility package that replaced the driver's `libcuda`; empty if none did.",
        noted="compatibility package ",
    )
    tf32: bool | None = _known("TensorFlow's TF32 setting while timing; GPUs before Ampere ignore it.", dtype=FLAG)
    cpu: str | None = _known("Processor.", noted="")
    cpu_limit: float | None = _known("CPUs available to the process; may be fractional in a container.", "CPUs", NUMBER)
    variables: str | None = _known("Environment variables that affect the measurement, `NAME=value`.", noted="")
    launcher: str | None = _known("How the repeat was started: `docker`, `process`, …", noted="")
    image_digest: str | None = _known("Container image that was started; empty without a container.", noted="image ")
    method_version: int | None = _known("Version of what is measured.", dtype=WHOLE)
    parameters: int | None = _known("Trainable parameters, which distinguish networks of one name.", dtype=WHOLE)

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
        return ", ".join(f"{NOTED[name]}{identity_text(name, value)}" for name, value in known.items())


_SOFTWARE: dict[str, Column] = {item.name: item.metadata["column"] for item in fields(Software)}

NOTED = {item.name: item.metadata["noted"] for item in fields(Software) if item.metadata["noted"] is not None}
"""Columns of an identity that notes show, and what precedes their values."""

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


SOFTWARE_COLUMNS: tuple[str, ...] = tuple(_SOFTWARE)
"""Columns of a row's identity in addition to fleet, host and case."""


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


_ADDED = ("parameters", "cublas", "cuda_compat")

COLUMNS: dict[str, Column] = {
    # where
    "fleet": Column("Group of equal hosts, as `hosts.yml` names it; without an orchestrator, the GPU or processor."),
    "host": Column("The machine; `-` without an orchestrator."),
    "gpu": _SOFTWARE["gpu"],
    "device": _column("device"),
    # the case
    **{name: _column(name) for name in SETTINGS if name != "device"},
    "global_batch": Column("Images or sequences of an update, over all replicas.", "samples", WHOLE),
    # the outcome
    "unit": Column("What a sample is: `images`, `sequences`, `tokens`; empty without a number."),
    "input_size": Column(
        "Height and width of an image, or length of a sequence, as trained; may be empty.", "pixels or tokens", WHOLE
    ),
    "status": Column("`ok` if a repeat gave a number, else the most frequent status of the repeats."),
    "cause": Column("Status and cause of failed repeats; empty if none failed."),
    "repeats_ok": Column("Repeats (fresh processes) that gave a number.", dtype=WHOLE),
    "repeats": Column("Repeats that were tried.", dtype=WHOLE),
    "samples_per_second": _mean(
        "Mean throughput of all replicas over repeats, or over the means of several runs; may be empty.", "samples/s"
    ),
    "ci95_low": Column(
        "Lower end of its 95 % t-interval over repeats, or over runs; empty with fewer than 2.", "samples/s", NUMBER
    ),
    "ci95_high": Column("Upper end of that interval; empty with fewer than 2.", "samples/s", NUMBER),
    "step_p50_seconds": _median("Median over the repeats of the median step.", "seconds"),
    "step_p95_seconds": _median("Median over the repeats of the 95th percentile step.", "seconds"),
    "step_cv": _median("Median over the repeats of standard deviation over mean of the steps."),
    "latency_p50_seconds": _median("Median over repeats of the median latency at batch 1; inference only.", "seconds"),
    "latency_p95_seconds": _median("Likewise of the 95th percentile.", "seconds"),
    "latency_p99_seconds": _median("Likewise of the 99th percentile.", "seconds"),
    "samples_per_joule": _mean("Mean over repeats, of GPU energy; empty if it was not measured.", "samples/J"),
    "power_mean_watts": _mean("Mean over the repeats of the total power of all GPUs; empty if not reported.", "W"),
    "temperature_steady_celsius": _mean(
        "Mean over the repeats of the hottest GPU in the last third of the timed steps; may be empty.", "°C"
    ),
    "all_reduce_bytes_per_second": _mean(
        "Mean over the repeats of the all-reduce's bus bandwidth between hosts; empty for one host.", "bytes/s"
    ),
    "flops_utilisation": _mean("Mean over repeats of the share of the measured peak FLOP/s; empty without peaks."),
    "bandwidth_utilisation": _mean(
        "The same share of its memory bandwidth, as if nothing were fused; above 1 if fusion or caches save traffic."
    ),
    "device_memory_peak_bytes": _mean(
        "Mean over repeats of TensorFlow's peak memory on a GPU; empty on a CPU.", "bytes"
    ),
    "sm_clock_mean_mhz": _mean("Mean over the repeats of the slowest GPU's clock; empty if not reported.", "MHz"),
    "valid": Column(
        "True: every number passed its validity checks; false: one failed; empty: no check was reached.", dtype=FLAG
    ),
    "warnings": Column("Codes of the warnings, with a count if only some repeats have them."),
    "runs": Column("Runs that the repeats come from.", dtype=WHOLE),
    "last_started_at": Column("Start of the latest repeat, ISO 8601.", "UTC"),
    "usd_per_gpu_hour": Column("Price of one GPU of this host, as given for the latest repeat.", "USD/h", NUMBER),
    # the identity; the last ones were added later
    **{name: _SOFTWARE[name] for name in SOFTWARE_COLUMNS if name not in ("gpu", *_ADDED)},
    **{name: _SOFTWARE[name] for name in _ADDED},
}

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
