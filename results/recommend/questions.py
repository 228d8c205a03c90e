"""Parses questions (networks, GPUs, limits) and prices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsFloat

from results.errors import BadQuestion
from results.reference.gpus import counted_gpu, gpus_named, known_gpus, unknown_gpu
from results.reference.networks import model_key, network_names, published_names, unknown_network
from results.reference.price_files import read_prices
from results.reference.prices import Offer, known_prices, most_exact, positive_number
from results.schema import Case

MILLION = 1_000_000

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

MODES = ("train", "infer")
"""Modes with throughput of a network, unlike `device`."""

YOURS = "yours"
"""Origin of the user's prices, which override all others of their GPU."""

FROM_RUN = "hosts.yml"
"""Origin of the prices in records."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The job and the limits of a GPU; None: no limit.

    Attributes:
        budget: Maximum USD per hour of the job.
        hours: Maximum hours for `samples`.
        samples: Samples of the whole job.
        memory: Minimum GiB per GPU.
        batch_size: Batch per GPU that must fit; preferred if measured.
    """

    budget: float | None = None
    hours: float | None = None
    samples: float = MILLION
    memory: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class RentalQuestion(Limits):
    """A question about one network and one precision, for any GPUs and counts.

    Attributes:
        network: Its canonical name.
        mode: `train` or `infer`; None: each that was measured, in separate tables.
        gpus: GPUs to choose from, with their counts; empty: all with a figure, in `counts`.
        families: Those of `gpus` that each name means: a figure of one answers for all; empty: each GPU alone.
        counts: Numbers of GPUs of the job.
    """

    network: str
    precision: str
    mode: str | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    families: tuple[tuple[tuple[str, int], ...], ...] = ()
    counts: tuple[int, ...] = (1,)

    def covers(self, case: Case) -> bool:
        """Return whether a case is of this network, precision and mode, on one host with its usual all-reduce."""
        asked = (self.network, self.precision, 1)
        same = (case.model, case.precision, case.num_hosts) == asked and self.mode in (None, case.mode)
        return same and case.all_reduce

    def wants(self, gpu: str, count: int) -> bool:
        """Return whether a GPU and count are among the choices."""
        return (gpu, count) in self.gpus if self.gpus else count in self.counts


def read_questions(
    limits: Limits,
    *,
    model: Sequence[str] = (),
    precision: str = "fp16",
    num_gpus: str = "1",
    mode: str | None = None,
    gpus: Sequence[str] = (),
) -> list[RentalQuestion]:
    """Build a question for each network and precision from the flags of `recommend`.

    Args:
        limits: Limits of all questions.
        model: Networks; empty: `resnet50`.
        precision: One or several, comma-separated.
        num_gpus: Likewise, for GPUs without a count.
        mode: `train` or `infer`; None: both.
        gpus: Names, optionally with a count: `2x A5000`.

    Raises:
        BadQuestion: A GPU, network, precision or number is unknown or invalid.
    """
    for name, value in vars(limits).items():
        if value is not None and not (isinstance(value, SupportsFloat) and 0 < float(value) < math.inf):
            raise BadQuestion(f"--{name.replace('_', '-')}: must be a number above 0. Received: {value}")
    counts = _counts(num_gpus)
    names = [name.strip() for text in gpus for name in text.split(",") if name.strip()]
    families = tuple(family for name in names for family in _asked(name, counts))
    asked = tuple(dict.fromkeys(itertools.chain(*families)))
    return [
        RentalQuestion(
            network=_network(text),
            precision=kind,
            mode=mode,
            gpus=asked,
            families=families,
            counts=counts,
            **vars(limits),
        )
        for text, kind in itertools.product(model or ["resnet50"], _precisions(precision))
    ]


def _network(text: str) -> str:
    if "=" in text or "," in text or not text.strip():
        raise BadQuestion(f"--model: must be one network; repeat the flag for several answers. Received: {text!r}")
    return model_key(text)


def refuse_unknown(questions: Sequence[RentalQuestion], measured: Collection[str]) -> None:
    """Reject unknown networks, so that a typo does not look like a network without figures.

    Raises:
        BadQuestion: A network is not measured, published or supported.
    """
    known = dict.fromkeys([*network_names(), *measured])
    for name in (question.network for question in questions):
        if name not in known and not published_names(name):
            raise BadQuestion(unknown_network(name, list(known)))


@dataclass(frozen=True)
class Prices:
    """The prices to use.

    Attributes:
        offers: The user's, then the shipped ones of other GPUs.
        unused: Lines about the user's prices that are no offers, of unknown GPUs, or overridden.
    """

    offers: tuple[Offer, ...]
    unused: tuple[str, ...] = ()


