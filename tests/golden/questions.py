"""The questions whose answers are kept in `answers/`, and the one way to ask them.

`python -m tests.golden.questions` writes the answers anew. Read the diff before you commit it: an answer changes only
on purpose, and the commit says why.
"""

import contextlib
import html
import io
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import results.__main__ as program
from results.runs.store import write_file
from results.schema import Record
from tests.support import PROJECT
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, write_run

ANSWERS = Path(__file__).parent / "answers"
MEASURED = PROJECT / "results" / "reference" / "measured"
CASES = PROJECT / "tests" / "unit" / "results" / "cases"

H100, H200 = (
    f"{MEASURED.relative_to(PROJECT)}/{name}"
    for name in ("h100-sxm-2026-11-26-b/runs/h100", "h200-sxm-2026-11-26/runs/h200")
)
RESNET = ("--model=resnet50", "--precision=fp16,fp32")

QUESTIONS: dict[str, tuple[str, ...]] = {
    **{f"show-{name}": ("show", *runs) for name, runs in (("made-up", ("made-up",)), ("h100", (H100,)), ("both", (H100, H200)))},
    "show-failed": ("show", "failed"),
    "show-h100-time": ("show", H100, "--time-breakdown"),
    **{f"export-{kind}": ("export", "made-up", f"--format={kind}") for kind in ("csv", "json", "markdown", "wide")},
    "export-both-json": ("export", H100, H200, "--format=json"),
    **{f"compare-made-up-{kind}": ("compare", "made-up", f"--format={kind}") for kind in ("text", "json", "markdown")},
    **{f"compare-both-{kind}": ("compare", "h200", "h100", H100, H200, f"--format={kind}") for kind in ("text", "json")},
    "compare-baseline": ("compare", "made-up", "--baseline=slower", "--fail-on=5%"),
    "compare-mixed-json": ("compare", "mixed", "--format=json"),
    **{f"recommend-made-up-{kind}": ("recommend", "made-up", *RESNET, f"--format={kind}") for kind in ("text", "json", "markdown")},
    "recommend-both": ("recommend", H100, H200, *RESNET, "--price=H100=2.5", "--price=H200=3.1"),
    "recommend-both-json": ("recommend", H100, H200, *RESNET, "--price=H100=2.5", "--price=H200=3.1", "--format=json"),
    "recommend-published": ("recommend", *RESNET, "--gpus=A4000,A5000", "--price=A4000=0.17", "--price=A5000=0.36"),
    "recommend-published-json": ("recommend", *RESNET, "--gpus=A4000,A5000,A100,H100", "--format=json"),
    "recommend-bert": ("recommend", "--model=bert_large", "--precision=fp16", "--gpus=A100,H100,H200", "--samples=10e6"),
    "recommend-hours": ("recommend", "--samples=115e6", "--hours=24", "--gpus=A4000,A5000,A6000", "--price=A4000=0.17"),
    "recommend-budget": ("recommend", "made-up", "--budget=0.5", "--num-gpus=1,2"),
    "page-both": ("report", H100, H200, "--output=page.html"),
    "page-made-up": ("report", "made-up", "--output=page.html"),
    "validate": ("validate", "made-up", "failed", H100),
    "gpus": ("gpus", "A4000", "A5000"),
    "gpus-json": ("gpus", "A4000", "A5000", "H100", "--format=json"),
    **{f"audit-{kind}": ("audit", str((CASES / "blog_a5000.csv").relative_to(PROJECT)), f"--format={kind}") for kind in ("text", "json", "markdown")},
}  # fmt: skip
"""What is asked, by the name of the answer's file: arguments of `python -m results`, run in the project's folder."""

SPEEDS = {"resnet50": 100.0, "inception_v3": 70.0, "bert_large": 9.0}


