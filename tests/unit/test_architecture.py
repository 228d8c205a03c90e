"""The rules of ARCHITECTURE.md that import-linter's contracts (pyproject.toml) cannot express."""

import ast
import collections
import graphlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from orchestrate.images import builds
from tests.support import PROJECT

PACKAGES = ("tfbench", "orchestrate", "results")
CONTRACT = "results.schema"
IN_CONTAINER = sys.stdlib_module_names | {"absl", "keras", "numpy", "pynvml", "tensorflow", "__future__"}
"""What the images carry."""

MAY_PRINT = {"__main__", "cli", "commands", "command_line", "program", "streams", "tables", "grid", "display"}
"""Names of files that write for people. What trains prints lines that its launcher reads, so it may too."""

AGENT = "orchestrate/engines/ssh/agent.py"
"""Its standard output is its connection to the controller."""


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((PROJECT / package).rglob("*.py"))]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command as c; c(['--no-cache', '--no-logo'])"
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_imports_keep_the_contracts_of_pyproject():
    done = lint_imports(PROJECT)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("results/table/merge.py", "import orchestrate.errors"),
        ("results/runs/store.py", "def f():\n    from results.table import merge"),
        ("tfbench/measuring/timing.py", "from orchestrate import errors"),
        ("orchestrate/running/run.py", "import tfbench.flags"),
        ("orchestrate/inventory/hosts.py", "from orchestrate.running import run"),
        ("results/table/merge.py", "import tensorflow"),
        ("orchestrate/running/run.py", "from kubernetes import client"),
        ("orchestrate/running/run.py", "import docker"),
    ],
)
def test_a_planted_import_breaks_a_contract(tmp_path: Path, file: str, text: str):
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    path = tmp_path / file
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{text}\n", encoding="utf-8")
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout + done.stderr


def test_no_modules_import_each_other_round_about(graph: grimp.ImportGraph):
    ours = {name for name in graph.modules if name.partition(".")[0] in PACKAGES}
    edges = {name: graph.find_modules_directly_imported_by(name) & ours for name in ours}
    assert len(ours) > 100
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError, which names the modules


def test_the_images_carry_everything_that_their_code_imports(graph: grimp.ImportGraph):
    missing = []
    for name in graph.modules:
        if name.startswith("tfbench") or f"{name}.".startswith(f"{CONTRACT}."):
            allowed = IN_CONTAINER if name.startswith("tfbench") else sys.stdlib_module_names | {"__future__"}
            for target in graph.find_modules_directly_imported_by(name):
                package = target.partition(".")[0]
                ours = target == "results" or f"{target}.".startswith((f"{CONTRACT}.", "tfbench."))
                if not ours and package not in allowed:
                    missing.append(f"{name} imports {target}")
    assert missing == []


def test_only_entry_points_displays_and_tables_print():
    found = []
    for path in sources():
        file = path.relative_to(PROJECT).as_posix()
        if path.stem in MAY_PRINT or path.parent.name == "commands" or file.startswith("tfbench/") or file == AGENT:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in (
                "print",
                "sys.stdout",
                "sys.stderr",
            ):
                found.append(f"{file}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_no_public_class_name_is_defined_twice():
    names = collections.Counter(
        node.name
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in names.items() if times > 1} == set()
    assert not {path.stem for path in sources()} & {"util", "utils", "helper", "helpers", "misc", "common"}


def test_names_of_tests_are_short():
    code = (path.read_text(encoding="utf-8") for path in sorted((PROJECT / "tests").rglob("*.py")))
    names = [name for text in code for name in re.findall(r"^ *(?:async )?def (test_\w+)", text, re.MULTILINE)]
    assert len(names) > 500, "the pattern finds them; how many there are is no aim"
    assert [name for name in names if len(name) > 70] == []


def test_every_list_of_what_an_image_gets_of_results_is_the_contract():
    contract = {"results/__init__.py", "results/schema"}
    copied = re.findall(r"^COPY (results/\S*) /results/", (PROJECT / "containers/Dockerfile").read_text(), re.MULTILINE)
    let_in = re.findall(r"^!(results/.*)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE)
    digested = [path for path in builds.CONTEXT if path.startswith("results/")]
    assert {name.rstrip("/") for name in copied} == set(let_in) == set(digested) == contract


def test_files_that_the_architecture_names_exist():
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    paths = re.findall(r"`((?:tfbench|results|orchestrate|containers|studies|tests)/[\w./]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (PROJECT / path).exists()] == []
