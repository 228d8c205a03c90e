"""How many wrong programs the tests notice: mutants of some modules, drawn at random, each run by the tests of its package.

    python -m tests.benchmarks.mutants results.stats results.table --sample=60 --tests tests/unit/results/test_stats.py …

Mutations are those of cosmic-ray (`pip install cosmic-ray`). Each mutant runs in a child forked from a process that has
imported what all of them need, so that it costs the tests alone; nothing on disk changes. It is killed where a test fails,
or after `CPU_SECONDS`. What mypy checks is no mutant: annotations, and decorators of dataclasses.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import difflib
import importlib.machinery
import importlib.util
import itertools
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

CPU_SECONDS = 60
"""After which a mutant counts as one that never ends."""

WITHOUT = {"core/NoOp", "core/VariableReplacer", "core/VariableInserter"}
"""Operators that change nothing, or need arguments."""

SHARED = ("pandas", "pydantic_core", "rich.console", "rich.table", "scipy.special", "scipy.stats")
"""What the tests of `results` and `orchestrate` import."""

ROOT = Path(__file__).parents[2]


Place = tuple[str, str, int]
"""Module, operator, and which of its occurrences."""


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    module: str
    operator: str
    source: str


class Swapped(importlib.machinery.SourceFileLoader):
    """Loads a mutant in place of its module; it is also the finder."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(path_of(mutant.module)))
        self._mutant = mutant

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname):
        return compile(self._mutant.source, self.path, "exec", dont_inherit=True)


def path_of(module: str) -> Path:
    return (ROOT / module.replace(".", "/")).with_suffix(".py")


def modules(names: list[str]) -> Iterator[str]:
    for name in names:
        folder = ROOT / name.replace(".", "/")
        found = sorted(folder.glob("*.py")) if folder.is_dir() else [path_of(name)]
        yield from (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found)


def meaning(source: str) -> str:
    """Return a program without what mypy checks: equal programs do the same."""

    class Without(ast.NodeTransformer):
        def visit_AnnAssign(self, node):
            node.annotation = ast.Constant(None)
            return self.generic_visit(node)

        def visit_arg(self, node):
            return ast.arg(node.arg)

        def visit_FunctionDef(self, node):
            node.returns = None
            return self.generic_visit(node)

        def visit_ClassDef(self, node):
            node.decorator_list = []
            return self.generic_visit(node)

    return ast.dump(Without().visit(ast.parse(source)))


def places(module: str) -> list[Place]:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(path_of(module).read_text(encoding="utf-8"))))
    operators = {name: get_operator(name)() for name in sorted(set(operator_names()) - WITHOUT)}
    return [
        (module, name, occurrence)
        for name, operator in operators.items()
        for occurrence in range(sum(1 for node in nodes for _ in operator.mutation_positions(node)))
    ]


def mutant_at(module: str, name: str, occurrence: int) -> Mutant | None:
    """Return the mutant; None: it is no program, or the same one."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = path_of(module).read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(name)(), occurrence)
    try:
        return Mutant(module, name, changed) if changed and meaning(changed) != meaning(source) else None
    except SyntaxError:
        return None


def survives(mutant: Mutant | None, tests: list[str], plugins: Sequence[str]) -> bool:
    """Return whether all tests pass with a mutant; None: with the program as it is."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        if mutant is not None:
            sys.meta_path.insert(0, Swapped(mutant))
        options = ["-x", "-q", "--noconftest", "-m", "not slow", "-p", "no:cacheprovider"]
        options += ["--timeout=0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += [option for plugin in plugins for option in ("-p", plugin)]
        os._exit(pytest.main([*options, *tests]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="modules or packages")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--imports", nargs="+", default=SHARED, help="imported once, before all children")
    parser.add_argument("--plugins", nargs="+", default=[], help="modules with the fixtures of the tests")
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=28)
    given = parser.parse_args()
    hypothesis.settings.register_profile("mutants", deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    hypothesis.settings.load_profile("mutants")
    for shared in given.imports:
        importlib.import_module(shared)
    everything = [place for module in modules(given.modules) for place in places(module)]
    random.Random(given.seed).shuffle(everything)
    drawn = list(itertools.islice(filter(None, itertools.starmap(mutant_at, everything)), given.sample))
    if not survives(None, given.tests, given.plugins):
        sys.exit("the tests fail without any mutation")
    found = collections.Counter()
    with contextlib.suppress(KeyboardInterrupt):  # what is known by then is printed
        for mutant in drawn:
            alive = survives(mutant, given.tests, given.plugins)
            found[alive] += 1
            if alive:
                before = path_of(mutant.module).read_text(encoding="utf-8").splitlines()
                lines = list(difflib.unified_diff(before, mutant.source.splitlines(), n=0, lineterm=""))
                print(mutant.module, mutant.operator, *lines[2:], sep="\n  ", flush=True)  # noqa: T201
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(  # noqa: T201
        f"{' '.join(given.modules)}: {found[False]} of {found.total()} mutants killed ({found[False] / found.total():.0%}), "
        f"drawn from {len(everything)} places with seed {given.seed}; {spent.ru_utime + spent.ru_stime:.0f} s of CPU, "
        f"{time.strftime('%Y-%m-%d')}"
    )


if __name__ == "__main__":
    main()
