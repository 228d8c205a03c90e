"""Write docs/answers.md: the questions that this project started from, answered from what others published.

    python -m tests.docs.answers          # or: make answers

Every figure on the page comes out of `python -m results recommend` as it runs on a fresh clone: no run of one's own, only
`results/reference/*.csv`. A test holds the committed page to what this prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import results.__main__ as program

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"


@dataclass(frozen=True)
class Asked:
    """A question of one of the documents that this project started from.

    Attributes:
        title: The question in words.
        source: Who asked it.
        arguments: How `recommend` is asked.
        notes: What the sources leave out, without figures.
    """

    title: str
    source: str
    arguments: tuple[str, ...]
    notes: str = ""


FP32 = (
    "Where a source writes FP32, it ran TF32 on cards since Ampere. Nobody whose figures are here ran these three in IEEE "
    "FP32, so that part of the question has no answer yet."
)

QUESTIONS = (
    Asked(
        "A4000 or A5000?",
        "two articles of Spheron (2024), one of them with a table that `audit` calls impossible: it is not used here",
        ("--gpus", "A4000,A5000", "--model", "resnet50", "--model", "bert_large"),
    ),
    Asked(
        "A6000 or A100, also for BERT-Large?",
        "a hosting guide that compares the two by their specifications",
        ("--gpus", "A6000,A100", "--model", "resnet50_v1.5", "--model", "bert_large"),
    ),
    Asked(
        "RTX 4090 Laptop or A100?",
        "an article that gives no measurement",
        ("--gpus", "RTX 4090 Laptop,A100", "--model", "resnet50_v1.5", "--model", "bert_large"),
        "Nobody whose figures are here measured the laptop card. What its memory bandwidth and arithmetic cannot pass is "
        "known, and that is all that is said about it.",
    ),
    Asked(
        "RTX 4090, A6000 or H100 for BERT-Large and ResNet50 v1.5, in FP32 and mixed precision?",
        "AIME's page of benchmarks, whose figures are pictures",
        ("--gpus", "4090,A6000,H100", "--model", "bert_large", "--model", "resnet50_v1.5",
         "--precision", "fp32,tf32,fp16"),
        FP32,
    ),
    Asked(
        "Which one for a budget of 1 USD an hour and 24 GB?",
        "all of them, in one way or another",
        ("--budget", "1", "--min-memory", "24", "--model", "resnet50_v1.5", "--model", "bert_large"),
    ),
)  # fmt: skip

INTRODUCTION = """# Five questions, answered from published figures

Made by `make answers`; do not edit. Every figure was published by somebody else and comes from
[results/reference](../results/reference/README.md), with its source in the answer; prices are the dated examples of
`prices.csv`. Nothing was measured for this page. With records of your own the same commands answer from those, with
intervals; put your prices into the command with `--price 'RTX A4000=0.17'`.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(number, asked) for number, asked in enumerate(QUESTIONS, 1))])


def _section(number: int, asked: Asked) -> str:
    output = recommend(asked.arguments)
    answer, _, evidence = output.partition("\n\n")
    command = shlex.join(["python", "-m", "results", "recommend", *asked.arguments])
    parts = [
        f"## {number}. {asked.title}",
        f"Asked by: {asked.source}.",
        f"```\n{command}\n```",
        answer,
        asked.notes,
        f"<details><summary>The figures behind it</summary>\n\n{evidence.strip()}\n\n</details>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def recommend(arguments: Sequence[str]) -> str:
    """Return what the command prints on a machine without any run."""
    printed = io.StringIO()
    with _no_runs(), contextlib.redirect_stdout(printed):
        code = program.main(["results", "recommend", *arguments, "--format", "markdown"])
    assert code == 0, f"recommend {shlex.join(arguments)} ended with {code}"
    return printed.getvalue()


@contextlib.contextmanager
def _no_runs() -> Iterator[None]:
    before = os.environ.get("TFBENCH_RUNS_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFBENCH_RUNS_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TFBENCH_RUNS_DIR")
            if before is not None:
                os.environ["TFBENCH_RUNS_DIR"] = before


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"{PAGE}\n")
