"""The contract between what measures and what reads: cases and records, and each of their words.

Standard library only, because this file also runs in every container. A record is the JSON that one repeat
(one fresh process measuring one case) writes, also when it failed; `results.runs.reading` reads and checks it:

    {"schema_version": 1, "method_version": 1, "status": "ok", "cause": null, "case": {…}, "origin": {…},
     "environment": {…}, "measurement": {…}, "telemetry": {…}, "validity": {…}, "warnings": […], …}

`SCHEMA_VERSION` changes when the shape of a record changes, `METHOD_VERSION` when what is measured changes: numbers
of two method versions are never put into one cell of a table.
"""

from __future__ import annotations

from results.schema.case import (
    SETTINGS,
    TRAINED_BY_ADAMW,
    TUNING,
    WITHOUT_BATCH_NORM,
    Case,
    Setting,
    default_of,
    kind_of,
)
from results.schema.record import (
    GPU,
    METHOD_VERSION,
    SCHEMA_VERSION,
    Check,
    DeviceResult,
    Environment,
    InputLimit,
    Latency,
    Measurement,
    Origin,
    Phase,
    Rank,
    Record,
    SoftWarning,
    Telemetry,
    Validity,
)
from results.schema.words import (
    DEVICE_MODEL,
    XLA,
    AllReduceDtype,
    BatchNorm,
    Communication,
    Data,
    Device,
    Mode,
    Optimizer,
    Precision,
    Status,
)
