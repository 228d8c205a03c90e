"""Changes single places of tfbench at random, and shows which changes no test notices.

    python -m studies.random_mutants --count=220 --seed=11

Works on a copy of the project. A change of a line that tests run in their own process is tested by these, in a fork of a
process that has imported TensorFlow; other lines by the files of `IN_CHILDREN`, whose tests start processes. Comparisons,
arithmetic, numbers, conditions and returned values change; texts, annotations and docstrings do not. Needs `coverage`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.mutants import copy_project

TRAINING = "tests/real/training/test_"
UNIT = "tests/unit/tfbench"
IN_PROCESS = (
    UNIT,
    *(f"{TRAINING}{name}.py" for name in ("training", "tfrecords", "faults", "device_case", "models", "networks")),
)
IN_CHILDREN = {
    "measuring": tuple(f"{TRAINING}{name}.py" for name in ("training", "main", "several_hosts")),
    "machine": tuple(f"{UNIT}/test_{name}.py" for name in ("telemetry", "host", "setup", "limits", "doctor")),
    "training": tuple(f"{TRAINING}{name}.py" for name in ("training", "tfrecords", "main")),
}  # fmt: skip
"""Tests by folder of tfbench."""

OPTIONS = ("-q", "-n0", "-p", "no:cacheprovider")

LIMIT_SECONDS = 900.0
"""A change that takes the tests longer is noticed."""

OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.Mod: ast.Div, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}


@dataclass(frozen=True)
class Change:
    """A place of a file below tfbench/ and its new text; lines count from 1, columns (bytes) from 0."""

    file: str
    line: int
    column: int
    last_line: int
    last_column: int
    text: str

    def apply(self, source: str) -> str:
        """Return the changed source."""
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.last_line - 1][self.last_column :] + b"".join(lines[self.last_line :])
        return (before + self.text.encode() + after).decode()


def changes(file: str, source: str) -> Iterator[Change]:
    """Yield all changes of a file."""
    tree = ast.parse(source)
    fixed: set[int] = set()
    for node in ast.walk(tree):
        of_types = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            of_types.append(node)
        fixed |= {id(part) for kept in of_types if kept is not None for part in ast.walk(kept)}
    for node in ast.walk(tree):
        new = None if id(node) in fixed else _changed(node)
        if new is None:
            continue
        at: Any = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else node
        text = ast.unparse(ast.fix_missing_locations(new))
        text = text if isinstance(new, ast.Return) else f"({text})"
        yield Change(file, at.lineno, at.col_offset, at.end_lineno, at.end_col_offset, text)


def _changed(node: ast.AST) -> ast.AST | None:
    """Return the changed form of a node; None: it has none."""
    changed: ast.AST | None = None
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = ast.Compare(node.left, [_opposite(node.ops[0])], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPPOSITES:
        changed = ast.BinOp(node.left, _opposite(node.op), node.right)
    elif isinstance(node, ast.BoolOp):
        changed = ast.BoolOp(_opposite(node.op), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        changed = node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        changed = ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        changed = ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 1.5)
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        changed = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        changed = ast.Return(ast.Constant(None))
    return changed


def _opposite(operator: ast.AST) -> Any:
    return OPPOSITES[type(operator)]()


def tests_of_lines(copy: Path) -> dict[str, dict[int, set[str]]]:
    """Run the tests, and return the ids of those that run each line of each file."""
    (copy / "coverage.rc").write_text("[run]\ndynamic_context = test_function\nsource = tfbench\n", encoding="utf-8")
    program = [
        "-m",
        "coverage",
        "run",
        "--rcfile=coverage.rc",
        "--data-file=lines",
        "-m",
        "pytest",
        *OPTIONS,
        *IN_PROCESS,
    ]
    subprocess.run([sys.executable, *program], cwd=copy, env=_environment(copy), stdout=subprocess.DEVNULL, check=False)
    data = importlib.import_module("coverage").CoverageData(str(copy / "lines"))
    data.read()
    found: dict[str, dict[int, set[str]]] = defaultdict(dict)
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            parts = [context.rpartition(".") for context in contexts if context]
            ids = {f"{module.replace('.', '/')}.py::{function}" for module, _, function in parts}
            found[str(Path(file).relative_to(copy / "tfbench"))][line] = ids
    return found


def _environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


def passes_in_fork(copy: Path, tests: list[str]) -> bool:
    """Return whether tests pass, within the limit, in a fork of this process."""
    child = os.fork()
    if child == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        os.chdir(copy)
        code = 1
        with contextlib.suppress(BaseException):
            code = int(importlib.import_module("pytest").main(["-x", *OPTIONS, *tests]))
        os._exit(code != 0)
    ends = time.monotonic() + LIMIT_SECONDS
    done, status = 0, 1
    while not done and time.monotonic() < ends:
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    return bool(done) and status == 0


def passes_in_children(copy: Path, folder: str) -> bool:
    """Return whether the tests that start processes pass within the limit."""
    command = [sys.executable, "-m", "pytest", "-x", *OPTIONS, *IN_CHILDREN[folder]]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, cwd=copy, env=_environment(copy), capture_output=True, timeout=LIMIT_SECONDS, check=False
        )
        return done.returncode == 0
    return False


def main() -> int:
    """Print each change with its fate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    killed = 0
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        copy_project(copy)
        tests = tests_of_lines(copy)
        sources = {
            str(path.relative_to(copy / "tfbench")): path.read_text(encoding="utf-8")
            for folder in IN_CHILDREN
            for path in sorted((copy / "tfbench" / folder).glob("*.py"))
        }
        every = [change for file, source in sources.items() for change in changes(file, source)]
        os.environ.update(_environment(copy))
        sys.path.insert(0, str(copy))
        importlib.import_module("tensorflow")
        chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
        for change in chosen:
            of_file = tests.get(change.file, {})
            ids = {each for line in range(change.line, change.last_line + 1) for each in of_file.get(line, ())}
            path = copy / "tfbench" / change.file
            path.write_text(change.apply(sources[change.file]), encoding="utf-8")
            folder = change.file.partition("/")[0]
            survived = passes_in_fork(copy, sorted(ids)) if ids else passes_in_children(copy, folder)
            path.write_text(sources[change.file], encoding="utf-8")
            killed += not survived
            line = sources[change.file].splitlines()[change.line - 1].strip()
            fate = "SURVIVED" if survived else "killed"
            sys.stdout.write(f"{fate} {change.file}:{change.line} {line} -> {change.text}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{killed} of {len(chosen)} killed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
