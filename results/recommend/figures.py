"""Throughputs that may be compared with each other: measured in these runs, or published by others in one setting.

A table of figures never mixes the two. Batches are each source's choice, often the largest that fits the GPU.
"""

from __future__ import annotations

import enum
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results.recommend.questions import RentalQuestion
from results.reference import all_published
from results.reference.gpus import gpu_key, gpus_named, roofline
from results.reference.networks import networks, published_names
from results.stats import Interval
from results.table.columns import CASE_COLUMNS, Value
from results.table.comparable import SharedSetting, match, mode_text, setting_of, setting_text
from results.table.fleets import FleetRate
from results.text import counted

HOST_FAILURES = frozenset({"unreachable", "pull_failed", "lost", "stopped", "invalid"})
"""Statuses that say nothing about the GPU, also where it was simulated: published figures of it may still be used."""

TASKS = {"squad": "SQuAD fine-tuning", "pretraining": "pre-training"}

COMPILERS = {"on": ", XLA", "off": ", no XLA", "": ""}

CONDITIONS = ("synthetic", "real", "averaged", "gradient", "unpadding", "fused")
"""First words of those parts of a row's note that say how it was measured."""

YEARS = {
    "PyTorch 1.9.": 2021,
    "PyTorch 1.13.": 2022,
    "NGC 20.06": 2020,
    "TF 1.15.3": 2020,
    "TF 1.15.4": 2020,
    "TF 1.15.5": 2021,
    "TF 2.2.0": 2020,
    "TF 2.3.0": 2020,
    "TF 2.4.1": 2021,
}
"""Year of the software that published figures were measured with; the other sources state none."""


NO_FIGURE = "no figure"

OTHER_SETTING = "published with other software than the first rows"

GpuCount = tuple[str, int]
"""A GPU and how many of it a job has."""


class Basis(enum.StrEnum):
    """Where a throughput comes from; only the first two are ever ranked."""

    MEASURED = "measured"
    PUBLISHED = "published"
    PREDICTED = "predicted"
    BOUND = "bound"  # an upper limit by bandwidth and arithmetic
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class KnownRate:
    """The throughput of a number of GPUs for a question, or why there is none.

    Attributes:
        subject: Fleet, or GPU where others measured.
        gpu: Name in the reference, else as it came.
        count: GPUs of the job.
        samples_per_second: Over all GPUs; of a bound the limit; None when not known.
        interval: None when its uncertainty is not known.
        origin: Where it comes from, in a few words.
        batch: Per GPU; empty: not stated.
        note: Why it is not ranked, or what a reader must know; empty: nothing.
        ranked: Whether it may be ranked with the others of its table, if it is measured or published.
        failed: Whether it was tried here and failed for a reason of its own, e.g. `oom`.
        prices: USD per GPU-hour that came with the measurement, by host.
        rate: What was measured here.
        sources: Where the figure comes from, one line each.
    """

    basis: Basis
    subject: str
    gpu: str
    count: int
    samples_per_second: float | None = None
    interval: Interval | None = None
    origin: str = ""
    batch: str = ""
    note: str = ""
    ranked: bool = True
    failed: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    rate: FleetRate | None = None
    sources: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The subject with its number of GPUs, where that is not 1: `2 × RTX A5000`."""
        return self.subject if self.count == 1 else f"{self.count} × {self.subject}"


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """Figures of one setting, and GPUs that have none in it.

    Attributes:
        mode: `training` or `inference`.
        network: What the figures call the network, with its task.
        setting: What all figures share, in words.
        rates: Comparable figures, then those without.
        remarks: What a reader must know besides.
        source: Whose figures they are; empty: measured here.
        model: Name of the network in the rows, for predictions; empty: none are made.
    """

    basis: Basis
    mode: str
    network: str
    setting: str
    rates: tuple[KnownRate, ...]
    remarks: tuple[str, ...] = ()
    source: str = ""
    model: str = ""


def measured_tables(question: RentalQuestion, rates: Sequence[FleetRate]) -> list[FigureTable]:
    """Return what our own records say, one table for each setting, that with most figures first.

    Every fleet of the question is in every table of its mode: with its figure, or with the reason why it has none.
    """
    gpus = gpus_of_fleets(rates)
    relevant = [
        rate
        for rate in rates
        if rate.case.model == question.network
        and rate.case.precision == question.precision
        and rate.case.num_hosts == 1
        and rate.case.all_reduce
        and question.mode in (None, rate.case.mode)
        and question.wants(gpus[rate.fleet], rate.case.num_gpus)
    ]
    groups: dict[SharedSetting, list[FleetRate]] = defaultdict(list)
    for rate in relevant:
        if rate.rates:
            groups[setting_of(rate, across=("num_gpus",))].append(rate)
    tables = [_measured_table(question, of_setting, relevant, gpus) for of_setting in groups.values()]
    examples = [of_setting[0] for of_setting in groups.values()]
    for rate in relevant:
        if not rate.rates and not any(_same_case(rate, example) for example in examples):
            examples.append(rate)
            tables.append(_measured_table(question, [], relevant, gpus, rate))
    if relevant and not tables:
        tables = [_measured_table(question, [], relevant, gpus, relevant[0])]
    asked = f"batch {question.batch_per_gpu}"
    with_batch = [table for table in tables if asked in table.setting.split(", ")]
    return sorted(
        with_batch or tables, key=lambda table: -sum(rate.samples_per_second is not None for rate in table.rates)
    )


def failed_here(tables: Iterable[FigureTable]) -> dict[GpuCount, str]:
    """Return the GPUs that failed the question's own cases in these runs and have no figure, with the status."""
    rates = [rate for table in tables for rate in table.rates]
    known = {(rate.gpu, rate.count) for rate in rates if rate.samples_per_second}
    return {
        (rate.gpu, rate.count): rate.note
        for rate in rates
        if rate.failed and (rate.gpu, rate.count) not in known
    }  # fmt: skip


