"""Writes the answer in one sentence: what to rent at the prices, then how fast the GPUs are relative to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from results.compare.comparison import compare_pair
from results.compare.decide import decide, price_limits
from results.number_format import significant, with_interval
from results.recommend.figures import margin
from results.recommend.options import Basis, RentalOption
from results.recommend.prices import span
from results.recommend.questions import RentalQuestion
from results.reference.prices import FROM_RUN, YOURS
from results.stats import Interval
from results.text import enumerated

LED = 3
"""Maximum number of GPUs that the sentence compares with the slowest one, and of names and flags in a hint."""

MOST_GPUS = 8
"""Largest number of GPUs of a host to which a job that takes too long is referred."""

MEASURE = "measure for an hour first"

Options = Sequence[RentalOption]


def answer(question: RentalQuestion, shown: Options, every: Options) -> tuple[RentalOption | None, str]:
    """Return what to rent if prices decide, and the sentence.

    Args:
        question: The question.
        shown: The options that the table shows.
        every: All options, also those outside the limits.
    """
    known = [option for option in every if option.has_figure]
    fitting = [option for option in known if not option.misfit]
    priced = at_lowest(fitting) if question.budget is not None else [option for option in fitting if option.usd]
    speeds = _speeds(question, shown, every)
    if known and not fitting:
        text = _none_fits(question, known)
        return None, f"{text}; {speeds}" if len(compared(question, shown)) > 1 else text
    if not fitting:
        return None, speeds
    if not priced:
        return None, f"{speeds}; no price is known: give --price '{fitting[0].gpu}=USD'"
    if len(priced) == 1:
        only = f"only {priced[0].name} has a price, " if len(compared(question, shown)) > 1 else ""
        return None, f"{speeds}; {only}{_usd_text(priced[0])}"
    best, beaten = decided(priced)
    if len(best) == 1:
        usd, other = best[0].wins_below, _on_demand(best[0], fitting) if question.budget is not None else ""
        if usd is not None and question.budget is None:
            other = f", which stays cheaper per sample until it costs {usd:.3g} USD/h"
        return best[0], f"{_at(question, priced)}, rent {best[0].name} ({_usd_text(best[0])}){other}; {speeds}"
    winner, text = _tie(question, best, priced)
    losers = enumerated([option.name for option in beaten])
    dearer = f"; {losers} {'cost' if len(beaten) > 1 else 'costs'} more per sample" if beaten else ""
    return winner, f"{text}{dearer}; {speeds.removesuffix(f': {MEASURE}') if MEASURE in text else speeds}"


def compared(question: RentalQuestion, options: Options) -> list[RentalOption]:
    """Return the options that the sentence compares: those that meet the limits, else all with a figure.

    Predictions are among them if they were asked for.
    """
    known = [of for of in options if of.ranked or (of.has_figure and (of.gpu, of.count) in question.gpus)]
    return [option for option in known if not option.misfit] or [option for option in known if option.ranked]


def decided(options: Iterable[RentalOption]) -> tuple[list[RentalOption], list[RentalOption]]:
    """Return the options that give the most samples per dollar, best first, and those that surely give fewer."""
    priced = {option.name: option for option in options if option.usd}
    found = decide({name: option.usd for name, option in priced.items()}, lambda a, b: ratio(priced[a], priced[b]))
    best, beaten = ([priced[name] for name in names] for names in (found.best, found.beaten))
    return sorted(best, key=lambda option: (bool(option.doubt), -option.samples_per_usd[-1])), beaten


def ratio(a: RentalOption, b: RentalOption) -> Interval | None:
    """Return the throughput of `a` over that of `b`; None: its uncertainty is unknown.

    Of published figures the interval is the difference that is not significant.
    """
    if a.measured and b.measured:
        return compare_pair(a.measured, b.measured).interval
    value, factor = a.samples_per_second / b.samples_per_second, 1 + margin(a, b)
    if not _has_interval(a, b):
        return Interval(value, value / factor, value * factor)
    left, right = (of.interval or Interval(*[of.samples_per_second] * 3) for of in (a, b))
    return Interval(value, left.low / right.high, left.high / right.low, min(left.level, right.level))


def _has_interval(a: RentalOption, b: RentalOption) -> bool:
    """Return whether the ratio of two figures has an interval of its own."""
    return Basis.PREDICTED in (a.basis, b.basis) or bool(a.interval and b.interval)


def _none_fits(question: RentalQuestion, known: Options) -> str:
    """Return the fastest option that does not meet the limits, and how many GPUs would be in time."""
    fastest = max(known, key=lambda option: (not option.doubt, option.samples_per_second))
    text = f"none meets the limits; the fastest is {fastest.name} ({fastest.origin}): {fastest.misfit}"
    gpus = [n for n in (2, 4, MOST_GPUS) if n > fastest.count]
    enough = [n for n in gpus if (fastest.hours or 0) * fastest.count / n <= (question.hours or 0)]
    return f"{text}; more GPUs may be fast enough: --num-gpus {enough[0]}" if enough else text


def _at(question: RentalQuestion, priced: Options) -> str:
    """Describe the prices."""
    origins = {offer.origin for option in priced for offer in option.offers}
    if question.budget is not None:
        return f"within {question.budget:g} USD/h"
    if origins == {""}:
        return f"at each of the {_offers(priced)}"
    return {YOURS: "at your prices", FROM_RUN: "at the prices of this run"}.get("".join(origins), "at these prices")


def _offers(priced: Options) -> str:
    offers = [offer for option in priced for offer in option.offers]
    return f"{len(offers)} {'' if any(offer.origin for offer in offers) else 'listed '}offers"


def _tie(question: RentalQuestion, best: Options, priced: Options) -> tuple[RentalOption | None, str]:
    """Return what to rent of several options that may give the most samples per dollar, and the reason."""
    at, sure = _at(question, priced), [option for option in best if not option.doubt]
    unsure = [f"{option.name} ({option.doubt})" for option in best if option.doubt]
    names = enumerated([*(option.name for option in sure), *unsure])
    measure = f": {MEASURE}" if len(sure) < 2 else ""
    if question.budget is None and any(not offer.origin for option in priced for offer in option.offers):
        return None, f"the {_offers(priced)} do not decide between {names}{measure}"
    if measure:
        return None, f"{at}, undecided between {names}{measure}"
    if any(ratio(sure[0], option) is None for option in sure[1:]):
        return None, f"{at}, undecided without an interval between {names}"
    if any(option.usd[0] < option.usd[1] for option in best):
        return None, f"{at}, which of {names} is cheaper per sample depends on the offer"
    text = f"{at}, no significant difference in samples per dollar between {enumerated([of.name for of in sure])}"
    if unsure:
        return None, f"{text}; {enumerated(unsure)} may be cheaper: measure first"
    cheap, *dearer = sorted(sure, key=lambda option: option.usd)
    if dearer[0].usd == cheap.usd:
        return None, text
    text = f"{text}: rent {cheap.name} for the lower price ({_usd_text(cheap)})"
    faster = [option for option in dearer if price_limits(ratio(option, cheap))[0] > 1]
    if not faster:
        return cheap, text
    return None, f"{text}, {max(faster, key=lambda option: option.samples_per_second).name} for the shorter time"


def at_lowest(options: Iterable[RentalOption]) -> list[RentalOption]:
    """Return those with an offer, each with its cheapest one only."""
    return [replace(option, offers=(option.cheapest,)) for option in options if option.offers]


def _on_demand(best: RentalOption, options: Options) -> str:
    """Return what to rent on demand if the price of the best option is a spot price; empty if it is not."""
    firm = at_lowest(replace(o, offers=tuple(x for x in o.offers if x.commitment != "spot")) for o in options)
    if best.cheapest.commitment != "spot" or not firm:
        return ""
    return f", on demand rent {' or '.join(f'{option.name} ({_usd_text(option)})' for option in decided(firm)[0])}"


def _speeds(question: RentalQuestion, options: Options, every: Options) -> str:
    """Return the part of the sentence with ratios over the slowest GPU, and the prices that they justify."""
    known = compared(question, options)
    alike = [option for option in known if not option.foreign]
    shown = sorted(alike if len(alike) > 1 else known, key=lambda option: option.samples_per_second)
    if not shown:
        reasons = [*dict.fromkeys(option.excluded for option in options)][:LED]
        mode = f" in mode {question.mode}" if question.mode else ""
        return f"no answer: {'; '.join(reasons) or f'no figure of {question.network} {question.precision}{mode}'}"
    slow, fast = shown[0], shown[:0:-1][:LED]
    origin = "; ".join(dict.fromkeys(option.origin for option in (*fast, slow)))
    if not fast:
        misfits = any(option.misfit for option in every if option.has_figure)
        only = f"only {slow.name} {'meets the limits' if misfits and not slow.misfit else 'has a figure'}"
        return f"{only}, {significant(slow.samples_per_second, 4)} samples/s ({origin})"
    times = [f"{option.name} {'' if i else 'is '}{_ratio_text(option, slow)} times" for i, option in enumerate(fast)]
    return f"{enumerated(times)} as fast as {slow.name} ({origin}): {_worth(slow, fast)}"


def _worth(slow: RentalOption, fast: Options) -> str:
    """Return what the ratios over the slowest option mean for its price and theirs."""
    if Basis.PREDICTED in (fast[0].basis, slow.basis):
        return MEASURE
    if any(ratio(slow, option) is None for option in fast):
        return "no interval, measure at least 2 repeats of each"
    if len(fast) > 1:
        return f"each is worth up to its ratio times the price of {slow.name}"
    if _has_interval(fast[0], slow) and price_limits(ratio(fast[0], slow))[0] <= 1:
        return "no significant difference in speed: rent the cheaper one"
    return f"rent it if it costs less than {_ratio_text(fast[0], slow).split(' ')[0]} times as much"


def _ratio_text(a: RentalOption, b: RentalOption) -> str:
    interval = ratio(a, b) if _has_interval(a, b) else None
    return with_interval(interval) if interval else f"{a.samples_per_second / b.samples_per_second:.2f}"


def _usd_text(option: RentalOption) -> str:
    """Format the price of an option, whether it has only spot offers, and why its figure is weak."""
    spot = "spot" if all(offer.commitment == "spot" for offer in option.offers) else ""
    return ", ".join(filter(None, (f"{span(option.usd)} USD/h", spot, option.doubt)))


def within_places(options: Options) -> list[str]:
    """Compare the fastest GPU with the slowest one within each provider, region and commitment with both."""
    priced = [of for of in options if of.has_figure and not of.misfit and not of.doubt and of.usd]
    priced.sort(key=lambda option: option.samples_per_second)
    offers = [{offer.place: offer for offer in option.offers if not offer.origin} for option in priced]
    notes = []
    for place in (place for place in offers[-1] if place in offers[0]) if len(priced) > 1 else ():
        slow, fast = (replace(priced[end], offers=(offers[end][place],)) for end in (0, -1))
        best, _ = decided([slow, fast])
        cheaper = f"{best[0].name} is cheaper per sample"
        result = cheaper if len(best) == 1 else "no significant difference in samples per dollar"
        times = f"{fast.usd[0] / slow.usd[0]:.2f} times as much as {slow.name}"
        notes.append(f"within {place}, {fast.name} costs {times}: {result}")
    return notes
