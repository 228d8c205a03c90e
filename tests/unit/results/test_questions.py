"""Questions that buyers ask, each with its expected winner, ratio and words; `docs/answers.md` has five of them."""

import json
import shlex
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import results.__main__ as program
from tests.docs import answers
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, write_run

QUESTIONS = YAML(typ="safe").load((Path(__file__).parent / "questions" / "questions.yml").read_text(encoding="utf-8"))


def records_of(fleets):
    """Yield the records that a question describes, see the head of `questions.yml`."""
    for fleet, settings in fleets.items():
        case = make_case(**{"device": "gpu", "precision": "fp16"} | settings.get("case", {}))
        environment = make_environment(gpus=1, gpu=settings["gpu"])
        if "status" in settings:
            origin = make_origin(fleet, "host")
            yield make_failure(settings["status"], case=case, origin=origin, environment=environment)
        else:
            origin = {"fleet": fleet, "host": f"on-{fleet}", "usd_per_gpu_hour": settings.get("usd")}
            yield from repeats(*settings["rates"], case=case, environment=environment, **origin)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["about"])
def test_a_question_has_its_winner_its_ratio_and_its_words(question, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    if "run" in question:
        write_run(tmp_path, records_of(question["run"]))
    arguments = ["results", "recommend", *shlex.split(question["command"])]
    assert program.main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    if "winner" in question:
        assert document["answers"][0]["winner"] == question["winner"], document["answer"]
    if "ratio" in question:
        assert f"{question['ratio']:.2f}" in document["answer"][0], document["answer"]
    assert program.main(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [word for word in question.get("says", []) if word not in text] == [], text
    assert [word for word in question.get("never", []) if word in text] == [], text


def test_the_page_of_answers_is_what_the_commands_print_today():
    page = answers.PAGE.read_text(encoding="utf-8")
    assert page == answers.page(), "run: make answers"
    assert len([word for word in page.split() if any(map(str.isalpha, word))]) <= answers.MOST_WORDS
