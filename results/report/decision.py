"""Builds the recommendation at the top of a report, from the answers of `recommend`.

There is one question per measured network, precision, number of GPUs and mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.recommend.answer import answers
from results.recommend.options import Advice
from results.recommend.output import advice_grid
from results.recommend.prices import Prices
from results.recommend.questions import MODES, RentalQuestion
from results.reference.gpus import specifications
from results.reference.prices import Offer
from results.schema import Device
from results.table.fleets import FleetRate, unambiguous
from results.text import counted
from results.text_table import Grid


@dataclass(frozen=True)
class RunDecision:
    """Answers for all measured settings.

    Attributes:
        advices: One per measured setting.
        first: The recommendation in one sentence.
        left_out: A line for cases that a fleet measured with several software identities.
    """

    advices: tuple[Advice, ...]
    first: str
    left_out: tuple[str, ...] = ()

    @property
    def gpus(self) -> list[str]:
        """GPUs of the answers that have specifications."""
        found = dict.fromkeys(option.gpu for advice in self.advices for option in advice.options)
        return [gpu for gpu in found if gpu in specifications()]

    @property
    def offers(self) -> dict[str, Offer]:
        """Lowest price of each fleet in the answers."""
        found: dict[str, Offer] = {}
        for option in (option for advice in self.advices for option in advice.options if option.offers):
            found.setdefault(option.subject, option.cheapest)
        return found


def decide(rates: Sequence[FleetRate], prices: Prices) -> RunDecision:
    """Answer a question for each measured setting.

    Args:
        rates: Measured throughputs.
        prices: Prices for GPUs and fleets; prices of the records override all but the user's.
    """
    rates, left_out = unambiguous(rates)
    return replace(_decide(rates, prices), left_out=tuple(left_out))


def _decide(rates: Sequence[FleetRate], prices: Prices) -> RunDecision:
    advices = tuple(advice for question in _questions(rates) for advice in answers(question, rates, prices))
    if not advices:
        return RunDecision((), "No recommendation: no training or inference of one host was measured.")
    if not any(len(advice.ranked) > 1 for advice in advices):
        names = ", ".join(dict.fromkeys(option.subject for advice in advices for option in advice.options))
        return RunDecision(advices, f"No two fleets have figures of one setting, so nothing is ranked: {names}.")
    if all(rate.case.device is Device.CPU for rate in rates):
        return RunDecision((), "No GPU was measured, so there is nothing to rent: these figures compare processors.")
    if len(advices) == 1:
        return RunDecision(advices, f"{advices[0].sentence}.")
    choices = Counter(_choice(advice) for advice in advices)
    parts = [f"{choice} in {number} of {len(advices)} settings" for choice, number in choices.most_common()]
    return RunDecision(advices, f"{', '.join(parts)}; first: {advices[0].sentence}.")


def decision_grids(decision: RunDecision) -> list[Grid]:
    """Return the tables of options; none if there is no choice."""
    if not any(len(advice.ranked) > 1 for advice in decision.advices):
        return []
    if len(decision.advices) == 1:
        return [advice_grid(decision.advices[0])]
    rows = []
    for advice in decision.advices:
        question = advice.question
        setting = [advice.mode, advice.network, question.precision, ", ".join(map(str, question.counts))]
        rows.append([*setting, _choice(advice), advice.sentence])
    return [Grid("What to rent, by setting", ["mode", "network", "precision", "GPUs>", "choice", "why"], rows)]


def setting_title(advice: Advice) -> str:
    """Return the title of an answer among those of all settings."""
    return f"{advice.title}, {', '.join(counted(count, 'GPU') for count in advice.question.counts)}"


def _questions(rates: Sequence[FleetRate]) -> list[RentalQuestion]:
    """Return a question per measured network, precision, number of GPUs and mode."""
    cases = [rate.case for rate in rates]
    asked = [
        RentalQuestion(network=c.model, precision=str(c.precision), counts=(c.num_gpus,), mode=str(c.mode))
        for c in cases
        if c.num_gpus > 0 and c.num_hosts == 1 and c.mode in MODES and c.all_reduce
    ]
    return list(dict.fromkeys(asked))


def _choice(advice: Advice) -> str:
    """Return what to rent if prices decide, else the fastest option; a single one is not compared."""
    if advice.winner is not None:
        return f"Rent {advice.winner.subject}"
    if not advice.ranked:
        return "no answer"
    fastest = max(advice.ranked, key=lambda option: option.samples_per_second)
    if len(advice.ranked) > 1:
        return f"{fastest.subject} is the fastest"
    others = [option for option in advice.options if option.excluded]
    verb = "works" if others and all(option.failed for option in others) else "was measured"
    why = ", ".join(f"{option.subject}: {option.note.removesuffix(' in this run')}" for option in others)
    return f"only {fastest.subject} {verb}{f' ({why})' if why else ''}"