def asked_prices(inline: Sequence[str], files: Sequence[Path], fleets: Sequence[str] = ()) -> Prices:
    """Return the prices to use: typed ones, then the user's files, then the shipped offers.

    Args:
        inline: `GPU=USD` per GPU-hour, applied to all GPUs that the name resolves to.
        files: The user's price files, for GPUs without a price in `inline`.
        fleets: Names of fleets, which may be used in place of a GPU.

    Raises:
        BadQuestion: A price cannot be parsed.
    """
    typed = [offer for text in inline for offer in _typed(text, fleets)]
    files_read = [(path, read_prices(path)) for path in files]
    read = [_of_fleet(offer, fleets) for _, of_file in files_read for offer in of_file.offers]
    known, unknown = list[Offer](), list[Offer]()
    for offer in read:
        (known if offer.fleet or offer.gpu in known_gpus() else unknown).append(offer)
    used: dict[tuple[str, str], Offer] = {}
    for offer in most_exact(typed):
        used.setdefault((offer.gpu, offer.fleet), offer)
    own = [*used.values(), *(offer for offer in most_exact(known) if (offer.gpu, offer.fleet) not in used)]
    prices = {price_of(offer) for offer in own}
    overridden = [offer for offer in (*typed, *known) if price_of(offer) not in prices]
    unused = [
        *unused_lines(overridden, "another price of this GPU comes first"),
        *unused_lines(unknown, "unknown GPU"),
        *(f"{path}: not used, less than a GPU: {', '.join(of.fractions)}" for path, of in files_read if of.fractions),
    ]
    return Prices((*own, *known_prices({offer.gpu for offer in own})), tuple(unused))


def unused_lines(offers: Sequence[Offer], reason: str) -> list[str]:
    """Return a line with prices of the user that are not used, and the reason; none without prices."""
    of_name: dict[str, list[float]] = {}
    for offer in offers:
        of_name.setdefault(offer.family or offer.gpu, []).append(offer.usd_per_gpu_hour)
    if not of_name:
        return []
    prices = ", ".join(f"{span(usd)} USD for {name}" for name, usd in of_name.items())
    if len(of_name) == 1:
        return [f"price not used: {prices}: {reason}"]
    return [
        f"prices not used: {prices}: {reason.replace('this GPU', 'these GPUs').replace('unknown GPU', 'unknown GPUs')}"
    ]


def span(values: Iterable[float]) -> str:
    """Format the range of some values, or a single value."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(f"{float(f'{value:.3g}'):g}" for value in (*found[:1], *found[-1:])))


def _typed(text: str, fleets: Sequence[str]) -> list[Offer]:
    """Parse `GPU=USD` into an offer for each GPU, and for the fleet, that the name means."""
    name, _, price = text.rpartition("=")
    value = positive_number(price)
    if value is None:
        raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
    of_fleet = [name] if name in fleets else []
    gpus = gpus_named(name) if of_fleet else _gpus(counted_gpu(name)[1])
    family = name if len(gpus) + len(of_fleet) > 1 else ""
    offers = [Offer(gpu, value, origin=YOURS, family=family) for gpu in (*gpus, *of_fleet)]
    return [replace(offer, fleet=name) if offer.gpu in of_fleet else offer for offer in offers]


def _of_fleet(offer: Offer, fleets: Sequence[str]) -> Offer:
    """Return an offer as the user's; a name that no GPU has may be that of a fleet."""
    own = replace(offer, origin=YOURS)
    return replace(own, fleet=offer.gpu) if offer.gpu in fleets and offer.gpu not in known_gpus() else own


def price_of(offer: Offer) -> tuple[str, float, str]:
    """Return what identifies a price of the user; that of a family has several offers."""
    return offer.family or offer.gpu, offer.usd_per_gpu_hour, offer.name


def _asked(name: str, counts: Sequence[int]) -> list[tuple[tuple[str, int], ...]]:
    """Parse `2x A5000` or `A100` into GPUs and their counts, by count."""
    count, gpu = counted_gpu(name)
    gpus = _gpus(gpu)
    if count is not None and (count < 1 or not count.is_integer()):
        raise BadQuestion(f"--gpus: must have a count above 0, e.g. '2x A5000'. Received: {name!r}")
    return [tuple((gpu, number) for gpu in gpus) for number in (counts if count is None else [int(count)])]


def _gpus(name: str) -> tuple[str, ...]:
    found = gpus_named(name)
    if not found:
        raise BadQuestion(unknown_gpu(name))
    return found


def _precisions(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown:
        raise BadQuestion(f"--precision: must be among {', '.join(PRECISIONS)}. Received: {', '.join(unknown)!r}")
    return list(dict.fromkeys(names))


def _counts(text: str) -> tuple[int, ...]:
    names = [name.strip() for name in str(text).split(",")]
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise BadQuestion(f"--num-gpus: must be whole numbers above 0, e.g. 1,4. Received: {text!r}")
    return tuple(dict.fromkeys(int(name) for name in names))
