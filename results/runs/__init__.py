"""Run folders on disk: what a run leaves, written whole or not at all, and read distrustfully.

`store.py` is the folder (plan, events, records, logs). `reading.py` checks what comes back from a host by the types and
bounds of `results.schema`, with pydantic: a record that is read can be computed with. `sources.py` turns names on a
command line into records; `time_breakdown.py` says what a run spent its time on.

Start at `sources.stored_records`.
"""
