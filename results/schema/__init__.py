"""The contract between benchmarks and readers: cases, records and their enumerations.

Standard library only, because this package is also in every container image. A record is the JSON document that a
repeat writes, even after a failure; `results.runs.reading` parses and checks it:

    {"schema_version": 2, "method_version": 4, "status": "ok", "cause": null, "case": {…}, "origin": {…},
     "environment": {…}, "measurement": {…}, "telemetry": {…}, "validity": {…}, "warnings": […], …}

`SCHEMA_VERSION` rises when a field is removed or changed, and `results.runs.reading` then upgrades older records;
`METHOD_VERSION` changes with what is measured: a table cell never mixes two method versions.
"""

from __future__ import annotations

from results.schema.case import SETTINGS, Case, annotated, default_of, kind_of, range_of
from results.schema.enums import *
from results.schema.record import *
