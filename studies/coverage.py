# ruff: noqa: T201 (a script prints its result)
"""Measures the coverage of the 95 % intervals of `results` in simulated fleets with known truth.

    python -m studies.coverage --csv docs/validation/intervals.csv     (4,000 draws a row: four minutes on one core)
    python -m studies.coverage --draws 300 --only drivers

Throughputs are drawn with variation between hosts and between repeats; intervals are computed as for tables. `!` marks
coverage below 94 %, `-` no interval. One host has no interval for its fleet: the truth of such a side is that of the
drawn machine.
"""

import argparse
import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from results.compare.comparison import compare_pair, efficiencies, mean_ratio
from results.schema import Case
from results.table.columns import Software
from results.table.fleets import FleetRate

Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

LOW = 0.94
"""Minimum coverage of a 95 % interval; more is acceptable."""

RATIO, EFFICIENCY, GPUS = 1.5, 0.92, 4
"""True ratio of side a over side b, and true scaling efficiency on four GPUs."""

BASE = {f"network-{number}": 100.0 + 60.0 * number for number in range(6)}
"""Samples per second of side b by case."""


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw values of standard deviation 1."""
    return random.standard_normal(shape)


def student(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw values of standard deviation 1 with heavy tails: one in 100 is beyond 4.5 / √3."""
    return random.standard_t(3, shape) / math.sqrt(3.0)


