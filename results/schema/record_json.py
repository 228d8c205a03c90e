"""Writes records as JSON and finds contradictions in them.

Standard library only, because this file also runs in every container. `results.runs.reading` parses and checks
records that come from hosts.
"""

from __future__ import annotations

import json
import math

from results.schema import DEVICE_MODEL, Case, DeviceResult, Measurement, Record, Status
from results.schema.bounds import MAX_LIST_LENGTH, MOST_SAMPLES

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Larger records are rejected unread; 100,000 step times take about 2 MB."""


class RecordError(ValueError):
    """A text is not a record.

    Attributes:
        problems: One line per mistake: where, what was received, what was expected.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class NewerRecord(RecordError):
    """A record has a newer version than this tfbench reads."""


def to_json(record: Record) -> str:
    """Serialise a record to one line of JSON, keys in the order of the schema.

    Raises:
        ValueError: A number is not finite, which JSON cannot represent.
    """
    return json.dumps(record, default=vars, allow_nan=False, ensure_ascii=False) + "\n"


def contradictions(record: Record) -> list[str]:
    """List contradictions in a well-formed record, such as a number without a passed check."""
    problems = []
    if record.status is Status.OK:
        measured = record.device_results if record.case.model == DEVICE_MODEL else record.measurement
        if not measured or record.environment is None or record.validity is None:
            problems.append("status is ok, but measurement, environment or validity is missing")
        elif record.simulated:
            problems.append("status is ok, but its GPUs are simulated")
        elif not record.validity.valid or any(check.passed is False for check in record.validity.checks):
            problems.append("status is ok, but a validity check failed")
        elif not any(check.passed for check in record.validity.checks):
            problems.append("status is ok, but no validity check was made")
    elif not record.cause:
        problems.append(f"status is {record.status}, but cause is empty")
    if record.case.global_batch > MOST_SAMPLES:
        problems.append(f"case: the global batch is {record.case.global_batch}, which is too large for any machine")
    if record.measurement is not None:
        problems.extend(_measurement_contradictions(record.case, record.measurement))
    for index, result in enumerate(record.device_results):
        problems.extend(f"device_results[{index}]: {problem}" for problem in _result_contradictions(result))
    return problems


def _result_contradictions(result: DeviceResult) -> list[str]:
    """Check that a device's figure equals amount / seconds, or is missing with a reason."""
    if result.value is None:
        return [] if result.reason else ["has neither a value nor a reason"]
    if result.amount is None or result.seconds is None or min(result.amount, result.seconds, result.value) <= 0:
        return ["amount, seconds and value must be positive"]
    if not math.isclose(result.value, result.amount / result.seconds, rel_tol=1e-6):
        return [f"value is {result.value}, but amount / seconds is {result.amount / result.seconds}"]
    return []


def _measurement_contradictions(case: Case, measurement: Measurement) -> list[str]:
    """Check that derived figures follow from the counted ones."""
    problems = []
    if measurement.seconds <= 0 or measurement.samples <= 0:
        return ["measurement: samples and seconds must be positive"]
    rate = measurement.samples / measurement.seconds
    if not math.isclose(measurement.samples_per_second, rate, rel_tol=1e-6):
        problems.append(
            f"measurement.samples_per_second is {measurement.samples_per_second}, but samples / seconds is {rate}"
        )
    tokens = (measurement.sequence_length or 1) if measurement.unit == "tokens" else 1
    if measurement.samples != measurement.global_batch * measurement.num_steps * tokens:
        problems.append("measurement.samples is not global_batch × num_steps (× sequence_length for tokens)")
    if measurement.global_batch != measurement.batch_per_gpu * measurement.replicas * case.accumulate:
        problems.append("measurement.global_batch is not batch_per_gpu × replicas × accumulate")
    if (measurement.replicas, measurement.batch_per_gpu) != (case.replicas, case.batch_per_gpu):
        problems.append("measurement: replicas or batch_per_gpu differ from the case's")
    most = case.num_steps if case.min_seconds is None else MAX_LIST_LENGTH
    if not case.num_steps <= measurement.num_steps <= most:
        problems.append(f"measurement.num_steps is {measurement.num_steps}, but the case has {case.num_steps}")
    if measurement.ranks or case.num_hosts > 1:
        problems.extend(_rank_contradictions(case, measurement))
    if len(measurement.step_seconds) != measurement.num_steps:
        problems.append("measurement.step_seconds must have one entry per step")
    elif min(measurement.step_seconds) < 0 or sum(measurement.step_seconds) > measurement.seconds * 1.001:
        problems.append("measurement.step_seconds adds up to more than measurement.seconds")
    return problems


def _rank_contradictions(case: Case, measurement: Measurement) -> list[str]:
    """Check that the ranks match the case and add up to the measurement."""
    ranks = measurement.ranks
    if case.num_hosts == 1 or [rank.rank for rank in ranks] != list(range(case.num_hosts)):
        return [f"measurement.ranks: must have one entry for each of {case.num_hosts} hosts that train together"]
    problems = []
    if sum(rank.samples for rank in ranks) != measurement.samples:
        problems.append("measurement.samples is not the sum over the ranks")
    if not math.isclose(measurement.seconds, max(rank.seconds for rank in ranks), rel_tol=1e-9):
        problems.append("measurement.seconds is not that of the slowest rank")
    for rank in ranks:
        if rank.seconds <= 0 or not math.isclose(rank.samples_per_second, rank.samples / rank.seconds, rel_tol=1e-6):
            problems.append(f"measurement.ranks[{rank.rank}]: samples_per_second is not samples / seconds")
    return problems
