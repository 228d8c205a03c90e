"""The columns of the merged table, in their order: name, type, unit and meaning.

`docs/table.md` is written from here, and a test holds it to that. Columns are added at the end of their
block, so that whoever reads a table by position is not surprised within a version.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from results.schema import SETTINGS, in_order, kind_of
from results.table.software import Software

Value = str | float | bool | None
"""What a cell holds; an int is a float to the type checker."""

TEXT, WHOLE, NUMBER, FLAG = "string", "Int64", "Float64", "boolean"
"""pandas types that know an empty cell: nothing becomes NaN or 0 in silence."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        dtype: pandas type.
        unit: `-` where there is none.
        meaning: One sentence; says when the cell is empty.
    """

    dtype: str
    unit: str
    meaning: str


def _column(name: str) -> Column:
    """Return the column of a case's setting."""
    setting, kinds = SETTINGS[name], {bool: FLAG, int: WHOLE, float: NUMBER}
    return Column(kinds.get(kind_of(name), TEXT), setting.unit, setting.column or setting.meaning)


_CASE_ORDER = in_order((*SETTINGS, "global_batch"), batch_norm="precision", mode="image_size", global_batch="xla")

COLUMNS: dict[str, Column] = {
    # where
    "fleet": Column(TEXT, "-", "Group of equal hosts, as `hosts.yml` names it; `-` without an orchestrator."),
    "host": Column(TEXT, "-", "The machine; `-` without an orchestrator."),
    "gpu": Column(TEXT, "-", "Name of the GPUs that train, by their driver; empty on a CPU and when unknown."),
    "device": _column("device"),
    # the case
    **{name: _column(name) for name in _CASE_ORDER[: _CASE_ORDER.index("global_batch")] if name != "device"},
    "global_batch": Column(WHOLE, "samples", "Images or sequences of an update, over all replicas."),
    **{name: _column(name) for name in _CASE_ORDER[_CASE_ORDER.index("global_batch") + 1 :] if name != "device"},
    # the outcome
    "unit": Column(TEXT, "-", "What a sample is: `images`, `sequences`, `tokens`; empty without a number."),
    "input_size": Column(
        WHOLE, "pixels or tokens", "Height and width of an image, or length of a sequence, as trained; may be empty."
    ),
    "status": Column(TEXT, "-", "`ok` if a repeat gave a number, else the most frequent status of the repeats."),
    "cause": Column(TEXT, "-", "Status and cause of the repeats that failed; empty when none did."),
    "repeats_ok": Column(WHOLE, "-", "Repeats (fresh processes) that gave a number."),
    "repeats": Column(WHOLE, "-", "Repeats that were tried."),
    "samples_per_second": Column(
        NUMBER,
        "samples/s",
        "Mean over the repeats of all replicas' throughput; empty when none gave a number.",
    ),
    "ci95_low": Column(NUMBER, "samples/s", "Lower end of the 95 % t-interval over repeats; empty with fewer than 2."),
    "ci95_high": Column(NUMBER, "samples/s", "Upper end of that interval; empty with fewer than 2."),
    "step_p50_seconds": Column(NUMBER, "seconds", "Median over the repeats of the median step."),
    "step_p95_seconds": Column(NUMBER, "seconds", "Median over the repeats of the 95th percentile step."),
    "step_cv": Column(NUMBER, "-", "Median over the repeats of standard deviation over mean of the steps."),
    "latency_p50_seconds": Column(
        NUMBER, "seconds", "Median over the repeats of the median latency at batch 1; inference only."
    ),
    "latency_p95_seconds": Column(NUMBER, "seconds", "Likewise of the 95th percentile."),
    "latency_p99_seconds": Column(NUMBER, "seconds", "Likewise of the 99th percentile."),
    "samples_per_joule": Column(
        NUMBER,
        "samples/J",
        "Samples per joule of GPU board energy, averaged over the repeats; empty if no energy was measured.",
    ),
    "power_mean_watts": Column(
        NUMBER, "W", "Mean over the repeats of the power of all GPU boards together; empty where not sampled."
    ),
    "temperature_steady_celsius": Column(
        NUMBER, "°C", "Mean over the repeats of the hottest GPU in the last third of the timed steps; may be empty."
    ),
    "all_reduce_bytes_per_second": Column(
        NUMBER, "bytes/s", "Mean over the repeats of the all-reduce's bus bandwidth between hosts; empty for one host."
    ),
    "valid": Column(
        FLAG,
        "-",
        "True: every number passed its validity checks; false: one failed; empty: no check was reached.",
    ),
    "warnings": Column(TEXT, "-", "Codes of what a reader should know, with a count where not all repeats have it."),
    "runs": Column(WHOLE, "-", "Runs that the repeats come from."),
    "last_started_at": Column(TEXT, "UTC", "Start of the latest repeat, ISO 8601."),
    "usd_per_gpu_hour": Column(NUMBER, "USD/h", "Price of one GPU of this host, as given for the latest repeat."),
    # the identity
    "power_limit_watts": Column(NUMBER, "W", "Lowest enforced limit of the GPUs that train; empty when unknown."),
    "tensorflow": Column(TEXT, "-", "Version; empty when no repeat reached TensorFlow, like the columns below."),
    "keras": Column(TEXT, "-", "Version."),
    "cuda": Column(TEXT, "-", "CUDA version that TensorFlow was built with; empty for a CPU build."),
    "cudnn": Column(TEXT, "-", "cuDNN version that was loaded; `built for 9` where a repeat ended before that."),
    "nccl": Column(TEXT, "-", "NCCL version that was loaded; empty where nothing was all-reduced on GPUs."),
    "driver": Column(TEXT, "-", "NVIDIA driver version."),
    "tf32": Column(FLAG, "-", "TensorFlow's switch for TF32 as it stood while timing; GPUs before Ampere ignore it."),
    "cpu": Column(TEXT, "-", "Processor."),
    "cpu_limit": Column(NUMBER, "CPUs", "CPUs that the process could use; may be fractional in a container."),
    "variables": Column(TEXT, "-", "Environment variables that change what is measured, `NAME=value`."),
    "launcher": Column(TEXT, "-", "How the repeat was started: `docker`, `process`, …"),
    "image_digest": Column(TEXT, "-", "Container image that was started; empty without a container."),
    "method_version": Column(WHOLE, "-", "Version of what is measured."),
    "parameters": Column(WHOLE, "-", "Trainable parameters: two networks of one name are not one network."),
    "cublas": Column(TEXT, "-", "cuBLAS version that was loaded; empty on a CPU and where none was."),
    "cuda_compat": Column(
        TEXT,
        "-",
        "Version of NVIDIA's compatibility package that replaced the driver's `libcuda`; empty where none did.",
    ),
}

CASE_COLUMNS: tuple[str, ...] = tuple(SETTINGS)
"""Columns that are a case's own; numbers are compared where all of them are equal."""

SOFTWARE_COLUMNS: tuple[str, ...] = tuple(item.name for item in fields(Software))
"""Columns of a row's identity in addition to fleet, host and case; numbers are merged where all of them are equal."""

REPEAT_NUMBERS = (
    "samples_per_second",
    *("step_p50_seconds", "step_p95_seconds", "step_cv"),
    *("latency_p50_seconds", "latency_p95_seconds", "latency_p99_seconds"),
    *("samples_per_joule", "power_mean_watts", "temperature_steady_celsius", "all_reduce_bytes_per_second"),
)
"""What a repeat measured; units as in `COLUMNS`."""

REPEAT_TYPES = {
    "row": "int64",
    "run": "string",
    "repeat": "int64",
    "started_at": "string",
    **dict.fromkeys(REPEAT_NUMBERS, "float64"),
}
"""Columns of `Merged.repeats`."""
