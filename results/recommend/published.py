"""What others published about the speed of GPUs: figures of one setting, and how far those of several can be used.

A setting is one source, software, network with its task, compiler and kind of data. Figures of one setting are ranked.
Where no setting has two of the cards, the range over all pairs of settings is given and nothing is ranked. Batches are
each source's choice, often the largest that fits the card, and are shown.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results.recommend.evidence import Basis, Evidence, Group
from results.recommend.questions import Question
from results.reference import all_published
from results.reference.gpus import CLOCK_MARGIN, specifications
from results.reference.networks import BYTES as OF_PRECISION
from results.reference.networks import NetworkCost, networks, published_names

BYTES = {str(name): size for name, size in OF_PRECISION.items()}

MARGIN = 0.05
"""Smallest relative difference of two published figures that says something: each is one run on one host.

Source: figures of one card, network and precision by one source in neighbouring software, `published.csv`: ResNet50
FP16 on RTX A6000 1404 and 1478, on A100 SXM4 40GB 1888 and 1990: 5 % apart.
"""

TASKS = {"squad": "SQuAD fine-tuning", "pretraining": "pre-training"}

COMPILERS = {"on": "XLA", "off": "no XLA", "": "XLA not stated"}

CONDITIONS = ("synthetic", "real", "averaged", "gradient", "unpadding", "fused")
"""First words of those parts of a row's note that say how it was measured."""


@dataclass(frozen=True, order=True)
class Place:
    """Where and with what figures were measured.

    Attributes:
        software: Source, framework, compiler and data, in words.
        networks: Names of the networks in the rows, one for each of the question's mix.
    """

    software: str
    networks: tuple[str, ...]

    @property
    def text(self) -> str:
        """The setting in words."""
        return f"{self.software}, {' + '.join(map(network_text, self.networks))}"


@dataclass(frozen=True)
class Figure:
    """Published throughput of one card in one setting, over all GPUs."""

    gpu: str
    place: Place
    samples_per_second: float
    batch: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """How many times as fast one card is as another, over all pairs of published settings of one network and task.

    Attributes:
        network: Network and task of the figures, in words.
        low: The slowest published figure of `fast` over the fastest of `slow`.
        high: The other way round.
    """

    fast: str
    slow: str
    network: str
    low: float
    high: float


def network_text(name: str) -> str:
    """Name a published network with its task and sequence length: `bert_large (SQuAD fine-tuning, 384 tokens)`."""
    found = re.fullmatch(rf"(\w+?)_({'|'.join(TASKS)})_(\d+)", name)
    return f"{found[1]} ({TASKS[found[2]]}, {found[3]} tokens)" if found else name


