"""Collects comparable throughputs: measured in these runs, by this project, or published by others in one setting.

A table never mixes them. Each source chose its own batch, often the largest that fits the GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from results.recommend.options import Advice, Basis, FleetGpus, RentalOption, gpus_of_fleets, option_of
from results.recommend.questions import GpuCount, RentalQuestion
from results.reference import all_published, read_rows
from results.reference.networks import published_names
from results.stats import Interval
from results.table.comparable import by_setting, grouped, match, mode_text, setting_text
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

NOT_MEASURED = "not measured in this setting"

OTHER_NOTE = (
    f"other software than the first rows: only differences above a factor of {1 + OTHER_VERSION:g} (versions of one "
    f"framework) or {1 + OTHER_SOFTWARE:g} (others) decide"
)


Rates = Sequence[FleetRate]


def measured_figures(question: RentalQuestion, rates: Rates) -> list[Advice]:
    """Return the figures of these runs, one table per setting, the one with the most figures first.

    Each table has all fleets of the question, with their figure or the reason for having none.
    """
    gpus = gpus_of_fleets(rates)
    relevant = [
        rate
        for rate in rates
        if question.covers(rate.case) and question.wants((gpus[rate.fleet, rate.case.device], rate.case.num_gpus))
    ]
    settings = [*by_setting((rate for rate in relevant if rate.rates), across=("num_gpus",)).values()]
    # A failure is in each setting of its case, after the figures, or in a new one.
    for case, failures in grouped(
        (replace(rate.case, num_gpus=1), rate) for rate in relevant if not rate.rates
    ).items():
        alike = [setting for setting in settings if replace(setting[0].case, num_gpus=1) == case]
        settings += [] if alike else [failures]
        for setting in alike:
            setting += failures
    asked = f"batch {question.batch_size}"
    advices = [_measured(question, setting, relevant, gpus) for setting in settings]
    advices = [advice for advice in advices if asked in advice.setting.split(", ")] or advices
    return sorted(advices, key=lambda advice: -sum(bool(option.samples_per_second) for option in advice.options))


def _measured(question: RentalQuestion, setting: Rates, relevant: Rates, gpus: FleetGpus) -> Advice:
    """Return the figures of one setting: its fleets, then what was not measured."""
    options: dict[tuple[str, int], RentalOption] = {}
    for rate in (*setting, *relevant):
        gpu, count = gpus[rate.fleet, rate.case.device], rate.case.num_gpus
        option = option_of(question, (gpu, count), NOT_MEASURED, fleet=rate.fleet)
        options.setdefault((rate.fleet, count), _with_rate(option, rate) if rate in setting else option)
    for key in question.gpus:
        if all(option.key != key for option in options.values()):
            options.setdefault(key, option_of(question, key, NOT_MEASURED))
    measured = [rate for rate in setting if rate.rates]
    differs = dict.fromkeys(name for other in measured[1:] for name in match(measured[0], other).differs)
    return Advice(
        question=question,
        basis=Basis.MEASURED,
        mode=mode_text(setting[0].case.mode),
        model=question.network,
        options=tuple(options.values()),
        setting=setting_text(setting[0], without=("model", "mode", "precision", "num_gpus")),
        notes=tuple(
            f"also differs: {name} " + ", ".join(f"{rate.named(name) or 'none'} ({rate.fleet})" for rate in measured)
            for name in differs
        ),
    )


def _with_rate(option: RentalOption, rate: FleetRate) -> RentalOption:
    """Return an option with a measurement or failure of these runs."""
    if not rate.rates:
        statuses = dict.fromkeys(rate.failures.values())
        failed = bool(statuses.keys() - HOST_FAILURES)
        return replace(option, note=f"{', '.join(statuses)} in this run", failed=failed)
    return replace(
        option,
        basis=Basis.MEASURED,
        samples_per_second=rate.mean or 0.0,
        interval=rate.interval,
        origin=f"this run, {counted(len(rate.rates), 'host')}",
        batch=str(rate.case.batch_per_gpu),
        measured=rate,
        note="",
    )


def figures_of_others(question: RentalQuestion, basis: Basis) -> list[RentalOption]:
    """Return the figures of others for a question without suspect rows, one for each network, setting, GPU and count.

    Of several, the fastest counts, but of this project's the one of the most processes; these come first.
    """
    if basis is Basis.PROJECT:
        models, described = [question.network], _of_project
        rows = sorted(read_rows("measured.csv"), key=lambda row: (int(row["processes"]), int(row["method_version"])))
    else:
        models, described = published_names(question.network), _published
        rows = sorted(map(dict, all_published()), key=lambda row: float(row["samples_per_second"]))
    options: dict[object, RentalOption] = {}
    for row in reversed(rows):
        if row["model"] in models and row["precision"] == question.precision and not row.get("suspect"):
            key, rate = (row["gpu"], int(row["num_gpus"])), float(row["samples_per_second"])
            option = option_of(question, key, "")
            option = replace(option, basis=basis, network=row["model"], samples_per_second=rate, **described(row))
            options.setdefault((option.network, option.setting, key), option)
    if basis is Basis.PROJECT:
        return [*options.values()]
    return sorted(options.values(), key=lambda option: (option.setting, option.network), reverse=True)


def advice_of_others(question: RentalQuestion, basis: Basis, failed: Mapping[GpuCount, str]) -> Advice | None:
    """Return the setting with the most of the GPUs, then the others; None: this project measured nothing of use.

    Args:
        question: The question.
        basis: `PROJECT` or `PUBLISHED`; published figures of other software fill the gaps, marked.
        failed: GPUs that failed in these runs, with the reason; no figure of others replaces them.
    """
    figures = figures_of_others(question, basis)
    wanted = [option for option in figures if question.wants(option.key) and option.key not in failed]
    able = [option for option in wanted if not option.unmet]
    if basis is Basis.PROJECT and not (wanted if question.gpus else able):
        return None
    pool = able or wanted or figures
    sizes = Counter((option.network, option.setting) for option in pool)
    of_network = Counter(network for network, _ in {(option.network, option.key) for option in pool})
    first = max(sizes, key=lambda setting: (sizes[setting], of_network[setting[0]]), default=(question.network, ""))
    network, setting = first
    options = {option.key: option for option in wanted if (option.network, option.setting) == first}
    framework = next((option.framework for option in options.values()), "")
    note = "not measured" if basis is Basis.PROJECT else "no figure"
    notes: tuple[str, ...] = ()
    for key in (key for key in question.gpus if key not in options):
        others = [option for option in wanted if (option.network, option.key) == (network, key)]
        if others and basis is Basis.PUBLISHED:
            best = max(others, key=lambda option: (option.framework == framework, option.setting))
            options[key] = replace(best, note="other software", foreign=best.framework != framework)
            notes = (OTHER_NOTE,)
        else:
            option = option_of(question, key, failed.get(key, note))
            options[key] = replace(option, failed=key in failed)
    return Advice(
        question=question, basis=basis, model=network, setting=setting, options=tuple(options.values()), notes=notes
    )


def margin(a: RentalOption, b: RentalOption) -> float:
    """Return the smallest relative difference of two published figures that is significant."""
    if a.setting == b.setting:
        return SAME_SETTING
    return OTHER_VERSION if a.framework == b.framework else OTHER_SOFTWARE


def _published(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of the option of a published row."""
    batch = row["batch_per_gpu"] or "not stated"
    what = f"{row['model']} {row['precision']} ×{row['num_gpus']}: {row['samples_per_second']} {row['unit']}/s"
    framework = re.sub(r"\+\w+|, NVIDIA DeepLearningExamples|tf_cnn_benchmarks, | \(.*\)", "", row["framework"])
    year = next((year for year, pattern in YEARS.items() if re.search(pattern, row["framework"])), "")
    conditions = [part.strip() for part in row["note"].split(";") if part.strip().startswith(CONDITIONS)]
    return {
        "origin": ", ".join(filter(None, (row["source"].split()[0], framework, year))),
        "batch": batch,
        "setting": ", ".join([f"{row['source']}: {row['framework']}{COMPILERS[row['xla']]}", *conditions]),
        "sources": (f"{what}, batch {batch}; {row['framework']}; {row['source']}, {row['url']}",),
    }


def _of_project(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of the option of a row of `measured.csv`."""
    rate, ends = float(row["samples_per_second"]), [float(row[end]) for end in ("ci95_low", "ci95_high") if row[end]]
    framework = f"TensorFlow {row['tensorflow']}, CUDA {row['cuda']}{COMPILERS[row['xla']]}"
    place = ", container" if row["container"] == "yes" else ""
    return {
        "interval": Interval(rate, *ends) if ends else None,
        "origin": f"{Basis.PROJECT}, {row['date']}",
        "batch": row["batch_per_gpu"],
        "setting": f"{framework}, batch {row['batch_per_gpu']}, synthetic{place}, method {row['method_version']}",
        "sources": (f"results/reference/measured/{row['records']}, {counted(row['processes'], 'process')}",),
    }
