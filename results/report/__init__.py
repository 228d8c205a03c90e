"""Builds tables for the terminal, and the report as one HTML page.

All output is a `text_table.Grid` of values that `table`, `compare` and `recommend` computed. `tables.py` has the table
of cases, the wide table and that of devices, `comparison.py` compares fleets, and `panels.py` has tables with bars.

Start at `page.make_report`; HTML, style and script are in `templates/`.
"""
