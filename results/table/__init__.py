"""Merges records into one table.

`columns.csv` defines the columns. `merge.py` makes a repeat of each record and groups them by fleet, host,
case and software. `fleets.py` combines hosts into `FleetRate`, which all comparisons use, and has the notes on them;
`comparable.py` decides what may be compared.

Start at `merge.merge_records`. A new column is a row of `columns.csv`.
"""
