"""Run folders: written atomically, read without trust.

`store.py` reads and writes run folders (plan, events, records, logs) and finds runs by name. `reading.py` checks
records from hosts against the types and bounds of `results.schema`, with pydantic. `time_breakdown.py` computes where
the time of runs went.

Start at `store.stored_records`.
"""
