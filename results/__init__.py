"""Evaluates records: schema, runs, table, comparison, recommendation, audit and report.

In a notebook: `results.read_runs("runs/<run-id>")`, see docs/python.md.

Imports nothing from `tfbench` or `orchestrate`. Container images have only this file and `results.schema`, which use
the standard library, so other names are imported on first use.
"""

import importlib

from results.schema.version import __version__

__all__ = ["Recommendation", "Runs", "UserError", "__version__", "read_runs"]

_HOMES = {
    "Recommendation": "results.api",
    "Runs": "results.api",
    "UserError": "results.errors",
    "read_runs": "results.api",
}
"""Modules of the names that are imported on first use; `__init__.pyi` declares them for type checkers."""


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Include the public names, for completion in a notebook."""
    return sorted({*globals(), *__all__})
