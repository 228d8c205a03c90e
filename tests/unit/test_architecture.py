"""The import rules of ARCHITECTURE.md, held by reading every source file."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrate.images import builds
from tests.rooms import PACKAGES, ROOT, TABLE, Room, counted, read_table, room_of, sources, with_counts

CONTRACT = "results.schema"
"""What the container and the orchestrator share; `results/__init__.py` comes with it."""

IN_CONTAINER = {"absl", "keras", "numpy", "pynvml", "tensorflow", *PACKAGES}
"""Beside the standard library, what the images carry."""

DOCKER_FILE = "orchestrate/launchers/docker/sdk.py"
KUBERNETES_FILE = "orchestrate/launchers/kubernetes/api.py"
MOST_FILES = 16
"""Source files of its own that a room may hold."""

PRINTS = {"print", "sys.stdout", "sys.stderr"}
AGENT = "orchestrate/launchers/ssh/agent.py"
"""Its standard output is its connection to the controller."""

MAY_PRINT = {"__main__", "cli", "commands", "command_line", "program", "tables", "grid", "display"}
"""Names of files that write for people. What trains prints lines that its launcher reads, so it may too."""


@dataclass(frozen=True)
class Import:
    """One import statement: `file:line`, the importing module and what it asks for."""

    where: str
    module: str
    target: str

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]


def module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root: Path, path: Path) -> tuple[Import, ...]:
    """Return what a file imports, also inside functions; `from a import b` asks for `a.b` where that is a module."""
    return _imports(root, path, path.read_text(encoding="utf-8"))


@functools.cache
def _parsed(text: str) -> ast.Module:
    """Parse a file once for all rules."""
    return ast.parse(text)


@functools.cache
def _imports(root: Path, path: Path, text: str) -> tuple[Import, ...]:
    return tuple(_read_imports(root, path, text))


def _read_imports(root: Path, path: Path, text: str) -> Iterator[Import]:
    module = module_name(root, path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_parsed(text)):
        where = f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(where, module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                yield Import(where, module, f"{base}.{alias.name}" if _is_module(root, base, alias.name) else base)


def _is_module(root: Path, base: str, name: str) -> bool:
    path = root.joinpath(*base.split("."), name)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def room_violations(root: Path, rooms: list[Room]) -> list[str]:
    """Find imports that a room may not make by the table."""
    allowed = {room.name: room.may_import for room in rooms}
    found = []
    for path in sources(root):
        here = room_of(root, path)
        for item in imports(root, path):
            there = _room_of_module(root, item.target)
            if there is not None and there != here and there not in allowed.get(here, frozenset()):
                found.append(f"{item.where}: {here} may not import {there}: {item.target}")
    return found


def _room_of_module(root: Path, module: str) -> str | None:
    """Name the room of one of our modules; None: it is not ours."""
    if module.partition(".")[0] not in PACKAGES:
        return None
    path = root.joinpath(*module.split("."))
    return room_of(root, path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


def library_violations(root: Path) -> list[str]:
    """Find a library in the wrong place."""
    found = []
    for path in sources(root):
        for item in imports(root, path):
            found.extend(f"{item.where}: {why}" for why in _objections(root, path, item))
    return found


def _objections(root: Path, path: Path, item: Import) -> Iterator[str]:
    owner = item.module.partition(".")[0]
    file = path.relative_to(root).as_posix()
    if item.package in ("tensorflow", "keras") and owner != "tfbench":
        yield f"{item.package} is imported under tfbench/ only"
    if item.package == "docker" and file != DOCKER_FILE:
        yield f"docker is imported in {DOCKER_FILE} only"
    if item.package == "kubernetes" and file != KUBERNETES_FILE:
        yield f"kubernetes is imported in {KUBERNETES_FILE} only"
    in_contract = f"{item.module}.".startswith(f"{CONTRACT}.")
    if (owner == "tfbench" or in_contract) and item.package not in (
        sys.stdlib_module_names | IN_CONTAINER | {"__future__"}
    ):
        yield f"{item.package} is not in the images"
    if in_contract and item.package not in sys.stdlib_module_names | {"results"}:
        yield f"the contract needs the standard library only, not {item.package}"


def import_cycles(root: Path) -> list[str]:
    """Find modules that import each other round about, also through imports inside functions."""
    graph: dict[str, set[str]] = {}
    known = {module_name(root, path) for path in sources(root)}
    for path in sources(root):
        name = module_name(root, path)
        graph[name] = {item.target for item in imports(root, path) if item.target in known} - {name}
    cycles = []
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            cycles.append(" → ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    return cycles


def misplaced_prints(root: Path) -> list[str]:
    """Find `print` and the standard streams outside displays, tables and mains."""
    found = []
    for path in sources(root):
        if path.stem in MAY_PRINT or path.parent.name == "commands" or path.relative_to(root).parts[0] == "tfbench":
            continue
        if path.relative_to(root).as_posix() == AGENT:
            continue
        for node in ast.walk(_parsed(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            if name in PRINTS:
                found.append(f"{path.relative_to(root)}:{node.lineno}: {name}")
    return found


def test_every_room_imports_only_what_the_table_in_architecture_allows():
    assert room_violations(ROOT, read_table(TABLE.read_text(encoding="utf-8"))) == []


def test_the_table_allows_no_room_to_import_upwards():
    seen: set[str] = set()
    for room in read_table(TABLE.read_text(encoding="utf-8")):
        assert room.may_import <= seen, f"{room.name} may import {room.may_import - seen}, which stand below it"
        seen.add(room.name)


def test_the_table_has_every_room_and_allows_no_more_than_is_used():
    rooms = {room.name: room for room in read_table(TABLE.read_text(encoding="utf-8"))}
    assert set(rooms) == set(counted(ROOT))
    used: dict[str, set[str]] = {name: set() for name in rooms}
    for path in sources(ROOT):
        here = room_of(ROOT, path)
        used[here] |= {there for item in imports(ROOT, path) if (there := _room_of_module(ROOT, item.target))} - {here}
    assert used == {name: set(room.may_import) for name, room in rooms.items()}


def test_the_counts_in_the_table_are_those_of_today_within_a_tenth():
    now = counted(ROOT)
    for room in read_table(TABLE.read_text(encoding="utf-8")):
        files, lines = now[room.name]
        assert room.files == files and abs(room.lines - lines) <= 0.1 * lines + 20, f"{room.name}: run make rooms"


def test_no_room_is_crowded():
    assert {name: files for name, (files, _) in counted(ROOT).items() if files > MOST_FILES} == {}


def test_libraries_are_imported_where_they_may_be():
    assert library_violations(ROOT) == []


def test_no_modules_import_each_other_round_about():
    assert import_cycles(ROOT) == []


def test_only_displays_tables_and_mains_print():
    assert misplaced_prints(ROOT) == []


def test_there_is_no_drawer_for_odds_and_ends():
    names = {"util", "utils", "helper", "helpers", "misc", "common"}
    assert [str(path) for path in sources(ROOT) if path.stem in names] == []


def test_the_packages_are_seen_at_all():
    modules = {module_name(ROOT, path) for path in sources(ROOT)}
    assert {"tfbench", "orchestrate", "results.schema", "results.runs.store"} <= modules


def test_every_list_of_what_an_image_gets_of_results_is_the_contract():
    contract = {"results/__init__.py", "results/schema"}
    copied = re.findall(
        r"^COPY (results/\S*) /results/", (ROOT / "orchestrate/containers/Dockerfile").read_text(), re.MULTILINE
    )
    let_in = re.findall(r"^!(results/.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    digested = [path for path in builds.CONTEXT if path.startswith("results/")]
    assert {name.rstrip("/") for name in copied} == set(let_in) == set(digested) == contract


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for folder in path.relative_to(root).parents:
            if folder.name:
                (root / folder / "__init__.py").touch()
    return root


OTHERS = dict.fromkeys(
    (
        "results/schema/words.py",
        "results/runs/store.py",
        "results/table/merge.py",
        "tfbench/measuring/timing.py",
        "orchestrate/planning/plan.py",
        "orchestrate/launchers/docker/sdk.py",
    ),
    "",
)


@pytest.mark.parametrize(
    ("file", "text", "objection"),
    [
        ("results/table/merge.py", "import orchestrate.planning.plan", "may not import orchestrate/planning"),
        (
            "results/table/merge.py",
            "def f():\n    from tfbench.measuring import timing",
            "may not import tfbench/measuring",
        ),
        ("results/runs/store.py", "from results.table import merge", "may not import results/table"),
        ("tfbench/measuring/timing.py", "from results.table.merge import f", "may not import results/table"),
        ("tfbench/measuring/timing.py", "from results.runs.store import RunFolder", "may not import results/runs"),
        ("tfbench/measuring/timing.py", "from orchestrate.planning import plan", "may not import orchestrate/planning"),
        ("tfbench/measuring/timing.py", "from orchestrate import plan", "may not import orchestrate (tools)"),
        ("orchestrate/running/run.py", "import tfbench.measuring.timing", "may not import tfbench/measuring"),
        (
            "orchestrate/planning/plan.py",
            "from ..launchers.docker import sdk",
            "may not import orchestrate/launchers/docker",
        ),
        ("results/nowhere/new.py", "from results.schema import Case", "results/nowhere may not import results/schema"),
        ("orchestrate/running/run.py", "import tensorflow as tf", "tensorflow is imported under tfbench/ only"),
        ("results/table/merge.py", "from keras import ops", "keras is imported under tfbench/ only"),
        ("orchestrate/running/run.py", "import docker", "docker is imported in"),
        ("results/table/merge.py", "from docker.errors import NotFound", "docker is imported in"),
        ("orchestrate/running/run.py", "from kubernetes import client", "kubernetes is imported in"),
        ("tfbench/measuring/timing.py", "import pandas", "pandas is not in the images"),
        ("results/schema/words.py", "import numpy", "the contract needs the standard library only"),
        ("results/schema/record_json.py", "import numpy", "the contract needs the standard library only"),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, text, objection):
    found = violations(make_tree(tmp_path, OTHERS | {file: text}))
    assert len(found) >= 1 and all(line.startswith(f"{file}:") for line in found)
    assert any(objection in line for line in found)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "tfbench/measuring/timing.py",
            "from results.schema import Case\nimport tensorflow\nimport pynvml\nfrom absl import app",
        ),
        ("tfbench/measuring/timing.py", "from results.schema import words, progress"),
        ("orchestrate/running/run.py", "from orchestrate.planning.plan import Plan\nimport rich"),
        ("orchestrate/launchers/docker/sdk.py", "import docker.errors"),
        ("orchestrate/launchers/kubernetes/api.py", "from kubernetes import client"),
        ("orchestrate/running/launchers.py", "from orchestrate.launchers.docker.sdk import Docker"),
        ("results/table/merge.py", "import pandas"),
    ],
)
def test_allowed_imports_are_not_found(tmp_path, file, text):
    assert violations(make_tree(tmp_path, OTHERS | {file: text})) == []


def violations(root: Path) -> list[str]:
    return room_violations(root, read_table(TABLE.read_text(encoding="utf-8"))) + library_violations(root)


def test_counts_are_written_into_the_table_and_nothing_else(tmp_path):
    row = "| `results/schema` | 0 | 0 | the contract | nothing |\n"
    make_tree(tmp_path, {"results/schema/words.py": "a = 1\nb = 2\n"})
    assert with_counts(f"before\n{row}after\n", tmp_path) == (
        "before\n| `results/schema` | 2 | 2 | the contract | nothing |\nafter\n"
    )


def test_a_planted_cycle_is_found_also_through_a_function(tmp_path):
    tree = make_tree(
        tmp_path,
        {
            "results/a.py": "from results import b",
            "results/b.py": "import results.c",
            "results/c.py": "def f():\n    from .a import x",
            "results/d.py": "import results.a",
        },
    )
    assert import_cycles(tree) == ["results.a → results.b → results.c → results.a"]


@pytest.mark.parametrize("text", ["print('x')", "import sys\nsys.stdout.write('x')", "f = print"])
def test_a_planted_print_is_found(tmp_path, text):
    tree = make_tree(
        tmp_path, {"orchestrate/running/run.py": text, "results/render/tables.py": text, "results/__main__.py": text}
    )
    assert [line.partition(":")[0] for line in misplaced_prints(tree)] == ["orchestrate/running/run.py"]
