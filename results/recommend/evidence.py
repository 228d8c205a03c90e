"""What is known about the speed of GPUs for a question, in groups of figures that may be compared with each other.

Measured groups come from our own records by the rule of `results.table.comparable`; published ones from
`results.recommend.published`. A group never mixes the two, and a prediction, where there is one, is a basis of its own.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from results.compare.pairs import compare_pair
from results.recommend.questions import Question
from results.reference.gpus import gpu_key
from results.reference.gpus import gpus_named as family
from results.stats import Estimate, Interval
from results.table.columns import CASE_COLUMNS
from results.table.comparable import Setting, match, mode_text, setting_of, setting_text
from results.table.fleets import FleetRate, mixture

EVERY_CARD = "every card"
"""Stands for all cards where a question names none and nothing is known of any."""

HOST_FAILURES = frozenset({"unreachable", "pull_failed", "lost", "stopped"})
"""Statuses that say nothing about the card: published figures of it may still be used."""


class Basis(enum.StrEnum):
    """Where a throughput comes from; best first. Figures of different bases are never ranked together."""

    MEASURED = "measured"
    PUBLISHED = "published"
    BOUND = "bound"  # an upper limit by bandwidth and arithmetic, not a prediction


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The throughput of a GPU for a question, or why there is none.

    Attributes:
        subject: Fleet, or GPU where others measured.
        gpu: Name in `reference/gpu_specs.csv`, else as it came.
        samples_per_second: Over all GPUs; of a bound the limit; None when not known.
        estimate: Throughput with its uncertainty; None when that is not known.
        reason: Why it cannot be ranked with the others; empty when it can.
        failed: Whether it was tried here and failed for a reason of its own, e.g. `oom`.
        batch: Batch per GPU, where the cards of a group differ in it.
        prices: USD per GPU-hour that came with the measurement, by host.
        rate: What was measured; None where others did.
        elsewhere: Figures of other settings, which cannot be ranked here: throughput and setting.
        sources: Where the figure comes from, one line each.
    """

    basis: Basis
    subject: str
    gpu: str
    samples_per_second: float | None = None
    estimate: Estimate | None = None
    reason: str = ""
    failed: bool = False
    batch: str = ""
    prices: Mapping[str, float] = field(default_factory=dict)
    rate: FleetRate | None = None
    elsewhere: tuple[tuple[float, str], ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the throughput; None when it is not known."""
        return self.estimate.interval() if self.estimate else None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Figures of one setting, and the cards that have none in it.

    Attributes:
        mode: What is done, in words: `training` or `inference`.
        setting: What all figures share, in words; empty where no two of them share one.
        network: What the figures call the network, with its task, where that is not what was asked for.
        evidence: Comparable figures; those without are in `without`, each with its reason.
        remarks: What a reader must know beside the figures.
    """

    basis: Basis
    mode: str
    setting: str
    evidence: tuple[Evidence, ...]
    network: str = ""
    without: tuple[Evidence, ...] = ()
    remarks: tuple[str, ...] = ()


def speed_ratio(a: Evidence, b: Evidence) -> Interval | None:
    """Return how many times as fast `a` is, with its interval; None where no interval is known."""
    return compare_pair(a.rate, b.rate).interval if a.rate and b.rate else None


def measured_groups(question: Question, rates: Sequence[FleetRate]) -> list[Group]:
    """Return what our own records say, one group for each setting, that with most cards first.

    Every fleet of the question is in every group of its mode: with its figure, or with the reason why it has none.
    """
    cards = _cards_of_fleets(rates)
    relevant = [rate for rate in rates if _is_asked(question, rate) and question.wants(cards[rate.fleet])]
    found: dict[tuple[Setting, ...], list[tuple[FleetRate, FleetRate]]] = defaultdict(list)
    for parts in _parts(question, [rate for rate in relevant if rate.rates]):
        whole = parts[0] if len(parts) == 1 else mixture(parts, list(question.mix.values()))
        if whole is not None:
            found[tuple(map(setting_of, parts))].append((whole, parts[0]))
    groups = [_group(question, pairs, relevant, cards) for pairs in found.values()]
    groups += _groups_of_failures(question, relevant, cards, [pairs[0][1] for pairs in found.values()])
    if relevant and not groups:
        groups = [_incomplete(question, relevant, cards)]
    if question.batch_per_gpu and any(f"batch {question.batch_per_gpu}" in _words(group) for group in groups):
        groups = [group for group in groups if f"batch {question.batch_per_gpu}" in _words(group)]
    return sorted(groups, key=lambda group: -len(group.evidence))


def no_inference(question: Question) -> Group:
    """Return a group of all cards without a figure: what others published is training."""
    reason = "inference not measured in any run; published figures are of training"
    cards = question.gpus or (EVERY_CARD,)
    without = tuple(Evidence(basis=Basis.MEASURED, subject=card, gpu=card, reason=reason) for card in cards)
    return Group(basis=Basis.MEASURED, mode="inference", setting="", evidence=(), without=without)


def failed_here(groups: Sequence[Group]) -> dict[str, str]:
    """Return the cards that failed the question's own cases in these runs and have no figure, with the status."""
    known = {item.gpu for group in groups for item in group.evidence}
    failures = {
        item.gpu: item.reason.replace(" in this run", "") for group in groups for item in group.without if item.failed
    }
    return {gpu: status for gpu, status in failures.items() if gpu not in known}


def _words(group: Group) -> list[str]:
    return group.setting.split(", ")


def _cards_of_fleets(rates: Sequence[FleetRate]) -> dict[str, str]:
    """Return the card of each fleet; one whose every repeat failed early may only be known by the fleet's name."""
    cards: dict[str, str] = {}
    for rate in rates:
        named = rate.software.gpu or rate.software.cpu
        if named and not cards.get(rate.fleet):
            cards[rate.fleet] = gpu_key(named) or named
    for rate in rates:
        members = family(rate.fleet)
        cards.setdefault(rate.fleet, members[0] if len(members) == 1 else rate.fleet)
    return cards


def _is_asked(question: Question, rate: FleetRate) -> bool:
    """Return whether a rate is of the question: network, precision, GPUs of one host, and training that updates."""
    return (
        rate.case.model in question.mix
        and (rate.case.precision, rate.case.num_gpus) == (question.precision, question.count)
        and rate.case.num_hosts == 1
        and rate.case.all_reduce
        and question.mode in (None, rate.case.mode)
    )


def _parts(question: Question, rates: Sequence[FleetRate]) -> list[list[FleetRate]]:
    """Return for each fleet and setting its rates of all networks of the mix, in their order.

    Networks of a mix are put together where everything but the network is equal.
    """
    by_fleet: dict[tuple[str, Setting], dict[str, FleetRate]] = defaultdict(dict)
    for rate in rates:
        across = ("model",) if len(question.mix) > 1 else ()
        by_fleet[(rate.fleet, setting_of(rate, across=across))][rate.case.model] = rate
    return [[of[model] for model in question.mix] for of in by_fleet.values() if of.keys() == question.mix.keys()]


def _group(
    question: Question,
    pairs: Sequence[tuple[FleetRate, FleetRate]],
    relevant: Sequence[FleetRate],
    cards: Mapping[str, str],
) -> Group:
    """Put together the fleets of one setting.

    Args:
        question: What is asked.
        pairs: The fleets' throughput of the mix, and that of its first network.
        relevant: All rates of the question, also in other settings and without a number.
        cards: Card of each fleet.
    """
    example = pairs[0][1]
    fleets = {whole.fleet for whole, _ in pairs}
    evidence = tuple(_evidence(whole, cards[whole.fleet]) for whole, _ in pairs)
    others = [rate for rate in relevant if rate.fleet not in fleets]
    without = _without(question, example, others, cards)
    known = {item.gpu for item in (*evidence, *without)}
    absent = [_absent(card) for card in question.gpus if card not in known]
    return Group(
        basis=Basis.MEASURED,
        mode=mode_text(example.case.mode),
        setting=setting_text(example, without=("model", "mode", "precision", "num_gpus")),
        evidence=evidence,
        without=(*without, *absent),
        remarks=_software([part for _, part in pairs]),
    )


def _without(
    question: Question, example: FleetRate, others: Sequence[FleetRate], cards: Mapping[str, str]
) -> tuple[Evidence, ...]:
    """Return the fleets that have no figure in a setting, each with the reason that says most."""
    reasons: dict[str, tuple[str, FleetRate]] = {}
    for rate in others:
        failed = rate if not rate.rates and _same_but_network(rate, example) else None
        if failed:
            status = ", ".join(dict.fromkeys(rate.failures.values()))
            network = f" for {rate.case.model}" if len(question.mix) > 1 else ""
            reasons[rate.fleet] = (f"{status} in this run{network}", rate)
    for rate in others:
        reasons.setdefault(rate.fleet, ("not measured in this setting", rate))
    return tuple(
        Evidence(
            basis=Basis.MEASURED,
            subject=fleet,
            gpu=cards[fleet],
            reason=reason,
            prices=rate.prices,
            rate=None if rate.rates else rate,
            failed=not rate.rates and bool(set(rate.failures.values()) - HOST_FAILURES) and "in this run" in reason,
        )
        for fleet, (reason, rate) in reasons.items()
    )


def _groups_of_failures(
    question: Question, relevant: Sequence[FleetRate], cards: Mapping[str, str], measured: Sequence[FleetRate]
) -> list[Group]:
    """Return a group for each case in which no fleet has a number."""
    found: list[list[FleetRate]] = []
    for rate in relevant:
        if rate.rates or any(_same_but_network(rate, example) for example in measured):
            continue
        same = next((group for group in found if _same_but_network(group[0], rate)), None)
        if same is None:
            found.append([rate])
        else:
            same.append(rate)
    groups = []
    for failed in found:
        without = _without(question, failed[0], failed, cards)
        absent = [_absent(card) for card in question.gpus if card not in {item.gpu for item in without}]
        groups.append(
            Group(
                basis=Basis.MEASURED,
                mode=mode_text(failed[0].case.mode),
                setting=setting_text(failed[0], without=("model", "mode", "precision", "num_gpus")),
                evidence=(),
                without=(*without, *absent),
            )
        )
    return groups


def _incomplete(question: Question, relevant: Sequence[FleetRate], cards: Mapping[str, str]) -> Group:
    """Return the fleets of a mix of which none measured every network in one setting."""
    fleets = {rate.fleet: rate for rate in relevant}
    reason = "not all networks of the mix were measured in one setting"
    without = [
        Evidence(basis=Basis.MEASURED, subject=fleet, gpu=cards[fleet], reason=reason, prices=rate.prices)
        for fleet, rate in fleets.items()
    ]
    known = {item.gpu for item in without}
    absent = [_absent(card) for card in question.gpus if card not in known]
    mode = mode_text(relevant[0].case.mode)
    return Group(basis=Basis.MEASURED, mode=mode, setting="", evidence=(), without=(*without, *absent))


def _same_but_network(a: FleetRate, b: FleetRate) -> bool:
    """Return whether two rates are of one case, also of which one or both failed, or of two networks of one mix."""
    mixed = a.case.model != b.case.model
    ignored = {"model", "batch_norm", "optimizer"} if mixed else set()
    return all(a.named(name) == b.named(name) for name in CASE_COLUMNS if name not in ignored)


def _evidence(rate: FleetRate, card: str) -> Evidence:
    return Evidence(
        basis=Basis.MEASURED,
        subject=rate.fleet,
        gpu=card,
        samples_per_second=rate.mean,
        estimate=rate.estimate,
        prices=rate.prices,
        rate=rate,
        sources=tuple(_values_of_host(host, runs) for host, runs in rate.rates.items()),
    )


def _values_of_host(host: str, runs: Mapping[str, Sequence[float]]) -> str:
    values = "; ".join(f"{run}: {', '.join(f'{value:.5g}' for value in of_run)}" for run, of_run in runs.items())
    return f"{host}, samples/s of each repeat: {values}"


def _absent(card: str) -> Evidence:
    return Evidence(basis=Basis.MEASURED, subject=card, gpu=card, reason="not measured in this run")


def _software(rates: Sequence[FleetRate]) -> tuple[str, ...]:
    """Name the software that differs between the fleets of a group: it may be the cause."""
    first, *others = rates
    columns = dict.fromkeys(name for other in others for name in match(first, other).differs)
    return tuple(
        f"differs besides the hardware: {name} "
        + ", ".join(f"{rate.named(name) if rate.named(name) is not None else 'none'} ({rate.fleet})" for rate in rates)
        for name in columns
    )
