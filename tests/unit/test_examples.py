"""`examples/`: each command of its README and each cell of its notebook works as written."""

import json
import re
import shlex
from typing import Any

import pytest

import results.__main__ as program
from studies.pages import pictures
from tests.support import PROJECT

EXAMPLES = PROJECT / "examples"
COMMANDS = re.findall(r"^tfbench (.*)$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_examples_answers(command, capsys, monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    assert program.main(["results", *shlex.split(command)]) == 0
    printed = capsys.readouterr().out
    assert "h100" in printed or (tmp_path / "report.html").exists()


def test_the_notebook_runs_from_its_first_cell_to_its_last(capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    cells = json.loads((EXAMPLES / "analyse.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for source in sources:
        exec(compile(source, "analyse.ipynb", "exec"), names)
    assert len(cells) == 15 and names["runs"].fleets == ["h100", "h200"]
    assert "h200 is " in capsys.readouterr().out


def test_the_front_page_shows_what_the_command_prints_today():
    """On a difference, `python -m studies.pages.pictures` writes it anew."""
    page = pictures.README.read_text(encoding="utf-8")
    assert pictures.with_compared(page) == page and "$ tfbench compare h200 h100" in page
