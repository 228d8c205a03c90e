"""The table of docs/images.md is the matrix that `make test-engines` prints."""

from __future__ import annotations

import inspect
import re

from tests.real.engines.matrix import test_matrix as matrix
from tests.support.engines.images import REPOSITORY
from tests.support.engines.roots import KINDS

SKIPPED = re.compile(r'pytest\.skip\("(.+)"\)')


def test_the_page_has_a_row_for_each_test_and_a_column_for_each_engine():
    page = (REPOSITORY / "docs/images.md").read_text(encoding="utf-8").partition("## Engines")[2]
    header, _, *rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header[1:]] == [kind.name for kind in KINDS]
    tests = [test for name, test in vars(matrix).items() if name.startswith("test_")]
    assert [row[0].strip() for row in rows] == [test.__doc__ for test in tests]
    for row, test in zip(rows, tests, strict=True):
        known = {"works", *SKIPPED.findall(inspect.getsource(test))}
        assert {cell.strip() for cell in row[1:]} <= known, row[0]
