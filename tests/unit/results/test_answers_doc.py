"""`docs/answers.md` is what `recommend` prints on a fresh clone; `make answers` writes it."""

import json

import pytest

import results.__main__ as program
from tests.docs import answers


def test_the_committed_page_is_what_the_commands_print_today():
    assert answers.PAGE.read_text(encoding="utf-8") == answers.page(), "run: make answers"


@pytest.mark.parametrize("asked", answers.QUESTIONS, ids=lambda asked: asked.title)
def test_every_figure_of_an_answer_is_published_or_a_bound_and_names_its_source(asked, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    assert program.main(["results", "recommend", *asked.arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    choices = document["choices"]
    assert choices and {choice["basis"] for choice in choices} <= {"published", "bound"}
    assert document["answer"][0]
    for choice in choices:
        figures = choice["samples_per_second"] or choice["elsewhere"]
        assert choice["sources"] if figures else choice["excluded"]
        assert choice["basis"] == "published" or choice["excluded"], "a bound is never ranked"