def figures(question: Question) -> dict[Place, dict[str, Figure]]:
    """Return the published figures for a question, by setting and card; rows marked suspect are left out."""
    places: dict[str, dict[str, dict[str, Mapping[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    names = {model: published_names(model) for model in question.mix}
    wanted = {name for of_model in names.values() for name in of_model}
    for row in all_published():
        if row["suspect"] or row["model"] not in wanted:
            continue
        if (row["precision"], row["num_gpus"]) != (question.precision, str(question.count)):
            continue
        best = places[_software(row)][row["model"]]
        # A source that measured several batches is taken at its best, as it would be used.
        if row["gpu"] not in best or _rate(row) > _rate(best[row["gpu"]]):
            best[row["gpu"]] = row
    found: dict[Place, dict[str, Figure]] = {}
    for software, of_networks in places.items():
        for chosen in itertools.product(*names.values()):
            place = Place(software, chosen)
            cards = {gpu for gpu in of_networks[chosen[0]] if all(gpu in of_networks[name] for name in chosen)}
            if cards:
                rows = {gpu: [of_networks[name][gpu] for name in chosen] for gpu in sorted(cards)}
                found[place] = {gpu: _figure(gpu, place, rows[gpu], question) for gpu in rows}
    return found


def published_groups(
    question: Question, candidates: Sequence[str], fitting: Sequence[str], failed: Mapping[str, str]
) -> list[Group]:
    """Return for each network and task the setting that knows most of the cards, with all others beside it, unranked.

    One card alone is no comparison: where no setting has two of several candidates, the answer is one group in which
    every card stands with the settings that it was published in.

    Args:
        question: What is asked.
        candidates: Cards to choose from.
        fitting: Those that have the memory and a price within the budget.
        failed: Cards that failed the question's case in these runs, with the status: never recommended by what others
            published.
    """
    known = figures(question)
    allowed = [card for card in fitting if card not in failed]
    groups = []
    for networks_of_rows in dict.fromkeys(place.networks for place in known):
        places = {place: of for place, of in known.items() if place.networks == networks_of_rows}
        place = _headline(question, places, allowed)
        wanted = [gpu for gpu in known[place] if question.wants(gpu) and gpu not in failed] if place else []
        if place and len(wanted) >= min(2, len(candidates)):
            evidence = [_evidence(known[place][gpu]) for gpu in wanted]
            groups.append(_group(question, place, evidence, candidates, known, failed))
    return groups or [_group(question, None, [], candidates, known, failed)]


def _group(
    question: Question,
    place: Place | None,
    evidence: Sequence[Evidence],
    candidates: Sequence[str],
    known: Mapping[Place, Mapping[str, Figure]],
    failed: Mapping[str, str],
) -> Group:
    ranked = {item.gpu for item in evidence}
    without = [_unranked(question, card, known, failed) for card in (*candidates, *failed) if card not in ranked]
    return Group(
        basis=Basis.PUBLISHED,
        mode="training",
        setting=place.text if place else "",
        network=" + ".join(map(network_text, place.networks)) if place else "",
        evidence=tuple(evidence),
        without=tuple({item.gpu: item for item in without}.values()),
        remarks=(*_batches(evidence), *_beyond_reach(without, known, question)),
    )


def spans(question: Question, cards: Sequence[str]) -> list[Span]:
    """Return how far apart cards are that no setting has together, over all pairs of settings, the faster card first.

    Args:
        question: What is asked.
        cards: Those that matter.
    """
    known = figures(question)
    rates: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, of_cards in known.items():
        for gpu, item in of_cards.items():
            rates[place.networks][gpu].append(item.samples_per_second)
    found = []
    for names, of_networks in rates.items():
        for a, b in itertools.combinations([card for card in cards if card in of_networks], 2):
            if any(a in together and b in together for together in known.values()):
                continue
            fast, slow = (a, b) if max(of_networks[a]) >= max(of_networks[b]) else (b, a)
            high, low = of_networks[fast], of_networks[slow]
            text = " + ".join(map(network_text, names))
            found.append(Span(fast, slow, text, min(high) / max(low), max(high) / min(low)))
    return found


def bound(question: Question, card: str) -> float | None:
    """Return the throughput that a card cannot pass: by its bandwidth with all layers fused, and by its arithmetic.

    Returns:
        Samples per second over all GPUs; None where network, precision or card is not known.
    """
    per_sample = [_seconds(networks().get(model), question.precision, card) for model in question.mix]
    if any(seconds is None for seconds in per_sample):
        return None
    total = math.fsum(
        share * seconds for share, seconds in zip(question.mix.values(), per_sample, strict=True) if seconds
    )
    return question.count / total if total > 0 else None


def _seconds(network: NetworkCost | None, precision: str, card: str) -> float | None:
    """Return the fewest seconds that one sample takes on one GPU."""
    known = specifications().get(card, {})
    if network is None or precision not in BYTES or "memory_bandwidth" not in known:
        return None
    moved = network.elements_fused * BYTES[precision] / (known["memory_bandwidth"] * 1e9)
    peak = {"fp32": "fp32", "tf32": "tf32_tensor"}.get(precision, "fp16_tensor_fp32_accumulate")
    if peak not in known:
        return moved
    return max(moved, network.flop_per_sample / (known[peak] * 1e12 * CLOCK_MARGIN))


def _headline(question: Question, known: Mapping[Place, Mapping[str, Figure]], fitting: Sequence[str]) -> Place | None:
    """Choose the setting that has most of the cards that may be chosen; of equals the last by name."""

    def order(place: Place) -> tuple[int, int, Place]:
        cards = [gpu for gpu in known[place] if question.wants(gpu)]
        return sum(gpu in fitting for gpu in cards), len(cards), place

    best = max(known, key=order, default=None)
    return best if best is not None and any(gpu in fitting for gpu in known[best]) else None


def _unranked(
    question: Question, card: str, known: Mapping[Place, Mapping[str, Figure]], failed: Mapping[str, str]
) -> Evidence:
    """Return what is known about a card that the chosen setting lacks, and why it is not ranked."""
    others = [of_cards[card] for of_cards in known.values() if card in of_cards]
    if card in failed:
        return Evidence(
            basis=Basis.PUBLISHED, subject=card, gpu=card, reason=f"{failed[card]} in this run", failed=True
        )
    if others:
        return Evidence(
            basis=Basis.PUBLISHED,
            subject=card,
            gpu=card,
            reason="published in other settings only",
            elsewhere=tuple((item.samples_per_second, item.place.text) for item in others),
            sources=tuple(source for item in others for source in item.sources),
        )
    limit = bound(question, card)
    return Evidence(
        basis=Basis.BOUND if limit else Basis.PUBLISHED,
        subject=card,
        gpu=card,
        samples_per_second=limit,
        reason="no published row",
        sources=("bandwidth with all layers fused, and arithmetic, of gpu_specs.csv and networks.csv",) * bool(limit),
    )


def _beyond_reach(
    without: Sequence[Evidence], known: Mapping[Place, Mapping[str, Figure]], question: Question
) -> Iterator[str]:
    """Say which cards cannot reach what another did: a bound decides where no measurement does."""
    exact = {place: of_cards for place, of_cards in known.items() if place.networks == tuple(question.mix)}
    for item in without:
        if item.basis is not Basis.BOUND or not item.samples_per_second:
            continue
        for card in question.gpus:
            best = max(
                (of_cards[card] for of_cards in exact.values() if card in of_cards),
                key=lambda figure: figure.samples_per_second,
                default=None,
            )
            if best is not None and best.samples_per_second > item.samples_per_second:
                yield (
                    f"{item.gpu} reaches at most {item.samples_per_second:.4g} samples/s with any software; "
                    f"{card} reached {best.samples_per_second:.4g}, "
                    f"{best.samples_per_second / item.samples_per_second:.2f} × that, with {best.place.software}"
                )


def _batches(evidence: Sequence[Evidence]) -> list[str]:
    if len({item.batch for item in evidence}) < 2:
        return []
    each = ", ".join(f"{item.batch or 'not stated'} ({item.gpu})" for item in evidence)
    return [f"batches per GPU differ, which may explain part of the difference: {each}"]


def _evidence(item: Figure) -> Evidence:
    return Evidence(
        basis=Basis.PUBLISHED,
        subject=item.gpu,
        gpu=item.gpu,
        samples_per_second=item.samples_per_second,
        batch=item.batch,
        sources=item.sources,
    )


def _figure(gpu: str, place: Place, rows: Sequence[Mapping[str, str]], question: Question) -> Figure:
    """Return the throughput of a mix: time per sample is the weighted mean of the networks' times per sample."""
    seconds = math.fsum(share / _rate(row) for share, row in zip(question.mix.values(), rows, strict=True))
    return Figure(
        gpu=gpu,
        place=place,
        samples_per_second=1 / seconds,
        batch=" + ".join(dict.fromkeys(row["batch_per_gpu"] or "not stated" for row in rows)),
        sources=tuple(
            f"{row['model']} {row['precision']} ×{row['num_gpus']}: {row['samples_per_second']} {row['unit']}/s, "
            f"batch {row['batch_per_gpu'] or 'not stated'}; {row['framework']}; {row['source']}, {row['url']}"
            for row in rows
        ),
    )


def _rate(row: Mapping[str, str]) -> float:
    return float(row["samples_per_second"])


def _software(row: Mapping[str, str]) -> str:
    parts = [part.strip() for part in row["note"].split(";")]
    conditions = [part for part in parts if part.startswith(CONDITIONS)]
    return ", ".join([f"{row['source']}: {row['framework']}", COMPILERS.get(row["xla"], row["xla"]), *conditions])
