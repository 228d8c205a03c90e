"""What another precision would give on the card that is recommended, everything else being equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from results.compare.pairs import compare_pair
from results.digits import with_interval
from results.recommend.evidence import Basis
from results.recommend.published import figures
from results.recommend.questions import PRECISIONS
from results.recommend.ranking import Verdict
from results.table.comparable import setting_of
from results.table.fleets import FleetRate


def precision_line(verdict: Verdict, rates: Sequence[FleetRate]) -> str:
    """Say what the other precisions would give on the best choice; empty where that is not known."""
    best = verdict.best
    if best is None:
        return ""
    gains = _measured(verdict, rates) if best.basis is Basis.MEASURED else _published(verdict)
    others = [f"{name} {gains[name]} ×" for name in PRECISIONS if name in gains]
    return f"precision: on {best.subject}, against {verdict.question.precision}: {', '.join(others)}" if others else ""


def _measured(verdict: Verdict, rates: Sequence[FleetRate]) -> dict[str, str]:
    """Return the gains that the best choice's own fleet measured in the same setting."""
    best = verdict.best.evidence.rate if verdict.best else None
    if best is None or len(verdict.question.mix) > 1:
        return {}
    same = setting_of(best, across=("precision",))
    gains = {}
    for rate in rates:
        if rate.fleet != best.fleet or not rate.rates or rate.case.precision == best.case.precision:
            continue
        if setting_of(rate, across=("precision",)) == same:
            found = compare_pair(rate, best)
            gains[str(rate.case.precision)] = with_interval(found.interval) if found.interval else f"{found.value:.2f}"
    return gains


def _published(verdict: Verdict) -> dict[str, str]:
    """Return the gains that the source of the figures published of the same card in the same setting."""
    best = verdict.best
    gains: dict[str, str] = {}
    for precision in PRECISIONS:
        if best is None or precision == verdict.question.precision or not best.samples_per_second:
            continue
        for place, of_cards in figures(replace(verdict.question, precision=precision)).items():
            if place.text == verdict.group.setting and best.gpu in of_cards:
                gains[precision] = f"{of_cards[best.gpu].samples_per_second / best.samples_per_second:.2f}"
    return gains
