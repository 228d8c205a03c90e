from __future__ import annotations

import pytest

from tfbench.max_batch import largest_batch


@pytest.mark.parametrize(("limit", "start"), [(1, 1), (7, 1), (100, 1), (100, 64), (100, 512), (128, 128), (5, 256)])
def test_the_largest_batch_that_fits_is_found(limit, start):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= limit

    found = largest_batch(fits, start)
    assert found <= limit
    assert limit - found < 8 if limit > 8 else found == limit
    assert len(tried) == len(set(tried)) <= 12


def test_nothing_fits_is_zero():
    assert largest_batch(lambda _: False, 16) == 0
