"""Evaluates records: schema, runs, table, comparison, recommendation, audit and report.

In a notebook: `results.read_runs("runs/<run-id>")`, see docs/python.md.

Imports nothing from `tfbench` or `orchestrate`. Container images have only this file and `results.schema`, which use
the standard library, so other names are imported on first use.
"""

import importlib

from results.schema.version import __version__

__all__ = ["Recommendation", "Runs", "UserError", "__version__", "read_runs"]


def __getattr__(name: str) -> object:
    """Import a public name on first use; `__init__.pyi` declares them for type checkers."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("results.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Include the public names, for completion in a notebook."""
    return sorted({*globals(), *__all__})
