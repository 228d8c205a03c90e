"""Answers as tables, as lines and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from results.digits import significant
from results.grid import Grid
from results.recommend.answer import SECONDS_PER_HOUR, Advice, RentalOption, compared, span
from results.recommend.figures import Basis
from results.table.cells import value_text

ROW = ("hours", "wins_below", "excluded", "notes")
KNOWN = ("subject", "gpu", "count", "basis", "samples_per_second", "batch", "sources")


def advice_grid(advice: Advice) -> Grid:
    """Return the options as a table, best first."""
    slowest = min((option.rate for option in compared(advice.question, advice.options)), default=0.0)
    rows = [
        [
            option.name if option.known.subject == option.known.gpu else f"{option.name} ({option.known.gpu})",
            rate_text(option),
            f"{option.rate / slowest:.2f}" if slowest and option.rate and not option.is_bound else "",
            option.known.origin or str(option.known.basis),
            option.known.batch,
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
    optional = ("batch", "from", "hours", "wins below", "ratio")
    return Grid(title, [*columns, "notes"], rows, advice.notes, optional).without_empty_columns()


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
                **{name: getattr(advice.table, name) for name in ("basis", "mode", "setting")},
                **{name: getattr(advice, name) for name in ("title", "sentence", "notes")},
                "winner": advice.winner.name if advice.winner else None,
                "options": [option_json(option) for option in advice.options],
            }
            for advice in advices
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def option_json(option: RentalOption) -> dict[str, Any]:
    """Return a row as plain data; an interval and a price as their two ends."""
    known, interval = option.known, option.known.interval
    return {
        **{name: getattr(known, name) for name in KNOWN},
        **{name: getattr(option, name) for name in ROW},
        "from": known.origin,
        "interval": [interval.low, interval.high] if interval else None,
        "usd_per_hour": option.usd or None,
        "samples_per_usd": option.samples_per_usd or None,
        "offers": [dataclasses.asdict(offer) for offer in option.offers],
    }


def rate_text(option: RentalOption) -> str:
    """Write a throughput with its interval."""
    interval = option.known.interval
    if interval is None or option.known.basis is not Basis.PREDICTED:
        return f"{'≤ ' if option.is_bound else ''}{value_text(option.known.samples_per_second, interval)}"
    return f"{significant(interval.value)} ({significant(interval.low)} to {significant(interval.high)})"


def time_text(option: RentalOption, samples: float) -> str:
    """Write the time for the job; its ends are those of the throughput, inverted, so that it is never below 0."""
    interval, work = option.known.interval, samples / SECONDS_PER_HOUR
    if option.hours is None or interval is None:
        return "" if option.hours is None else f"{'≥ ' if option.is_bound else ''}{significant(option.hours)}"
    low = significant(work / interval.high)
    return f"{low} to {significant(work / interval.low)}" if interval.low > 0 else f"≥ {low}"


def price_text(option: RentalOption) -> str:
    """Write the price of all GPUs of a row, and who gave it or how many offers it is from."""
    origins = sorted({offer.origin for offer in option.offers})
    return f"{span(option.usd)} ({', '.join(filter(None, origins)) or len(option.offers)})" if origins else ""
