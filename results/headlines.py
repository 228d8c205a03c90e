"""The sentences of a recommendation: what to rent, up to which price, what does not fit, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results.cells import value_text
from results.digits import significant, with_interval
from results.evidence import Basis
from results.published import Span, spans
from results.questions import ASKED
from results.recommend import Choice, Rival, Verdict, needed_memory_gib, scaled
from results.stats import Interval

MEASURE = "measure with `python -m orchestrate run`"


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the answer in a sentence for each verdict, under one for all where several agree."""
    if len(verdicts) < 2:
        return [headline(verdict) for verdict in verdicts]
    lines = [f"{label(verdict, verdicts)}: {headline(verdict)}" for verdict in verdicts]
    bests = {verdict.best.subject for verdict in verdicts if verdict.best and not verdict.tied}
    if len(bests) == 1 and all(verdict.best and not verdict.tied for verdict in verdicts):
        return [f"rent {next(iter(bests))}: the best choice in all {len(verdicts)} settings below", *lines]
    if len(bests) > 1:
        return [f"the best choice depends on the setting: {', '.join(sorted(bests))}", *lines]
    return lines


def label(verdict: Verdict, others: Sequence[Verdict]) -> str:
    """Name a verdict by what tells it from the others: question, mode, setting, basis."""
    parts = [verdict.question.name, verdict.group.mode]
    same = [o for o in others if (o.question.name, o.group.mode) == (verdict.question.name, verdict.group.mode)]
    if len(same) > 1 and verdict.group.basis is Basis.MEASURED:
        parts.append(verdict.group.setting)
    if verdict.group.basis is Basis.PUBLISHED:
        parts.append("published figures")
    return ", ".join(parts)


def headline(verdict: Verdict) -> str:
    """Say what to rent, at what price and cost, up to which price that holds, and what does not fit."""
    best = verdict.best
    if best is None:
        return _no_rank(verdict)
    if not verdict.rivals and verdict.open:
        return _only(verdict, best)
    if verdict.tied:
        text = _tie(verdict, best)
    elif best.usd_per_million is None:
        text = _fastest(verdict, best)
    else:
        offer = f" ({best.offer.name})" if best.offer and best.offer.name else ""
        price = f" at {best.offer.usd_per_gpu_hour:.3f} USD per GPU-hour" if best.offer else ""
        text = f"rent {best.subject}{offer}{price}: {_cost(best)}, {_basis(best)}{_condition(verdict)}"
    return "; ".join([text, *_left_out(verdict)])


def reasons(verdict: Verdict) -> list[str]:
    """Say why: where the choice flips, what others cost, what is known beside, and what was decided about prices."""
    lines = []
    needed = needed_memory_gib(verdict.question)
    if needed is not None:
        asked = verdict.question.memory_gib is not None
        lines.append(f"memory: {needed:g} GiB per GPU asked for" if asked
                     else f"memory: {needed:.1f} GiB per GPU at least, for activations alone")  # fmt: skip
    lines += break_even_lines(verdict)
    if verdict.group.basis is Basis.PUBLISHED:
        cards = list(dict.fromkeys(choice.gpu for choice in verdict.choices))
        lines += [f"{_span_text(span)}{_worth(span, verdict)}" for span in spans(verdict.question, cards)]
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


def _basis(best: Choice) -> str:
    return "measured" if best.basis is Basis.MEASURED else "PUBLISHED by others"


def _condition(verdict: Verdict) -> str:
    """Say up to which price the best stays the best; its interval where the ratio of speeds has one."""
    best, limits = verdict.best, []
    for rival in verdict.rivals:
        other = rival.choice.usd_per_hour
        if other and best and best.usd_per_hour and best.offer:
            per_gpu = other * best.offer.usd_per_gpu_hour / best.usd_per_hour
            limits.append((rival.speed.value * per_gpu, _times(rival.speed, per_gpu), rival.choice.subject))
    if not limits:
        return ""
    value, interval, subject = min(limits, key=lambda limit: limit[0])
    text = with_interval(interval) if _finite(interval) else f"{value:.3f}"
    return f"; the cheapest per sample up to {text} USD, then {subject}"


def _only(verdict: Verdict, best: Choice) -> str:
    """Say that one card alone has a figure, so that there is no choice yet."""
    known = value_text(best.samples_per_second, best.evidence.interval)
    cost = f" at {_cost(best)}" if best.usd_per_million is not None else ""
    text = f"only {best.subject} has a figure: {known} samples/s{cost}, {_basis(best)}; nothing to compare it with"
    return "; ".join([text, *_left_out(verdict), MEASURE])


def _tie(verdict: Verdict, best: Choice) -> str:
    """Name what cannot be told apart, and what then decides: the price per hour, or the speed."""
    group = [best, *(rival.choice for rival in verdict.tied)]
    names = ", ".join(choice.subject for choice in group[:-1]) + f" and {group[-1].subject}"
    what = "cost per sample" if best.usd_per_million is not None else "speed"
    text = f"no significant difference in {what} between {names}"
    if best.usd_per_million is None:
        return f"{text}: the cheaper one decides, but no price is known"
    cheap = min(group, key=lambda choice: choice.usd_per_hour or 0.0)
    fast = max(group, key=lambda choice: choice.samples_per_second or 0.0)
    offer = f" ({cheap.offer.name})" if cheap.offer and cheap.offer.name else ""
    price = f"{cheap.offer.usd_per_gpu_hour:.3f} USD per GPU-hour" if cheap.offer else ""
    if cheap.subject == fast.subject:
        return f"{text}: rent {cheap.subject}{offer}, the cheaper per hour at {price}, {_cost(cheap)}, {_basis(cheap)}"
    return (
        f"{text}: rent {cheap.subject}{offer} for the lower price per hour, {price}, "
        f"or {fast.subject} for the shorter time, {_cost(fast)}, {_basis(best)}"
    )


