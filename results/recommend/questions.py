"""Parses questions (networks, GPUs, limits) and prices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsFloat

from results.errors import BadQuestion
from results.reference.gpus import gpus_named, unknown_gpu
from results.reference.networks import model_key, network_names, published_names, unknown_network
from results.reference.prices import Offer, known_prices, positive_number, read_prices

MILLION = 1_000_000

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

MODES = ("train", "infer")
"""Modes with throughput of a network, unlike `device`."""

YOURS = "yours"
"""Origin of the user's prices, which override all others of their GPU."""


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
        unused: A line for each of the user's prices that another one overrides.
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
    typed: dict[str, Offer] = {}
    unused = []
    for text in inline:
        name, _, price = text.rpartition("=")
        value = positive_number(price)
        if value is None:
            raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
        gpus = gpus_named(name) or ((name,) if name in fleets else _gpus(name))
        family = name if len(gpus) > 1 else ""
        for gpu in gpus:
            if gpu in typed:
                unused.append(f"price not used: --price {text}, because an earlier --price is for {gpu}")
            typed.setdefault(gpu, Offer(gpu, value, origin=YOURS, family=family))
    read = [(path, offer) for path in files for offer in read_prices(path)]
    unused += [
        f"price not used: {offer.usd_per_gpu_hour:g} for {offer.gpu} in {path}, because of --price"
        for path, offer in read
        if offer.gpu in typed
    ]
    own = [*typed.values(), *(replace(offer, origin=YOURS) for _, offer in read if offer.gpu not in typed)]
    return Prices((*own, *known_prices({offer.gpu for offer in own})), tuple(unused))


def _asked(name: str, counts: Sequence[int]) -> list[tuple[tuple[str, int], ...]]:
    """Parse `2x A5000` or `A100` into GPUs and their counts, by count."""
    found = re.fullmatch(r"(\d+)\s*[x×]\s*(.+)", name)
    gpus = _gpus(found[2] if found else name)
    if found and not int(found[1]):
        raise BadQuestion(f"--gpus: must have a count above 0, e.g. '2x A5000'. Received: {name!r}")
    return [tuple((gpu, count) for gpu in gpus) for count in ([int(found[1])] if found else counts)]


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