def gpus_of_fleets(rates: Sequence[FleetRate]) -> dict[str, str]:
    """Return the GPU of each fleet; one whose every repeat failed early may only be known by the fleet's name."""
    gpus: dict[str, str] = {}
    for rate in rates:
        named = rate.software.gpu or rate.software.cpu
        if named and not gpus.get(rate.fleet):
            gpus[rate.fleet] = gpu_key(named) or named
    for rate in rates:
        members = gpus_named(rate.fleet)
        gpus.setdefault(rate.fleet, members[0] if len(members) == 1 else rate.fleet)
    return gpus


def _measured_table(
    question: RentalQuestion,
    measured: Sequence[FleetRate],
    relevant: Sequence[FleetRate],
    gpus: Mapping[str, str],
    failed: FleetRate | None = None,
) -> FigureTable:
    """Put together the fleets of one setting.

    Args:
        question: What is asked.
        measured: The fleets' throughput; empty: none has one.
        relevant: All rates of the question, also in other settings and without a number.
        gpus: GPU of each fleet.
        failed: A rate of the setting, where none has a number.
    """
    example = failed or measured[0]
    found = [
        KnownRate(
            basis=Basis.MEASURED,
            subject=rate.fleet,
            gpu=gpus[rate.fleet],
            count=rate.case.num_gpus,
            samples_per_second=rate.mean,
            interval=rate.interval,
            origin=f"this run, {counted(len(rate.rates), 'host')}",
            batch=str(rate.case.batch_per_gpu),
            prices=rate.prices,
            rate=rate,
            sources=tuple(_values_of_host(host, runs) for host, runs in rate.rates.items()),
        )
        for rate in measured
    ]
    missing: dict[GpuCount, KnownRate] = {}
    for rate in sorted(relevant, key=lambda rate: bool(rate.rates) or not _same_case(rate, example)):
        key = rate.fleet, rate.case.num_gpus
        if key in {(known.subject, known.count) for known in found}:
            continue
        status = ", ".join(dict.fromkeys(rate.failures.values()))
        here = not rate.rates and _same_case(rate, example)
        missing.setdefault(
            key,
            KnownRate(
                basis=Basis.NONE,
                subject=rate.fleet,
                gpu=gpus[rate.fleet],
                count=rate.case.num_gpus,
                note=f"{status} in this run" if here else "not measured in this setting",
                prices=rate.prices,
                failed=here and bool(set(rate.failures.values()) - HOST_FAILURES),
            ),
        )
    known = {(rate.gpu, rate.count) for rate in (*found, *missing.values())}
    absent = [
        KnownRate(basis=Basis.NONE, subject=gpu, gpu=gpu, count=count, note="not measured in this run")
        for gpu, count in question.gpus
        if (gpu, count) not in known
    ]
    return FigureTable(
        basis=Basis.MEASURED,
        mode=mode_text(example.case.mode),
        network=question.network,
        setting=setting_text(example, without=("model", "mode", "precision", "num_gpus")),
        rates=(*found, *missing.values(), *absent),
        remarks=_differing_software(measured),
        model=example.case.model if example.case.mode == "train" else "",
    )


