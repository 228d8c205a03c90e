"""Records, and all that happens to them: schema, store, merge, tables, comparison.

Imports nothing of `tfbench` or `orchestrate`. What runs in the container may import `results.schema` and
`results.schema.progress` only: those two need nothing but the standard library.
"""

__version__ = "0.1.0"
