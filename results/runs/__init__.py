"""Run folders on disk: what a run leaves, written whole or not at all, and read distrustfully.

`store.py` is the folder (plan, events, records, logs), and finds the runs that a command line names. `reading.py`
checks what comes back from a host by the types and bounds of `results.schema`, with pydantic: a record that is read can
be computed with. `time_breakdown.py` computes what runs spent their time on.

Start at `store.stored_records`.
"""