def _same_case(a: FleetRate, b: FleetRate) -> bool:
    """Return whether two rates are of one case but for the number of GPUs."""
    return all(a.named(name) == b.named(name) for name in CASE_COLUMNS if name != "num_gpus")


def _values_of_host(host: str, runs: Mapping[str, Sequence[float]]) -> str:
    values = "; ".join(f"{run}: {', '.join(f'{value:.5g}' for value in of_run)}" for run, of_run in runs.items())
    return f"{host}, samples/s of each repeat: {values}"


def _differing_software(rates: Sequence[FleetRate]) -> tuple[str, ...]:
    """Name the software that differs between the fleets of a table: it may be the cause."""
    columns = dict.fromkeys(name for other in rates[1:] for name in match(rates[0], other).differs)
    return tuple(
        f"differs besides the hardware: {name} " + ", ".join(f"{_value(rate, name)} ({rate.fleet})" for rate in rates)
        for name in columns
    )


def _value(rate: FleetRate, name: str) -> Value:
    value = rate.named(name)
    return "none" if value is None else value


@dataclass(frozen=True, order=True)
class PublishedSetting:
    """Where and with what figures were measured.

    Attributes:
        software: Source, framework, compiler and data, in words.
        short: Who, with which framework, in which year.
        network: Its name in the rows, with its task.
    """

    software: str
    short: str
    network: str


Published = Mapping[PublishedSetting, Mapping[GpuCount, KnownRate]]


def network_text(name: str) -> str:
    """Name a published network with its task and sequence length: `bert_large (SQuAD fine-tuning, 384 tokens)`."""
    found = re.fullmatch(rf"(\w+?)_({'|'.join(TASKS)})_(\d+)", name)
    return f"{found[1]} ({TASKS[found[2]]}, {found[3]} tokens)" if found else name


def published_figures(question: RentalQuestion) -> Published:
    """Return the published figures for a question, by setting, GPU and count; suspect rows are left out."""
    best: dict[PublishedSetting, dict[GpuCount, Mapping[str, str]]] = defaultdict(dict)
    names = published_names(question.network)
    for row in all_published():
        if row["suspect"] or row["model"] not in names or row["precision"] != question.precision:
            continue
        of_setting, key = best[PublishedSetting(*_software(row), row["model"])], (row["gpu"], int(row["num_gpus"]))
        # A source that measured several batches is taken at its best, as it would be used.
        if key not in of_setting or _rate(row) > _rate(of_setting[key]):
            of_setting[key] = row
    return {
        place: {key: _published(key, place.short, row) for key, row in sorted(rows.items())}
        for place, rows in best.items()
    }


def published_tables(
    question: RentalQuestion, failed: Mapping[GpuCount, str], fits: Callable[[GpuCount], bool]
) -> list[FigureTable]:
    """Return for each network and task the settings that have two or more of the GPUs, that with most of them first.

    A further setting is added for every GPU that shares none with the others so far: adding a GPU to a question never
    removes an answer. Where no setting has two, figures of different software are put side by side, marked.

    Args:
        question: What is asked.
        failed: GPUs that failed the question's case in these runs, with the reason: no published figure replaces it.
        fits: Whether a number of GPUs meets the limits, whatever its speed.
    """
    known = {
        place: {key: rate for key, rate in of.items() if question.wants(*key) and key not in failed}
        for place, of in published_figures(question).items()
    }
    if not any(fits(key) for of in known.values() for key in of):
        fits = bool  # none meets the limits: how they compare is known all the same
    common, alone = [], []
    for chosen in dict.fromkeys(place.network for place in known):
        places = {place: of for place, of in known.items() if place.network == chosen and of}
        covering = _covering(question, places, fits)
        if covering:
            common += [_published_table(question, place, places, failed, covering) for place in covering]
        elif places:
            best = max(places, key=lambda place: (sum(map(fits, places[place])), len(places[place]), place))
            alone.append(_published_table(question, best, places, failed, []))
    empty = FigureTable(
        basis=Basis.PUBLISHED,
        mode="training",
        network=question.network,
        setting="",
        rates=tuple(_missing(key, failed) for key in question.gpus),
        model=_most_published(question),
    )
    common.sort(key=lambda table: -len(table.rates))
    known_keys = [[(rate.gpu, rate.count) for rate in table.rates if rate.samples_per_second] for table in alone]
    ordered = sorted(zip(known_keys, alone, strict=True), key=lambda item: (-sum(map(fits, item[0])), -len(item[0])))
    return common or [table for _, table in ordered][:1] or [empty]


