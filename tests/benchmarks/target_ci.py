# ruff: noqa: T201 (a script prints its result)
"""What `--target-ci` saves on a suite, at equal width of the interval, against a fixed 3 × 100 steps.

    python -m orchestrate run --hosts hosts.yml --suite my.yml       (repeats: 5, num_steps: 100, no --target-ci)
    python -m tests.benchmarks.target_ci runs/RUN

Every case was measured in full; here it is looked at twice. *Fixed*: its first three repeats with all their steps give
a throughput, an interval and a duration. *Adaptive*: `--target-ci` is set to the width that fixed got, and the same
repeats are walked through in the same order with the same rules as in a run (`tfbench.measuring.early_stop`,
`orchestrate.deciding.early_end`): steps end early, then repeats. Both see the same noise, so that the difference is the rule's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from pathlib import Path

from orchestrate.deciding.early_end import FEWEST_REPEATS, half_width, whole_seconds
from results.runs.store import RunFolder
from results.schema import Record, Status
from results.schema.progress import STEPS_PER_LINE
from tfbench.measuring.early_stop import enough_for

FIXED_REPEATS = 3
HEADER = (
    f"{'case':44} {'width':>7} {'got':>7} {'repeats':>7} {'steps':>6} {'fixed s':>8} {'adaptive s':>10} {'saved':>6}"
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What measuring a case one way cost, and how closely it is known then.

    Attributes:
        width: Half-width of the 95 % interval over repeats, as a share of the mean.
        seconds: Of all repeats, start and warm-up included.
    """

    width: float
    seconds: float
    repeats: int
    steps: int


def fixed(records: list[Record]) -> Outcome:
    """Take three repeats with all their steps."""
    used = records[:FIXED_REPEATS]
    rates = [record.measurement.samples_per_second for record in used]
    steps = sum(record.measurement.num_steps for record in used)
    return Outcome(half_width(rates), sum(map(whole_seconds, used)), len(used), steps)


def adaptive(records: list[Record], target: float) -> Outcome:
    """Take as many steps, and as many repeats, as `--target-ci` would have."""
    rates: list[float] = []
    seconds, steps = 0.0, 0
    for record in records:
        measured = record.measurement
        enough = enough_for(dataclasses.replace(record.case, target_ci=target))
        taken = next(
            (n for n in range(STEPS_PER_LINE, measured.num_steps, STEPS_PER_LINE) if enough(measured.step_seconds[:n])),
            measured.num_steps,
        )
        timed = sum(measured.step_seconds[:taken])
        rates.append(measured.samples / measured.num_steps * taken / timed)
        seconds += whole_seconds(record) - (sum(measured.step_seconds) - timed)
        steps += taken
        if len(rates) >= FEWEST_REPEATS and half_width(rates) <= target:
            break
    return Outcome(half_width(rates), seconds, len(rates), steps)


def main() -> int:
    """Print a line per case and the whole suite's saving."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run without --target-ci")
    cases: defaultdict[str, list[tuple[int, Record]]] = defaultdict(list)
    for stored in RunFolder.open(parser.parse_args().run).records():
        record = stored.record
        if record is not None and record.status is Status.OK and record.origin is not None:
            cases[f"{record.origin.host} {record.case.name}"].append((record.origin.repeat, record))
    print(HEADER)
    totals = [0.0, 0.0]
    for name, numbered in sorted(cases.items()):
        records = [record for _, record in sorted(numbered, key=lambda pair: pair[0])]
        if len(records) < FIXED_REPEATS:
            raise SystemExit(f"{name}: {len(records)} repeats gave a number, {FIXED_REPEATS} are needed")
        plain = fixed(records)
        early = adaptive(records, plain.width)
        totals[0] += plain.seconds
        totals[1] += early.seconds
        print(
            f"{name:44} {plain.width:7.2%} {early.width:7.2%} {early.repeats:7} {early.steps:6} {plain.seconds:8.1f} "
            f"{early.seconds:10.1f} {1 - early.seconds / plain.seconds:6.1%}"
        )
    saved = 1 - totals[1] / totals[0]
    print(json.dumps({"fixed_seconds": totals[0], "adaptive_seconds": totals[1], "saved": round(saved, 4)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
