"""The answer over several questions: one first sentence for all of them, under which each has its own.

`recommend` prints it and `report` opens with it: both say what this module says, and decide nothing themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from results.digits import with_interval
from results.recommend.evidence import Basis
from results.recommend.headlines import (
    UNFIT,
    basis_text,
    beyond,
    headline,
    label,
    left_out,
    not_priced,
    offer_text,
    price_limit,
    up_to,
    within_limits,
)
from results.recommend.ranking import Rival, Verdict
from results.text import counted, enumerated

NAMED = 3
"""Most networks that the first sentence names as those that do not fit."""

OTHERWISE = "otherwise"
"""What stands behind the value of an aspect that has exceptions."""

Aspect = Callable[[Verdict], str]

MOST_EXCEPTIONS = 0.25
"""Share of the settings that may be exceptions where work is named by one aspect; with more they are counted."""

ASPECTS: tuple[Aspect, ...] = (
    lambda verdict: verdict.group.mode,
    lambda verdict: verdict.question.precision,
    lambda verdict: verdict.question.network,
    lambda verdict: counted(verdict.question.count, "GPU"),
)

"""What the best choice may depend on, the likeliest first."""

NETWORK = 2
"""Place of the network in `ASPECTS`."""


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the answer in a sentence for each verdict, under one for all where there are several.

    Where anything was measured here the first line speaks of that alone: published figures have a line of their own.
    """
    leading = _leading(verdicts)
    if len(leading) == 1:
        others = [verdict for verdict in verdicts if verdict is not leading[0]]
        return [headline(leading[0]), *(f"{label(verdict, verdicts)}: {headline(verdict)}" for verdict in others)]
    return [*overall(verdicts), *(f"{label(verdict, verdicts)}: {headline(verdict)}" for verdict in verdicts)]