def _covering(
    question: RentalQuestion,
    places: Mapping[PublishedSetting, Mapping[GpuCount, KnownRate]],
    fits: Callable[[GpuCount], bool],
) -> list[PublishedSetting]:
    """Choose settings that have two GPUs at least, until each GPU that was asked for is in one that has it."""
    able = {place: {key for key in of if fits(key)} for place, of in places.items()}
    chosen: list[PublishedSetting] = []
    covered: set[GpuCount] = set()
    while True:
        useful = [place for place in able if len(able[place]) > 1 and able[place] - covered]
        if not useful or (chosen and not question.gpus):
            return chosen
        chosen.append(max(useful, key=lambda place: (len(able[place] - covered), len(able[place]), place)))
        covered |= able[chosen[-1]]


def _published_table(
    question: RentalQuestion,
    best: PublishedSetting,
    places: Mapping[PublishedSetting, Mapping[GpuCount, KnownRate]],
    failed: Mapping[GpuCount, str],
    covering: Sequence[PublishedSetting],
) -> FigureTable:
    """Put together the figures of one setting.

    Args:
        question: What is asked.
        best: The setting.
        places: All settings of this network.
        failed: GPUs that failed here.
        covering: All settings that have a table; the first one names what no table has. Empty: none has two GPUs.
    """
    rates = list(places[best].values())
    covered = {key for place in covering for key in places[place]}
    first = not covering or best == covering[0]
    for key in [key for key in question.gpus if first and key not in places[best] and key not in covered]:
        others = [(place, of[key]) for place, of in places.items() if key in of]
        if others:
            source = best.software.split(":")[0]
            _, other = max(others, key=lambda item: (item[0].software.startswith(source), item[0]))
            rates.append(replace(other, note=OTHER_SETTING, ranked=not covering))
        else:
            rates.append(_missing(key, failed))
    batches = {rate.batch for rate in rates if rate.samples_per_second}
    remarks = ["batches per GPU differ"] if len(batches) > 1 else []
    return FigureTable(
        basis=Basis.PUBLISHED,
        mode="training",
        network=network_text(best.network),
        setting=best.software,
        rates=tuple(rates),
        remarks=tuple(remarks),
        source=best.software.split(":")[0],
        model=best.network,
    )


def _most_published(question: RentalQuestion) -> str:
    """Return the task of a network, e.g. the length of a sequence, that most GPUs have figures of."""
    gpus: dict[str, set[str]] = {name: set() for name in published_names(question.network)}
    for row in all_published():
        if row["model"] in gpus and row["precision"] == question.precision:
            gpus[row["model"]].add(row["gpu"])
    return max(gpus, key=lambda name: len(gpus[name]), default="")


def _missing(key: GpuCount, failed: Mapping[GpuCount, str]) -> KnownRate:
    gpu, count = key
    reason = failed.get(key, "")
    return KnownRate(basis=Basis.NONE, subject=gpu, gpu=gpu, count=count, note=reason or NO_FIGURE, failed=bool(reason))


def bound(question: RentalQuestion, gpu: str, count: int) -> float | None:
    """Return the samples per second that a GPU cannot pass with any software; None where that is not known."""
    cost = networks().get(question.network)
    line = roofline(gpu, cost, question.precision) if cost else None
    return count * line.hard_limit if line is not None and math.isfinite(line.hard_limit) else None


def _published(key: GpuCount, short: str, row: Mapping[str, str]) -> KnownRate:
    batch = row["batch_per_gpu"] or "not stated"
    return KnownRate(
        basis=Basis.PUBLISHED,
        subject=key[0],
        gpu=key[0],
        count=key[1],
        samples_per_second=_rate(row),
        origin=short,
        batch=batch,
        sources=(
            f"{row['model']} {row['precision']} ×{row['num_gpus']}: {row['samples_per_second']} {row['unit']}/s, "
            f"batch {batch}; {row['framework']}; {row['source']}, {row['url']}",
        ),
    )


def _rate(row: Mapping[str, str]) -> float:
    return float(row["samples_per_second"])


def _software(row: Mapping[str, str]) -> tuple[str, str]:
    """Name the software of a row in full, and in short: who, with which framework, in which year."""
    parts = [part.strip() for part in row["note"].split(";")]
    conditions = [part for part in parts if part.startswith(CONDITIONS)]
    full = ", ".join([f"{row['source']}: {row['framework']}{COMPILERS.get(row['xla'], '')}", *conditions])
    framework = re.sub(r"\+\w+|, NVIDIA DeepLearningExamples|tf_cnn_benchmarks, | \(.*\)", "", row["framework"])
    year = next((str(year) for name, year in YEARS.items() if name in row["framework"]), "")
    return full, ", ".join(part for part in (row["source"].split()[0], framework, year) if part)
