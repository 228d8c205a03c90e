"""Answers as tables, as lines and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from results.digits import significant, with_interval
from results.grid import Grid
from results.recommend.answer import SECONDS_PER_HOUR, Advice, RentalOption, compared
from results.recommend.figures import Basis
from results.stats import Interval
from results.table.cells import value_text

NARROW = 0.2
"""Relative width of an interval up to which it is written as `±`; a wider one from its low to its high end."""


def advice_grid(advice: Advice) -> Grid:
    """Return the options as a table, best first."""
    slowest = min((option.rate for option in compared(advice.question, advice.options)), default=0.0)
    rows = []
    for option in advice.options:
        known = option.known
        most = "≤ " if known.basis is Basis.BOUND else ""
        ratio = option.rate / slowest if slowest and known.basis is not Basis.BOUND else 0.0
        rows.append(
            [
                option.name if known.subject == known.gpu else f"{option.name} ({known.gpu})",
                f"{most}{rate_text(option)}",
                f"{ratio:.2f}" if ratio else "",
                known.origin or str(known.basis),
                known.batch,
                price_text(option),
                _span([value / 1e6 for value in option.samples_per_usd or ()]),
                time_text(option, advice.question.samples),
                "" if option.wins_below is None else f"{option.wins_below:.3f}",
                "; ".join(part for part in (option.excluded, *option.notes) if part),
            ]
        )
    columns = ["GPU", "samples/s>", "ratio>", "from", "batch>", "USD/h (offers)>", "M/USD>", "hours>", "wins below>"]
    title = f"{advice.title}: {advice.question.samples / 1e6:g} M samples"
    optional = ("batch", "from", "hours", "wins below", "ratio")
    return Grid(title, [*columns, "notes"], rows, advice.notes, optional).without_empty_columns()


def explain_grid(advice: Advice) -> Grid:
    """Return the evidence behind an answer: each figure with its source, and each price."""
    rows = []
    for option in advice.options:
        rows += [[option.name, str(option.known.basis), source] for source in option.known.sources]
        for offer in option.offers:
            source = ", ".join(part for part in (offer.origin, offer.name, offer.source) if part)
            rows.append([option.name, "price", f"{offer.usd_per_gpu_hour:.3f} USD per GPU-hour: {source}"])
    return Grid(f"Evidence: {advice.title}", ["GPU", "what", "from"], rows)


def advice_json(advices: Sequence[Advice], remarks: Sequence[str]) -> str:
    """Return questions, options and sentences as JSON.

    Args:
        advices: In the order of their questions.
        remarks: What holds for all of them, e.g. prices that were not used.
    """
    document = {
        "answer": [advice.sentence for advice in advices],
        "remarks": list(remarks),
        "answers": [
            {
                "question": dataclasses.asdict(advice.question),
                "title": advice.title,
                "basis": advice.table.basis,
                "mode": advice.table.mode,
                "setting": advice.table.setting,
                "sentence": advice.sentence,
                "winner": advice.winner.name if advice.winner else None,
                "options": [option_json(option) for option in advice.options],
                "notes": list(advice.notes),
            }
            for advice in advices
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def option_json(option: RentalOption) -> dict[str, Any]:
    """Return a row as plain data; an interval and a price as their two ends."""
    known = option.known
    return {
        "subject": known.subject,
        "gpu": known.gpu,
        "count": known.count,
        "basis": known.basis,
        "samples_per_second": known.samples_per_second,
        "interval": [known.interval.low, known.interval.high] if known.interval else None,
        "from": known.origin,
        "batch": known.batch,
        "usd_per_hour": option.usd,
        "offers": [dataclasses.asdict(offer) for offer in option.offers],
        "samples_per_usd": option.samples_per_usd,
        "hours": option.hours,
        "wins_below": option.wins_below,
        "excluded": option.excluded,
        "notes": list(option.notes),
        "sources": list(known.sources),
    }


def rate_text(option: RentalOption) -> str:
    """Write a throughput with its interval."""
    interval = option.known.interval
    if interval is None or option.known.basis is not Basis.PREDICTED:
        return value_text(option.known.samples_per_second, interval)
    return f"{significant(interval.value)} ({significant(interval.low)} to {significant(interval.high)})"


def time_text(option: RentalOption, samples: float) -> str:
    """Write the time for the job; its ends are those of the throughput, inverted, so that it is never below 0."""
    if option.hours is None:
        return ""
    work, interval = samples / SECONDS_PER_HOUR, option.known.interval
    if option.known.basis is Basis.BOUND or interval is None:
        return f"{'≥ ' if option.known.basis is Basis.BOUND else ''}{significant(option.hours)}"
    low, high = work / interval.high, work / interval.low if interval.low > 0 else math.inf
    if math.isinf(high):
        return f"≥ {significant(low)}"
    if high - low < NARROW * option.hours:
        return with_interval(Interval(option.hours, low, high, interval.level))
    return f"{significant(low)} to {significant(high)}"


def price_text(option: RentalOption) -> str:
    """Write the price of all GPUs of a row and where it comes from."""
    if option.usd is None:
        return ""
    origins = {offer.origin for offer in option.offers}
    if origins != {""}:
        return f"{_span(option.usd)} ({', '.join(sorted(origins))})"
    return f"{_span(option.usd)} ({len(option.offers)})"


def _span(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = significant(min(values)), significant(max(values))
    return low if low == high else f"{low} to {high}"
