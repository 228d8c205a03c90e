"""The command line of `python -m tfbench`, parsed without TensorFlow."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from absl import flags

from results import schema
from results.schema import DEVICE_MODEL, SETTINGS, Case, Data, Mode, Precision
from results.schema.bounds import MOST
from results.schema.case import MOST_STEPS
from results.schema.health import START_CELSIUS
from results.schema.networks import NETWORKS
from tfbench.peers import ClusterError, TFCluster, read_cluster

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


class FlagsError(Exception):
    """A flag is wrong; the message is one line."""


KnownPeaks = tuple[float, float]
"""Peak rates of one device, measured in an earlier process: matrix products in FLOP/s, and memory in bytes/s."""


def _option(kind: Any, default: Any, meaning: str, low: float | None = None, high: float | None = None) -> Any:
    """Return a field of `Options`, with the arguments of `_define`."""
    return field(default=default, metadata={"flag": (kind, default, meaning, low, high)})


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a case is measured, and where its record goes: flags that are not settings of the case."""

    data_dir: Path | None = _option(str, None, "Folder with train-00000-of-N, … for --data=tfrecord.")
    output: Path | None = _option(str, None, "File for the record (default: stdout).")
    format: str | None = _option(
        ("table", "json"),
        None,
        "On stdout: a table, or the record as JSON without --output. Default: table on a terminal, else json.",
    )
    print_record: bool = _option(bool, False, "At the end, print the file of --output, packed into log lines.")
    max_seconds: float | None = _option(
        float, None, "End with the status timeout after this many seconds.", 0.0, MOST_SECONDS
    )
    max_warmup_steps: int | None = _option(
        int,
        None,
        "Upper limit for warm-up, which ends earlier once two windows of steps agree within 1 %. "
        "Default: 5 times --warmup_steps, or exactly --warmup_steps if that is below 10.",
        0,
    )
    max_cooling_seconds: float = _option(
        float, 60.0, f"Before warm-up, wait up to this long for GPUs to cool down to {START_CELSIUS:g} °C.", 0.0
    )
    telemetry: bool = _option(bool, True, "Record power, clocks and temperatures while timing.")
    peaks: bool = _option(bool, True, "Measure the device's peak rates after timing.")
    known_peaks: KnownPeaks | None = _option(
        str,
        None,
        "FLOPS,BYTES: peak rates of one device, per second, from an earlier repeat; saves measuring them again.",
    )
    steps_per_wait: int | None = _option(
        int,
        None,
        "Timed steps from one wait for the GPU to the next. Default: 1, or more if steps are short, so that the GPU "
        "has work while the host pauses.",
        1,
        MOST_STEPS,
    )

    @property
    def as_table(self) -> bool:
        """Whether stdout gets a table for a person."""
        return self.format == "table" or (not (self.format or self.output) and sys.stdout.isatty())


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call of `python -m tfbench`.

    Attributes:
        case: What to measure.
        options: How to measure it.
        cluster: The hosts of the case, and this host's rank.
        help: Only print the help.
    """

    case: Case
    options: Options = Options()
    cluster: TFCluster = field(default_factory=TFCluster)
    help: bool = False


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
        raise FlagsError(" ".join((advice_on(name) or str(error)).split())) from error
    if rest:
        raise FlagsError(f"only flags are expected (--name=value). Received: {rest[0]!r}")
    if not values.help:
        _check(values)
    options: dict[str, Any] = {item.name: values[item.name].value for item in fields(Options)}
    for name in ("output", "data_dir"):
        options[name] = Path(options[name]) if options[name] else None
    options["known_peaks"] = _known_peaks(values.known_peaks)
    try:
        cluster = TFCluster() if values.help else read_cluster(values.num_hosts, os.environ)
    except ClusterError as error:
        raise FlagsError(str(error)) from error
    return Request(case=_case(values), options=Options(**options), cluster=cluster, help=values.help)


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
    model, mode, data, folder = values.model, values.mode, values.data, values.data_dir
    received = f"Received: --mode={mode} --model={model}"
    if model is None:
        raise FlagsError(f"--model is missing: one of {', '.join((*NETWORKS, DEVICE_MODEL))}")
    if (model == DEVICE_MODEL) != (mode == Mode.DEVICE) and values["mode"].present:
        raise FlagsError(f"--mode=device and --model=device belong together. {received}")
    if model == DEVICE_MODEL and values.num_hosts > 1:
        raise FlagsError("--model=device measures one host. Remove --num_hosts")
    if (data == Data.TFRECORD) != bool(folder):
        received = f"Received: --data={data}, --data_dir={folder or '(none)'}"
        raise FlagsError(f"--data=tfrecord and --data_dir=FOLDER belong together. {received}")
    if data == Data.TFRECORD and mode != Mode.TRAIN:
        raise FlagsError(f"--data=tfrecord is for --mode=train. {received}")
    if values.num_hosts == 1 and values.communication != schema.Communication.AUTO:
        raise FlagsError(f"--communication={values.communication} is for several hosts. Add --num_hosts, or remove it")


def _known_peaks(text: str | None) -> KnownPeaks | None:
    """Read the two figures of --known_peaks.

    Raises:
        FlagsError: They are not two positive numbers.
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        flops, bandwidth = map(float, text.split(","))
        if 0 < flops < math.inf and 0 < bandwidth < math.inf:
            return flops, bandwidth
    raise FlagsError(
        f"--known_peaks must be operations and bytes per second of one device, e.g. 1.4e+13,4.1e+11. Received: {text}"
    )


