"""The engines section of docs/images.md is what `make test-engines` prints."""

from __future__ import annotations

import inspect
import re

from tests.real.engines.matrix import test_matrix as matrix
from tests.support.engines.images import REPOSITORY
from tests.support.engines.roots import KINDS

SKIPPED = re.compile(r'pytest\.skip\("(.+)"\)')


def test_the_page_names_each_engine_and_what_works_on_it():
    page = (REPOSITORY / "docs/images.md").read_text(encoding="utf-8").partition("## Engines")[2]
    engines = re.search(r"^Engines: (.+)\.$", page, re.M)[1].split("; ")
    assert engines == [kind.name for kind in KINDS]
    everywhere = re.search(r"^All of these work on all of them: (.+)\.$", page, re.M)[1].split("; ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    differ = {name: (works.split("; "), others.split("; ")) for name, works, others in rows[2:]}
    tests = {test.__doc__: test for name, test in vars(matrix).items() if name.startswith("test_")}
    assert {*everywhere, *differ} == set(tests) and len(everywhere) + len(differ) == len(tests)
    for name, (works, reasons) in differ.items():
        assert set(works) < set(engines), name
        assert set(reasons) <= set(SKIPPED.findall(inspect.getsource(tests[name]))), name