def overall(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the one sentence that holds for all verdicts; none where each says something else."""
    leading = _leading(verdicts)
    if len(leading) == 1:
        return [headline(leading[0])]
    decided = [verdict for verdict in leading if verdict.decided]
    bests = sorted({verdict.best.subject for verdict in decided if verdict.best})
    if not bests:
        return _no_answer(leading)
    if len(bests) == 1:
        return [_same_answer(bests[0], decided, leading)] if len(decided) > 1 else []
    return [_depends(bests, decided, leading)]


def _leading(verdicts: Sequence[Verdict]) -> list[Verdict]:
    measured = [verdict for verdict in verdicts if verdict.group.basis is Basis.MEASURED and verdict.ranked]
    return measured or list(verdicts)


def _no_answer(verdicts: Sequence[Verdict]) -> list[str]:
    """Say once what no single verdict can say: what would be within the limits, or which card nobody measured."""
    limits = {text for verdict in verdicts for text in within_limits(verdict)}
    missing = {", ".join(verdict.uncompared) for verdict in verdicts}
    alone = {verdict.best.subject if verdict.best and not verdict.rivals else "" for verdict in verdicts}
    ties = {_tied(verdict) for verdict in verdicts}
    parts = [*limits] if len(limits) == 1 else []
    if "" not in alone and len(alone) == 1:
        parts.append(f"only one choice has a figure ({alone.pop()}), so nothing is ranked")
    elif "" not in alone:
        parts.append(f"no two of {', '.join(sorted(alone))} have figures of one setting, so nothing is ranked")
    if len(missing) == 1 and missing != {""}:
        remarks = [remark for verdict in verdicts for remark in beyond(verdict)]
        parts += [f"no figure compares {missing.pop()} with the others", *remarks[:1]]
    if len(ties) == 1 and ties != {""}:
        parts.append(f"{ties.pop()} in {_every(len(verdicts), len(verdicts))} settings below")
    return ["; ".join(parts)] if parts else []


def _tied(verdict: Verdict) -> str:
    """Name what cannot be separated; empty where the best can."""
    if not verdict.best or not verdict.tied:
        return ""
    names = sorted([verdict.best.subject, *(rival.choice.subject for rival in verdict.tied)])
    what = "cost per sample" if verdict.by_cost else "speed"
    return f"no significant difference in {what} between {enumerated(names)}"


def _every(some: int, of: int) -> str:
    return f"{some} of the {of}" if some < of else "both" if of == 2 else f"all {of}"


def _same_answer(best: str, decided: Sequence[Verdict], leading: Sequence[Verdict]) -> str:
    """Say once what all verdicts agree on, up to the lowest price at which one of them would change.

    Args:
        best: What all of them recommend.
        decided: The verdicts that recommend something.
        leading: Those that could.
    """
    every = _every(len(decided), len(leading))
    others = "; no answer in the others" if len(decided) < len(leading) else ""
    return f"{_choice(best, decided, f' in {every} settings below')}{not_priced(decided)}{_misfits(leading)}{others}"


def _depends(bests: Sequence[str], decided: Sequence[Verdict], leading: Sequence[Verdict]) -> str:
    """Say which choice is best for which work, each up to the price at which that would change."""
    aspect = min(ASPECTS, key=lambda aspect: (len(_exceptions(aspect, decided)), len(set(map(aspect, decided))) == 1))
    exceptions = _exceptions(aspect, decided)
    described = len(exceptions) <= len(decided) * MOST_EXCEPTIONS
    groups = {best: [verdict for verdict in decided if _is_best(best, verdict)] for best in bests}
    works = {
        best: _work(aspect, group, exceptions) if described else f"in {len(group)} of {len(leading)} settings"
        for best, group in groups.items()
    }
    # What is left for "otherwise" is said after what it is other than.
    order = sorted(bests, key=lambda best: (OTHERWISE in works[best], -len(groups[best])))
    parts = [_choice(best, groups[best], f" {works[best]}", around=" ({})") for best in order]
    undecided = len(leading) - len(decided)
    others = f"; no answer in {undecided} others" if undecided else ""
    return f"the best choice depends on the setting: {'; '.join(parts)}{not_priced(decided)}{_misfits(leading)}{others}"


def _is_best(subject: str, verdict: Verdict) -> bool:
    return verdict.best is not None and verdict.best.subject == subject


def _exceptions(aspect: Aspect, decided: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts whose choice is not that of most with the same value of an aspect."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in decided:
        groups.setdefault(aspect(verdict), []).append(verdict)
    found = []
    for group in groups.values():
        usual = Counter(verdict.best.subject for verdict in group if verdict.best).most_common(1)[0][0]
        found += [verdict for verdict in group if not _is_best(usual, verdict)]
    return found


def _work(aspect: Aspect, group: Sequence[Verdict], exceptions: Sequence[Verdict]) -> str:
    """Name the work of a group by the values of an aspect, and what of it is an exception elsewhere.

    Returns:
        For example `for inference and for vgg16 (training)`; of the others `for training otherwise`.
    """
    odd = [id(verdict) for verdict in exceptions]
    usual = dict.fromkeys(aspect(verdict) for verdict in group if id(verdict) not in odd)
    elsewhere = {aspect(verdict) for verdict in exceptions}
    parts = sorted((f"{value} {OTHERWISE}" if value in elsewhere else value for value in usual), key=_is_rest)
    # A network that is an exception is named where few are; else the settings are counted.
    own = [verdict for verdict in group if id(verdict) in odd]
    for value in dict.fromkeys(map(aspect, own)):
        of_value = [verdict for verdict in own if aspect(verdict) == value]
        names = dict.fromkeys(verdict.question.network for verdict in of_value)
        few = len(names) <= NAMED and aspect is not ASPECTS[NETWORK]
        parts.append(f"{' and '.join(names)} ({value})" if few else f"{len(of_value)} settings of {value}")
    return f"for {', '.join(parts)}"


def _is_rest(text: str) -> bool:
    return text.endswith(OTHERWISE)


def _choice(best: str, group: Sequence[Verdict], what: str, *, around: str = ", {}") -> str:
    """Say what to rent for a group of verdicts that agree, up to the lowest price at which one would change.

    Args:
        best: What all of them recommend.
        group: The verdicts.
        what: The work that they are about.
        around: How the evidence is set off.
    """
    basis = next(basis_text(verdict.best) for verdict in group if verdict.best)
    if not all(verdict.by_cost for verdict in group):
        return f"{best} is the fastest{what}{around.format(basis + _lead(group))}"
    limits = [limit for verdict in group if (limit := price_limit(verdict))]
    holds = up_to(min(limits, key=lambda limit: limit[0].value)) if limits else ""
    return f"rent {best}{_price(group)}{what}{around.format(basis + holds)}"


def _price(group: Sequence[Verdict]) -> str:
    """Write the offer of a group's best choice, or its lowest and highest price where there are several."""
    bests = [verdict.best for verdict in group if verdict.best]
    offers = dict.fromkeys(map(offer_text, bests))
    prices = sorted(best.offer.usd_per_gpu_hour for best in bests if best.offer)
    if len(offers) == 1 or not prices:
        return next(iter(offers))
    span = f"{prices[0]:.3f}" if prices[0] == prices[-1] else f"{prices[0]:.3f} to {prices[-1]:.3f}"
    return f" at {span} USD per GPU-hour"


def _lead(group: Sequence[Verdict]) -> str:
    """Say how far ahead of the next the fastest is, at the least and at the most."""
    nearest = [min(verdict.rivals, key=lambda rival: rival.speed.value) for verdict in group if verdict.rivals]
    if not nearest:
        return ""
    low, high = (pick(nearest, key=_speed) for pick in (min, max))
    names = list(dict.fromkeys(rival.choice.subject for rival in nearest))
    next_best = names[0] if len(names) == 1 else f"the next ({', '.join(names)})"
    span = with_interval(low.speed) if low is high else f"{with_interval(low.speed)} to {with_interval(high.speed)}"
    return f": {span} times as fast as {next_best}"


def _speed(rival: Rival) -> float:
    return rival.speed.value


def _misfits(verdicts: Sequence[Verdict]) -> str:
    """Name what does not fit, and where, unless that is so in every setting."""
    hit: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        for text in left_out(verdict):
            if text.startswith(UNFIT):
                hit.setdefault(text, []).append(verdict)
    return "".join(f"; {text}{_where(those, verdicts)}" for text, those in hit.items())


def _where(hit: Sequence[Verdict], verdicts: Sequence[Verdict]) -> str:
    """Name the networks of the verdicts that are hit, or count these where it is no matter of a few networks."""
    if len(hit) == len(verdicts):
        return ""
    networks = list(dict.fromkeys(map(ASPECTS[NETWORK], hit)))
    if len(networks) > NAMED:
        return f" in {len(hit)} of {len(verdicts)} settings"
    return f" for {' and '.join(_part_of(network, hit, verdicts) for network in networks)}"


def _part_of(network: str, hit: Sequence[Verdict], verdicts: Sequence[Verdict]) -> str:
    """Name a network with the precisions, modes and numbers of GPUs that are hit, where others of it are not."""
    own, of = ([v for v in some if ASPECTS[NETWORK](v) == network] for some in (hit, verdicts))
    parts = []
    for aspect in ASPECTS:
        values, every = (dict.fromkeys(map(aspect, some)) for some in (own, of))
        parts += [" and ".join(values)] if len(values) < len(every) else []
    return f"{network} ({', '.join(parts)})" if parts else network
