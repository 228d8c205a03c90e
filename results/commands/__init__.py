"""The commands of `python -m results`, which are commands of `tfbench` too.

`runs.py` has those that read runs (show, compare, export, report, validate) and `audit`; `recommend.py` those that help
to choose a GPU. `command_line.py` is what they share: flags, how runs are found, and how text is written. Commands
compute nothing: each reads its arguments, calls `table`, `compare`, `recommend`, `audit` or `report`, and prints.

Start at `runs.COMMANDS`, then follow one of its functions.
"""
