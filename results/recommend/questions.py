"""What is asked: networks, GPUs, limits, and which prices count."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.errors import BadQuestion
from results.reference.gpus import gpus_named, unknown_gpu
from results.reference.networks import model_key
from results.reference.prices import Offer, known_prices, positive_number, read_prices

MILLION = 1_000_000

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

MODES = ("train", "infer")
"""Modes that are work; `device` measures the device itself."""

YOURS = "yours"
"""Origin of a price that the user gave: it goes before every other price of its GPU."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The job, and what a GPU must meet; None: any.

    Attributes:
        budget: Most USD that the job may cost per hour.
        hours: Most that `samples` may take.
        samples: Samples of the whole job.
        memory: GiB that each GPU must have.
        batch_size: Batch per GPU that must fit and, where it was measured, counts.
    """

    budget: float | None = None
    hours: float | None = None
    samples: float = MILLION
    memory: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class RentalQuestion(Limits):
    """What is asked: one network, one precision, any number of GPUs and counts.

    Attributes:
        network: Our name of it.
        mode: `train` or `infer`; None: each that was measured, with a table of its own.
        gpus: GPUs to choose from and how many of each; empty: all that have a figure, in `counts`.
        counts: Numbers of GPUs of a job.
    """

    network: str
    precision: str
    mode: str | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    counts: tuple[int, ...] = (1,)

    def wants(self, gpu: str, count: int) -> bool:
        """Return whether a number of GPUs may be chosen."""
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
    """Build the questions, one for each network and precision, from what the flags of `recommend` have.

    Args:
        limits: Of every question.
        model: Networks; empty: `resnet50`.
        precision: One or several, comma-separated.
        num_gpus: Likewise, for the GPUs that are named without a number.
        mode: `train` or `infer`; None: both.
        gpus: Names, each with a number where it begins with one: `2x A5000`.

    Raises:
        BadQuestion: An unknown GPU, or a network, precision or number that cannot be read.
    """
    for name, value in vars(limits).items():
        if value is not None and not 0 < value < math.inf:
            raise BadQuestion(f"--{name.replace('_', '-')}: must be a number above 0. Received: {value:g}")
    counts = _counts(num_gpus)
    names = [name.strip() for text in gpus for name in text.split(",") if name.strip()]
    asked = tuple(dict.fromkeys(pair for name in names for pair in _asked(name, counts)))
    return [
        RentalQuestion(network=_network(text), precision=kind, mode=mode, gpus=asked, counts=counts, **vars(limits))
        for text, kind in itertools.product(model or ["resnet50"], _precisions(precision))
    ]


def _network(text: str) -> str:
    if "=" in text or not text.strip():
        raise BadQuestion(f"--model: must be one network; repeat the flag for several answers. Received: {text!r}")
    return model_key(text)


@dataclass(frozen=True)
class Prices:
    """The prices that count.

    Attributes:
        offers: The user's, then the shipped ones of GPUs that the user has no price for.
        unused: Prices of the user that others of the user go before, one line each.
    """

    offers: tuple[Offer, ...]
    unused: tuple[str, ...] = ()


def asked_prices(inline: Sequence[str], files: Sequence[Path], fleets: Sequence[str] = ()) -> Prices:
    """Return the prices to use: typed ones, then the user's files, then the shipped offers.

    Args:
        inline: `GPU=USD` per GPU-hour; a name that means several GPUs prices each of them.
        files: The user's price files, for GPUs without a price in `inline`.
        fleets: Names of fleets, which may be priced like a GPU.

    Raises:
        BadQuestion: A price cannot be read.
    """
    typed: dict[str, Offer] = {}
    unused = []
    for text in inline:
        name, _, price = text.rpartition("=")
        value = positive_number(price)
        if value is None:
            raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
        for gpu in gpus_named(name) or ((name,) if name in fleets else _gpus(name)):
            if gpu in typed:
                unused.append(f"price not used: --price {text}, because an earlier --price is for {gpu}")
            typed.setdefault(gpu, Offer(gpu, value, origin=YOURS))
    read = [(path, offer) for path in files for offer in read_prices(path)]
    unused += [
        f"price not used: {offer.usd_per_gpu_hour:g} for {offer.gpu} in {path}, because of --price"
        for path, offer in read
        if offer.gpu in typed
    ]
    own = [*typed.values(), *(replace(offer, origin=YOURS) for _, offer in read if offer.gpu not in typed)]
    return Prices((*own, *known_prices({offer.gpu for offer in own})), tuple(unused))


def _asked(name: str, counts: Sequence[int]) -> list[tuple[str, int]]:
    """Parse `2x A5000` or `A100` into GPUs and their counts."""
    found = re.fullmatch(r"(\d+)\s*[x×]\s*(.+)", name)
    return [
        (gpu, count) for gpu in _gpus(found[2] if found else name) for count in ([int(found[1])] if found else counts)
    ]


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
