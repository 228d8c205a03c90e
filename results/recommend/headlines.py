"""The sentences of a recommendation: what to rent, up to which price, what does not fit, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from results.digits import significant, with_interval
from results.program import command_line
from results.recommend.evidence import EVERY_CARD, Basis
from results.recommend.published import Span, figures, spans
from results.recommend.questions import ASKED
from results.recommend.ranking import Choice, Rival, Verdict, needed_memory_gib, scaled
from results.reference.gpus import gpus_named as family
from results.reference.networks import network_names
from results.stats import Interval
from results.table.cells import value_text
from results.text import counted, enumerated

UNFIT = "does not fit"


def label(verdict: Verdict, others: Sequence[Verdict]) -> str:
    """Name a verdict by what distinguishes it from the others: question, mode, setting, basis."""
    parts = [verdict.question.name, verdict.group.mode]
    same = [o for o in others if (o.question.name, o.group.mode) == (verdict.question.name, verdict.group.mode)]
    if len(same) > 1 and verdict.group.basis is Basis.MEASURED:
        parts.append(verdict.group.setting)
    if verdict.group.basis is Basis.PUBLISHED:
        network = verdict.group.network
        parts.append(f"published figures{f' of {network}' if network not in ('', verdict.question.network) else ''}")
    return ", ".join(parts)


def headline(verdict: Verdict) -> str:
    """Say what to rent, at what price and cost, up to which price that holds, and what does not fit."""
    best = verdict.best
    if best is None:
        return _no_rank(verdict)
    if verdict.alone:
        return _only(verdict, best)
    if verdict.tied:
        text = _tie(verdict, best)
    elif not verdict.by_cost:
        text = _fastest(verdict, best)
    else:
        limit = price_limit(verdict)
        text = (
            f"rent {best.subject}{offer_text(best)}: {_cost(best)}, {basis_text(best)}{up_to(limit) if limit else ''}"
        )
    around = [*beyond(verdict)[:1], *left_out(verdict)]
    if verdict.uncompared:
        # What was asked is a comparison that nobody can make; how the others rank among themselves comes after that.
        names = ", ".join(verdict.uncompared)
        return "; ".join([f"no figure compares {names} with the others", *around, f"among the others: {text}"])
    return "; ".join([text, *around])


def reasons(verdict: Verdict) -> list[str]:
    """Say why: where the choice flips, what others cost, what is known beside, and what was decided about prices."""
    lines = []
    needed = needed_memory_gib(verdict.question)
    if needed is not None:
        asked = verdict.question.memory_gib is not None
        lines.append(f"memory: {needed:g} GiB per GPU, as requested" if asked
                     else f"memory: {needed:.1f} GiB per GPU or more, for activations alone")  # fmt: skip
    lines += break_even_lines(verdict)
    lines += [f"{_span_text(span)}{_worth(span, verdict)}" for span in _spans(verdict)]
    return [*lines, *_needed_speed(verdict), *_price_lines(verdict)]


def break_even_lines(verdict: Verdict) -> list[str]:
    """Say for each GPU against the best one at which price ratio the choice flips."""
    best = verdict.best
    return [_break_even(best, rival) for rival in verdict.rivals] if best else []


def _cost(best: Choice) -> str:
    """Write cost and time of a million samples, with the interval of the throughput where it is known."""
    interval = best.evidence.interval
    hours = best.hours_per_million or 0.0
    if interval is None or interval.low <= 0:
        usd = f"{significant(best.usd_per_million)} USD and " if best.usd_per_million else ""
        return f"{usd}{significant(hours)} hours per million samples"
    times = scaled(interval)
    usd = f"{with_interval(_times(times, best.usd_per_hour))} USD and " if best.usd_per_hour else ""
    return f"{usd}{with_interval(times)} hours per million samples"


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor, interval.level)


def basis_text(best: Choice) -> str:
    """Say who measured, and whether the number speaks of a fleet or of one machine."""
    if best.basis is not Basis.MEASURED:
        return "PUBLISHED by others"
    return "measured" if best.evidence.rate is None or best.evidence.rate.of_fleet else "measured on one host"


def offer_text(best: Choice) -> str:
    """Write provider and price of an offer: ` (Lambda, ×1, on demand) at 1.090 USD per GPU-hour`."""
    if best.offer is None:
        return ""
    name = f" ({best.offer.name})" if best.offer.name else ""
    return f"{name} at {best.offer.usd_per_gpu_hour:.3f} USD per GPU-hour"


def price_limit(verdict: Verdict) -> tuple[Interval, str] | None:
    """Return the price per GPU-hour up to which the best stays the best, and what is the best then."""
    best = verdict.best
    limits = []
    for rival in verdict.rivals:
        other = rival.choice.usd_per_hour
        if other and best and best.usd_per_hour and best.offer:
            per_gpu = other * best.offer.usd_per_gpu_hour / best.usd_per_hour
            limits.append((_times(rival.speed, per_gpu), rival.choice.subject))
    return min(limits, key=lambda limit: limit[0].value, default=None)


def up_to(limit: tuple[Interval, str]) -> str:
    """Say up to which price per GPU-hour the best is the cheapest, and what is from there on."""
    interval, subject = limit
    text = with_interval(interval) if _finite(interval) else f"{interval.value:.3f}"
    return f"; above {text} USD, {subject} is cheaper per sample"


def _only(verdict: Verdict, best: Choice) -> str:
    """Say that one card alone has a figure, so that there is no choice by cost yet."""
    known = value_text(best.samples_per_second, best.evidence.interval)
    cost = f", {_cost(best)}" if best.usd_per_million is not None else ""
    alone = f"only one choice has a figure ({best.subject}), so nothing is ranked"
    text = f"{alone}: {known} samples/s{cost}, {basis_text(best)}"
    return "; ".join([*within_limits(verdict), text, *beyond(verdict)[:1], *left_out(verdict), _to_measure()])


def beyond(verdict: Verdict) -> list[str]:
    """Return the remarks on cards whose upper bound decides against them."""
    return [remark for remark in verdict.group.remarks if "reaches at most" in remark]


def _spans(verdict: Verdict) -> list[Span]:
    """Return how far apart cards are in different published settings, where no setting ranks any."""
    if verdict.ranked or verdict.group.basis is not Basis.PUBLISHED or not verdict.question.gpus:
        return []
    return spans(verdict.question, list(dict.fromkeys(choice.gpu for choice in verdict.choices)))


def _tie(verdict: Verdict, best: Choice) -> str:
    """Name what cannot be separated, and what then decides: the price per hour, or the speed."""
    group = [best, *(rival.choice for rival in verdict.tied)]
    names = enumerated([choice.subject for choice in group])
    what = "cost per sample" if verdict.by_cost else "speed"
    text = f"no significant difference in {what} between {names}"
    if not verdict.by_cost:
        return f"{text}, {basis_text(best)}: the lower price decides{not_priced([verdict])}"
    cheap = min(group, key=lambda choice: choice.usd_per_hour or 0.0)
    fast = max(group, key=lambda choice: choice.samples_per_second or 0.0)
    offer = f" ({cheap.offer.name})" if cheap.offer and cheap.offer.name else ""
    price = f"{cheap.offer.usd_per_gpu_hour:.3f} USD per GPU-hour" if cheap.offer else ""
    if cheap.subject == fast.subject:
        return (
            f"{text}: rent {cheap.subject}{offer}, the cheaper per hour at {price}, {_cost(cheap)}, {basis_text(cheap)}"
        )
    return (
        f"{text}: rent {cheap.subject}{offer} for the lower price per hour, {price}, "
        f"or {fast.subject} for the shorter time, {_cost(fast)}, {basis_text(best)}"
    )


def _fastest(verdict: Verdict, best: Choice) -> str:
    """Say what is fastest where fewer than two cards have a price."""
    rivals = [f"{_ratio(rival.speed)} times as fast as {rival.choice.subject}" for rival in verdict.rivals]
    speed = "".join(f", {rival}" for rival in rivals)
    known = value_text(best.samples_per_second, best.evidence.interval)
    return f"the fastest is {best.subject}: {known} samples/s{speed}, {basis_text(best)}{not_priced([verdict])}"


def not_priced(verdicts: Sequence[Verdict]) -> str:
    """Say which prices are missing for a ranking by cost, and of one verdict below which price each would be the best.

    Returns:
        A text to append, `; ranked by speed, because a5000 and a4000 have no price`; empty where all have one.
    """
    below: dict[str, float | None] = {}
    for verdict in verdicts:
        below |= {choice.subject: choice.wins_below for choice in verdict.ranked if choice.usd_per_hour is None}
    if not below:
        return ""
    names = [
        f"{subject} (cheapest per sample below {limit:.3f} USD)" if limit and len(verdicts) == 1 else subject
        for subject, limit in below.items()
    ]
    return f"; ranked by speed, because {enumerated(names)} {'has' if len(names) == 1 else 'have'} no price"


def _no_rank(verdict: Verdict) -> str:
    """Say why nothing has a rank, what would be within the limits, and what is known all the same."""
    question, parts = verdict.question, within_limits(verdict)
    ranges = _spans(verdict)
    if ranges:
        parts += [_span_text(span) + _worth(span, verdict) for span in _telling(ranges, verdict)]
        parts.append("nothing is ranked, because no published setting has two of these cards")
        return "; ".join([*parts, *beyond(verdict)[:1]])
    why: dict[str, list[str]] = {}
    for choice in verdict.choices:
        if question.gpus or choice.fits or choice.evidence.reason.startswith("inference"):
            why.setdefault(choice.excluded, []).append(choice.subject)
    texts = [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in why.items()]
    if not texts and not parts:
        texts = ["no card with a known price is within these limits"]
    texts += [f"{model} is not a known network" for model in question.mix if model not in network_names()]
    if question.precision == "fp32" and any(figures(replace(question, precision="tf32")).values()):
        texts.append("on cards since Ampere, sources that report FP32 ran TF32: use --precision tf32")
    answer = [f"no answer: {'; '.join(texts)}; {_to_measure()}"] if texts else []
    return "; ".join([*parts, *beyond(verdict)[:1], *answer])


def _to_measure() -> str:
    return f"to measure: {command_line('orchestrate', 'run')}"


def within_limits(verdict: Verdict) -> list[str]:
    """Name what can be rented within the budget and with the memory that was asked for, whatever its speed."""
    question = verdict.question
    limits = [f"{question.usd_per_hour:g} USD per hour"] if question.usd_per_hour is not None else []
    limits += [f"{question.memory_gib:g} GiB"] if question.memory_gib is not None else []
    if not limits:
        return []
    offers: dict[str, str] = {}
    for choice in sorted(verdict.choices, key=lambda choice: choice.usd_per_hour or 0.0):
        if choice.fits and choice.offer:
            offers.setdefault(choice.subject, f"{choice.subject} at {choice.usd_per_hour:.3f} ({choice.offer.name})")
    return [f"within {' and '.join(limits)}: {', '.join(offers.values()) or 'no GPU with a known price'}"]


def _telling(ranges: Sequence[Span], verdict: Verdict) -> list[Span]:
    """Return the spans against the first card that was asked for, which is what a reader compares with."""
    first = verdict.choices[0].gpu
    return [span for span in ranges if first in (span.fast, span.slow)] or list(ranges)[:1]


def _span_text(span: Span) -> str:
    far = f"{span.low:.2f} to {span.high:.2f}" if f"{span.low:.2f}" != f"{span.high:.2f}" else f"{span.low:.2f}"
    return (
        f"{span.fast} reached {far} × the samples/s of {span.slow} in {span.network}, in published settings that differ"
    )


def _worth(span: Span, verdict: Verdict) -> str:
    """Say at which prices the faster card of a span is the cheaper or the dearer one whichever settings are taken."""
    prices = {choice.gpu: choice.usd_per_hour for choice in reversed(verdict.choices) if choice.usd_per_hour}
    fast, slow = prices.get(span.fast), prices.get(span.slow)
    if slow is None:
        return ""
    low, high = span.low * slow, span.high * slow
    if fast is None:
        return (
            f": against {span.slow} at {slow:.3f} USD it is cheaper per sample below {low:.2f} USD and more expensive "
            f"above {high:.2f}; its own price is unknown"
        )
    if low <= fast <= high:
        return f": it costs {fast / slow:.2f} × as much, so either may be cheaper per sample"
    cheaper = span.fast if fast < low else span.slow
    return f": it costs {fast / slow:.2f} × as much, so {cheaper} is cheaper per sample in every setting"


def left_out(verdict: Verdict) -> Iterator[str]:
    """Name the cards that were asked for and have no rank, by reason: one that does not fit first."""
    ranked = {choice.subject for choice in verdict.ranked}
    why: dict[str, list[str]] = {}
    for choice in verdict.choices:
        # Nobody asked for each of the cards of a table where none was named.
        if choice.subject not in ranked and (verdict.question.gpus or choice.fits or choice.evidence.failed):
            flip = f" (wins below {choice.wins_below:.3f} USD)" if choice.wins_below else ""
            why.setdefault(choice.excluded, []).append(f"{choice.subject}{flip}")
    for reason, names in sorted(why.items(), key=lambda item: "oom" not in item[0] and "needs" not in item[0]):
        listed = ", ".join(dict.fromkeys(names))
        yield f"{UNFIT}: {listed} ({reason})" if "oom" in reason or "needs" in reason else f"{listed}: {reason}"


def _break_even(best: Choice, rival: Rival) -> str:
    other = rival.choice
    faster = (best.samples_per_second or 0.0) >= (other.samples_per_second or 0.0)
    fast, slow = (best, other) if faster else (other, best)
    ratio = rival.speed if faster else _inverse(rival.speed)
    worth = f"{fast.subject} is worth up to {_ratio(ratio)} × the price of {slow.subject}"
    if rival.price is None:
        missing = " and ".join(dict.fromkeys(choice.subject for choice in (best, other) if not choice.usd_per_hour))
        return f"{worth}; no known price for {missing}"
    asked = rival.price if faster else 1 / rival.price
    if not rival.certain:
        return f"{worth}; at these prices it costs {asked:.2f} × as much: no significant difference in cost per sample"
    return f"{worth}; at these prices it costs {asked:.2f} × as much, so {best.subject} wins"


def _inverse(ratio: Interval) -> Interval:
    """Return the interval of b / a from that of a / b; open where that holds 0 or is open."""
    if ratio.low <= 0 or not _finite(ratio):
        return Interval(1 / ratio.value, float("-inf"), float("inf"), ratio.level)
    return Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low, ratio.level)


def _finite(interval: Interval) -> bool:
    return interval.half_width != float("inf")


def _ratio(interval: Interval) -> str:
    return with_interval(interval) if _finite(interval) else f"{interval.value:.2f}"


def _needed_speed(verdict: Verdict) -> list[str]:
    """Say how much faster the dearer of two cards must be where no figure is known, for each against the cheapest."""
    if verdict.ranked:
        return []
    priced = [choice for choice in verdict.choices if choice.usd_per_hour and choice.fits]
    if len(priced) < 2:
        return []
    cheap, *others = sorted(priced, key=lambda choice: choice.usd_per_hour or 0.0)
    ratios = [
        f"{(other.usd_per_hour or 0.0) / (cheap.usd_per_hour or 1.0):.2f} × for {other.subject}"
        for other in {choice.subject: choice for choice in reversed(others)}.values()
        if other.subject != cheap.subject
    ]
    return [f"to be cheaper per sample than {cheap.subject} a card must be faster by this factor: {', '.join(ratios)}"]


def _price_lines(verdict: Verdict) -> list[str]:
    """Say which prices were taken where there were several, and which are missing."""
    lines = []
    typed = {c.subject: c for c in verdict.choices if c.offer and c.offer.provider == ASKED and c.evidence.prices}
    for name, choice in typed.items():
        run = ", ".join(f"{price:.3f}" for price in dict.fromkeys(choice.evidence.prices.values()))
        price = choice.offer.usd_per_gpu_hour if choice.offer else 0.0
        lines.append(f"{name}: --price {price:.3f} is used, not {run} from hosts.yml")
    for name, item in {choice.subject: choice.evidence for choice in verdict.choices}.items():
        if len(set(item.prices.values())) > 1 and name not in typed:
            each = ", ".join(f"{price:.3f} ({host})" for host, price in item.prices.items())
            lines.append(f"{name}: its hosts have different prices, each price is a separate offer: {each}")
    for card, size in verdict.too_small.items():
        if any(choice.gpu == card for choice in verdict.choices):
            lines.append(f"{card}: offered only on hosts with up to {counted(size, 'GPU')}")
    shown = {choice.gpu for choice in verdict.choices}
    others = [card for card in verdict.unpriced if card not in shown]
    if others:
        lines.append(f"enough memory, but no known price: {', '.join(others)}")
    spot = verdict.best.offer if verdict.best else None
    if spot and spot.commitment == "spot":
        firm = next((c for c in verdict.ranked if c.offer and c.offer.commitment != "spot"), None)
        then = f"; without spot, the best is {firm.subject} at {firm.usd_per_hour:.3f} USD per hour" if firm else ""
        lines.append(f"spot: the provider may reclaim the host at any time{then}")
    for name in verdict.ambiguous:
        lines.append(
            f"a price of {name!r} matches several cards and is ignored: name one card, e.g. {family(name)[0]!r}"
        )
    missing = dict.fromkeys(choice.gpu for choice in verdict.choices if choice.offer is None)
    missing.pop(EVERY_CARD, None)
    if missing:
        lines.append(f"no known price for {', '.join(missing)}: give --price '{next(iter(missing))}=USD'")
    return lines
