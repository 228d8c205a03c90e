# ruff: noqa: T201 (a script prints its result)
"""What `--decide` and `--target-ci` save on a suite, at equal width of the interval, against a fixed 3 × 100 steps.

    python -m orchestrate run --hosts hosts.yml --suite my.yml --repeats 10       (no --target-ci, no --decide)
    python -m tests.benchmarks.target_ci runs/RUN

Every case was measured in full; here it is looked at again. *Fixed*: its first three repeats with all their steps give
an interval and a duration. Then the width that fixed got is asked for, and the same repeats are walked through in the same
order with the same rules as in a run: `--decide` (`orchestrate.deciding.decisions`) on every pair of fleets, and on a
case that one fleet alone has; `--target-ci` (`tfbench.measuring.early_stop`, `orchestrate.deciding.early_end`) on every host.
All see the same noise, so that the difference is the rule's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrate.deciding.decisions import Decisions, Question, Side
from orchestrate.deciding.early_end import known as known_closely
from orchestrate.deciding.early_end import whole_seconds
from orchestrate.planning.codec import plan_from_json
from orchestrate.planning.plan import Job, Plan
from results.compare.pairs import compare_pair
from results.runs.store import RunFolder
from results.schema import Record, Status
from results.schema.progress import STEPS_PER_LINE
from results.stats import Interval, t_interval
from tfbench.measuring.early_stop import enough_for

FIXED_REPEATS = 3
HEADER = f"{'':60} {'asked':>7} {'got':>7} {'repeats':>7} {'fixed s':>8} {'took s':>8} {'share':>6}"

Measured = Mapping[str, Record]
"""What gave a number, by the id of its repeat."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What measuring one way cost, and how closely the result is known then.

    Attributes:
        width: Half-width of the usual 95 % interval, as a share of its value.
        seconds: Of all repeats, start and warm-up included.
        repeats: Of each host.
    """

    width: float
    seconds: float
    repeats: int


def relative(interval: Interval | None) -> float:
    """Return the half-width as a share of the value; infinite without an interval."""
    return float("inf") if interval is None else interval.half_width / interval.value


def decided(plan: Plan, question: Question, measured: Measured) -> tuple[Outcome, Outcome]:
    """Measure a comparison by three repeats of each host, and by `--decide` with the width that these gave."""
    jobs = [job for job in plan.jobs if Side.of(job) in question.sides]
    fixed = _after(plan, jobs, question, measured, FIXED_REPEATS)
    rule = Decisions(with_only(plan, jobs), fixed.width)
    (asked,) = rule.questions
    for job in sorted(jobs, key=lambda job: job.origin.repeat):
        rule.add(job, measured[job.id])
    taken = asked.repeats if asked.decided else max(job.origin.repeat for job in jobs)
    return fixed, _after(plan, jobs, question, measured, taken)


def with_only(plan: Plan, jobs: Iterable[Job]) -> Plan:
    """Return a plan with some of its repeats, none of several hosts."""
    wanted = {job.id for job in jobs}
    hosts = (dataclasses.replace(host, jobs=tuple(job for job in host.jobs if job.id in wanted)) for host in plan.hosts)
    return dataclasses.replace(plan, hosts=tuple(hosts), gangs=())


def _after(plan: Plan, jobs: Sequence[Job], question: Question, measured: Measured, repeats: int) -> Outcome:
    """Return the usual interval after the first N repeats of each host, and what these cost."""
    first = [job for job in jobs if job.origin.repeat <= repeats]
    seen = Decisions(with_only(plan, first), 0.0)
    for job in first:
        seen.add(job, measured[job.id])
    sides = seen.rates(question, repeats)
    if len(sides) > 1:
        interval = compare_pair(*sides).interval
    else:
        interval = sides[0].estimate.interval() if sides[0].estimate else None
    return Outcome(relative(interval), sum(whole_seconds(measured[job.id]) for job in first), repeats)


def known(records: Sequence[Record]) -> tuple[Outcome, Outcome]:
    """Measure a case on a host by three repeats, and by `--target-ci` with the width that these gave."""
    three = records[:FIXED_REPEATS]
    width = relative(t_interval([record.measurement.samples_per_second for record in three if record.measurement]))
    rates: list[float] = []
    seconds = 0.0
    for record in records:
        if (measured := record.measurement) is None:
            continue
        enough = enough_for(dataclasses.replace(record.case, target_ci=width))
        taken = next(
            (n for n in range(STEPS_PER_LINE, measured.num_steps, STEPS_PER_LINE) if enough(measured.step_seconds[:n])),
            measured.num_steps,
        )
        timed = sum(measured.step_seconds[:taken])
        rates.append(measured.samples / measured.num_steps * taken / timed)
        seconds += whole_seconds(record) - (sum(measured.step_seconds) - timed)
        if known_closely(rates, width):
            break
    fixed = Outcome(width, sum(map(whole_seconds, three)), FIXED_REPEATS)
    return fixed, Outcome(relative(t_interval(rates)), seconds, len(rates))


def show(title: str, rows: Sequence[tuple[str, Outcome, Outcome]]) -> None:
    """Print a line for each comparison or case, and what all took together."""
    print(f"{title}\n{HEADER}")
    for name, fixed, early in rows:
        print(
            f"{name:60} {fixed.width:7.2%} {early.width:7.2%} {early.repeats:7} {fixed.seconds:8.1f} {early.seconds:8.1f} "
            f"{early.seconds / fixed.seconds:6.2f}"
        )
    sums = [sum(outcome.seconds for outcome in column) for column in list(zip(*rows, strict=True))[1:]]
    print(json.dumps({"fixed_seconds": sums[0], "took_seconds": sums[1], "share": round(sums[1] / sums[0], 3)}) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables of a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run of at least 3 repeats without --target-ci and --decide")
    folder = RunFolder.open(parser.parse_args(arguments).run)
    plan = plan_from_json(folder.plan_path.read_bytes())
    measured = {
        stored.path.stem: stored.record
        for stored in folder.records()
        if stored.record is not None and stored.record.status is Status.OK
    }
    cells: defaultdict[str, list[Job]] = defaultdict(list)
    for job in (job for host in plan.hosts for job in host.jobs):
        cells[f"{job.origin.fleet}.{job.origin.host} {job.case.name}"].append(job)
    whole = {name: jobs for name, jobs in cells.items() if all(job.id in measured for job in jobs)}
    for name in cells.keys() - whole.keys():
        print(f"left out, because a repeat gave no number: {name}")
    if min((len(jobs) for jobs in whole.values()), default=0) < FIXED_REPEATS:
        raise SystemExit(f"{folder.path}: every case needs {FIXED_REPEATS} repeats that gave a number")
    plan = with_only(plan, [job for jobs in whole.values() for job in jobs])
    questions = Decisions(plan, 0.0).questions
    names = [question.text.partition(": not decided")[0] for question in questions]
    show("--decide", [(name, *decided(plan, each, measured)) for name, each in zip(names, questions, strict=True)])
    in_order = {name: sorted(jobs, key=lambda job: job.origin.repeat) for name, jobs in whole.items()}
    show("--target-ci", [(name, *known([measured[job.id] for job in jobs])) for name, jobs in in_order.items()])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
