"""What a short name means: `A100` is a family of cards, `bert_large` one of published tasks.

`results.reference.gpu_key` refuses a name that fits several cards, because an audit must not guess. A question may: it
gets every member, each under its own name.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence

from results.reference import all_published, gpu_key, gpu_words, model_key, networks, shipped_prices, specifications
from results.schema.networks import INPUTS

BARE_DRIVER_NAMES = {"h200": "H200 SXM"}
"""Cards that their driver names without what distinguishes them: the NVL card has it in its name."""


@functools.cache
def cards() -> tuple[str, ...]:
    """Return every card that has a specification, a published row or a shipped price."""
    names = [*specifications(), *(row["gpu"] for row in all_published()), *(row["gpu"] for row in shipped_prices())]
    return tuple(dict.fromkeys(names))


def family(name: str) -> tuple[str, ...]:
    """Return the cards that a name means: the one that is called so, else all whose names have its words.

    `A100` is four cards, `A100 80GB` two, `4090` the desktop card and not the laptop's; empty when it fits none.
    """
    wanted = gpu_words(name) - {"rtx"}
    exact = [card for card in cards() if gpu_words(card) - {"rtx"} == wanted]
    return tuple(exact or (card for card in cards() if wanted and _has_words(card, wanted)))


def means(name: str, card: str) -> bool:
    """Return whether a name means a card, also one that is not in the reference."""
    return card in family(name) or (bool(gpu_words(name)) and _has_words(card, gpu_words(name) - {"rtx"}))


def unknown_card(name: str, known: Sequence[str]) -> str:
    """Return what to say of a name that is no card's: up to five that are like it, or all that are known."""
    shouted = {card.upper(): card for card in known}
    near = difflib.get_close_matches(name.strip().upper(), list(shouted), n=5, cutoff=0.4)
    names = ", ".join(shouted[card] for card in near)
    hint = f"Did you mean one of: {names}?" if near else f"Known: {', '.join(known)}"
    return f"GPU {name.strip()!r} is not in the reference. {hint}"


def unknown_network(name: str, known: Sequence[str]) -> str:
    """Return what to say of a name that is no network's: up to five that are like it, or all that are known."""
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.6)
    hint = f"Did you mean one of: {', '.join(near)}?" if near else f"Known: {', '.join(known)}"
    return f"--model: {name!r} is not a known network. {hint}"


def driver_card(name: str) -> str:
    """Return the card that a driver's name means; the name itself where that is not known."""
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower().removeprefix("nvidia ")).strip()
    return BARE_DRIVER_NAMES.get(plain) or gpu_key(name) or name


def memory_of(card: str) -> float | None:
    """Return the memory of a card in GB: as specified, else as its name says; None when neither does."""
    known = specifications().get(card, {}).get("memory")
    named = re.search(r"\b(\d+) ?GB\b", card)
    return known or (float(named[1]) if named else None)


@functools.cache
def network_names() -> tuple[str, ...]:
    """Return every network that can be measured here or has a published row or a known cost."""
    return tuple(dict.fromkeys([*INPUTS, *networks(), *(row["model"] for row in all_published())]))


def asked_network(name: str) -> str:
    """Return the network that a name means, whatever its case, spaces and hyphens; the name itself when none."""
    plain = _letters(name)
    return next((known for known in network_names() if _letters(known) == plain), None) or model_key(name)


def published_names(model: str) -> list[str]:
    """Return the names that a network has in published rows: its own, its variants' and its tasks'."""
    names = dict.fromkeys(row["model"] for row in all_published())
    return [name for name in names if name == model or name.startswith(f"{model}_")]


def _has_words(card: str, wanted: frozenset[str]) -> bool:
    """Return whether a card's name has all words; `sxm` is any generation of it."""
    words = gpu_words(card)
    return all(word in words or (word == "sxm" and any(w.startswith("sxm") for w in words)) for word in wanted)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
