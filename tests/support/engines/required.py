"""What to do about tests whose engine, tool or right is not there: skip them here, fail them where it must be."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


def skip_without(what: str, missing: Callable[[], str | None]) -> None:
    """Skip a test that needs something that is not there, or fail it where engines are required.

    Args:
        what: What it needs.
        missing: Says why that is not there; None when it is.
    """
    wish = os.environ.get("TFBENCH_TEST_ENGINES") or ("require" if os.environ.get("CI") == "true" else "skip")
    reason = "TFBENCH_TEST_ENGINES=off" if wish == "off" else missing()
    if reason is not None:
        (pytest.fail if wish == "require" else pytest.skip)(f"needs {what}: {reason}")
