"""Formats an answer: one sentence, a table and JSON.

The sentence has what to rent at the prices, which `compare.decide` decides, then how fast the GPUs are relative to each
other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results.compare.comparison import compare_pair
from results.compare.decide import cheaper, decide
from results.recommend.options import Advice, Basis, RentalOption, RentalQuestion
from results.reference.prices import FROM_RUN, YOURS, span
from results.stats import Interval
from results.text import enumerated, significant, value_text, with_interval
from results.text_table import Grid

FIELDS = ("subject", "gpu", "count", "basis", "batch", "sources", "hours", "wins_below", "excluded", "notes")
"""Fields of an option that are copied to JSON."""

LED = 3
"""Maximum number of GPUs that the sentence compares with the slowest one, and of names and flags in a hint."""

MOST_GPUS = 8
"""Largest number of GPUs of a host to which a job that takes too long is referred."""

MEASURE = "measure for an hour first"

SAME_SETTING, OTHER_VERSION, OTHER_SOFTWARE = 0.05, 0.4, 1.2
"""Smallest relative difference of two published figures that is significant, each of one run on one host: in one
setting, with other versions of one framework by one publisher, and otherwise.

Source: figures of one GPU, network and precision in `published.csv`: ResNet50 FP16 on RTX A6000 1404 and 1478, on A100
SXM4 40GB 1888 and 1990 (5 %); TensorFlow 1.15 and 2.4 up to 1.35 times apart, but for an early build for Ampere;
different publishers up to 2.16 times (ResNet50 FP16 on A100 SXM4 80GB: 3410 with MXNet, 1582 with PyTorch).
"""

Options = Sequence[RentalOption]


def answer(question: RentalQuestion, shown: Options, every: Options) -> tuple[RentalOption | None, str]:
    """Return what to rent if prices decide, and the sentence.

    Args:
        question: The question.
        shown: The options that the table shows.
        every: All options, also those outside the limits.
    """
    figures = [option for option in every if option.samples_per_second]
    fitting = [option for option in figures if not option.misfit]
    priced = [option for option in fitting if option.offers]
    speeds, several = _speeds(question, shown, figures), len(compared(shown)) > 1
    if figures and not fitting:
        text = _none_fits(figures)
        return None, f"{text}; {speeds}" if several else text
    if not fitting:
        return None, speeds
    if not priced:
        return None, f"{speeds}; no price is known: give --price '{fitting[0].gpu}=USD'"
    if question.budget is not None:
        priced = [replace(option, offers=option.offers[:1]) for option in priced]
    if len(priced) == 1:
        only = f"only {priced[0].name} has a price, " if several else ""
        return None, f"{speeds}; {only}{_usd_text(priced[0])}"
    best, beaten = decided(priced)
    if len(best) > 1:
        winner, text = _tie(best, priced)
        losers = enumerated([option.name for option in beaten])
        dearer = f"; {losers} {'cost' if len(beaten) > 1 else 'costs'} more per sample" if beaten else ""
        return winner, f"{text}{dearer}; {speeds.removesuffix(f': {MEASURE}') if MEASURE in text else speeds}"
    until = ""
    if question.budget is not None:
        until = _on_demand(best[0], fitting)
    elif best[0].wins_below is not None:
        until = f", which stays cheaper per sample until it costs {best[0].wins_below:.3g} USD/h"
    return best[0], f"{_at(priced)}, rent {best[0].name} ({_usd_text(best[0])}){until}; {speeds}"


def compared(options: Options) -> list[RentalOption]:
    """Return the options that the sentence compares: those that meet the limits, else all with a figure.

    Predictions are among them if they were asked for.
    """
    figures = [of for of in options if of.ranked or (of.samples_per_second and of.key in of.question.gpus)]
    return [option for option in figures if not option.misfit] or [option for option in figures if option.ranked]


def decided(options: Options) -> tuple[list[RentalOption], list[RentalOption]]:
    """Return the options that give the most samples per dollar, best first, and those that surely give fewer."""
    best, beaten = decide({option: option.usd for option in options}, ratio)
    return sorted(best, key=lambda option: (bool(option.doubt), -option.samples_per_usd[-1])), beaten


def ratio(a: RentalOption, b: RentalOption) -> Interval:
    """Return the throughput of `a` over that of `b`.

    Of figures without intervals the interval is the difference that is not significant; its level is 0.
    """
    if a.measured and b.measured and (measured := compare_pair(a.measured, b.measured).ratio):
        return measured
    value = a.samples_per_second / b.samples_per_second
    if not (a.interval and b.interval) and Basis.PREDICTED not in (a.basis, b.basis):
        other = OTHER_VERSION if a.framework == b.framework else OTHER_SOFTWARE
        factor = 1 + (SAME_SETTING if a.setting == b.setting else other)
        return Interval(value, value / factor, value * factor, 0.0)
    left, right = (of.interval or Interval(*[of.samples_per_second] * 3) for of in (a, b))
    return Interval(value, left.low / right.high, left.high / right.low, min(left.level, right.level))


def _none_fits(figures: Options) -> str:
    """Return the fastest option that does not meet the limits, and how many GPUs would be in time."""
    fastest = max(figures, key=lambda option: (not option.doubt, option.samples_per_second))
    text = f"none meets the limits; the fastest is {fastest.name} ({fastest.origin}): {fastest.misfit}"
    work, limit = (fastest.hours or 0) * fastest.count, fastest.question.hours or 0
    enough = [gpus for gpus in (2, 4, MOST_GPUS) if gpus > fastest.count and work / gpus <= limit]
    return f"{text}; more GPUs may be fast enough: --num-gpus {enough[0]}" if enough else text


def _at(priced: Options) -> str:
    """Describe the prices."""
    offers, budget = [offer for option in priced for offer in option.offers], priced[0].question.budget
    origins = {offer.origin for offer in offers}
    if budget is not None:
        return f"within {budget:g} USD/h"
    if origins == {""}:
        return f"at each of the {len(offers)} listed offers"
    return {YOURS: "at your prices", FROM_RUN: "at the prices of this run"}.get("".join(origins), "at these prices")


def _tie(best: Options, priced: Options) -> tuple[RentalOption | None, str]:
    """Return what to rent of several options that may give the most samples per dollar, and the reason."""
    at, sure, unsure = _at(priced), [of for of in best if not of.doubt], [of for of in best if of.doubt]
    names = enumerated([*(of.name for of in sure), *(f"{of.name} ({of.doubt})" for of in unsure)])
    measure = f": {MEASURE}" if len(sure) < 2 else ""
    origins = [offer.origin for option in priced for offer in option.offers]
    ranges = any(option.usd[0] < option.usd[1] for option in best)
    if ranges or (priced[0].question.budget is None and "" in origins):
        listed = "" if any(origins) else "listed "
        return None, f"the {len(origins)} {listed}offers do not decide between {names}{measure}"
    if measure or not all(ratio(sure[0], option).known for option in sure[1:]):
        return None, f"{at}, undecided between {names}{measure}"
    text = f"{at}, no significant difference in samples per dollar between {enumerated([of.name for of in sure])}"
    if unsure:
        return None, f"{text}; {enumerated([f'{of.name} ({of.doubt})' for of in unsure])} may be cheaper: measure first"
    cheap, *dearer = sorted(sure, key=lambda option: option.usd)
    if dearer[0].usd == cheap.usd:
        return None, text
    text = f"{text}: rent {cheap.name} for the lower price ({_usd_text(cheap)})"
    faster = [option for option in dearer if cheaper(ratio(option, cheap)) > 0]
    if not faster:
        return cheap, text
    return None, f"{text}, {max(faster, key=lambda option: option.samples_per_second).name} for the shorter time"


def _on_demand(best: RentalOption, options: Options) -> str:
    """Return what to rent on demand if the price of the best option is a spot price; empty if it is not."""
    offers = [tuple(offer for offer in option.offers if offer.commitment != "spot")[:1] for option in options]
    firm = [replace(option, offers=firm) for option, firm in zip(options, offers, strict=True) if firm]
    if not best.only_spot or not firm:
        return ""
    return f", on demand rent {' or '.join(f'{option.name} ({_usd_text(option)})' for option in decided(firm)[0])}"


def _speeds(question: RentalQuestion, shown: Options, figures: Options) -> str:
    """Return the part of the sentence with ratios over the slowest GPU, and the prices that they justify."""
    rows = compared(shown)
    alike = [option for option in rows if not option.foreign]
    rows = sorted(alike if len(alike) > 1 else rows, key=lambda option: option.samples_per_second)
    if not rows:
        reasons = [*dict.fromkeys(option.excluded for option in shown)][:LED]
        mode = f" in mode {question.mode}" if question.mode else ""
        return f"no answer: {'; '.join(reasons) or f'no figure of {question.network} {question.precision}{mode}'}"
    slow, fast = rows[0], rows[:0:-1][:LED]
    origin = "; ".join(dict.fromkeys(option.origin for option in (*fast, slow)))
    if not fast:
        limited = not slow.misfit and any(option.misfit for option in figures)
        only = f"only {slow.name} {'meets the limits' if limited else 'has a figure'}"
        return f"{only}, {significant(slow.samples_per_second, 4)} samples/s ({origin})"
    times = [f"{option.name} {'' if i else 'is '}{_ratio_text(option, slow)} times" for i, option in enumerate(fast)]
    return f"{enumerated(times)} as fast as {slow.name} ({origin}): {_worth(slow, fast)}"


def _worth(slow: RentalOption, fast: Options) -> str:
    """Return what the ratios over the slowest option mean for its price and theirs."""
    ratios = [ratio(option, slow) for option in fast]
    if Basis.PREDICTED in (fast[0].basis, slow.basis):
        return MEASURE
    if not all(of.known for of in ratios):
        return "no interval, measure at least 2 repeats of each"
    if len(fast) > 1:
        return f"each is worth up to its ratio times the price of {slow.name}"
    if ratios[0].level and cheaper(ratios[0]) <= 0:
        return "no significant difference in speed: rent the cheaper one"
    return f"rent it if it costs less than {_ratio_text(fast[0], slow).split(' ')[0]} times as much"


def _ratio_text(a: RentalOption, b: RentalOption) -> str:
    found = ratio(a, b)
    return with_interval(found) if found.known and found.level else f"{found.value:.2f}"


def _usd_text(option: RentalOption) -> str:
    """Format the price of an option, whether it has only spot offers, and why its figure is weak."""
    return ", ".join(filter(None, (f"{span(option.usd)} USD/h", "spot" if option.only_spot else "", option.doubt)))


def advice_grid(advice: Advice) -> Grid:
    """Return the options as a table, best first."""
    slowest = min((option.samples_per_second for option in compared(advice.options)), default=0.0)
    rows = [
        [
            option.name if option.subject == option.gpu else f"{option.name} ({option.gpu})",
            value_text(option.samples_per_second or None, option.interval),
            f"{option.samples_per_second / slowest:.2f}" if slowest and option.samples_per_second else "",
            option.origin or str(option.basis),
            option.batch,
            price_text(option),
            span([value / 1e6 for value in option.samples_per_usd]),
            significant(option.hours) if option.hours else "",
            "" if option.wins_below is None else f"{option.wins_below:.3f}",
            "; ".join(filter(None, (option.excluded, *option.notes))),
        ]
        for option in advice.options
    ]
    columns = ["GPU", "samples/s>", "ratio>", "from", "batch>", "USD/h (offers)>", "M/USD>", "hours>", "wins below>"]
    title = f"{advice.title}: {advice.question.samples / 1e6:g} M samples"
    optional = ("batch", "from", "M/USD", "ratio")
    return Grid(title, [*columns, "notes"], rows, advice.notes, optional).without_empty_columns()


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
                "question": {name: value for name, value in vars(advice.question).items() if name != "prices"},
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
    # A price of the run is for a fleet; what is rented is its GPU.
    offers = [replace(of, gpus=(of.gpu,)) if of.origin == FROM_RUN else of for of in option.offers]
    return {
        **{name: getattr(option, name) for name in FIELDS},
        "samples_per_second": option.samples_per_second or None,
        "from": option.origin,
        "interval": [interval.low, interval.high] if interval else None,
        "usd_per_hour": option.usd or None,
        "samples_per_usd": option.samples_per_usd or None,
        "offers": [dataclasses.asdict(offer) for offer in offers],
    }


def price_text(option: RentalOption) -> str:
    """Format the price of all GPUs of an option, with its origin or the number of offers."""
    origins = sorted({offer.origin for offer in option.offers})
    return f"{span(option.usd)} ({', '.join(filter(None, origins)) or len(option.offers)})" if origins else ""
