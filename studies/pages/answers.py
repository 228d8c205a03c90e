"""Writes docs/answers.md: common questions, answered from published figures.

    python -m studies.pages.answers

The page has the output of `tfbench recommend` without any runs, from `results/reference/*.csv` only. A test
compares it with the committed page.
"""

import contextlib
import io
import os
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

import results.__main__ as program

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"

MOST_WORDS = 500
"""Maximum words of the page, including output but not numbers."""

QUESTIONS = (
    (
        "A4000 or A5000?",
        "--gpus A4000,A5000",
        "BERT-Large agrees (1.56). With other prices, multiply. `audit` finds the blogs' own table impossible, so it is "
        "not used.",
    ),
    (
        "RTX 4090, A6000 or H100?",
        "--gpus '4090,A6000,H100 SXM5' --model resnet50_v1.5",
        "One H100 replaces two 4090s. Its lowest price is spot; on demand it must stay below 2.85 times an A6000's.",
    ),
    (
        "24 GB for less than 1 USD an hour?",
        "--budget 1 --memory 24 --model resnet50_v1.5",
        "Spot H100s for work that survives an interruption, else the A6000. Rent predicted ones and Blackwell for an hour "
        "first.",
    ),
)
"""Title, flags of `recommend`, and conclusion of each question."""

INTRODUCTION = """# Three questions, answered without a measurement of your own

Written by `python -m studies.pages.answers` from [results/reference](../results/reference/README.md). Your own records take precedence.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(number, *asked) for number, asked in enumerate(QUESTIONS, 1))])


def _section(number: int, title: str, flags: str, judgement: str) -> str:
    verdict, _, rest = recommend(flags).strip().partition("\n\n")
    output = "\n".join(line.rstrip() for line in rest.splitlines())
    sentence = " ".join(verdict.split())
    return f"## {number}. {title}\n\n{sentence[0].upper()}{sentence[1:]}. {judgement}\n\n```\n$ tfbench recommend {flags}\n{output}\n```\n"


def recommend(flags: str) -> str:
    """Return the output of `recommend` without any runs, on a terminal of 80 columns."""
    printed = io.StringIO()
    terminal = {"COLUMNS": "80", "TERM": "dumb", "TTY_COMPATIBLE": "1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"TFBENCH_RUNS_DIR": folder, **terminal}),
        contextlib.redirect_stdout(printed),
    ):
        code = program.main(["results", "recommend", *shlex.split(flags)])
    assert code == 0, f"recommend {flags} ended with {code}"
    return printed.getvalue()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}\n")
