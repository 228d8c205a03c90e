"""The prices of an answer: those that the user typed, then of the user's files, then of the run, then shipped ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from results.compare.comparison import fleets_of
from results.errors import BadQuestion
from results.recommend.options import Advice, RentalOption
from results.recommend.questions import GpuCount, RentalQuestion
from results.reference.gpus import counted_gpu, gpu_key, gpus_named, unknown_gpu
from results.reference.prices import FROM_RUN, YOURS, Offer, Prices, known_prices, positive_number, read_prices, span
from results.schema import Device
from results.table.columns import Software
from results.table.fleets import FleetRate
from results.text import counted

TYPED = "--price"
"""Source of a typed price: of two for one GPU the first counts."""


def asked_prices(inline: Sequence[str], files: Sequence[Path], rates: Sequence[FleetRate] = ()) -> Prices:
    """Return the prices to use.

    Args:
        inline: `GPU=USD` per GPU-hour, applied to all GPUs that the name resolves to.
        files: The user's price files.
        rates: Rates of the run, with its prices; the name of a fleet may be used in place of a GPU.

    Raises:
        BadQuestion: A price cannot be parsed.
    """
    fleets, gpus = fleets_of(rates), gpus_of_fleets(rates)
    read = [replace(offer, origin=YOURS) for path in files for offer in read_prices(path)]
    read = [offer if offer.gpus or offer.gpu not in fleets else replace(offer, gpus=(offer.gpu,)) for offer in read]
    of_run: dict[str, dict[str, Offer]] = defaultdict(dict)
    for rate in rates:
        gpu = gpus[rate.fleet, rate.case.device]
        for host, usd in rate.prices.items():
            of_run[rate.fleet][host] = Offer(gpu, usd, provider=host, origin=FROM_RUN, gpus=(gpu,))
    run = {fleet: [*offers.values()] for fleet, offers in of_run.items()}
    return [by_name(_typed(text, fleets) for text in inline), by_name(read), run, by_name(known_prices())]


FleetGpus = Mapping[tuple[str, Device], str]
"""What each fleet trains on, by device."""


def gpus_of_fleets(rates: Sequence[FleetRate]) -> FleetGpus:
    """Return what each fleet trains on, by device: the recorded GPU or processor; an unknown GPU keeps its name.

    The name of a fleet counts only if nothing was recorded, because all its repeats failed early.
    """
    gpus: dict[tuple[str, Device], str] = {}
    recorded = {rate.fleet for rate in rates if rate.software != Software()}
    for rate in sorted(rates, key=lambda rate: not (rate.software.gpu or rate.software.cpu)):
        name = rate.software.gpu or rate.software.cpu or rate.fleet
        if rate.case.device is Device.GPU and (rate.software.gpu or rate.fleet not in recorded):
            name = gpu_key(name) or name
        gpus.setdefault((rate.fleet, rate.case.device), name)
    return gpus


def _typed(text: str, fleets: Collection[str]) -> Offer:
    """Parse `GPU=USD` into an offer for all GPUs, and the fleet, that the name means."""
    name, _, price = text.rpartition("=")
    value = positive_number(price)
    if value is None:
        raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
    gpu = name if name in fleets else counted_gpu(name)[1]
    gpus = (*gpus_named(gpu), *({name} & {*fleets}))
    if not gpus:
        raise BadQuestion(unknown_gpu(gpu))
    return Offer(gpus[0] if len(gpus) == 1 else name, value, origin=YOURS, source=TYPED, gpus=gpus)


def by_name(offers: Iterable[Offer]) -> Mapping[str, Sequence[Offer]]:
    """Return offers by the GPUs and fleets that they are for."""
    found: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        for name in offer.gpus or ("",):
            found[name].append(offer)
    return found


def option_of(question: RentalQuestion, key: GpuCount, note: str = "no figure", fleet: str = "") -> RentalOption:
    """Return an option without a figure, with the prices that count, of hosts with enough GPUs.

    A price of a fleet comes before one of its GPU, and next to `A100-80GB`, `A100` is the 40 GB card.

    Args:
        question: The question, with the prices to use.
        key: GPU and count.
        note: Why it has no figure.
        fleet: Fleet of the run with this GPU; empty: none.
    """
    gpu, count = key
    subject = fleet or gpu
    given = [offers[name] for offers in question.prices for name in (subject, gpu) if name in offers]
    of_run = frozenset(offer.usd_per_gpu_hour for of in given for offer in of if offer.origin == FROM_RUN)
    first = given[0] if given else ()
    fewest = min((len(offer.gpus) for offer in first), default=0)
    exact = [offer for offer in first if len(offer.gpus) == fewest]
    exact = [offer for offer in exact if offer.source == TYPED][:1] or exact
    enough = [offer for offer in exact if offer.usd_per_hour(count)]
    # A larger host is rented whole, so it counts only if no host of this size is offered.
    enough = [offer for offer in enough if offer.gpus_per_host in (None, count)] or enough
    best: dict[object, Offer] = {}
    for offer in sorted(enough, key=lambda offer: offer.usd_per_hour(count)):
        best.setdefault(offer if offer.origin else offer.place, offer)
    pool = tuple(best.values())
    return RentalOption(
        question=question, subject=subject, gpu=gpu, count=count, note=note, pool=pool, usd_of_run=of_run
    )


def unused_prices(advices: Sequence[Advice], prices: Prices) -> list[str]:
    """Return a line for each reason why some of the user's prices are in no answer."""
    given = dict.fromkeys(of for offers in prices for named in offers.values() for of in named if of.origin == YOURS)
    options = [option for advice in advices for option in advice.options]
    used = {offer for option in options for offer in option.offers}
    unused: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for offer in given:
        if offer not in used:
            unused[_unused(offer, options)][offer.gpu].append(offer.usd_per_gpu_hour)
    lines = []
    for reason, usd in unused.items():
        listed = ", ".join(f"{span(values)} USD for {name}" for name, values in usd.items())
        if len(usd) > 1:
            reason = reason.replace("this GPU", "these GPUs").replace("unknown GPU", "unknown GPUs")
        lines.append(f"price{'s' if len(usd) > 1 else ''} not used: {listed}: {reason}")
    return lines


def _unused(offer: Offer, options: Sequence[RentalOption]) -> str:
    """Return why no answer uses a price."""
    if not offer.gpus:
        return "less than a GPU" if " of " in offer.gpu else "unknown GPU"
    rows = [option for option in options if {option.gpu, option.subject} & {*offer.gpus}]
    if not rows:
        return "the answer has no row of this GPU"
    usd = [(offer.usd_per_hour(option.count), option.question.budget) for option in rows]
    if not any(price for price, _ in usd):
        return f"its host has only {counted(offer.gpus_per_host or 0, 'GPU')}"
    if all(budget is not None and price > budget for price, budget in usd if price):
        return "it is over the budget"
    return "another price of this GPU comes first"
