"""The import rules of ARCHITECTURE.md, held by reading every source file."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrate.images import builds

ROOT = Path(__file__).parents[2]
PACKAGES = ("tfbench", "orchestrate", "results")

CONTRACT = {"results", *(f"results.{name}" for name in ("schema", "networks", "bounds", "record_json", "progress"))}
"""What the container and the orchestrator share; `results/__init__.py` comes with any of them."""

IN_CONTAINER = {"absl", "keras", "numpy", "pynvml", "tensorflow", *PACKAGES}
"""Beside the standard library, what the images carry."""

DOCKER_FILE = "orchestrate/launchers/docker/sdk.py"
KUBERNETES_FILE = "orchestrate/launchers/kubernetes/api.py"
MAY_USE_DOCKER_LAUNCHER = tuple(f"orchestrate.{name}" for name in ("launchers", "images", "builds", "image_commands"))
"""Modules, and what lies below them, that may call the file that has the SDK."""

PRINTS = {"print", "sys.stdout", "sys.stderr"}
MAY_PRINT = {"__main__", "commands", "command_line", "recommend_commands", "tables", "grid", "display"}
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


def sources(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def imports(root: Path, path: Path) -> Iterator[Import]:
    """Yield what a file imports, also inside functions; `from a import b` asks for `a.b` where that is a module."""
    module = module_name(root, path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def direction_violations(root: Path) -> list[str]:
    """Find imports that go against `tfbench → results.schema ← orchestrate`, or a library in the wrong place."""
    found = []
    for path in sources(root):
        for item in imports(root, path):
            found.extend(f"{item.where}: {why}" for why in _objections(root, path, item))
    return found


def _objections(root: Path, path: Path, item: Import) -> Iterator[str]:
    owner = item.module.partition(".")[0]
    file = path.relative_to(root).as_posix()
    if item.package in PACKAGES and item.package != owner:
        if owner == "results":
            yield f"results imports nothing of ours, but {item.target}"
        elif owner == "tfbench" and item.target not in CONTRACT:
            yield f"tfbench may import the contract only ({', '.join(sorted(CONTRACT))}), not {item.target}"
        elif owner == "orchestrate" and item.package == "tfbench":
            yield "orchestrate never imports tfbench: they meet in a command line and a file"
    if item.package in ("tensorflow", "keras") and owner != "tfbench":
        yield f"{item.package} is imported under tfbench/ only"
    if item.package == "docker" and file != DOCKER_FILE:
        yield f"docker is imported in {DOCKER_FILE} only"
    if item.package == "kubernetes" and file != KUBERNETES_FILE:
        yield f"kubernetes is imported in {KUBERNETES_FILE} only"
    if item.target == "orchestrate.launchers.docker.sdk" and not f"{item.module}.".startswith(
        tuple(f"{name}." for name in MAY_USE_DOCKER_LAUNCHER)
    ):
        yield "the Docker launcher is reached through orchestrate.launchers"
    runs_in_container = owner == "tfbench" or item.module in CONTRACT
    if runs_in_container and item.package not in sys.stdlib_module_names | IN_CONTAINER | {"__future__"}:
        yield f"{item.package} is not in the images"
    if item.module in CONTRACT and item.package not in sys.stdlib_module_names | {"results"}:
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
        if path.stem in MAY_PRINT or "displays" in path.parts or path.relative_to(root).parts[0] == "tfbench":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            if name in PRINTS:
                found.append(f"{path.relative_to(root)}:{node.lineno}: {name}")
    return found


def test_imports_go_in_the_allowed_directions():
    assert direction_violations(ROOT) == []


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
    contract = {f"{name.replace('.', '/')}.py" for name in CONTRACT - {"results"}} | {"results/__init__.py"}
    (copied,) = re.findall(
        r"^COPY (results/.*) /results/$", (ROOT / "orchestrate/containers/Dockerfile").read_text(), re.MULTILINE
    )
    let_in = re.findall(r"^!(results/.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    digested = [path for path in builds.CONTEXT if path.startswith("results/")]
    assert set(copied.split()) == set(let_in) == set(digested) == contract


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for folder in path.relative_to(root).parents:
            if folder.name:
                (root / folder / "__init__.py").touch()
    return root


@pytest.mark.parametrize(
    ("file", "text", "objection"),
    [
        ("results/table/merge.py", "import orchestrate.planning.plan", "results imports nothing of ours"),
        ("results/table/merge.py", "def f():\n    from tfbench import timing", "results imports nothing of ours"),
        ("tfbench/measuring/timing.py", "from results import merge", "tfbench may import the contract only"),
        (
            "tfbench/measuring/timing.py",
            "from results.runs.store import RunFolder",
            "tfbench may import the contract only",
        ),
        ("tfbench/measuring/timing.py", "from orchestrate import plan", "tfbench may import the contract only"),
        ("orchestrate/running/run.py", "import tfbench.measuring.timing", "orchestrate never imports tfbench"),
        ("orchestrate/running/run.py", "import tensorflow as tf", "tensorflow is imported under tfbench/ only"),
        ("results/table/merge.py", "from keras import ops", "keras is imported under tfbench/ only"),
        ("orchestrate/running/run.py", "import docker", "docker is imported in"),
        ("results/table/merge.py", "from docker.errors import NotFound", "docker is imported in"),
        ("orchestrate/running/run.py", "from kubernetes import client", "kubernetes is imported in"),
        ("orchestrate/running/run.py", "from .launchers.docker import Docker", "reached through orchestrate.launchers"),
        ("tfbench/measuring/timing.py", "import pandas", "pandas is not in the images"),
        ("results/schema.py", "import numpy", "the contract needs the standard library only"),
        ("results/schema/record_json.py", "import numpy", "the contract needs the standard library only"),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, text, objection):
    others = [
        "results/runs/store.py",
        "tfbench/measuring/timing.py",
        "orchestrate/launchers/docker/sdk.py",
        "results/table/merge.py",
    ]
    tree = make_tree(tmp_path, dict.fromkeys(others, "") | {file: text})
    found = direction_violations(tree)
    assert len(found) >= 1 and all(line.startswith(f"{file}:") for line in found)
    assert any(objection in line for line in found)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "tfbench/measuring/timing.py",
            "from results.schema import Case\nimport tensorflow\nimport pynvml\nfrom absl import app",
        ),
        ("tfbench/measuring/timing.py", "from results import schema, progress"),
        ("orchestrate/running/run.py", "from results.table.merge import merge_records\nimport rich"),
        ("orchestrate/launchers/docker/sdk.py", "import docker.errors"),
        ("orchestrate/launchers/kubernetes/api.py", "from kubernetes import client"),
        ("orchestrate/launchers/__init__.py", "from orchestrate.launchers.docker.sdk import Docker"),
        ("results/table/merge.py", "import pandas"),
    ],
)
def test_allowed_imports_are_not_found(tmp_path, file, text):
    others = [
        "results/schema.py",
        "results/schema/progress.py",
        "results/table/merge.py",
        "orchestrate/launchers/docker/sdk.py",
    ]
    assert direction_violations(make_tree(tmp_path, dict.fromkeys(others, "") | {file: text})) == []


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
