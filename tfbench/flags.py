"""The command line of `python -m tfbench`, parsed without TensorFlow."""

from __future__ import annotations

import enum
import functools
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags

from results.schema import (
    DEVICE_MODEL,
    SETTINGS,
    Case,
    Communication,
    Data,
    Mode,
    Precision,
    default_of,
    kind_of,
    range_of,
)
from results.schema.bounds import MOST
from results.schema.case import MOST_STEPS
from results.schema.health import START_CELSIUS
from results.schema.networks import NETWORKS
from tfbench.peers.cluster import ClusterError, TFCluster, read_cluster
from tfbench.tf_cnn_benchmarks import advice_on

USAGE = """Measure one network on this machine and write the result as one JSON record.

  python -m tfbench --model=resnet50 --precision=fp16 --num_gpus=2 --output=record.json
  python -m tfbench --model=resnet50 --device=cpu --batch_size=4 --num_steps=10
  python -m tfbench --model=resnet50 --mode=infer --precision=fp16
  python -m tfbench --model=resnet50 --data=tfrecord --data_dir=FOLDER    (python -m tfbench.make_dataset makes one)
  python -m tfbench --model=device --num_gpus=2      matrix products, copies, all-reduce: no network

Progress goes to stderr. On a terminal the result is a table; elsewhere it is the record, for programs.
Exit code: 0 measured; 3 not measured, with the cause in the record; 2 bad flags; 1 a bug.

Flags (also from a file: --flagfile=FILE, one per line):
"""

HALF_PRECISION_BATCH, FULL_PRECISION_BATCH = 256, 128
"""Default samples per GPU and step for 16-bit and for 32-bit precisions."""


MOST_SECONDS = 1e9
"""Of a time limit: the kernel takes no more than about 300 years."""

REMOVED = {
    "find_max_batch": "Use batch_per_gpu: fit in a suite, or a smaller --batch_size",
    "max_rendezvous_seconds": "The processes of several hosts wait five minutes for each other",
    "max_start_temperature": "--max_cooling_seconds limits the wait",
    "seed": "Synthetic examples have a fixed seed; initial weights have none, and speed does not depend on them",
}
"""Removed flags, and what to use instead."""


class FlagsError(Exception):
    """A flag is wrong; the message is one line."""


@dataclass(frozen=True)
class KnownPeaks:
    """Peak rates of one device of this machine, measured in an earlier process.

    Attributes:
        flops_per_second: Matrix products of the case's precision.
        bytes_per_second: Memory, read and written.
    """

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a case is measured.

    Attributes:
        max_warmup_steps: Warm-up ends here even if step times have not settled; None: derived from the minimum.
        max_cooling_seconds: Longest wait for GPUs to cool down before warm-up.
        telemetry: Observe the devices while timing.
        peaks: Measure the device's peak rates after timing.
        data_dir: Folder of the TFRecords; None: the case needs none.
        known_peaks: Peak rates of one device from an earlier repeat; None: they are measured.
        steps_per_wait: Timed steps from one wait for the GPU to the next; None: chosen by their duration.
    """

    max_warmup_steps: int | None = None
    max_cooling_seconds: float = 60.0
    telemetry: bool = True
    peaks: bool = True
    data_dir: Path | None = None
    known_peaks: KnownPeaks | None = None
    steps_per_wait: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of `python -m tfbench`.

    Attributes:
        case: What to measure.
        output: Where the record goes; None: stdout.
        as_table: Whether stdout gets a table for a person.
        max_seconds: The process ends itself after this time; None: never.
        cluster: The hosts of the case, and this host's rank; None: a single host.
        options: How to measure it.
        print_record: Print the record's file at the end, for engines from which only output can be read.
        help: Only print the help.
    """

    case: Case
    output: Path | None = None
    as_table: bool = False
    max_seconds: float | None = None
    cluster: TFCluster | None = None
    options: Options = Options()
    print_record: bool = False
    help: bool = False

    @property
    def rank(self) -> int:
        """Rank of this host; 0 if it is the only one."""
        return 0 if self.cluster is None else self.cluster.rank


