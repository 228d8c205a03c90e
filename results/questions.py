"""The question that a recommendation answers, read from the command line."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Sequence
from pathlib import Path

from results.errors import BadQuestion
from results.prices import Offer, known_prices
from results.recommend import Question
from results.reference import gpu_key, model_key, specifications


def read_question(parsed: argparse.Namespace) -> Question:
    """Build the question from parsed arguments.

    Raises:
        BadQuestion: An unknown GPU, or a mix that cannot be read.
    """
    return Question(
        mix=read_mix(parsed.model),
        precision=parsed.precision,
        count=parsed.num_gpus,
        gpus=tuple(known_gpu(name) for name in parsed.gpus.split(",") if name.strip()),
        usd_per_hour=parsed.budget,
        hours=parsed.hours,
        samples=parsed.samples,
        memory_gib=parsed.memory,
        batch_per_gpu=parsed.batch_size,
    )


def read_mix(text: str) -> dict[str, float]:
    """Read `resnet50` or `resnet50=0.7,inception_v3=0.3` into shares that add up to 1.

    Raises:
        BadQuestion: A share is no number above 0.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            value = float(share) if share else 1.0
        except ValueError:
            value = math.nan
        if not value > 0 or not math.isfinite(value) or not name.strip():
            raise BadQuestion(f"--model: must be a network or shares, e.g. resnet50=0.7,vgg16=0.3. Received: {part!r}")
        shares[model_key(name)] = value
    total = math.fsum(shares.values())
    return {name: share / total for name, share in shares.items()}


def known_gpu(name: str) -> str:
    """Return the name of a GPU as the reference has it.

    Raises:
        BadQuestion: It fits none or several.
    """
    key = gpu_key(name)
    if key is None:
        near = difflib.get_close_matches(name.strip().upper(), list(specifications()), n=5, cutoff=0.4)
        hint = ", ".join(near or specifications())
        raise BadQuestion(f"GPU {name.strip()!r} is not in the reference. Did you mean one of: {hint}?")
    return key


def asked_prices(inline: Sequence[str], files: Sequence[Path]) -> list[Offer]:
    """Return the prices to use: those of the command line first, then files, then the shipped examples.

    Args:
        inline: `GPU=USD` per GPU-hour.
        files: The user's price files.

    Raises:
        BadQuestion: A price cannot be read.
    """
    own = []
    for text in inline:
        name, _, price = text.rpartition("=")
        try:
            value = float(price)
        except ValueError:
            value = math.nan
        if not value > 0 or not math.isfinite(value):
            raise BadQuestion(f"--price: must be GPU=USD, e.g. 'A4000=0.17'. Received: {text!r}")
        own.append(Offer(known_gpu(name), value, provider="asked"))
    named = {offer.gpu for offer in own}
    return own + [offer for offer in known_prices(files) if offer.gpu not in named]
