# ruff: noqa: T201 (a script prints its result)
"""What `--decide` and `--target-ci` report, and the minutes that they take, in fleets whose truth is known.

    python -m tests.benchmarks.decide                 (2,000 draws a row: some minutes on one core)
    python -m tests.benchmarks.decide --draws 300 --only slow

Two fleets are drawn: hosts differ by 0.5 %, repeats by 0.3 %, and every host drifts over the run. Repeats come in round
by round, and the rules of a run (`results.compare.sequential`, `orchestrate.deciding`) leave out what is not needed.
`held`: how often the interval of the answer holds the truth; `tables`: likewise the usual 95 % interval of the same
repeats, which differs where the answer's is wider. `!` marks what is outside of 93 to 97 %. `minutes`: as a share of 3
repeats of 100 steps on every host. `width`: of the answer's interval, median, next to the usual one of the 3 repeats.
`reached`: how often it is within the asked width; `sure, wrong`: answers by price, and those on the wrong side. The
second table asks for the width that 3 repeats have in the median.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from orchestrate.deciding.early_end import known
from results.compare.pairs import compare_pair
from results.compare.sequential import Answer, Look, look, spread_of_repeats
from results.schema import Case
from results.stats import Interval, t_interval
from results.table.fleets import FleetRate
from results.table.software import Software

RATIO, RATE = 1.3, 400.0
FIXED_REPEATS = 3
LOW, HIGH = 0.93, 0.97
CASE = Case(model="resnet50")


@dataclass(frozen=True)
class Design:
    """Two fleets.

    Attributes:
        hosts: Of each side.
        slow: Share by which the first host of side b is slower than the others; it is one of the fleet.
        slow_by_chance: Chance of every host of side b to be the slow one; None: the first host is.
        prices: Price of side a's GPU over that of b's, as a share of the true ratio; None: not known.
        alone: Whether side b is left out: the throughput of side a is asked for.
        cases: Of the suite; each has hosts of its own luck.
        most: Repeats of each host that are planned.
        between: Standard deviation between hosts, as a share.
        within: Likewise between repeats.
        drift: By which a host gets faster or slower from its first to its last repeat, at most.
    """

    name: str
    hosts: tuple[int, int] = (3, 3)
    slow: float = 0.0
    slow_by_chance: float | None = None
    prices: float | None = None
    target: float = 0.02
    alone: bool = False
    cases: int = 1
    most: int = 10
    between: float = 0.005
    within: float = 0.003
    drift: float = 0.003


DESIGNS = (
    Design("1 against 1 host, these machines", (1, 1)),
    Design("1 against 1 host, one of them 3 % slow", (1, 1), slow=0.03),
    Design("2 against 2 hosts", (2, 2)),
    Design("3 against 3 hosts", (3, 3)),
    Design("4 against 4 hosts", (4, 4)),
    Design("3 against 10 hosts", (3, 10)),
    Design("10 against 10 hosts, to 1 %", (10, 10), target=0.01),
    Design("3 against 3 hosts, repeats vary by 2 %", (3, 3), within=0.02),
    Design("1 against 1 host, repeats vary by 0.6 %", (1, 1), within=0.006),
    Design("1 against 1 host, repeats vary by 1 %", (1, 1), within=0.01),
    Design("1 against 1 host, repeats vary by 2 %", (1, 1), within=0.02),
    Design("1 against 3 hosts", (1, 3)),
    Design("1 against 3 hosts, repeats vary by 1 %", (1, 3), within=0.01),
    Design("2 against 2 hosts, repeats vary by 1 %", (2, 2), within=0.01),
    Design("3 against 3 hosts, repeats vary by 1 %", (3, 3), within=0.01),
    Design("4 against 4 hosts, one of them 3 % slow", (4, 4), slow=0.03),
    Design("10 against 10 hosts, one of them 3 % slow", (10, 10), slow=0.03),
    Design("4 against 4 hosts, each 3 % slow by 1 in 4", (4, 4), slow=0.03, slow_by_chance=0.25),
    Design("10 against 10, each 3 % slow by 1 in 10", (10, 10), slow=0.03, slow_by_chance=0.1),
    Design("2 hosts alone", (2, 1), alone=True),
    Design("3 hosts alone", (3, 1), alone=True),
    Design("3 hosts alone, repeats vary by 1 %", (3, 1), alone=True, within=0.01),
    Design("3 hosts alone, repeats vary by 2 %", (3, 1), alone=True, within=0.02),
    Design("2 against 2 hosts, suite of 6 cases", (2, 2), cases=6),
    Design("3 against 3 hosts, suite of 6 cases", (3, 3), cases=6),
    Design("4 against 4 hosts, suite of 6 cases", (4, 4), cases=6),
    Design("10 against 10 hosts, to 1 %, suite of 6 cases", (10, 10), target=0.01, cases=6),
    Design("3 against 10 hosts, suite of 6 cases", (3, 10), cases=6),
    Design("4 against 4, one 3 % slow, suite of 6 cases", (4, 4), slow=0.03, cases=6),
    Design("3 against 3, repeats 1 %, suite of 6 cases", (3, 3), within=0.01, cases=6),
    Design("3 against 3 hosts, price ratio 3 % below", (3, 3), prices=0.97),
    Design("3 against 3 hosts, price ratio just the ratio", (3, 3), prices=1.0, target=0.001),
)


def draw(design: Design, random: np.random.Generator) -> tuple[list[NDArray[np.float64]], float]:
    """Draw the throughput of every repeat.

    Returns:
        Of both sides, shape (hosts, repeats), and the true ratio (alone: the true mean of side a): of fleets; a side of
        one host is that machine.
    """
    sides, means = [], []
    for number, (count, rate) in enumerate(zip(design.hosts, (RATE * RATIO, RATE), strict=True)):
        hosts = design.between * random.standard_normal(count)
        truth = float(hosts[0]) if count == 1 else 0.0  # one host: its interval describes that machine
        if number == 1:
            chance = design.slow_by_chance
            hosts[random.random(count) < chance if chance else 0] -= design.slow
            truth -= design.slow * (chance or 1 / count)
        ends = random.uniform(-design.drift, design.drift, count)
        drift = ends[:, None] * np.linspace(-0.5, 0.5, design.most)
        repeats = design.within * random.standard_normal((count, design.most))
        sides.append(rate * (1 + hosts[:, None] + drift + repeats))
        means.append(rate * (1 + truth))
    return sides, means[0] / (1.0 if design.alone else means[1])


def rates(design: Design, sides: Sequence[NDArray[np.float64]], repeats: int) -> tuple[FleetRate, FleetRate | None]:
    """Return the rates of both sides, alone: of side a, after the first N repeats of each host."""
    asked = (None, None) if design.prices is None else (design.prices * RATIO, 1.0)
    a, b = (
        FleetRate(
            name,
            CASE,
            Software(),
            {f"{name}{host}": {"run": values[:repeats].tolist()} for host, values in enumerate(side)},
            unit="images",
            prices={} if price is None else {f"{name}{host}": price for host in range(len(side))},
        )
        for name, side, price in zip("ab", sides, asked, strict=True)
    )
    return a, None if design.alone else b


def printed(design: Design, sides: Sequence[NDArray[np.float64]], repeats: int) -> Interval:
    """Return the interval that tables print, of the ratio or of side a alone."""
    a, b = rates(design, sides, repeats)
    found = a.interval if b is None else compare_pair(a, b).interval
    assert found is not None, "two repeats of a host at least"
    return found


@dataclass
class Tally:
    """What became of the draws of a row."""

    held: int = 0
    tables: int = 0
    reached: int = 0
    repeats: int = 0
    sure: int = 0
    wrong: int = 0
    widths: list[float] = field(default_factory=list)
    fixed_widths: list[float] = field(default_factory=list)

    def add(
        self, design: Design, sides: Sequence[NDArray[np.float64]], truth: float, found: Look, repeats: int
    ) -> None:
        """Count a comparison, decided or not, and the repeats it took."""
        assert found.interval is not None, "all repeats gave a number"
        self.held += found.interval.contains(truth)
        self.tables += printed(design, sides, repeats).contains(truth)
        self.reached += found.width <= design.target
        self.widths.append(found.width)
        fixed = printed(design, sides, FIXED_REPEATS)
        self.fixed_widths.append(fixed.half_width / fixed.value)
        self.repeats += repeats
        if found.answer is Answer.SURE and design.prices is not None:
            self.sure += 1
            self.wrong += (found.interval.low > design.prices * RATIO) != (truth > design.prices * RATIO)


def decided(design: Design, draws: int, seed: int = 20261122) -> Tally:
    """Let repeats come in, round by round, until the rule of a run ends them; of as many comparisons as draws."""
    random = np.random.default_rng(seed)
    tally = Tally()
    for _ in range(draws // design.cases):
        spread = None
        for _ in range(design.cases):
            sides, truth = draw(design, random)
            found, taken = answer(design, sides, spread)
            if spread is None and taken > 1:  # the pilot
                spread = spread_of_repeats([side for side in rates(design, sides, 2) if side is not None])
            tally.add(design, sides, truth, found, taken)
    return tally


def answer(design: Design, sides: Sequence[NDArray[np.float64]], spread: float | None) -> tuple[Look, int]:
    """Return what decides a comparison, and after how many repeats; as `orchestrate.deciding.decisions` does.

    Args:
        design: What is asked for.
        sides: Throughputs, shape (hosts, repeats).
        spread: Of the pilot's repeats; None: this is the pilot.
    """
    found, taken = Look(), 0
    while found.answer is None and taken < design.most:
        taken += 1
        found = look(*rates(design, sides, taken), design.target, taken)
        if taken == 1 and found.answer is None and found.interval is not None and spread is not None:
            found = look(*rates(design, sides, taken), design.target, taken, spread)
    return found, taken


def within_bounds(held: float) -> str:
    """Return a mark where a share is outside of what 95 % may be."""
    return " " if LOW <= held <= HIGH else "!"


def print_decided(draws: int, only: str) -> bool:
    """Print a row for each design; return whether all answers cover what they say."""
    good = True
    asked: list[Design] = []
    columns = f"{'held':>9}{'tables':>9}{'minutes':>9}{'width':>8}{'of 3':>8}{'reached':>9}{'sure':>7}{'wrong':>7}"
    print(f"{'--decide':46}{columns}")
    for design in DESIGNS:
        if only in design.name:
            found = decided(design, draws)
            good = print_row(design, found) and good
            if design.prices is None:
                asked.append(replace(design, target=statistics.median(found.fixed_widths)))
    print(f"\n{'--decide, asked for the width of 3 repeats':46}{columns}")
    for design in asked:
        good = print_row(design, decided(design, draws)) and good
    return good


def print_row(design: Design, found: Tally) -> bool:
    """Print what became of the draws of a design; return whether the answers cover what they say.

    A fleet with a slow host may cover more: see `docs/method.md`. One in which it is there by chance may cover less: no
    interval knows of a slow host that was not drawn.
    """
    asked = len(found.widths)
    held, tables = found.held / asked, found.tables / asked
    widths = (statistics.median(values) for values in (found.widths, found.fixed_widths))
    print(
        f"{design.name:46}{held:>7.3f}{within_bounds(held):>2}{tables:>7.3f}{within_bounds(tables):>2}"
        f"{found.repeats / asked / FIXED_REPEATS:>9.2f}"
        + "".join(f"{width:>8.2%}" for width in widths)
        + f"{found.reached / asked:>9.2f}{found.sure / asked:>7.3f}{found.wrong / asked:>7.3f}",
        flush=True,
    )
    return design.slow_by_chance is not None or (held >= LOW and (held <= HIGH or design.slow > 0))


def print_known(draws: int, only: str) -> bool:
    """Print how `--target-ci` does on one host; return whether its intervals cover what they say."""
    good = True
    print(f"\n{'--target-ci 2 %, of 10 repeats':46}{'held':>9}{'minutes':>9}{'width':>8}{'of 3':>8}{'reached':>9}")
    random = np.random.default_rng(20261122)
    for cv in (0.003, 0.005, 0.01, 0.02, 0.03, 0.05):
        name = f"CV between repeats {cv:.1%}"
        if only not in name:
            continue
        held, taken, widths, fixed = 0, 0, [], []
        for _ in range(draws):
            values = (1 + cv * random.standard_normal(10)).tolist()
            ended = next((n for n in range(2, 10) if known(values[:n], 0.02)), 10)
            interval, three = t_interval(values[:ended]), t_interval(values[:FIXED_REPEATS])
            held += interval.contains(1.0)
            taken += ended
            widths.append(interval.half_width / interval.value)
            fixed.append(three.half_width / three.value)
        good = good and LOW <= held / draws <= HIGH
        reached = statistics.fmean(width <= 0.02 for width in widths)
        print(
            f"{name:46}{held / draws:>7.3f}{within_bounds(held / draws):>2}{taken / draws / FIXED_REPEATS:>9.2f}"
            f"{statistics.median(widths):>8.2%}{statistics.median(fixed):>8.2%}{reached:>9.2f}",
            flush=True,
        )
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each design; exit code 1 where an interval covers too little or too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parsed = parser.parse_args(arguments)
    good = print_decided(parsed.draws, parsed.only)
    return 0 if print_known(parsed.draws, parsed.only) and good else 1


if __name__ == "__main__":
    raise SystemExit(main())
