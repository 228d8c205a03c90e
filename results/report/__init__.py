"""Builds tables for the terminal, and the report as one HTML or Markdown page.

All output is a `text_table.Grid` of values that `table`, `compare` and `recommend` computed. `tables.py` has the table
of cases and the wide table, `comparison.py` compares fleets, `device_table.py` shows micro-benchmarks, `panels.py` has
tables with bars, `decision.py` says what to rent, and `job.py` has the data of the calculator "My job".

Start at `page.make_report`; HTML, style and script are in `templates/`.
"""
