"""Skips or fails tests whose engine, tool or permission is missing."""

import os
from collections.abc import Callable

import pytest


def skip_without(what: str, missing: Callable[[], str | None]) -> None:
    """Skip a test if a requirement is missing, or fail it if engines are required.

    Args:
        what: The requirement.
        missing: Returns why it is missing; None: it is not.
    """
    wish = os.environ.get("TFBENCH_TEST_ENGINES") or ("require" if os.environ.get("CI") == "true" else "skip")
    reason = "TFBENCH_TEST_ENGINES=off" if wish == "off" else missing()
    if reason is not None:
        (pytest.fail if wish == "require" else pytest.skip)(f"needs {what}: {reason}")
