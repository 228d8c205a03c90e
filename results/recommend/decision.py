"""What a report opens with: which fleet to rent, by the same rule and in the same words as `recommend`.

Every network, precision, number of GPUs and mode that was measured is a question; `results.recommend.ranking` answers
them, and `results.recommend.summaries` says in one sentence what holds for all of them. Nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from results.errors import MixedIdentities
from results.grid import Grid
from results.recommend.headlines import headline, label, reasons
from results.recommend.questions import Question
from results.recommend.ranking import Verdict, recommend
from results.recommend.summaries import overall
from results.reference.gpus import specifications
from results.reference.prices import Offer
from results.table.comparable import mode_text
from results.table.fleets import FleetRate, refuse_mixed
from results.text import counted

EXCEPTIONS = 3
"""Most networks that a cell names as exceptions; more are counted."""

MODES = ("train", "infer")
"""Modes that are work; `device` measures the device itself."""


@dataclass(frozen=True)
class Decision:
    """The answer to every question that a run was made for.

    Attributes:
        verdicts: One for each setting that was measured.
        first: What to rent, up to which price, and what does not fit, in one sentence.
    """

    verdicts: tuple[Verdict, ...]
    first: str

    @property
    def cards(self) -> list[str]:
        """The cards of the verdicts that have a specification."""
        found = dict.fromkeys(choice.gpu for verdict in self.verdicts for choice in verdict.choices)
        return [card for card in found if card in specifications()]

    @property
    def offers(self) -> dict[str, Offer]:
        """A price of each fleet that the verdicts count with: of the smallest host, the lowest of those."""
        found: dict[str, Offer] = {}
        for choice in (choice for verdict in self.verdicts for choice in verdict.choices):
            known = found.get(choice.subject)
            if choice.offer and (known is None or _size_and_price(choice.offer) < _size_and_price(known)):
                found[choice.subject] = choice.offer
        return found


def _size_and_price(offer: Offer) -> tuple[int, float]:
    return offer.gpus_per_host or 0, offer.usd_per_gpu_hour


def decide(rates: Sequence[FleetRate], offers: Sequence[Offer]) -> Decision:
    """Answer every question that was measured.

    Args:
        rates: What was measured.
        offers: Prices for cards and fleets; those that came with the records go before all but typed ones.
    """
    try:
        refuse_mixed(rates, [], "Choose one run.")
    except MixedIdentities as error:
        return Decision((), f"No recommendation: {' '.join(str(error).splitlines())}")
    verdicts = tuple(verdict for question in questions(rates) for verdict in recommend(question, rates, offers))
    if not verdicts:
        return Decision((), "No recommendation: no training or inference of one host was measured.")
    names = tuple(dict.fromkeys(choice.subject for verdict in verdicts for choice in verdict.choices))
    if len(names) == 1:
        return Decision(verdicts, f"One fleet was measured, {names[0]}: there is no other to compare it with.")
    said = [headline(verdicts[0])] if len(verdicts) == 1 else overall(verdicts)
    first = said[0] if said else "each setting has its own answer: see below"
    # A name is written as its owner wrote it, also where it begins the sentence.
    return Decision(verdicts, f"{first if first.startswith(names) else first[0].upper() + first[1:]}.")


def questions(rates: Sequence[FleetRate]) -> list[Question]:
    """Return the questions that were measured: a network, precision, number of GPUs and mode each."""
    asked: dict[tuple[str, str, int, str], None] = {}
    for rate in rates:
        case = rate.case
        if case.num_gpus > 0 and case.num_hosts == 1 and case.mode in MODES and case.all_reduce:
            asked[case.model, str(case.precision), case.num_gpus, str(case.mode)] = None
    return [
        Question(mix={model: 1.0}, precision=precision, count=count, mode=mode)
        for model, precision, count, mode in asked
    ]


def setting_lines(verdicts: Sequence[Verdict]) -> list[tuple[str, str, list[str]]]:
    """Return for each verdict what it is called, its answer, and why."""
    return [(label(verdict, verdicts), headline(verdict), reasons(verdict)) for verdict in verdicts]


def decision_grid(decision: Decision) -> Grid | None:
    """Return what to rent by kind of work and number of GPUs; None where there is no choice, or it is always one."""
    if not any(verdict.rivals for verdict in decision.verdicts):
        return None
    cells: dict[str, dict[int, list[Verdict]]] = {}
    for verdict in sorted(decision.verdicts, key=lambda verdict: verdict.question.mode != "train"):
        question = verdict.question
        kind = f"{mode_text(question.mode)}, {question.precision}"
        cells.setdefault(kind, {}).setdefault(question.count, []).append(verdict)
    counts = sorted({count for of in cells.values() for count in of})
    rows = [[kind, *(_cell(of.get(count, [])) for count in counts)] for kind, of in cells.items()]
    if len({text for row in rows for text in row[1:] if text}) < 2:
        return None
    columns = ["work", *(counted(count, "GPU") for count in counts)]
    notes = ["cheapest per sample beyond the noise; a network that is named has its own answer"]
    return Grid("What to rent, by kind of work", columns, rows, notes)


def _cell(verdicts: Sequence[Verdict]) -> str:
    """Name the choice of most networks, and the networks for which it is another one."""
    choices = [(verdict.question.network, _choice(verdict)) for verdict in verdicts]
    if not choices:
        return ""
    usual = Counter(choice for _, choice in choices).most_common(1)[0][0]
    others: dict[str, dict[str, None]] = {}
    for network, choice in choices:
        if choice != usual:
            others.setdefault(choice, {})[network] = None
    return "; ".join([usual, *(f"{_networks(list(networks))}: {choice}" for choice, networks in others.items())])


def _networks(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= EXCEPTIONS else f"{len(names)} networks"


def _choice(verdict: Verdict) -> str:
    best = verdict.best
    if best is None:
        return "none"
    if verdict.tied:
        return " or ".join(sorted({best.subject, *(rival.choice.subject for rival in verdict.tied)}))
    return f"only {best.subject} measured" if verdict.alone else best.subject