def made_up_records(run_id: str = "made-up", factor: float = 1.0, keras: str = "3.15.1") -> list[Record]:
    """Make records of two fleets of two hosts with 1 and 2 GPUs, three networks, two precisions, three repeats."""
    noise = random.Random(4)
    records = []
    for fleet, gpu, speed, usd in (("a4000", "NVIDIA RTX A4000", 1.0, 0.17), ("a5000", "NVIDIA RTX A5000", 1.52, 0.36)):
        for host in ("x", "y"):
            environment = make_environment(gpus=2, gpu=gpu, keras=keras)
            where: dict[str, Any] = {"fleet": fleet, "host": f"{fleet}-{host}", "run_id": run_id}
            for model, base in SPEEDS.items():
                for precision, gain in (("fp32", 1.0), ("fp16", 2.1)):
                    for gpus, scale in ((1, 1.0), (2, 1.93)):
                        case = make_case(model, device="gpu", precision=precision, num_gpus=gpus, batch_per_gpu=64)
                        rate = base * speed * gain * scale * factor * noise.gauss(1.0, 0.004)
                        rates = [rate * noise.gauss(1.0, 0.002) for _ in range(3)]
                        records += repeats(*rates, case=case, environment=environment, usd_per_gpu_hour=usd, **where)
            case = make_case("vgg16", device="gpu", precision="fp32", batch_per_gpu=256)
            origin = make_origin(**where, usd_per_gpu_hour=usd)
            cause = "out of memory: 16 GiB"
            records.append(make_failure("oom", cause, case=case, origin=origin, environment=environment))
    return records


def write_runs(folder: Path) -> None:
    """Write the made-up runs."""
    write_run(folder, made_up_records(), "made-up")
    write_run(folder, made_up_records("slower", 1.08), "slower")
    others = [one for one in made_up_records("mixed", keras="3.14.0") if one.case and one.case.model == "resnet50"]
    write_run(folder, [*made_up_records("mixed"), *others], "mixed")
    origins = [make_origin(repeat=repeat, run_id="failed") for repeat in (1, 2)]
    write_run(folder, [make_failure("no_gpu", "the container sees no GPU", origin=one) for one in origins], "failed")


def text_of(page: str) -> str:
    """Return the text of a page, a line each, without styles, scripts and drawings."""
    parts = re.split(r"<[^>]*>", re.sub(r"(?s)<(script|style|svg)\b.*?</\1>|<!.*?>", "<>", page))
    return "\n".join(" ".join(html.unescape(part).split()) for part in parts if part.strip())


def rounded(value: object) -> object:
    """Round the numbers of a JSON value to 7 significant digits: the last ones depend on the order of additions."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def ask(arguments: tuple[str, ...], runs: Path) -> str:
    """Return what a command prints on 80 columns: its exit code, standard error, and output or page."""
    out, err = io.StringIO(), io.StringIO()
    environment = {"TFBENCH_RUNS_DIR": str(runs), "COLUMNS": "80", "NO_COLOR": "1"}
    page = runs / "page.html"
    arguments = tuple(part.replace("page.html", str(page)) for part in arguments)
    with (
        mock.patch.dict(os.environ, environment),
        contextlib.chdir(PROJECT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = program.main(["results", *arguments])
    output = out.getvalue()
    if f"--output={page}" in arguments:
        output = text_of(page.read_text(encoding="utf-8"))
    elif "--format=json" in arguments and output:
        output = json.dumps(rounded(json.loads(output)), indent=1, ensure_ascii=False)
    answer = f"exit code {code}\n{err.getvalue()}----\n{output.rstrip()}\n"
    answer = re.sub(r" on \d{4}-\d\d-\d\d \d\d:\d\d UTC", " on DATE", answer)  # when the page was made
    return answer.replace(f"{runs}/", "").replace(str(runs), "RUNS").replace(f"{PROJECT}/", "")


def main() -> None:
    """Write all answers anew, and remove those that nobody asks for."""
    for path in ANSWERS.glob("*.txt"):
        if path.stem not in QUESTIONS:
            path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder))
        for name, arguments in QUESTIONS.items():
            answer = ask(arguments, Path(folder))
            path = ANSWERS / f"{name}.txt"
            if not path.exists() or path.read_text(encoding="utf-8") != answer:
                write_file(path, answer)
                print(name, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
