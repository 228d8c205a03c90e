"""A record as the log lines of MLPerf: `:::MLLOG {"namespace": "", "time_ms": …, "key": …, "value": …}`.

Source: mlcommons/logging, mllog/constants.py and the rules of its README. The numbers are those of the record; a
    tfbench
record is no MLPerf submission.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

from results.schema import Record, Status

PREFIX = ":::MLLOG "


def log_lines(record: Record) -> list[str]:
    """Return the log lines of one record, in order of time."""
    started, finished = _milliseconds(record.started_at), _milliseconds(record.finished_at)
    case = record.case
    origin = record.origin
    points: dict[str, Any] = {
        "submission_benchmark": case.model,
        "submission_platform": origin.fleet if origin else "",
        "global_batch_size": case.global_batch,
        "number_of_ranks": case.replicas,
    }
    lines = [_line(started, "POINT_IN_TIME", key, value) for key, value in points.items()]
    lines.append(_line(started, "INTERVAL_START", "run_start", None, {"case": case.name}))
    if record.measurement is not None:
        measurement = record.measurement
        stats = {"throughput": measurement.samples_per_second}
        details = {"unit": f"{measurement.unit}/s", "step": measurement.num_steps, "case": dataclasses.asdict(case)}
        lines.append(_line(finished, "POINT_IN_TIME", "tracked_stats", stats, details))
        lines.append(_line(finished, "POINT_IN_TIME", "train_samples", measurement.samples))
    outcome = {"status": "success" if record.status is Status.OK else "aborted", "cause": record.cause}
    lines.append(_line(finished, "INTERVAL_END", "run_stop", None, outcome))
    return lines


def _line(time_ms: int, event: str, key: str, value: object, metadata: dict[str, Any] | None = None) -> str:
    entry = {
        "namespace": "tfbench",
        "time_ms": time_ms,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": metadata or {},
    }
    return PREFIX + json.dumps(entry, ensure_ascii=False)


def _milliseconds(text: str) -> int:
    """Read a stamp of the record; 0 where it is not one, as a record is not to be trusted."""
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0
