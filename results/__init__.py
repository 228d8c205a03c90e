"""Records, and all that happens to them: schema, runs, table, comparison, recommendation, report.

In a notebook: `results.read_runs("runs/<run-id>")`, see docs/python.md.

Imports nothing of `tfbench` or `orchestrate`. In containers there is only this file and `results.schema`, which needs
nothing but the standard library; so all other names are imported when they are first used.
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
"""The module of each name that is imported when it is first used; `__init__.pyi` is the same for type checkers."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names too, for completion in a notebook."""
    return sorted({*globals(), *__all__})
