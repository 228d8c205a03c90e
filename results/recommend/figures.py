"""Collects comparable throughputs: measured in these runs, or published by others in one setting.

A table never mixes the two. Each source chose its own batch, often the largest that fits the GPU.
"""

from __future__ import annotations

import enum
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results.recommend.questions import RentalQuestion
from results.reference import all_published, read_rows
from results.reference.gpus import gpu_key, roofline, specifications
from results.reference.networks import networks, published_names
from results.reference.prices import Offer
from results.schema import Device
from results.stats import Interval
from results.table.columns import Software
from results.table.comparable import by_setting, match, mode_text, setting_text
from results.table.fleets import FleetRate
from results.text import counted

HOST_FAILURES = frozenset({"unreachable", "pull_failed", "lost", "stopped", "invalid"})
"""Statuses that do not depend on the GPU or come from a null GPU; published figures may replace them."""

SECONDS_PER_HOUR = 3600

TASKS = {"squad": "SQuAD fine-tuning", "pretraining": "pre-training"}

COMPILERS = {"on": ", XLA", "replica": ", XLA", "off": ", no XLA", "": ""}

OURS = "measured by this project"

CONDITIONS = ("synthetic", "real", "averaged", "gradient", "unpadding", "fused")
"""First words of the parts of a row's note that describe how it was measured."""

YEARS = {
    "2020": r"NGC 20\.06|TF 1\.15\.[34]|TF 2\.[23]\.0",
    "2021": r"PyTorch 1\.9\.|TF 1\.15\.5|TF 2\.4\.1",
    "2022": r"PyTorch 1\.13\.",
}
"""Software of published figures, by year; other sources do not state it."""

SAME_SETTING, OTHER_VERSION, OTHER_SOFTWARE = 0.05, 0.4, 1.2
"""Smallest relative difference of two published figures that is significant, each of one run on one host: in one
setting, with other versions of one framework by one publisher, and otherwise.

Source: figures of one GPU, network and precision in `published.csv`: ResNet50 FP16 on RTX A6000 1404 and 1478, on A100
SXM4 40GB 1888 and 1990 (5 %); TensorFlow 1.15 and 2.4 up to 1.35 times apart, but for an early build for Ampere;
different publishers up to 2.16 times (ResNet50 FP16 on A100 SXM4 80GB: 3410 with MXNet, 1582 with PyTorch).
"""

OTHER_NOTE = (
    f"other software than the first rows: a difference decides above a factor of {1 + OTHER_VERSION:g} between "
    f"versions of one framework, else of {1 + OTHER_SOFTWARE:g}"
)

GpuCount = tuple[str, int]
"""A GPU and its number in a job."""


