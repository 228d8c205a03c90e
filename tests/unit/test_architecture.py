"""The rules of ARCHITECTURE.md that import-linter's contracts (pyproject.toml) cannot express."""

import graphlib
import re
import sys

import grimp
import pytest

from orchestrate import images
from tests.conftest import ORDER
from tests.support import PROJECT

PACKAGES = ("tfbench", "orchestrate", "results")
CONTRACT = "results.schema"
IN_CONTAINER = sys.stdlib_module_names | {"absl", "keras", "numpy", "pynvml", "tensorflow", "__future__"}
"""What the images carry."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


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


def test_names_of_tests_are_short():
    code = [path.read_text(encoding="utf-8") for path in sorted((PROJECT / "tests").rglob("*.py"))]
    assert re.findall(r"^ *(?:async )?def (test_\w{66,})", "".join(code), re.MULTILINE) == []


def test_every_beginning_in_the_order_of_tests_is_there():
    assert [start for start, _ in ORDER if not list(PROJECT.glob(f"{start.partition('::')[0]}*"))] == []


def test_every_list_of_what_an_image_gets_of_results_is_the_contract():
    contract = {"results/__init__.py", "results/schema"}
    copied = re.findall(r"^COPY (results/\S*) /results/", (PROJECT / "containers/Dockerfile").read_text(), re.MULTILINE)
    let_in = re.findall(r"^!(results/.*)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE)
    digested = [path for path in images.CONTEXT if path.startswith("results/")]
    assert {name.rstrip("/") for name in copied} == set(let_in) == set(digested) == contract


def test_files_that_the_architecture_names_exist():
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    paths = re.findall(r"`((?:tfbench|results|orchestrate|containers|studies|tests)/[\w./]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (PROJECT / path).exists()] == []
