# ruff: noqa: T201 (a script prints its result)
"""What `--stop-early` saves and whether its answers hold, in fleets whose truth is known.

    python -m tests.benchmarks.stop_early                 (2,000 draws a row: a minute or two on one core)
    python -m tests.benchmarks.stop_early --draws 300 --only "1 against 1"

Two fleets are drawn: hosts differ by 0.5 %, repeats of a host as the row says, and every host drifts by up to 0.3 % over
the run. Repeats come in round by round, as many as the shipped suites plan (3), and `results.compare.sequential` ends
them. `held`: how often the answer's interval holds the truth, `of 3`: likewise the usual 95 % interval of all three
repeats. `!` marks what is outside of 93 to 97 %. `time`: repeats taken as a share of those planned. `width`: half-width
of the answer's interval, median, next to that of all three repeats. `reached`: how often it is within the asked width.
`price`: answers by price, and `wrong`: those on the wrong side.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from results.compare.pairs import compare_pair
from results.compare.sequential import InterimAnalysis, Reason, analyse
from results.schema import Case
from results.table.columns import Software
from results.table.fleets import FleetRate

RATIO, RATE = 1.3, 400.0
PLANNED = 3
LOW, HIGH = 0.93, 0.97
CASE = Case(model="resnet50")
BETWEEN = 0.005
DRIFT = 0.003


@dataclass(frozen=True)
class Design:
    """Two fleets.

    Attributes:
        hosts: Of each side.
        within: Standard deviation between repeats of a host, as a share.
        target: Half-width that is asked for.
        slow: Share by which the first host of side b is slower than the others; it is one of the fleet.
        prices: Price of side a's GPU over that of b's, as a share of the true ratio; None: not known.
    """

    hosts: tuple[int, int]
    within: float
    target: float = 0.02
    slow: float = 0.0
    prices: float | None = None

    @property
    def name(self) -> str:
        """The row's title."""
        parts = [f"{self.hosts[0]} against {self.hosts[1]}, repeats vary by {self.within:.1%}"]
        parts += [f"to {self.target:.0%}"] if self.target != 0.02 else []
        parts += ["one host 3 % slow"] if self.slow else []
        parts += [f"price ratio {1 - self.prices:+.0%} off"] if self.prices is not None else []
        return ", ".join(parts)


DESIGNS = (
    *(Design(hosts, within) for hosts in ((1, 1), (2, 2), (4, 4)) for within in (0.003, 0.01, 0.02)),
    *(Design((count, count), 0.003, target=0.01) for count in (1, 2, 4)),
    Design((1, 4), 0.003),
    Design((1, 4), 0.01),
    Design((10, 10), 0.003, target=0.01),
    Design((4, 4), 0.003, slow=0.03),
    Design((4, 4), 0.003, prices=0.97),
    Design((4, 4), 0.003, prices=1.0, target=0.001),
)


def draw(design: Design, random: np.random.Generator) -> tuple[list[NDArray[np.float64]], float]:
    """Draw the throughput of every repeat.

    Returns:
        Of both sides, shape (hosts, repeats), and the true ratio: of fleets; a side of one host is that machine.
    """
    sides, means = [], []
    for number, (count, rate) in enumerate(zip(design.hosts, (RATE * RATIO, RATE), strict=True)):
        hosts = BETWEEN * random.standard_normal(count)
        truth = float(hosts[0]) if count == 1 else 0.0  # one host: its interval describes that machine
        if number == 1:
            hosts[0] -= design.slow
            truth -= design.slow / count
        ends = random.uniform(-DRIFT, DRIFT, count)
        drift = ends[:, None] * np.linspace(-0.5, 0.5, PLANNED)
        sides.append(rate * (1 + hosts[:, None] + drift + design.within * random.standard_normal((count, PLANNED))))
        means.append(rate * (1 + truth))
    return sides, means[0] / means[1]


def rates(design: Design, sides: Sequence[NDArray[np.float64]], repeats: int) -> tuple[FleetRate, FleetRate]:
    """Return the rates of both sides after the first repeats of each host."""
    prices = (None, None) if design.prices is None else (design.prices * RATIO, 1.0)
    a, b = (
        FleetRate(
            name,
            CASE,
            Software(),
            {f"{name}{host}": {"run": values[:repeats].tolist()} for host, values in enumerate(side)},
            unit="images",
            prices={} if price is None else {f"{name}{host}": price for host in range(len(side))},
        )
        for name, side, price in zip("ab", sides, prices, strict=True)
    )
    return a, b


@dataclass
class Tally:
    """What became of the draws of a row."""

    held: int = 0
    fixed_held: int = 0
    reached: int = 0
    repeats: int = 0
    price: int = 0
    wrong: int = 0
    widths: list[float] = field(default_factory=list)
    fixed_widths: list[float] = field(default_factory=list)


def stopped_early(design: Design, draws: int, seed: int = 20261124) -> Tally:
    """Let repeats come in, round by round, until the rule ends them or all planned ones have run."""
    random, tally = np.random.default_rng(seed), Tally()
    for _ in range(draws):
        sides, truth = draw(design, random)
        found, taken = InterimAnalysis(), 0
        while found.reason is None and taken < PLANNED:
            taken += 1
            found = analyse(*rates(design, sides, taken), design.target, taken)
        fixed = compare_pair(*rates(design, sides, PLANNED)).interval
        assert found.interval is not None and fixed is not None, "all repeats gave a number"
        interval = found.interval if found.reason is not None else fixed  # undecided: the tables' interval stands
        tally.held += interval.contains(truth)
        tally.fixed_held += fixed.contains(truth)
        tally.widths.append(interval.half_width / interval.value)
        tally.fixed_widths.append(fixed.half_width / fixed.value)
        tally.reached += tally.widths[-1] <= design.target
        tally.repeats += taken
        if found.reason is Reason.PRICE and design.prices is not None:
            tally.price += 1
            tally.wrong += (interval.low > design.prices * RATIO) != (truth > design.prices * RATIO)
    return tally


def mark(held: float) -> str:
    """Return a mark where a share is outside of what 95 % may be."""
    return " " if LOW <= held <= HIGH else "!"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each design; exit code 1 where answers hold less often than they claim."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parsed = parser.parse_args(arguments)
    print(
        f"{'hosts':52}{'held':>8} {'of 3':>8} {'time':>8}{'width':>8}{'of 3':>8}{'reached':>9}{'price':>7}{'wrong':>7}"
    )
    good = True
    for design in (design for design in DESIGNS if parsed.only in design.name):
        found = stopped_early(design, parsed.draws)
        held, fixed = found.held / parsed.draws, found.fixed_held / parsed.draws
        good = good and held >= min(LOW, fixed)
        print(
            f"{design.name:52}{held:>8.3f}{mark(held)}{fixed:>8.3f}{mark(fixed)}"
            f"{found.repeats / parsed.draws / PLANNED:>8.2f}{statistics.median(found.widths):>8.2%}"
            f"{statistics.median(found.fixed_widths):>8.2%}{found.reached / parsed.draws:>9.2f}"
            f"{found.price / parsed.draws:>7.3f}{found.wrong / parsed.draws:>7.3f}",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
