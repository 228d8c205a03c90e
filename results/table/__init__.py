"""Records merged into one table, and what fleets measured.

`columns.py` is the table: a row of `COLUMNS` for each column, with its unit, its meaning and, for a measured number,
where a repeat has it. `merge.py` groups records by fleet, host, case and software; `frames.py` makes pandas frames and
intervals of them. `fleets.py` puts hosts together as `FleetRate`, which all comparisons use; `comparable.py` is the one
rule of what may be compared, and `cells.py` how numbers are written.

Start at `merge.merge_records`. A new column is a row of `COLUMNS`, and its line in docs/table.md.
"""