class Basis(enum.StrEnum):
    """Basis of a throughput; only the first three are ranked."""

    MEASURED = "measured"
    PROJECT = OURS
    PUBLISHED = "published"
    PREDICTED = "predicted"
    BOUND = "bound"  # an upper limit by bandwidth and arithmetic
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class RentalOption:
    """An option: a GPU and count with its throughput, or the reason for having none, and its price.

    Attributes:
        subject: Fleet, or GPU for published figures.
        gpu: Name in the reference, else as received.
        count: GPUs of the job.
        samples_per_second: Over all GPUs; for a bound the limit; 0: unknown.
        interval: None: uncertainty unknown.
        origin: Short description of the source.
        batch: Batch per GPU; empty: not stated.
        note: Why it is not ranked, or a remark; may be empty.
        setting: Source and software of a published figure.
        foreign: Whether it was published by others, or with another framework, than the first rows of its table.
        failed: Whether it was tried here and failed because of the GPU, e.g. `oom`.
        measured: Measurement or failure of these runs.
        run_prices: USD per GPU-hour from the records, by host.
        sources: What the source of a published figure states, with its URL, one line each.
        offers: Prices within the budget, of hosts with enough GPUs.
        hours: Time for the job.
        misfit: Limits that it does not meet; may be empty.
        notes: Remarks.
        wins_below: USD per hour for all its GPUs below which it gives more samples a dollar than any other GPU.
    """

    basis: Basis
    subject: str
    gpu: str
    count: int
    samples_per_second: float = 0.0
    interval: Interval | None = None
    origin: str = ""
    batch: str = ""
    note: str = ""
    setting: str = ""
    foreign: bool = False
    failed: bool = False
    measured: FleetRate | None = None
    run_prices: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    hours: float | None = None
    misfit: str = ""
    notes: tuple[str, ...] = ()
    wins_below: float | None = None

    @property
    def name(self) -> str:
        """Display name: `2 × RTX A5000`, or the fleet."""
        return self.subject if self.count == 1 else f"{self.count} × {self.subject}"

    @property
    def framework(self) -> str:
        """Publisher and framework of a published figure, without version: `Lambda PyTorch`."""
        return " ".join(part.split()[0] for part in self.origin.split(", ")[:2])

    @property
    def has_figure(self) -> bool:
        """Whether its throughput is known or predicted, rather than a bound."""
        return bool(self.samples_per_second) and self.basis is not Basis.BOUND

    @property
    def ranked(self) -> bool:
        """Whether its throughput is known, ignoring limits."""
        return self.basis in (Basis.MEASURED, Basis.PROJECT, Basis.PUBLISHED)

    @property
    def doubt(self) -> str:
        """Why its figure decides only by a wide margin; empty if it does not."""
        return "predicted" if self.basis is Basis.PREDICTED else "other software" if self.foreign else ""

    @property
    def excluded(self) -> str:
        """Why it is not ranked; empty if it is."""
        reason = "" if self.ranked else self.note or str(self.basis)
        return "; ".join(filter(None, (self.misfit, reason)))

    @property
    def usd(self) -> tuple[float, ...]:
        """Lowest and highest price per hour of all GPUs; empty without one."""
        prices = sorted(offer.usd_per_hour(self.count) for offer in self.offers)
        return (prices[0], prices[-1]) if prices else ()

    @property
    def samples_per_usd(self) -> tuple[float, ...]:
        """Samples a dollar at the highest and the lowest price; empty without a price or figure."""
        rate = SECONDS_PER_HOUR * self.samples_per_second
        return tuple(rate / usd for usd in reversed(self.usd)) if self.has_figure else ()

    @property
    def cheapest(self) -> Offer:
        """The offer at the lowest price."""
        return min(self.offers, key=lambda offer: offer.usd_per_hour(self.count))


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """Figures of one setting, and GPUs without a figure.

    Attributes:
        mode: `training` or `inference`.
        model: Name of the network in the figures.
        rows: Comparable figures, then GPUs without.
        setting: Description of the shared setting.
        remarks: Further remarks.
    """

    basis: Basis
    mode: str
    model: str
    rows: tuple[RentalOption, ...]
    setting: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The network with its task and sequence length: `bert_large (SQuAD fine-tuning, 384 tokens)`."""
        found = re.fullmatch(rf"(\w+?)_({'|'.join(TASKS)})_(\d+)", self.model)
        return f"{found[1]} ({TASKS[found[2]]}, {found[3]} tokens)" if found else self.model

    @property
    def source(self) -> str:
        """Publisher of the figures."""
        return self.setting.split(":")[0]


def measured_tables(question: RentalQuestion, rates: Sequence[FleetRate]) -> list[FigureTable]:
    """Return the figures of these runs, one table per setting, the one with the most figures first.

    Each table has all fleets of the question, with their figure or the reason for having none.
    """
    gpus = gpus_of_fleets(rates)
    relevant = [
        rate
        for rate in rates
        if question.covers(rate.case) and question.wants(gpus[rate.fleet, rate.case.device], rate.case.num_gpus)
    ]
    settings = [*by_setting((rate for rate in relevant if rate.rates), across=("num_gpus",)).values()]
    for failed in (rate for rate in relevant if not rate.rates):
        _add_failure(settings, failed)
    asked = f"batch {question.batch_size}"
    tables = [_measured_table(question, of_setting, relevant, gpus) for of_setting in settings]
    tables = [table for table in tables if asked in table.setting.split(", ")] or tables
    return sorted(tables, key=lambda table: -sum(bool(rate.samples_per_second) for rate in table.rows))


def _add_failure(settings: list[list[FleetRate]], failed: FleetRate) -> None:
    """Add a failure to each setting of its case in which its fleet has no figure of as many GPUs, or to a new one."""
    alike = [of for of in settings if replace(of[0].case, num_gpus=1) == replace(failed.case, num_gpus=1)]
    if not alike:
        settings.append([failed])
    for of in alike:
        if (failed.fleet, failed.case.num_gpus) not in {(rate.fleet, rate.case.num_gpus) for rate in of}:
            of.append(failed)


FleetDevice = tuple[str, Device]
"""A fleet, and the device that a case asks for."""


def gpus_of_fleets(rates: Sequence[FleetRate]) -> dict[FleetDevice, str]:
    """Return what each fleet trains on: the recorded GPU or processor; an unknown GPU keeps its recorded name.

    The name of a fleet counts only if nothing was recorded, because all its repeats failed early.
    """
    gpus: dict[FleetDevice, str] = {}
    recorded = {rate.fleet for rate in rates if rate.software != Software()}
    for rate in sorted(rates, key=lambda rate: not (rate.software.gpu or rate.software.cpu)):
        name = rate.software.gpu or rate.software.cpu or rate.fleet
        if rate.case.device is Device.GPU and (rate.software.gpu or rate.fleet not in recorded):
            name = gpu_key(name) or name
        gpus.setdefault((rate.fleet, rate.case.device), name)
    return gpus


def _measured_table(
    question: RentalQuestion,
    of_setting: Sequence[FleetRate],
    relevant: Sequence[FleetRate],
    gpus: Mapping[FleetDevice, str],
) -> FigureTable:
    """Build the table of one setting: its fleets, then what was not measured."""
    example, measured = of_setting[0], [rate for rate in of_setting if rate.rates]
    prices: dict[str, dict[str, float]] = defaultdict(dict)
    for rate in relevant:
        prices[rate.fleet] |= rate.prices
    rows = {(rate.fleet, rate.case.num_gpus): _option(rate, gpus) for rate in of_setting}
    tried = {(rate.fleet, rate.case.num_gpus): gpus[rate.fleet, rate.case.device] for rate in relevant}
    present = {(gpu, count) for (_, count), gpu in tried.items()}
    for subject, count, gpu in (
        *((fleet, count, gpu) for (fleet, count), gpu in tried.items()),
        *((gpu, count, gpu) for gpu, count in question.gpus if (gpu, count) not in present),
    ):
        absent = missing(gpu, count, "not measured in this setting", subject)
        rows.setdefault((subject, count), replace(absent, run_prices=prices[subject]))
    differs = dict.fromkeys(name for other in measured[1:] for name in match(measured[0], other).differs)
    return FigureTable(
        basis=Basis.MEASURED,
        mode=mode_text(example.case.mode),
        model=question.network,
        setting=setting_text(example, without=("model", "mode", "precision", "num_gpus")),
        rows=tuple(rows.values()),
        remarks=tuple(
            f"also differs: {name} " + ", ".join(f"{rate.named(name) or 'none'} ({rate.fleet})" for rate in measured)
            for name in differs
        ),
    )


def _option(rate: FleetRate, gpus: Mapping[FleetDevice, str]) -> RentalOption:
    """Return the option of a measurement or failure of these runs."""
    option = RentalOption(
        basis=Basis.MEASURED,
        subject=rate.fleet,
        gpu=gpus[rate.fleet, rate.case.device],
        count=rate.case.num_gpus,
        samples_per_second=rate.mean or 0.0,
        interval=rate.interval,
        origin=f"this run, {counted(len(rate.rates), 'host')}",
        batch=str(rate.case.batch_per_gpu),
        measured=rate,
        run_prices=rate.prices,
    )
    if rate.rates:
        return option
    statuses = dict.fromkeys(rate.failures.values())
    note, failed = f"{', '.join(statuses)} in this run", bool(statuses.keys() - HOST_FAILURES)
    return replace(option, basis=Basis.NONE, origin="", batch="", note=note, failed=failed)


def missing(gpu: str, count: int, note: str = "no figure", subject: str = "", *, failed: bool = False) -> RentalOption:
    """Return an option without a figure, with the reason as its note."""
    return RentalOption(basis=Basis.NONE, subject=subject or gpu, gpu=gpu, count=count, note=note, failed=failed)


@dataclass(frozen=True, order=True)
class PublishedSetting:
    """Setting of published figures.

    Attributes:
        software: Source, framework, compiler and data.
        network: Name of the network in the rows, with its task.
    """

    software: str
    network: str


Published = Mapping[PublishedSetting, Mapping[GpuCount, RentalOption]]


def published_figures(question: RentalQuestion) -> Published:
    """Return the published figures for a question, by setting, GPU and count, without suspect rows.

    Of several batches of a source, the fastest is used.
    """
    found: dict[PublishedSetting, dict[GpuCount, RentalOption]] = defaultdict(dict)
    names = published_names(question.network)
    for row in sorted(all_published(), key=lambda row: float(row["samples_per_second"])):
        if not row["suspect"] and row["model"] in names and row["precision"] == question.precision:
            known = _published(row)
            found[PublishedSetting(_software(row), row["model"])][known.gpu, known.count] = known
    return found


def project_figures(question: RentalQuestion) -> Published:
    """Return the figures that this project measured for a question: of equal cases that of the most processes."""
    found: dict[PublishedSetting, dict[GpuCount, RentalOption]] = defaultdict(dict)
    rows = read_rows("measured.csv")
    for row in sorted(rows, key=lambda row: (int(row["processes"]), int(row["method_version"]))):
        if (row["model"], row["precision"]) == (question.network, question.precision):
            option = _of_project(row)
            # Added last, so that the settings are in the order of their best figures.
            place = PublishedSetting(option.setting, row["model"])
            found[place] = {**found.pop(place, {}), (option.gpu, option.count): option}
    return found


def project_table(
    question: RentalQuestion, failed: Collection[GpuCount], fits: Callable[[GpuCount], bool]
) -> FigureTable | None:
    """Return the setting in which this project measured the most of the GPUs; None: none that may be of use."""
    settings = {
        place: {key: option for key, option in of.items() if question.wants(*key) and key not in failed}
        for place, of in project_figures(question).items()
    }
    asked = f"batch {question.batch_size}"
    settings = {place: of for place, of in settings.items() if asked in place.software.split(", ")} or settings
    first = max(reversed(settings), key=lambda place: len(settings[place]), default=None)
    if first is None or not (settings[first] if question.gpus else any(map(fits, settings[first]))):
        return None
    rows = settings[first]
    others = [missing(*key, "not measured") for key in question.gpus if key not in rows]
    return FigureTable(
        basis=Basis.PROJECT,
        mode="training",
        model=first.network,
        setting=first.software,
        rows=(*rows.values(), *others),
    )


def margin(a: RentalOption, b: RentalOption) -> float:
    """Return the smallest relative difference of two published figures that is significant."""
    if a.setting == b.setting:
        return SAME_SETTING
    return OTHER_VERSION if a.framework == b.framework else OTHER_SOFTWARE


def published_table(
    question: RentalQuestion, failed: Mapping[GpuCount, str], fits: Callable[[GpuCount], bool]
) -> FigureTable:
    """Return the setting with the most of the GPUs, then those that were published with other software, marked.

    Args:
        question: The question.
        failed: GPUs that failed in these runs, with the reason; no published figure replaces them.
        fits: Whether a GPU and count meet the limits other than time.
    """
    every = published_figures(question) or {PublishedSetting("", question.network): {}}
    places = {
        place: {key: rate for key, rate in of.items() if question.wants(*key) and key not in failed}
        for place, of in every.items()
    }
    able = {place: {key for key in of if fits(key)} for place, of in places.items()}
    pool: Mapping[PublishedSetting, Collection[GpuCount]] = next(
        (of for of in (able, places) if any(of.values())), every
    )
    of_network: dict[str, set[GpuCount]] = defaultdict(set)
    for place, keys in pool.items():
        of_network[place.network] |= {*keys}

    def use(place: PublishedSetting) -> tuple[int, int, int, PublishedSetting]:
        size = len(pool[place])
        return size if size > 1 else 0, len(of_network[place.network]), size, place

    first = max(pool, key=use)
    rows = places[first]
    others = [
        _of_other_software(key, first, places) or missing(*key, failed.get(key, "no figure"), failed=key in failed)
        for key in question.gpus
        if key not in rows
    ]
    return FigureTable(
        basis=Basis.PUBLISHED,
        mode="training",
        model=first.network,
        setting=first.software,
        rows=(*rows.values(), *others),
        remarks=(OTHER_NOTE,) if any(option.samples_per_second for option in others) else (),
    )


def _of_other_software(key: GpuCount, first: PublishedSetting, places: Published) -> RentalOption | None:
    """Return the figure of a GPU in another setting of the same network, preferably of the same framework."""
    found = [of[key] for place, of in places.items() if key in of and place.network == first.network]
    rows = [*places[first].values()]
    base = rows[0].framework if rows else ""
    best = max(found, key=lambda option: (option.framework == base, option.setting), default=None)
    return (
        replace(best, note="other software" if rows else "", foreign=bool(rows) and best.framework != base)
        if best
        else None
    )


def bound(question: RentalQuestion, gpu: str, count: int) -> float | None:
    """Return the upper bound in samples per second for any software; None: unknown."""
    cost = networks().get(question.network)
    line = roofline(specifications().get(gpu, {}), cost, question.precision) if cost else None
    return count * line.hard_limit if line is not None and math.isfinite(line.hard_limit) else None


def _published(row: Mapping[str, str]) -> RentalOption:
    batch = row["batch_per_gpu"] or "not stated"
    what = f"{row['model']} {row['precision']} ×{row['num_gpus']}: {row['samples_per_second']} {row['unit']}/s"
    framework = re.sub(r"\+\w+|, NVIDIA DeepLearningExamples|tf_cnn_benchmarks, | \(.*\)", "", row["framework"])
    year = next((year for year, pattern in YEARS.items() if re.search(pattern, row["framework"])), "")
    return RentalOption(
        basis=Basis.PUBLISHED,
        subject=row["gpu"],
        gpu=row["gpu"],
        count=int(row["num_gpus"]),
        samples_per_second=float(row["samples_per_second"]),
        origin=", ".join(filter(None, (row["source"].split()[0], framework, year))),
        batch=batch,
        setting=_software(row),
        sources=(f"{what}, batch {batch}; {row['framework']}; {row['source']}, {row['url']}",),
    )


def _of_project(row: Mapping[str, str]) -> RentalOption:
    """Return the option of a row of `measured.csv`."""
    rate, batch = float(row["samples_per_second"]), row["batch_per_gpu"]
    place = ", container" if row["container"] == "yes" else ""
    framework = f"TensorFlow {row['tensorflow']}, CUDA {row['cuda']}{COMPILERS[row['xla']]}"
    return RentalOption(
        basis=Basis.PROJECT,
        subject=row["gpu"],
        gpu=row["gpu"],
        count=int(row["num_gpus"]),
        samples_per_second=rate,
        interval=Interval(rate, float(row["ci95_low"]), float(row["ci95_high"])) if row["ci95_low"] else None,
        origin=f"{OURS}, {row['date']}",
        batch=batch,
        setting=f"{framework}, batch {batch}, synthetic{place}, method {row['method_version']}",
        sources=(f"results/reference/measured/{row['records']}, {counted(row['processes'], 'process')}",),
    )


def _software(row: Mapping[str, str]) -> str:
    """Describe the source, software and conditions of a row."""
    conditions = [part.strip() for part in row["note"].split(";") if part.strip().startswith(CONDITIONS)]
    return ", ".join([f"{row['source']}: {row['framework']}{COMPILERS.get(row['xla'], '')}", *conditions])