def laplace(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw values of standard deviation 1 with a sharp peak and long tails."""
    return random.laplace(size=shape) / math.sqrt(2.0)


@dataclass(frozen=True)
class Design:
    """A simulated comparison: one row.

    Attributes:
        hosts: Number of hosts of each side.
        repeats: Repeats of each host, cycled.
        between: Standard deviation between hosts of each side, as a share of the mean.
        within: Likewise between the repeats of a host.
        rounds: Likewise between the rounds of a host; equal for all cases of a round.
        drivers: Relative difference between two drivers; each host has either at random.
        lacks: Side, host and case that were not measured.
        itself: Whether side b is the same fleet at another time.
        alone: Repeats of side a's only machine; 0: as `repeats`.
        runs: Number of runs, each with all repeats.
        between_runs: Standard deviation between the runs of a host, as a share of the mean.
    """

    name: str
    hosts: tuple[int, int] = (3, 3)
    repeats: tuple[int, ...] = (3,)
    between: tuple[float, float] = (0.005, 0.005)
    within: float = 0.003
    rounds: float = 0.0
    noise: Noise = normal
    drivers: float = 0.0
    lacks: frozenset[tuple[str, int, int]] = field(default_factory=frozenset)
    itself: bool = False
    alone: int = 0
    runs: int = 1
    between_runs: float = 0.0


DESIGNS = (
    Design("1 × 3, these machines", (1, 1)),
    Design("1 × 3, these machines, rounds differ by 1 %", (1, 1), rounds=0.01),
    Design("1 × 3, these machines, rounds differ by 2 %", (1, 1), rounds=0.02),
    Design("1 × 5, these machines, rounds differ by 2 %", (1, 1), repeats=(5,), rounds=0.02),
    Design("1 × 3 against 1 × 9, rounds differ by 2 %", (1, 1), repeats=(3, 9), rounds=0.02),
    Design("2 × 3", (2, 2)),
    Design("3 × 3, rounds differ by 2 %", rounds=0.02),
    Design("3 × 3", (3, 3)),
    Design("5 × 3", (5, 5)),
    Design("2 against 3 hosts", (2, 3)),
    Design("3 against 10 hosts", (3, 10)),
    Design("3 × 3, side a spreads twice as much", between=(0.01, 0.005)),
    Design("3 × 3, side a spreads five times as much", between=(0.025, 0.005)),
    Design("5 × 3, side a spreads five times as much", (5, 5), between=(0.025, 0.005)),
    Design("2 × 3, side a spreads five times as much", (2, 2), between=(0.025, 0.005)),
    Design("2 against 3 hosts, the 2 spread five times as much", (2, 3), between=(0.025, 0.005)),
    Design("2 against 3 hosts, the 3 spread three times as much", (2, 3), between=(0.005, 0.015)),
    Design("2 against 5 hosts, the 2 spread five times as much", (2, 5), between=(0.025, 0.005)),
    Design("2 against 5 hosts, the 5 spread three times as much", (2, 5), between=(0.005, 0.015)),
    Design("2 against 10 hosts", (2, 10)),
    Design("2 against 10 hosts, the 2 spread five times as much", (2, 10), between=(0.025, 0.005)),
    Design("2 against 10 hosts, the 10 spread five times as much", (2, 10), between=(0.005, 0.025)),
    Design("3 × 3, one host lacks one case", lacks=frozenset({("a", 1, 2)})),
    Design(
        "3 × 3, two hosts lack two cases each", lacks=frozenset({("a", 1, 2), ("a", 1, 3), ("b", 0, 0), ("b", 0, 1)})
    ),
    Design("the same 3 hosts against their baseline", itself=True),
    Design("likewise, the baseline lacks a host", itself=True, lacks=frozenset(("b", 2, case) for case in range(6))),
    Design("likewise, one host lacks one case", itself=True, lacks=frozenset({("a", 1, 2)})),
    Design("the same host against its baseline", (1, 1), itself=True),
    Design("2 × 3, mixed drivers", (2, 2), drivers=0.005),
    Design("3 × 3, mixed drivers", (3, 3), drivers=0.005),
    Design("5 × 3, mixed drivers", (5, 5), drivers=0.005),
    Design("3 hosts of 2, 3 and 9 repeats", repeats=(2, 3, 9)),
    Design("3 hosts of 2, 2 and 9 noisy repeats", repeats=(2, 2, 9), within=0.01),
    Design("1 × 3 against 1 × 9, these machines", (1, 1), repeats=(3, 9)),
    Design("3 × 3, heavy tails (Student, 3 degrees)", noise=student),
    Design("5 × 3, heavy tails (Student, 3 degrees)", (5, 5), noise=student),
    Design("3 × 3, heavy tails (Laplace)", noise=laplace),
    Design("one machine of 3 against 2 hosts", (1, 2)),
    Design("one machine of 3 against 2 hosts that spread by 2 %", (1, 2), between=(0.0, 0.02)),
    Design("one machine of 9 against 2 hosts that spread by 0.2 %", (1, 2), between=(0.0, 0.002), alone=9),
    Design("one machine of 9 against 2 hosts", (1, 2), alone=9),
    Design("one machine of 9 against 2 hosts that spread by 2 %", (1, 2), between=(0.0, 0.02), alone=9),
    Design("one machine of 9 against 2 hosts, repeats vary by 1 %", (1, 2), within=0.01, alone=9),
    Design("one machine of 5 against 2 hosts that spread by 1 %", (1, 2), between=(0.0, 0.01), alone=5),
    Design("one machine of 2 against 2 hosts of 2", (1, 2), repeats=(2,)),
    Design("one machine of 3 against 3 hosts that spread by 2 %", (1, 3), between=(0.0, 0.02)),
    Design("one machine of 9 against 3 hosts", (1, 3), alone=9),
    Design("one machine of 3 against 10 hosts, repeats vary by 2 %", (1, 10), within=0.02),
    Design("1 × 3 in 2 equal runs, these machines", (1, 1), runs=2),
    Design("1 × 3 in 3 equal runs, these machines", (1, 1), runs=3),
    Design("1 × 3 in 2 runs that differ by 0.1 %", (1, 1), runs=2, between_runs=0.001),
    Design("1 × 5, these machines, heavy tails", (1, 1), repeats=(5,), noise=student),
)


@dataclass(frozen=True)
class Truth:
    """True values of the fleets, or of the drawn machines."""

    mean: float
    ratio: float


def draw(
    design: Design, random: np.random.Generator
) -> tuple[list[FleetRate], list[FleetRate], list[FleetRate], Truth]:
    """Draw the rates of both sides.

    Returns:
        Rates of both sides on one GPU, of side a's first case on one and on four GPUs, and the truth.
    """
    effects = [_hosts(design, random, side) for side in (0, 1)]
    rounds = [_rounds(design, random, side) for side in (0, 1)]
    if design.itself:
        effects[1] = effects[0]
    a, b = (
        [_rate(design, random, side, number, rate, effects[side == "b"], rounds[side == "b"])
         for number, rate in enumerate(BASE.values())]
        for side in "ab"
    )  # fmt: skip
    four = _rate(design, random, "a", 0, GPUS * EFFICIENCY * BASE["network-0"], effects[0], rounds[0], gpus=GPUS)
    own = [1.0 + float(effect[0]) if len(effect) == 1 else 1.0 for effect in effects]
    ratio = RATIO * own[0] / own[1]
    kept_a, kept_b = ([rate for rate in side if rate.rates] for side in (a, b))
    return kept_a, kept_b, [kept_a[0], four], Truth(RATIO * BASE["network-0"] * own[0], ratio)


def _hosts(design: Design, random: np.random.Generator, side: int) -> NDArray[np.float64]:
    """Draw the effect of each host, as a share of the fleet's mean."""
    count = design.hosts[side]
    driver = design.drivers * (random.integers(0, 2, count) - 0.5)
    return design.between[side] * design.noise(random, (count,)) + driver


def _rounds(design: Design, random: np.random.Generator, side: int) -> list[NDArray[np.float64]]:
    """Draw the effect of each run and round of each host: an array per host, runs × rounds."""
    hosts = design.hosts[side]
    counts = [design.repeats[(host + side * (hosts == 1)) % len(design.repeats)] for host in range(hosts)]
    if side == 0 and design.alone:
        counts = [design.alone]
    found = [design.rounds * random.standard_normal((design.runs, count)) for count in counts]
    if design.between_runs:
        found = [of + design.between_runs * random.standard_normal((design.runs, 1)) for of in found]
    return found


def _rate(
    design: Design,
    random: np.random.Generator,
    side: str,
    number: int,
    rate: float,
    effects: NDArray[np.float64],
    rounds: Sequence[NDArray[np.float64]],
    gpus: int = 1,
) -> FleetRate:
    fleet = "a" if design.itself else side
    mean = rate * (RATIO if side == "a" else 1.0)
    rates = {}
    for host, effect in enumerate(effects):
        values = mean * (1 + effect + rounds[host] + design.within * design.noise(random, rounds[host].shape))
        if (side, host, number) not in design.lacks:
            rates[f"{fleet}{host}"] = {f"run-{run}": of_run for run, of_run in enumerate(values.tolist())}
    case = Case(model=f"network-{number}", num_gpus=gpus)
    numbers = {
        host: {run: [float(number) for number in range(1, len(values) + 1)] for run, values in runs.items()}
        for host, runs in rates.items()
    }
    return FleetRate(fleet, case, Software(), rates, numbers, unit="images")


COLUMNS = ("fleet mean", "ratio", "geometric mean of 6", "scaling")


def covered(design: Design, draws: int, seed: int = 20261122) -> dict[str, list[bool]]:
    """Return by kind of interval whether each one covers the truth."""
    random = np.random.default_rng(seed)
    held: dict[str, list[bool]] = {name: [] for name in COLUMNS}
    for _ in range(draws):
        a, b, scaled, truth = draw(design, random)
        others = {rate.case: rate for rate in b}
        found = [compare_pair(rate, others[rate.case]) for rate in a if rate.case in others]
        intervals = [
            (a[0].interval, truth.mean),
            (found[0].ratio, truth.ratio),
            (mean_ratio(found), truth.ratio),
            *((efficiency.ratio, EFFICIENCY) for efficiency in efficiencies(scaled)),
        ]
        for name, (interval, value) in zip(COLUMNS, intervals, strict=False):
            held[name] += [interval.contains(value)] if interval and interval.known else []
    return held


def _text(held: Sequence[bool]) -> str:
    """Format the coverage, marked if it is too low."""
    share = sum(held) / max(1, len(held))
    return f"{share:.3f}{'' if share >= LOW else ' !'}" if held else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each design; exit code 1 if coverage is too low."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--csv", type=Path, help="also write the coverage to this file")
    parsed = parser.parse_args(arguments)
    good = True
    rows = [("hosts × repeats", *COLUMNS)]
    print(f"{'hosts × repeats':54}" + "".join(f"{name:>21}" for name in COLUMNS))
    for design in DESIGNS:
        if parsed.only in design.name:
            counts = covered(design, parsed.draws)
            rows.append((design.name, *(_text(counts[name]) for name in COLUMNS)))
            good = good and not any(text.endswith("!") for text in rows[-1])
            print(f"{design.name:54}" + "".join(f"{share:>21}" for share in rows[-1][1:]), flush=True)
    if parsed.csv:
        with parsed.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
