"""The Python API: tables as DataFrames, comparisons, recommendations and the report; see docs/python.md."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from results.compare.comparison import compare, fleets_of
from results.compare.summary import COMPARISON_COLUMNS, comparison_rows, ends
from results.errors import BadQuestion, UnknownFleet
from results.errors import UserError as UserError
from results.recommend.answer import advise
from results.recommend.options import MODES, Advice, RentalOption, listed, read_questions
from results.runs.store import latest_run, report_place, stored_records, write_file
from results.table.columns import NUMBER, SOFTWARE_COLUMNS, TEXT, WHOLE, Value
from results.table.fleets import FleetRate, fleet_rates
from results.table.merge import Merged, merge_records

Name = str | os.PathLike[str]

CHOICES: dict[str, tuple[str, Callable[[Advice, RentalOption], Value]]] = {
    "network": (TEXT, lambda advice, _: advice.question.network),
    "precision": (TEXT, lambda advice, _: advice.question.precision),
    "mode": (TEXT, lambda advice, _: advice.mode),
    "setting": (TEXT, lambda advice, _: advice.setting or None),
    "basis": (TEXT, lambda _, option: str(option.basis)),
    "subject": (TEXT, lambda _, option: option.subject),
    "gpu": (TEXT, lambda _, option: option.gpu),
    "num_gpus": (WHOLE, lambda _, option: option.count),
    "samples_per_second": (NUMBER, lambda _, option: option.samples_per_second or None),
    "ci95_low": (NUMBER, lambda _, option: ends(option.interval)[0]),
    "ci95_high": (NUMBER, lambda _, option: ends(option.interval)[1]),
    "from": (TEXT, lambda _, option: option.origin or None),
    "usd_per_hour_low": (NUMBER, lambda _, option: option.usd[0] if option.usd else None),
    "usd_per_hour_high": (NUMBER, lambda _, option: option.usd[1] if option.usd else None),
    "samples_per_usd": (NUMBER, lambda _, option: max(option.samples_per_usd, default=None)),
    "hours": (NUMBER, lambda _, option: option.hours),
    "wins_below": (NUMBER, lambda _, option: option.wins_below),
    "winner": (TEXT, lambda advice, option: "yes" if advice.winner and option.name == advice.winner.name else None),
    "notes": (TEXT, lambda _, option: "; ".join(filter(None, (option.excluded, *option.notes))) or None),
}
"""Columns of `Recommendation.choices`: pandas type, and function that reads the value."""


@dataclass(frozen=True)
class Recommendation:
    """Which GPU to rent; `print` it to read the answer.

    Attributes:
        answer: One sentence per question and setting, then cases that are left out and prices that are not used.
        choices: One row per question, setting, GPU and count, best first: `basis` (`measured`, `measured by
            this project`, `published`, `predicted` or `none`), `subject` (the fleet, or the GPU for figures of
            others), `samples_per_second` over all GPUs with `ci95_low` and `ci95_high` (for a prediction its 90 %
            interval), `from` (its source), lowest and highest price of all GPUs per hour, `samples_per_usd` at the
            lowest price, `hours` for the job, `wins_below` (USD per hour of all GPUs below which it gives more samples
            per dollar than any other GPU), `winner` (`yes` if prices decide), and `notes`, including why a row is not
            ranked.
    """

    answer: tuple[str, ...]
    choices: pd.DataFrame = field(repr=False, compare=False)

    def __str__(self) -> str:
        """Return the answer, one sentence per line."""
        return "\n".join(self.answer)


@dataclass(frozen=True)
class Runs:
    """Records of one or more runs; made by `read_runs`.

    Attributes:
        sources: The run folders, run ids or record files that were read.
        table: One row per fleet, host, GPU, case and software, with means and intervals, as in `table/columns.csv`.
        repeats: One row per record, including failures: `fleet`, `host`, `run`, `repeat`, `started_at` (UTC), `status`,
            `cause`, the case's columns, `unit`, and the measured figures: `samples_per_second`, `step_p50_seconds`, …
            Names and units are those of that file; a cell is empty (NA) if nothing was measured, or not to be
            trusted: a suspect record is `invalid`, and `cause` says why.
        fleets: Names of the fleets that were measured.
        problems: Notes on the tables, including what is missing from them, one line each.
    """

    sources: tuple[str, ...]
    table: pd.DataFrame = field(repr=False, compare=False)
    repeats: pd.DataFrame = field(repr=False, compare=False)
    fleets: list[str]
    problems: list[str]
    _merged: Merged = field(repr=False, compare=False)

    def compare(self, a: str, b: str, *, baseline: Runs | None = None, by: str | Sequence[str] = ()) -> pd.DataFrame:
        """Compare the throughput of two fleets, case by case.

        Args:
            a: A fleet of these runs.
            b: Another fleet; with a baseline it may be the same one.
            baseline: Runs that contain side b; None: these runs.
            by: Software columns in which a fleet may have several values, e.g. `["keras"]`; equal values are paired.

        Returns:
            One row per case that both sides tried: `case` (its name among these), the case's columns,
            `a_samples_per_second`, `b_samples_per_second`, `ratio` (a over b; above 1: a is faster) with its 95 %
            interval `ci95_low` to `ci95_high`, `result` in words, `reason` if the ratio does not explain it
            (a case measured with several software versions is `not comparable`: pass `by`), `differs` (software that
            may be the cause), `warnings` of both sides, and `ratio_per_usd` with its interval: samples
            per dollar of a over those of b, empty without prices.

        Raises:
            UserError: a fleet is not in the runs (`UnknownFleet`), or a column is unknown (`BadQuestion`).
        """
        by = listed(by)
        unknown = [name for name in by if name not in SOFTWARE_COLUMNS]
        if unknown:
            raise BadQuestion(f"by: must be among {', '.join(SOFTWARE_COLUMNS)}. Received: {', '.join(unknown)}")
        left, right = self._side(a, by), (baseline or self)._side(b, by)
        return _frame(comparison_rows(compare(left, right, by=by)), COMPARISON_COLUMNS)

    def _side(self, fleet: str, by: Sequence[str]) -> list[FleetRate]:
        if fleet not in self.fleets:
            raise UnknownFleet(f"{fleet}: no such fleet. These runs hold: {', '.join(self.fleets) or 'none'}.")
        return [rate for rate in fleet_rates(self._merged.rows, by) if rate.fleet == fleet]

    def recommend(
        self,
        model: str | Sequence[str] = "resnet50",
        *,
        precision: str | Sequence[str] = "fp16",
        num_gpus: int | Sequence[int] = 1,
        mode: str | None = None,
        gpus: str | Sequence[str] = (),
        prices: Mapping[str, float] | None = None,
        price_files: Sequence[Name] = (),
        **limits: float | None,
    ) -> Recommendation:
        """Recommend a GPU to rent, as `python -m results recommend` does.

        Args:
            model: Network, or several; each has its own answer.
            precision: `fp32`, `tf32`, `fp16` or `bf16`, one or several.
            num_gpus: GPUs of a job, one number or several.
            mode: `train` or `infer`; None: each that was measured.
            gpus: GPUs to choose from; empty: all with a figure or a price.
            prices: USD per GPU-hour by GPU or fleet; override those of the records.
            price_files: Files of prices, as CSV or JSON, for GPUs without one.
            limits: `budget`: maximum USD per hour for all GPUs together; `hours`: maximum hours for the `samples` of
                the job (default: 1e6); `memory`: minimum GiB per GPU.

        Raises:
            UserError: an argument cannot be understood (`BadQuestion`).
        """
        if mode not in (None, *MODES):
            raise BadQuestion(f"mode: must be None or one of {', '.join(MODES)}. Received: {mode!r}")
        models = [model] if isinstance(model, str) else model
        measured = [rate.case.model for rate in self._merged.rates]
        questions = read_questions(
            model=models, precision=precision, num_gpus=num_gpus, mode=mode, gpus=gpus, measured=measured, **limits
        )
        advices, remarks = advise(questions, self._merged.rates, _typed(prices), [Path(name) for name in price_files])
        lines = [*(advice.sentence for advice in advices), *remarks]
        options = ((advice, option) for advice in advices for option in advice.options)
        rows = [{name: read(*option) for name, (_, read) in CHOICES.items()} for option in options]
        types = {name: dtype for name, (dtype, _) in CHOICES.items()}
        return Recommendation(tuple(lines), _frame(rows, types))

    def report(
        self, path: Name, *, prices: Mapping[str, float] | None = None, price_files: Sequence[Name] = ()
    ) -> Path:
        """Write the report: one HTML page that works offline.

        Reads the records again, for the time breakdown. A price that is not used is a warning.

        Args:
            path: The file; an existing file is replaced.
            prices: USD per GPU-hour by GPU or fleet; override those of the records.
            price_files: Files of prices, as CSV or JSON, for fleets without one.

        Returns:
            The path of the file.

        Raises:
            UserError: a price cannot be understood (`BadQuestion`), a run no longer exists (`NotARun`), or the file
                cannot be written.
            OSError: the disk is full.
        """
        from results.report.page import make_report

        file, (title, _) = Path(path), report_place(self.sources)
        stored = list(stored_records(self.sources))
        made = make_report(stored, title, _typed(prices), [Path(name) for name in price_files])
        for line in made.remarks:
            warnings.warn(line, stacklevel=2)
        write_file(file, made.page)
        return file


def read_runs(*sources: Name) -> Runs:
    """Read the records of runs.

    Args:
        sources: Run folders, run ids under TFBENCH_RUNS_DIR (default: runs) or record files; none: the latest run.

    Returns:
        The runs; `problems` lists files that are not records.

    Raises:
        UserError: a source is none of these (`NotARun`).
    """
    names = tuple(os.fspath(source) for source in sources) or (str(latest_run()),)
    merged = merge_records(stored_records(names))
    return Runs(names, merged.table, merged.all_repeats, fleets_of(merged.rates), merged.problems, merged)


def _frame(rows: Sequence[Mapping[str, Value]], columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns), dtype=object).astype(dict(columns))


def _typed(prices: Mapping[str, float] | None) -> list[str]:
    return [f"{name}={usd}" for name, usd in (prices or {}).items()]
