"""What every test in `tests/unit` keeps to."""

import sys
from collections.abc import Iterator

import pytest

from tests.real.training.conftest import one_replica as one_replica
from tests.real.training.conftest import tensorflow as tensorflow
from tests.real.training.conftest import two_replicas as two_replicas


@pytest.fixture(autouse=True)
def no_tensorflow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that imports TensorFlow, which takes seconds, unless it is marked so: `make test-fast` leaves it out."""
    may = "tensorflow" in sys.modules or request.node.get_closest_marker("tensorflow") is not None
    yield
    assert may or "tensorflow" not in sys.modules, "this test imported TensorFlow: mark it `tensorflow`"
