"""The commands of `python -m results`, which are also commands of `tfbench`.

`runs.py` has the commands that read runs (show, compare, export, report, validate) and `audit`; `recommend.py` those
for choosing a GPU; `command_line.py` the arguments and code they share. Commands call `table`, `compare`, `recommend`,
`audit` or `report`, and print the result.

Start at `runs.COMMANDS`.
"""
