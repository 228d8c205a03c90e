"""How `make test` runs tests: in which order, and how long they wait."""

import ast
import re
from collections.abc import Iterator

from tests.conftest import ORDER
from tests.support import PROJECT


def limits(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the limits of waiting of an expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "timeout")
        yield from node.args[:1] if node.func.attr in ("wait", "join", "result") else ()
        yield from node.args[2:3] if node.func.attr == "wait_until" else ()
    elif isinstance(node, ast.Compare) and re.match(r"time\.\w+\(\) - ", ast.unparse(node.left)):
        yield from node.comparators


def test_no_test_gives_up_after_less_than_a_minute():
    """On a slow or busy machine, anything may take many seconds: see `tests.support.patience`."""
    short = []
    for folder in ("unit", "real"):
        for path in sorted((PROJECT / "tests" / folder).rglob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for limit in limits(node):
                    if (
                        isinstance(limit, ast.Constant)
                        and isinstance(limit.value, int | float)
                        and 3 < limit.value < 60
                    ):
                        short.append(f"{path.relative_to(PROJECT)}:{limit.lineno}: {limit.value}")
    assert short == []


def test_every_beginning_in_the_order_of_tests_is_there():
    starts = [start for start, _ in ORDER]
    assert [start for start in starts if not list(PROJECT.glob(f"{start.partition('::')[0]}*"))] == []
