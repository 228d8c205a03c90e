"""Writes records as JSON and finds contradictions in them.

Standard library only, because this file also runs in every container. `results.runs.reading` parses and checks
records that come from hosts.
"""

from __future__ import annotations

import json
import math

from results.schema import DEVICE_MODEL, Case, Measurement, Record, Status
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
    case = record.case
    problems = []
    if record.status is not Status.OK:
        if not record.cause:
            problems.append(f"status is {record.status}, but cause is empty")
    elif fault := _fault_of_success(record):
        problems.append(f"status is ok, but {fault}")
    if case.global_batch > MOST_SAMPLES:
        problems.append(f"case: the global batch is {case.global_batch}, which is too large for any machine")
    if record.measurement is not None:
        problems += _measurement_contradictions(case, record.measurement)
    for index, result in enumerate(record.device_results):
        if result.value is not None:
            amount = result.value * (result.seconds or 0.0)
            problems += _unlike(f"device_results[{index}]", result, amount=amount)
        elif not result.reason:
            problems.append(f"device_results[{index}]: has neither a value nor a reason")
    return problems


def _fault_of_success(record: Record) -> str | None:
    measured = record.device_results if record.case.model == DEVICE_MODEL else record.measurement
    if not measured or record.environment is None or record.validity is None:
        return "measurement, environment or validity is missing"
    if record.simulated:
        return "its GPUs are simulated"
    passed = [check.passed for check in record.validity.checks]
    if not record.validity.valid or False in passed:
        return "a validity check failed"
    return None if True in passed else "no validity check was made"


def _unlike(where: str, found: object, **expected: float) -> list[str]:
    """Compare figures of a record with what its other figures give: counts exactly, others within their rounding."""
    return [
        f"{where}.{name} is {getattr(found, name)}, but its other figures give {value}"
        for name, value in expected.items()
        if not math.isclose(getattr(found, name) or 0, value, rel_tol=1e-6 if isinstance(value, float) else 0.0)
    ]


def _measurement_contradictions(case: Case, measurement: Measurement) -> list[str]:
    """Check that derived figures follow from the counted ones, and match the case."""
    tokens = (measurement.sequence_length or 1) if measurement.unit == "tokens" else 1
    problems = _unlike("measurement", measurement, samples=measurement.samples_per_second * measurement.seconds)
    problems += _unlike(
        "measurement",
        measurement,
        samples=measurement.global_batch * measurement.num_steps * tokens,
        global_batch=measurement.batch_per_gpu * measurement.replicas * case.accumulate,
        replicas=case.replicas,
        batch_per_gpu=case.batch_per_gpu,
        num_steps=len(measurement.step_seconds),
    )
    most = case.num_steps if case.min_seconds is None else MAX_LIST_LENGTH
    if not case.num_steps <= measurement.num_steps <= most:
        problems.append(f"measurement.num_steps is {measurement.num_steps}, but the case has {case.num_steps}")
    if sum(measurement.step_seconds) > measurement.seconds * 1.001:
        problems.append("measurement.step_seconds adds up to more than measurement.seconds")
    ranks = measurement.ranks
    if [rank.rank for rank in ranks] != (list(range(case.num_hosts)) if case.num_hosts > 1 else []):
        problems.append(
            f"measurement.ranks: must have one entry for each of {case.num_hosts} hosts that train together"
        )
    elif ranks:
        slowest = max(rank.seconds for rank in ranks)
        problems += _unlike("measurement", measurement, samples=sum(rank.samples for rank in ranks), seconds=slowest)
        for rank in ranks:
            problems += _unlike(f"measurement.ranks[{rank.rank}]", rank, samples=rank.samples_per_second * rank.seconds)
    return problems