def _case(values: flags.FlagValues) -> Case:
    read = {name: values[SETTINGS[name].flag or name].value for name in SETTINGS}
    settings: dict[str, Any] = {
        name: value if value is None else schema.kind_of(name)(value) for name, value in read.items()
    }
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
    for name, setting in SETTINGS.items():
        kind: Any = schema.kind_of(name)
        default, meaning = schema.default_of(name), setting.meaning
        limits: tuple[float | None, ...] = ()
        if kind in (int, float):
            numbers = schema.range_of(name)
            limits = (numbers.low, None if numbers.high == MOST else numbers.high)
        if name == "model":
            kind = (*NETWORKS, DEVICE_MODEL)
        if name == "batch_per_gpu":
            default = None
            meaning += f" Default: {FULL_PRECISION_BATCH} for fp32 and tf32, {HALF_PRECISION_BATCH} for fp16 and bf16."
        _define(values, setting.flag or name, kind, default, meaning, *limits)
    flags.DEFINE_alias("num_batches", "num_steps", flag_values=values)
    flags.DEFINE_alias("num_warmup_batches", "warmup_steps", flag_values=values)
    for item in fields(Options):
        _define(values, item.name, *item.metadata["flag"])
    flags.DEFINE_boolean("help", False, "Show this.", values, short_name="h")
    return values


def _define(values: flags.FlagValues, flag: str, kind: Any, default: Any, meaning: str, *limits: float | None) -> None:
    """Define a flag of a type, whose numbers have limits, or one that takes the words of an enumeration."""
    if kind is bool:
        flags.DEFINE_boolean(flag, default, meaning, values)
    elif kind is str:
        flags.DEFINE_string(flag, default, meaning, values)
    elif kind in (int, float):
        define: Any = flags.DEFINE_integer if kind is int else flags.DEFINE_float
        define(flag, default, meaning, *limits, values)
    else:
        flags.DEFINE_enum(flag, None if default is None else str(default), [*map(str, kind)], meaning, values)


SAME = {
    "use_fp16": "--precision=fp16",
    "forward_only": "--mode=infer",
    "xla_compile": "--xla=replica",
    "compact_gradient_transfer": "--all_reduce_dtype=fp16",
    "gradient_repacking": "--all_reduce_pack_mb",
    "agg_small_grads_max_bytes": "--all_reduce_pack_mb",
    "agg_small_grads_max_group": "--all_reduce_pack_mb",
    "all_reduce_spec": "--communication between hosts",
    "allow_growth": "--memory_growth",
    "data_name": "--data=tfrecord --data_dir=FOLDER, for ImageNet's format",
    "gpu_indices": "the variable CUDA_VISIBLE_DEVICES",
    "num_epochs": "--num_steps",
    "tf_random_seed": "nothing: synthetic examples have a fixed seed",
    **dict.fromkeys(("job_name", "task_index", "worker_hosts", "ps_hosts"), "--num_hosts and the variable TF_CONFIG"),
}
"""By flag, what to use instead."""


def advice_on(flag: str) -> str | None:
    """Return what to do about a flag of tf_cnn_benchmarks; None: it has no counterpart.

    Args:
        flag: Without dashes and value; may begin with `no`.
    """
    name = flag.removeprefix("no")
    if name not in SAME:
        return None
    remedy = f"Here, use {SAME[name]}" if flag == name else "Here, leave it out"
    return f"--{flag} is a flag of tf_cnn_benchmarks. {remedy}"
