"""Collects comparable throughputs: measured in these runs, by this project, or published by others in one setting.

A table never mixes them. Each source chose its own batch, often the largest that fits the GPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from results.recommend.options import Advice, Basis, RentalOption, missing
from results.recommend.prices import run_offers
from results.recommend.questions import GpuCount, RentalQuestion
from results.reference import all_published, read_rows
from results.reference.gpus import gpu_key
from results.reference.networks import published_names
from results.schema import Device
from results.stats import Interval
from results.table.columns import Software
from results.table.comparable import by_setting, match, mode_text, setting_text
from results.table.fleets import FleetRate
from results.text import counted

HOST_FAILURES = frozenset({"unreachable", "pull_failed", "lost", "stopped", "invalid"})
"""Statuses that do not depend on the GPU or come from a null GPU; published figures may replace them."""

COMPILERS = {"on": ", XLA", "replica": ", XLA", "off": ", no XLA", "": ""}

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
    f"other software than the first rows: only differences above a factor of {1 + OTHER_VERSION:g} (versions of one "
    f"framework) or {1 + OTHER_SOFTWARE:g} (others) decide"
)


def measured_figures(question: RentalQuestion, rates: Sequence[FleetRate]) -> list[Advice]:
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
        # A failure is in each setting of its case where its fleet has no figure of as many GPUs, or in a new one.
        alike = [of for of in settings if replace(of[0].case, num_gpus=1) == replace(failed.case, num_gpus=1)]
        settings += [] if alike else [[failed]]
        for of in alike:
            of += [failed] if all((one.fleet, one.case) != (failed.fleet, failed.case) for one in of) else []
    asked = f"batch {question.batch_size}"
    found = [_measured(question, of_setting, relevant, gpus) for of_setting in settings]
    found = [advice for advice in found if asked in advice.setting.split(", ")] or found
    return sorted(found, key=lambda advice: -sum(bool(option.samples_per_second) for option in advice.options))


def gpus_of_fleets(rates: Sequence[FleetRate]) -> dict[tuple[str, Device], str]:
    """Return what each fleet trains on, by device: the recorded GPU or processor; an unknown GPU keeps its name.

    The name of a fleet counts only if nothing was recorded, because all its repeats failed early.
    """
    gpus: dict[tuple[str, Device], str] = {}
    recorded = {rate.fleet for rate in rates if rate.software != Software()}
    for rate in sorted(rates, key=lambda rate: not (rate.software.gpu or rate.software.cpu)):
        name = rate.software.gpu or rate.software.cpu or rate.fleet
        if rate.case.device is Device.GPU and (rate.software.gpu or rate.fleet not in recorded):
            name = gpu_key(name) or name
        gpus.setdefault((rate.fleet, rate.case.device), name)
    return gpus


def _measured(
    question: RentalQuestion,
    of_setting: Sequence[FleetRate],
    relevant: Sequence[FleetRate],
    gpus: Mapping[tuple[str, Device], str],
) -> Advice:
    """Return the figures of one setting: its fleets, then what was not measured."""
    example, measured = of_setting[0], [rate for rate in of_setting if rate.rates]
    prices: dict[str, dict[str, float]] = defaultdict(dict)
    for rate in relevant:
        prices[rate.fleet] |= rate.prices
    options = {
        (rate.fleet, rate.case.num_gpus): _option(rate, gpus[rate.fleet, rate.case.device]) for rate in of_setting
    }
    tried = {(rate.fleet, rate.case.num_gpus): gpus[rate.fleet, rate.case.device] for rate in relevant}
    present = {(gpu, count) for (_, count), gpu in tried.items()}
    tried |= {key: key[0] for key in question.gpus if key not in present}
    for (subject, count), gpu in tried.items():
        absent = missing(gpu, count, "not measured in this setting", subject)
        options.setdefault((subject, count), replace(absent, offers=run_offers(gpu, prices[subject])))
    differs = dict.fromkeys(name for other in measured[1:] for name in match(measured[0], other).differs)
    return Advice(
        question=question,
        basis=Basis.MEASURED,
        mode=mode_text(example.case.mode),
        model=question.network,
        options=tuple(options.values()),
        setting=setting_text(example, without=("model", "mode", "precision", "num_gpus")),
        notes=tuple(
            f"also differs: {name} " + ", ".join(f"{rate.named(name) or 'none'} ({rate.fleet})" for rate in measured)
            for name in differs
        ),
    )


def _option(rate: FleetRate, gpu: str) -> RentalOption:
    """Return the option of a measurement or failure of these runs."""
    statuses = dict.fromkeys(rate.failures.values())
    absent = missing(gpu, rate.case.num_gpus, f"{', '.join(statuses)} in this run", rate.fleet)
    option = replace(absent, measured=rate, offers=run_offers(gpu, rate.prices))
    if not rate.rates:
        return replace(option, failed=bool(statuses.keys() - HOST_FAILURES))
    return replace(
        option,
        basis=Basis.MEASURED,
        samples_per_second=rate.mean or 0.0,
        interval=rate.interval,
        origin=f"this run, {counted(len(rate.rates), 'host')}",
        batch=str(rate.case.batch_per_gpu),
        note="",
    )


Setting = tuple[str, str]
"""Network of figures of others, with its task; and their source, software, compiler and data."""


def figures_of_others(question: RentalQuestion, basis: Basis) -> dict[Setting, dict[GpuCount, RentalOption]]:
    """Return the figures of others for a question, by setting, GPU and count, without suspect rows.

    Of several figures in a setting, the fastest counts, but of this project's the one of the most processes; the
    setting with the most processes comes last.
    """
    found: dict[Setting, dict[GpuCount, RentalOption]] = {}
    if basis is Basis.PROJECT:
        names = [question.network]
        rows = sorted(read_rows("measured.csv"), key=lambda row: (int(row["processes"]), int(row["method_version"])))
    else:
        names = published_names(question.network)
        rows = sorted(map(dict, all_published()), key=lambda row: float(row["samples_per_second"]))
    for row in rows:
        if row["model"] in names and row["precision"] == question.precision and not row.get("suspect"):
            option = _of_project(row) if basis is Basis.PROJECT else _published(row)
            setting = row["model"], option.setting
            found[setting] = {**found.pop(setting, {}), (option.gpu, option.count): option}
    return found if basis is Basis.PROJECT else dict(sorted(found.items(), key=lambda item: item[0][::-1]))


def advice_of_others(
    question: RentalQuestion, basis: Basis, failed: Mapping[GpuCount, str], fits: Callable[[GpuCount], bool]
) -> Advice | None:
    """Return the setting with the most of the GPUs, then the others; None: this project measured nothing of use.

    Args:
        question: The question.
        basis: `PROJECT` or `PUBLISHED`; published figures of other software fill the gaps, marked.
        failed: GPUs that failed in these runs, with the reason; no figure of others replaces them.
        fits: Whether a GPU and count meet the limits other than time.
    """
    every = figures_of_others(question, basis)
    settings = {
        setting: {key: option for key, option in of.items() if question.wants(*key) and key not in failed}
        for setting, of in every.items()
    }
    able = {setting: [*filter(fits, of)] for setting, of in settings.items()}
    some, few = any(settings.values()), any(able.values())
    if basis is Basis.PROJECT and not (some if question.gpus else few):
        return None
    pool: Mapping[Setting, Collection[GpuCount]] = able if few else settings if some else every
    of_network: dict[str, set[GpuCount]] = defaultdict(set)
    for (network, _), keys in pool.items():
        of_network[network] |= {*keys}

    def use(setting: Setting) -> tuple[int, int, int]:
        size = len(pool[setting])
        return size if size > 1 else 0, len(of_network[setting[0]]), size

    first = max(reversed([*pool]), key=use, default=(question.network, ""))
    rows = settings.get(first, {})
    gaps = [key for key in question.gpus if key not in rows]
    absent = "not measured" if basis is Basis.PROJECT else "no figure"
    others = {key: missing(*key, failed.get(key, absent), failed=key in failed) for key in gaps}
    if basis is Basis.PUBLISHED:
        others |= _of_other_software(gaps, first, settings)
    return Advice(
        question=question,
        basis=basis,
        model=first[0],
        setting=first[1],
        options=(*rows.values(), *others.values()),
        notes=(OTHER_NOTE,) if any(option.samples_per_second for option in others.values()) else (),
    )


def _of_other_software(
    gaps: Sequence[GpuCount], first: Setting, settings: Mapping[Setting, Mapping[GpuCount, RentalOption]]
) -> Iterator[tuple[GpuCount, RentalOption]]:
    """Yield figures of GPUs in other settings of the same network, preferably of the same framework."""
    framework = next((option.framework for option in settings.get(first, {}).values()), "")
    for key in gaps:
        found = [of[key] for (network, _), of in settings.items() if key in of and network == first[0]]
        if found:
            best = max(found, key=lambda option: (option.framework == framework, option.setting))
            foreign = bool(framework) and best.framework != framework
            yield key, replace(best, note="other software" if framework else "", foreign=foreign)


def margin(a: RentalOption, b: RentalOption) -> float:
    """Return the smallest relative difference of two published figures that is significant."""
    if a.setting == b.setting:
        return SAME_SETTING
    return OTHER_VERSION if a.framework == b.framework else OTHER_SOFTWARE


def _published(row: Mapping[str, str]) -> RentalOption:
    """Return the option of a published row."""
    batch = row["batch_per_gpu"] or "not stated"
    what = f"{row['model']} {row['precision']} ×{row['num_gpus']}: {row['samples_per_second']} {row['unit']}/s"
    framework = re.sub(r"\+\w+|, NVIDIA DeepLearningExamples|tf_cnn_benchmarks, | \(.*\)", "", row["framework"])
    year = next((year for year, pattern in YEARS.items() if re.search(pattern, row["framework"])), "")
    conditions = [part.strip() for part in row["note"].split(";") if part.strip().startswith(CONDITIONS)]
    return replace(
        _of_row(row, Basis.PUBLISHED),
        origin=", ".join(filter(None, (row["source"].split()[0], framework, year))),
        batch=batch,
        setting=", ".join([f"{row['source']}: {row['framework']}{COMPILERS[row['xla']]}", *conditions]),
        sources=(f"{what}, batch {batch}; {row['framework']}; {row['source']}, {row['url']}",),
    )


def _of_project(row: Mapping[str, str]) -> RentalOption:
    """Return the option of a row of `measured.csv`."""
    option, place = _of_row(row, Basis.PROJECT), ", container" if row["container"] == "yes" else ""
    framework = f"TensorFlow {row['tensorflow']}, CUDA {row['cuda']}{COMPILERS[row['xla']]}"
    ends = [float(row[end]) for end in ("ci95_low", "ci95_high") if row[end]]
    return replace(
        option,
        interval=Interval(option.samples_per_second, *ends) if ends else None,
        origin=f"{Basis.PROJECT}, {row['date']}",
        setting=f"{framework}, batch {option.batch}, synthetic{place}, method {row['method_version']}",
        sources=(f"results/reference/measured/{row['records']}, {counted(row['processes'], 'process')}",),
    )


def _of_row(row: Mapping[str, str], basis: Basis) -> RentalOption:
    """Return the option of a figure of others, without its source."""
    gpu, count, rate = row["gpu"], int(row["num_gpus"]), float(row["samples_per_second"])
    batch = row["batch_per_gpu"]
    return RentalOption(basis=basis, subject=gpu, gpu=gpu, count=count, samples_per_second=rate, batch=batch)
