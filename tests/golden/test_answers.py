from pathlib import Path

import pytest

from tests.golden.questions import ANSWERS, QUESTIONS, ask, write_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder)
    return folder


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_command_answers_as_before(name: str, runs: Path) -> None:
    """On a difference: is it meant? Then `python -m tests.golden.questions` writes the answers anew."""
    assert ask(QUESTIONS[name], runs) == (ANSWERS / f"{name}.txt").read_text(encoding="utf-8")
