"""Records, and all that happens to them: schema, runs, table, comparison, recommendation, report.

Imports nothing of `tfbench` or `orchestrate`. In containers there is only this file and `results.schema`, which needs
nothing but the standard library.
"""

from results.schema.version import __version__

__all__ = ["__version__"]
