"""What people read: tables for a terminal, and the report as one HTML or Markdown page.

Everything is a `grid.Grid` (texts ready to be written) or a chart; nothing is computed here that `table`, `compare` or
`recommend` has not computed. `tables.py` has a row per host and case and the wide table, `comparison.py` what puts
fleets side by side, `device_table.py` the micro-benchmarks; `charts.py` draws, `job.py` feeds the field "my job".

Start at `page.make_report`; the page's HTML, style and script are in `templates/`.
"""