def parse(arguments: list[str]) -> Request:
    """Parse a command line.

    Args:
        arguments: Without the program's name.

    Raises:
        FlagsError: A flag is unknown or its value wrong.
    """
    values = _definitions()
    try:
        rest = values(["tfbench", *arguments])[1:]
    except flags.Error as error:
        name = getattr(error, "flagname", "")
        text = f"--{name} was removed. {REMOVED[name]}" if name in REMOVED else advice_on(name) or str(error)
        raise FlagsError(" ".join(text.split())) from error
    if rest:
        raise FlagsError(f"only flags are expected (--name=value). Received: {rest[0]!r}")
    if not values.help:
        _check(values)
    return Request(
        case=_case(values),
        output=Path(values.output) if values.output else None,
        as_table=values.format == "table" or (not (values.format or values.output) and sys.stdout.isatty()),
        max_seconds=values.max_seconds,
        cluster=None if values.help else _cluster(values),
        options=Options(
            max_warmup_steps=values.max_warmup_steps,
            max_cooling_seconds=values.max_cooling_seconds,
            telemetry=values.telemetry,
            peaks=values.peaks,
            data_dir=Path(values.data_dir) if values.data_dir else None,
            known_peaks=_known_peaks(values.known_peaks),
            steps_per_wait=values.steps_per_wait,
        ),
        print_record=values.print_record,
        help=values.help,
    )


def help_text() -> str:
    """Return the usage and all flags."""
    usage = USAGE
    if (program := os.environ.get("TFBENCH_PROGRAM")) is not None:
        usage = usage.replace("python -m tfbench.make_dataset", "tfbench make-dataset")
        usage = usage.replace("python -m tfbench", program)
    return usage + _definitions().get_help()


def _check(values: flags.FlagValues) -> None:
    """Check numbers, and flags against each other."""
    for name in values:
        if isinstance(value := values[name].value, float) and not math.isfinite(value):
            raise FlagsError(f"--{name} must be a finite number. Received: {value}. Without a limit, leave it out")
    if values.model is None:
        raise FlagsError(f"--model is missing: one of {', '.join((*NETWORKS, DEVICE_MODEL))}")
    if (values.model == DEVICE_MODEL) != (values.mode == Mode.DEVICE) and values["mode"].present:
        raise FlagsError(
            f"--mode={Mode.DEVICE} and --model={DEVICE_MODEL} belong together. "
            f"Received: --mode={values.mode} --model={values.model}"
        )
    if values.model == DEVICE_MODEL and values.num_hosts > 1:
        raise FlagsError(f"--model={DEVICE_MODEL} measures one host. Remove --num_hosts")
    if (values.data == Data.TFRECORD) != bool(values.data_dir):
        raise FlagsError(
            f"--data={Data.TFRECORD} and --data_dir=FOLDER belong together. "
            f"Received: --data={values.data}, --data_dir={values.data_dir or '(none)'}"
        )
    if values.data == Data.TFRECORD and values.mode != Mode.TRAIN:
        raise FlagsError(f"--data={Data.TFRECORD} is for --mode={Mode.TRAIN}. Received: --mode={values.mode}")


def _known_peaks(texts: list[str] | None) -> KnownPeaks | None:
    """Read the two figures of --known_peaks.

    Raises:
        FlagsError: They are not two positive numbers.
    """
    if texts is None:
        return None
    try:
        figures = [float(text) for text in texts]
    except ValueError:
        figures = []
    if len(figures) != 2 or not all(0 < figure < math.inf for figure in figures):
        raise FlagsError(
            "--known_peaks must be operations and bytes per second of one device, e.g. 1.4e+13,4.1e+11. "
            f"Received: {','.join(texts)}"
        )
    return KnownPeaks(*figures)


def _cluster(values: flags.FlagValues) -> TFCluster | None:
    """Read the cluster of the case, and refuse flags that do not fit the number of hosts."""
    if values.num_hosts == 1 and values.communication != Communication.AUTO:
        raise FlagsError(f"--communication={values.communication} is for several hosts. Add --num_hosts, or remove it")
    try:
        return read_cluster(values.num_hosts, os.environ)
    except ClusterError as error:
        raise FlagsError(str(error)) from error


def _case(values: flags.FlagValues) -> Case:
    read = {name: values[SETTINGS[name].flag or name].value for name in SETTINGS}
    settings: dict[str, Any] = {name: value if value is None else kind_of(name)(value) for name, value in read.items()}
    if settings["batch_per_gpu"] is None:
        half = settings["precision"] in (Precision.FP16, Precision.BF16)
        settings["batch_per_gpu"] = HALF_PRECISION_BATCH if half else FULL_PRECISION_BATCH
    if values.model == DEVICE_MODEL:
        settings["mode"] = Mode.DEVICE
    settings["model"] = values.model or ""
    return Case(**settings)


