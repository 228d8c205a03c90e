"""The questions that a recommendation answers, read from the command line."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.errors import BadQuestion
from results.reference.gpus import gpus_named as family
from results.reference.gpus import unknown_gpu
from results.reference.networks import model_key as asked_network
from results.reference.prices import Offer, known_prices
from results.text import counted

MILLION = 1_000_000

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

ASKED = "--price"
"""Provider of an offer that was typed: it goes before every other price of its card."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: one network or mix, one precision, one number of GPUs.

    Attributes:
        mix: Share of the samples by network; shares add up to 1.
        precision: Arithmetic.
        count: GPUs per job.
        mode: `train` or `infer`; None: each that was measured, with an answer of its own.
        gpus: Cards to choose from, families written out; empty: all that have a figure or a price.
        asked: The names that `gpus` were asked by.
        usd_per_hour: Most that the job may cost per hour; None: any.
        hours: Most that `samples` may take; None: any.
        samples: Samples of the whole job, for the deadline.
        memory_gib: Memory that each GPU must have; None: what the batch needs, as far as known.
        batch_per_gpu: Batch for which memory is checked; None: not checked.
    """

    mix: Mapping[str, float]
    precision: str
    count: int = 1
    mode: str | None = None
    gpus: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    hours: float | None = None
    samples: float = MILLION
    memory_gib: float | None = None
    batch_per_gpu: int | None = None

    @property
    def network(self) -> str:
        """The network, or the mix with its shares."""
        if len(self.mix) == 1:
            return next(iter(self.mix))
        return " + ".join(f"{share:.0%} {model}".replace("%", " %") for model, share in self.mix.items())

    @property
    def name(self) -> str:
        """What distinguishes this question from others asked with it."""
        return f"{self.network} {self.precision} on {counted(self.count, 'GPU')}"

    def wants(self, card: str) -> bool:
        """Return whether a card may be chosen."""
        return not self.gpus or card in self.gpus or any(card in family(name) for name in self.asked)


def read_questions(parsed: argparse.Namespace) -> list[Question]:
    """Build the questions from parsed arguments: one for each network, precision and number of GPUs that was asked.

    Raises:
        BadQuestion: An unknown GPU, or a mix, precision or number that cannot be read.
    """
    _check_limits(parsed)
    asked = tuple(name.strip() for name in parsed.gpus.split(",") if name.strip())
    cards = dict.fromkeys(card for name in asked for card in known_cards(name))
    every = itertools.product(parsed.model or ["resnet50"], _precisions(parsed.precision), _counts(parsed.num_gpus))
    return [
        Question(
            mix=read_mix(model),
            precision=precision,
            count=count,
            mode=parsed.mode,
            gpus=tuple(cards),
            asked=asked,
            usd_per_hour=parsed.budget,
            hours=parsed.hours,
            samples=parsed.samples,
            memory_gib=parsed.memory,
            batch_per_gpu=parsed.batch_size,
        )
        for model, precision, count in every
    ]


def read_mix(text: str) -> dict[str, float]:
    """Read `resnet50` or `resnet50=0.7,inception_v3=0.3` into shares that add up to 1.

    Raises:
        BadQuestion: A share is no number above 0.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        value = _positive(share) if share else 1.0
        if value is None or not name.strip():
            raise BadQuestion(f"--model: must be a network or shares, e.g. resnet50=0.7,vgg16=0.3. Received: {part!r}")
        shares[asked_network(name)] = value
    total = math.fsum(shares.values())
    return {name: share / total for name, share in shares.items()}


def known_cards(name: str) -> tuple[str, ...]:
    """Return the cards that a name means, as the reference has them.

    Raises:
        BadQuestion: It fits none.
    """
    found = family(name)
    if not found:
        raise BadQuestion(unknown_gpu(name))
    return found


def asked_prices(inline: Sequence[str], files: Sequence[Path], fleets: Sequence[str] = ()) -> list[Offer]:
    """Return the prices to use: those of the command line first, then files, then the shipped examples.

    Args:
        inline: `GPU=USD` per GPU-hour; a family's name prices all its members.
        files: The user's price files.
        fleets: Names of fleets, which may be priced like a GPU.

    Raises:
        BadQuestion: A price cannot be read.
    """
    own = []
    for text in inline:
        name, _, price = text.rpartition("=")
        value = _positive(price)
        if value is None:
            raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
        members = family(name) or ((name,) if name in fleets else known_cards(name))
        own += [Offer(card, value, provider=ASKED) for card in members]
        # A fleet that is called like its card is priced once: by the card.
    named = {offer.gpu for offer in own}
    return own + [offer for offer in known_prices(files) if offer.gpu not in named]


def _check_limits(parsed: argparse.Namespace) -> None:
    """Refuse limits that nothing or everything would meet, whatever they say."""
    for flag in ("budget", "hours", "samples", "memory", "batch_size"):
        value = getattr(parsed, flag)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadQuestion(f"--{flag.replace('_', '-')}: must be a number above 0. Received: {value:g}")


def _precisions(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown:
        raise BadQuestion(f"--precision: must be among {', '.join(PRECISIONS)}. Received: {', '.join(unknown)!r}")
    return list(dict.fromkeys(names))


def _counts(text: str) -> list[int]:
    names = [name.strip() for name in str(text).split(",")]
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise BadQuestion(f"--num-gpus: must be whole numbers above 0, e.g. 1,4. Received: {text!r}")
    return list(dict.fromkeys(int(name) for name in names))


def _positive(text: str) -> float | None:
    """Read a finite number above 0; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