def _fastest(verdict: Verdict, best: Choice) -> str:
    """Say what is fastest where no price is known, and what each of the others may cost."""
    rivals = [f"{_ratio(rival.speed)} × {rival.choice.subject}" for rival in verdict.rivals]
    speed = f", {' and '.join(rivals)}" if rivals else ""
    known = value_text(best.samples_per_second, best.evidence.interval)
    return f"the fastest is {best.subject}: {known} samples/s{speed}, {_basis(best)}; no price is known"


def _no_rank(verdict: Verdict) -> str:
    """Say why nothing has a rank, what would be within the limits, and what is known all the same."""
    question = verdict.question
    fitting = [choice for choice in verdict.choices if choice.fits]
    limits = [f"{question.usd_per_hour:g} USD per hour"] if question.usd_per_hour is not None else []
    limits += [f"{question.memory_gib:g} GiB"] if question.memory_gib is not None else []
    parts = []
    if limits:
        offers = [
            f"{choice.subject} at {choice.usd_per_hour:.3f} USD ({choice.offer.name})"
            for choice in sorted(fitting, key=lambda choice: choice.usd_per_hour or 0.0)
            if choice.offer
        ]
        parts.append(f"within {' and '.join(limits)}: {', '.join(offers) or 'nothing that has a known price'}")
    beyond = [remark for remark in verdict.group.remarks if "cannot pass" in remark]
    cards = list(dict.fromkeys(choice.gpu for choice in verdict.choices if not limits or choice.fits))
    ranges = spans(question, cards) if verdict.group.basis is Basis.PUBLISHED else []
    if ranges:
        parts.append("no published setting has two of these cards, so none is ranked")
        parts += [_span_text(span) + _worth(span, verdict) for span in _telling(ranges, verdict)]
        return "; ".join([*parts, *beyond[:1]])
    why: dict[str, list[str]] = {}
    for choice in verdict.choices:
        if not limits or choice.fits:
            why.setdefault(choice.evidence.reason or choice.excluded, []).append(choice.subject)
    texts = [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in why.items()]
    if not verdict.choices:
        texts = [f"no figure of {question.network} in {question.precision} on {question.count} GPU"]
    return "; ".join([*parts, *beyond[:2], f"no choice answers this: {'; '.join(texts)}; {MEASURE}"])


def _telling(ranges: Sequence[Span], verdict: Verdict) -> list[Span]:
    """Return the spans against the first card that was asked for, which is what a reader compares with."""
    first = verdict.choices[0].gpu
    return [span for span in ranges if first in (span.fast, span.slow)] or list(ranges)[:1]


def _span_text(span: Span) -> str:
    return (
        f"{span.fast} did {span.low:.2f} to {span.high:.2f} × the samples/s of {span.slow} over all pairs of "
        "published settings, which differ"
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
            f": against {span.slow} at {slow:.3f} USD it is the cheaper per sample below {low:.2f} USD and the dearer "
            f"above {high:.2f}; its own price is not known"
        )
    if low <= fast <= high:
        return f": it costs {fast / slow:.2f} ×, no telling which is cheaper per sample"
    return f": it costs {fast / slow:.2f} ×, so {span.fast if fast < low else span.slow} is cheaper per sample in all"


def _left_out(verdict: Verdict) -> Iterator[str]:
    """Name the cards that were asked for and have no rank, by reason: one that does not fit first."""
    ranked = {choice.subject for choice in verdict.ranked}
    why: dict[str, list[str]] = {}
    for choice in verdict.choices:
        if choice.subject not in ranked:
            flip = f" (wins below {choice.wins_below:.3f} USD)" if choice.wins_below else ""
            why.setdefault(choice.excluded, []).append(f"{choice.subject}{flip}")
    for reason, names in sorted(why.items(), key=lambda item: "oom" not in item[0] and "needs" not in item[0]):
        listed = ", ".join(dict.fromkeys(names))
        yield f"does not fit: {listed} ({reason})" if "oom" in reason or "needs" in reason else f"{listed}: {reason}"


def _break_even(best: Choice, rival: Rival) -> str:
    other = rival.choice
    faster = (best.samples_per_second or 0.0) >= (other.samples_per_second or 0.0)
    fast, slow = (best, other) if faster else (other, best)
    ratio = rival.speed if faster else _inverse(rival.speed)
    worth = f"{fast.subject} is worth up to {_ratio(ratio)} × the price of {slow.subject}"
    if rival.price is None:
        missing = " and ".join(dict.fromkeys(choice.subject for choice in (best, other) if not choice.usd_per_hour))
        return f"{worth}; no price known of {missing}"
    asked = rival.price if faster else 1 / rival.price
    if not rival.certain:
        return f"{worth}; at these prices it costs {asked:.2f} ×: no significant difference in cost per sample"
    return f"{worth}; at these prices it costs {asked:.2f} ×, so {best.subject} wins"


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
    """Say how much faster the dearer of two cards must be where no figure tells, for each against the cheapest."""
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
    return [f"to be cheaper per sample than {cheap.subject} a card must be faster by its price: {', '.join(ratios)}"]


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
            lines.append(f"{name}: its hosts have different prices, each is an offer of its own: {each}")
    missing = dict.fromkeys(choice.gpu for choice in verdict.choices if choice.offer is None)
    if missing:
        lines.append(f"no price known of {', '.join(missing)}: give --price '{next(iter(missing))}=USD'")
    return lines
