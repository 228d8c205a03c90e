"""What every test in `tests/unit` keeps to."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_tensorflow() -> Iterator[None]:
    """Fail a test that imports TensorFlow: that takes seconds, and such tests belong into `tests/real/training`."""
    before = "tensorflow" in sys.modules
    yield
    assert before or "tensorflow" not in sys.modules, "a test in tests/unit imported TensorFlow"
