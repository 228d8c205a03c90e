# ruff: noqa: T201 (a script prints its result)
"""Measures savings and coverage of `--stop-early` in simulated fleets with known truth.

    python -m studies.stop_early                 (2,000 draws a row: a minute or two on one core)
    python -m studies.stop_early --draws 300 --only "1 against 1"

Two fleets are drawn: hosts vary by 0.5 %, repeats of a host as stated in the row, and each host drifts by up to 0.3 %
over the run. Up to 3 rounds of repeats, as in the shipped suites, run until `results.compare.sequential` stops them.
`held`: coverage of the interval; `time`: share of the planned repeats; `width`: median half-width of the interval.
`of 3`: likewise for the usual 95 % interval of all three repeats.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from results.compare.comparison import compare_pair
from results.compare.sequential import InterimAnalysis, analyse
from results.schema import Case
from results.stats import Interval
from results.table.columns import Software
from results.table.fleets import FleetRate

RATIO, RATE = 1.3, 400.0
PLANNED = 3
LEAST_HELD = 0.93
CASE = Case(model="resnet50")
BETWEEN = 0.005
DRIFT = 0.003


@dataclass(frozen=True)
class Design:
    """Two simulated fleets.

    Attributes:
        hosts: Number of hosts of each side.
        within: Standard deviation between repeats of a host, as a share.
        target: Requested half-width.
        slow: Share by which the first host of side b is slower than the others.
    """

    hosts: int
    within: float
    target: float = 0.02
    slow: float = 0.0

    @property
    def name(self) -> str:
        """The row's title."""
        name = f"{self.hosts} against {self.hosts}, repeats vary by {self.within:.1%}, to {self.target:.0%}"
        return f"{name}, one host 3 % slow" if self.slow else name


DESIGNS = (
    *(Design(hosts, within) for hosts in (1, 2, 4) for within in (0.003, 0.01, 0.02)),
    Design(10, 0.003, target=0.01),
    Design(4, 0.003, slow=0.03),
)


def draw(design: Design, random: np.random.Generator) -> tuple[list[NDArray[np.float64]], float]:
    """Draw the throughput of each repeat.

    Returns:
        Throughputs of both sides, shape (hosts, repeats), and the true ratio of fleets, or of machines for one host.
    """
    sides, means = [], []
    for rate, slow in ((RATE * RATIO, 0.0), (RATE, design.slow)):
        hosts = BETWEEN * random.standard_normal(design.hosts)
        truth = (float(hosts[0]) if design.hosts == 1 else 0.0) - slow / design.hosts
        hosts[0] -= slow
        ends = random.uniform(-DRIFT, DRIFT, design.hosts)
        drift = ends[:, None] * np.linspace(-0.5, 0.5, PLANNED)
        noise = design.within * random.standard_normal((design.hosts, PLANNED))
        sides.append(rate * (1 + hosts[:, None] + drift + noise))
        means.append(rate * (1 + truth))
    return sides, means[0] / means[1]


def rates(sides: Sequence[NDArray[np.float64]], repeats: int) -> tuple[FleetRate, FleetRate]:
    """Return the rates of both sides after the first repeats of each host."""
    a, b = (
        FleetRate(
            name,
            CASE,
            Software(),
            {f"{name}{host}": {"run": values[:repeats].tolist()} for host, values in enumerate(side)},
            unit="images",
        )
        for name, side in zip("ab", sides, strict=True)
    )
    return a, b


@dataclass
class Tally:
    """Coverage and widths of intervals."""

    held: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, interval: Interval, truth: float) -> None:
        """Add an interval."""
        self.held.append(interval.contains(truth))
        self.widths.append(interval.half_width / interval.value)


def stopped_early(design: Design, draws: int, seed: int = 20261124) -> tuple[Tally, Tally, float]:
    """Simulate rounds of repeats until the rule stops them or all planned ones have run.

    Returns:
        Tallies of the answers and of all three repeats, and the share of repeats that ran.
    """
    random, early, fixed, repeats = np.random.default_rng(seed), Tally(), Tally(), 0
    for _ in range(draws):
        sides, truth = draw(design, random)
        found, taken = InterimAnalysis(), 0
        while not found.text and taken < PLANNED:
            taken += 1
            found = analyse(*rates(sides, taken), design.target, taken)
        whole = compare_pair(*rates(sides, PLANNED)).ratio
        assert found.interval is not None and whole is not None, "all repeats gave a number"
        early.add(found.interval if found.text else whole, truth)  # undecided: the tables' interval stands
        fixed.add(whole, truth)
        repeats += taken
    return early, fixed, repeats / draws / PLANNED


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each design; exit code 1 if coverage is too low."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parsed = parser.parse_args(arguments)
    print(f"{'hosts':62}{'held':>8}{'of 3':>8}{'time':>8}{'width':>8}{'of 3':>8}")
    good = True
    for design in (design for design in DESIGNS if parsed.only in design.name):
        early, fixed, time = stopped_early(design, parsed.draws)
        held = [statistics.fmean(tally.held) for tally in (early, fixed)]
        width = [statistics.median(tally.widths) for tally in (early, fixed)]
        good = good and held[0] >= min(LEAST_HELD, held[1])
        print(f"{design.name:62}{held[0]:>8.3f}{held[1]:>8.3f}{time:>8.2f}{width[0]:>8.2%}{width[1]:>8.2%}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
