"""Formats answers as tables and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from results.number_format import significant, with_interval
from results.recommend.options import SECONDS_PER_HOUR, Advice, Basis, RentalOption
from results.recommend.sentence import compared
from results.reference.prices import span
from results.stats import divided, inverse
from results.table.cell_text import value_text
from results.text_table import Grid

FIELDS = (*("subject", "gpu", "count", "basis", "batch", "sources", "hours", "wins_below", "excluded", "notes"),)
"""Fields of an option that are copied to JSON."""

CERTAIN = 0.02
"""Largest relative half-width of a throughput whose time has no interval of its own, so that 80 columns have room."""


def advice_grid(advice: Advice) -> Grid:
    """Return the options as a table, best first."""
    slowest = min((option.samples_per_second for option in compared(advice.options)), default=0.0)
    rows = [
        [
            option.name if option.subject == option.gpu else f"{option.name} ({option.gpu})",
            rate_text(option),
            f"{option.samples_per_second / slowest:.2f}" if slowest and option.has_figure else "",
            option.origin or str(option.basis),
            option.batch,
            price_text(option),
            span([value / 1e6 for value in option.samples_per_usd]),
            time_text(option, advice.question.samples),
            "" if option.wins_below is None else f"{option.wins_below:.3f}",
            "; ".join(filter(None, (option.excluded, *option.notes))),
        ]
        for option in advice.options
    ]
    columns = ["GPU", "samples/s>", "ratio>", "from", "batch>", "USD/h (offers)>", "M/USD>", "hours>", "wins below>"]
    title = f"{advice.title}: {advice.question.samples / 1e6:g} M samples"
    optional, important = ("batch", "from", "M/USD", "ratio"), ("hours", "wins below")
    return Grid(title, [*columns, "notes"], rows, advice.notes, optional, important).without_empty_columns()


def advice_json(advices: Sequence[Advice], remarks: Sequence[str]) -> str:
    """Return questions, options and sentences as JSON.

    Args:
        advices: In the order of their questions.
        remarks: Remarks on all of them, e.g. unused prices.
    """
    document = {
        "answer": [advice.sentence for advice in advices],
        "remarks": list(remarks),
        "answers": [
            {
                "question": dataclasses.asdict(advice.question),
                **{name: getattr(advice, name) for name in ("basis", "mode", "setting", "title", "sentence", "notes")},
                "winner": advice.winner.name if advice.winner else None,
                "options": [option_json(option) for option in advice.options],
            }
            for advice in advices
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def option_json(option: RentalOption) -> dict[str, Any]:
    """Return an option as plain data, with intervals and prices as pairs."""
    interval = option.interval
    return {
        **{name: getattr(option, name) for name in FIELDS},
        "samples_per_second": option.samples_per_second or None,
        "from": option.origin,
        "interval": [interval.low, interval.high] if interval else None,
        "usd_per_hour": option.usd or None,
        "samples_per_usd": option.samples_per_usd or None,
        "offers": [dataclasses.asdict(offer) for offer in option.offers],
    }


def rate_text(option: RentalOption) -> str:
    """Format a throughput with its interval."""
    interval, limit = option.interval, "≤ " if option.basis is Basis.BOUND else ""
    return f"{limit}{value_text(option.samples_per_second or None, interval)}"


def time_text(option: RentalOption, samples: float) -> str:
    """Format the time for the job; if it matters, with the interval of the throughput, inverted."""
    interval, work = option.interval, samples / SECONDS_PER_HOUR
    if interval is None or interval.half_width < CERTAIN * interval.value:
        least = "≥ " if option.basis is Basis.BOUND else ""
        return f"{least}{significant(option.hours)}" if option.hours else ""
    return with_interval(divided(inverse(interval), 1 / work))


def price_text(option: RentalOption) -> str:
    """Format the price of all GPUs of an option, with its origin or the number of offers."""
    origins = sorted({offer.origin for offer in option.offers})
    return f"{span(option.usd)} ({', '.join(filter(None, origins)) or len(option.offers)})" if origins else ""