def _definitions() -> flags.FlagValues:
    """Define the flags in a set of their own: absl's global one also holds TensorFlow's."""
    values = flags.FlagValues()
    flags.DEFINE_enum("model", None, [*NETWORKS, DEVICE_MODEL], SETTINGS["model"].meaning, flag_values=values)
    flags.DEFINE_integer(
        "batch_size",
        None,
        f"{SETTINGS['batch_per_gpu'].meaning} Default: {FULL_PRECISION_BATCH} for fp32 and tf32, "
        f"{HALF_PRECISION_BATCH} for fp16 and bf16.",
        lower_bound=1,
        flag_values=values,
    )
    for name in SETTINGS:
        if name not in ("model", "batch_per_gpu"):
            _define_setting(name, values)
    flags.DEFINE_alias("num_batches", "num_steps", flag_values=values)
    flags.DEFINE_alias("num_warmup_batches", "warmup_steps", flag_values=values)
    _define_options(values)
    return values


def _define_setting(name: str, values: flags.FlagValues) -> None:
    """Define the flag of a case's setting."""
    setting, default, kind = SETTINGS[name], default_of(name), kind_of(name)
    flag = setting.flag or name
    if kind is bool:
        flags.DEFINE_boolean(flag, default, setting.meaning, flag_values=values)
    elif kind in (int, float):
        define: Any = flags.DEFINE_integer if kind is int else flags.DEFINE_float
        numbers = range_of(name)
        most = None if numbers.high == MOST else numbers.high
        define(flag, default, setting.meaning, numbers.low, most, flag_values=values)
    elif issubclass(kind, enum.StrEnum):
        chosen = None if default is None else str(default)
        flags.DEFINE_enum(flag, chosen, [str(word) for word in kind], setting.meaning, flag_values=values)
    else:
        flags.DEFINE_string(flag, default, setting.meaning, flag_values=values)


def _define_options(values: flags.FlagValues) -> None:
    """Define the flags that are not settings of the case: how to measure, and where the record goes."""
    defaults = Options()
    text, number, whole, switch = (
        functools.partial(define, flag_values=values)
        for define in (flags.DEFINE_string, flags.DEFINE_float, flags.DEFINE_integer, flags.DEFINE_boolean)
    )
    text("data_dir", None, "Folder with train-00000-of-N, … for --data=tfrecord.")
    text("output", None, "File for the record (default: stdout).")
    formats = "On stdout: a table, or the record as JSON without --output. Default: table on a terminal, else json."
    flags.DEFINE_enum("format", None, ["table", "json"], formats, flag_values=values)
    switch("print_record", False, "At the end, print the file of --output, packed into log lines.")
    limits = {"lower_bound": 0.0, "upper_bound": MOST_SECONDS}
    number("max_seconds", None, "End with the status timeout after this many seconds.", **limits)
    whole(
        "max_warmup_steps",
        None,
        "Upper limit for warm-up, which ends earlier once two windows of steps agree within 1 %. "
        "Default: 5 times --warmup_steps, or exactly --warmup_steps if that is below 10.",
        lower_bound=0,
    )
    cooling = f"Before warm-up, wait up to this long for GPUs to cool down to {START_CELSIUS:g} °C."
    number("max_cooling_seconds", defaults.max_cooling_seconds, cooling, lower_bound=0.0)
    switch("telemetry", defaults.telemetry, "Record power, clocks and temperatures while timing.")
    switch("peaks", defaults.peaks, "Measure the device's peak rates after timing.")
    whole(
        "steps_per_wait",
        None,
        "Timed steps from one wait for the GPU to the next. Default: 1, or more if steps are short, so that the GPU "
        "has work while the host pauses.",
        lower_bound=1,
        upper_bound=MOST_STEPS,
    )
    flags.DEFINE_list(
        "known_peaks",
        None,
        "FLOPS,BYTES: peak rates of one device, per second, from an earlier repeat; saves measuring them again.",
        flag_values=values,
    )
    switch("help", False, "Show this.", short_name="h")
