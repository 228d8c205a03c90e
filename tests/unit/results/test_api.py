"""The Python API: `import results`, and the page that shows it."""

import ast
import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import results
import results.__main__ as program
from results.errors import BadQuestion, NotARun, UnknownFleet, UserError
from results.table.columns import COLUMNS
from results.table.merge import REPEAT_COLUMNS
from tests.support import PROJECT
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, write_run

PAGE = PROJECT / "docs" / "python.md"
FP16 = make_case(precision="fp16", device="gpu", batch_per_gpu=64)
VGG = make_case("vgg16", precision="fp16", device="gpu", batch_per_gpu=64)


def of(fleet, gpu, factor, **changes):
    machine = make_environment(gpus=1, gpu=gpu, **changes)
    rates = {FP16: (99.0, 100.0, 101.0), VGG: (39.5, 40.0, 40.5)}
    scaled = {case: [factor * value for value in values] for case, values in rates.items()}
    return [r for case, values in scaled.items() for r in repeats(*values, fleet=fleet, case=case, environment=machine)]


def quick():
    oom = make_failure("oom", "out of memory", case=make_case("resnet152", device="gpu"), origin=make_origin("a4000"))
    return [*of("a4000", "NVIDIA RTX A4000", 1.0), *of("a5000", "NVIDIA RTX A5000", 1.5), oom]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TFBENCH_RUNS_DIR", raising=False)
    return write_run(tmp_path / "runs", quick(), "quick").path


def test_exported_names_are_sorted_exist_and_are_those_of_the_stub():
    module = importlib.import_module("results")  # type checkers see the stub
    assert module.__all__ == sorted(module.__all__)
    assert all(getattr(results, name) is not None for name in module.__all__)
    stub = ast.parse((PROJECT / "results" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == module.__all__ and set(module.__all__) <= set(dir(results))
    with pytest.raises(AttributeError, match="no attribute 'read_run'"):
        module.read_run  # noqa: B018


def test_importing_results_imports_nothing_but_the_contract():
    command = [sys.executable, "-c", "import results, sys; print(sorted(sys.modules))"]
    names = ast.literal_eval(subprocess.check_output(command, cwd=PROJECT, text=True))
    assert {name for name in names if name.startswith("results")} - {"results", "results.schema"} == {
        f"results.schema.{name}" for name in ("bounds", "case", "enums", "health", "networks", "record", "version")
    }
    assert not {"numpy", "pandas", "scipy", "argparse"} & set(names)


@pytest.mark.slow
def test_the_page_is_true(run):
    example, printed = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(example, str(PAGE), "exec"), {})
    assert shown.getvalue() == printed
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_names_every_column_that_the_merged_table_does_not_have(run):
    page = PAGE.read_text(encoding="utf-8")
    read = results.read_runs(run)
    frames = (read.repeats, read.compare("a5000", "a4000"), read.recommend().choices)
    others = {name for frame in frames for name in frame.columns if name not in COLUMNS}
    assert [name for name in others if f"`{name}`" not in page] == []


def test_repeats_have_a_row_for_each_record_also_for_those_that_failed(run):
    (run / "records" / "bad.json").write_text("{}", encoding="utf-8")
    shutil.copy(run / "records" / "job-0.json", run / "records" / "twice.json")
    read = results.read_runs("runs/quick")
    frame = read.repeats
    assert list(frame.columns) == list(REPEAT_COLUMNS)
    assert len(frame) == len(quick()) == read.table["repeats"].sum()
    assert frame["samples_per_second"].nsmallest(3).tolist() == pytest.approx([39.5, 40.0, 40.5])
    oom = frame[frame["status"] == "oom"]
    cells = oom[["fleet", "host", "model", "cause"]].values.tolist()
    assert cells == [["a4000", "node-a", "resnet152", "out of memory"]]
    assert oom["samples_per_second"].isna().all()
    assert [line.split(": ")[1] for line in read.problems] == [
        "not a record, excluded",
        "same run, job and repeat as runs/quick/records/job-0.json, excluded",
    ]


def test_no_mean_over_repeats_includes_a_suspect_one(tmp_path):
    cases = [make_case(device="gpu", all_reduce=all_reduce) for all_reduce in (True, False)]
    lies = [record for case in cases for record in repeats(100.0, 2e6, case=case, environment=make_environment(gpus=1))]
    frame = results.read_runs(write_run(tmp_path, lies).path).repeats
    assert frame["samples_per_second"].mean() == pytest.approx(100.0) and frame["step_p50_seconds"].count() == 2
    assert frame["status"].tolist() == ["ok", "invalid"] * 2 and frame["cause"][3].startswith("suspect: 2e+06 images/s")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("show", "quick"), ("gpus", "A4000"), ("plan", "--hosts=hosts.yml")])
def test_the_command_works_in_a_project_with_its_own_package_results(run, tmp_path, command):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "__init__.py").write_text("raise RuntimeError('the package of the project')")
    hosts = (
        "version: 1\ndefaults: {device: cpu, suite: quick}\nfleets: {here: {hosts: {this-machine: {process: true}}}}\n"
    )
    (tmp_path / "hosts.yml").write_text(hosts)
    script = tmp_path / "bin" / "tfbench"  # as pip installs it
    script.parent.mkdir()
    script.write_text("import sys\nfrom orchestrate.cli import main\nsys.exit(main())\n")
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, script, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "the package of the project" not in done.stderr, done.stderr
    assert "a4000" in done.stdout.lower() or "here" in done.stdout.lower()


@pytest.mark.parametrize(("name", "imported"), [("results/__init__.py", False), ("results/data.csv", True)])
@pytest.mark.slow
def test_python_imports_results_where_the_page_says_so(tmp_path, name, imported):
    (tmp_path / "results").mkdir()
    (tmp_path / name).write_text("")
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    for flags, works in (([], imported), (["-P"], True)):
        command = [sys.executable, *flags, "-c", "import results; results.read_runs"]
        assert (subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True).returncode == 0) is works


def test_mistakes_are_user_errors_that_say_what_came_in(run):
    read = results.read_runs(run)
    assert results.UserError is UserError
    with pytest.raises(NotARun, match="nowhere"):
        results.read_runs("nowhere")
    with pytest.raises(UnknownFleet, match=r"a100: no such fleet\. These runs hold: a4000, a5000"):
        read.compare("a4000", "a100")
    with pytest.raises(BadQuestion, match=r"Received: kera$"):
        read.compare("a4000", "a5000", by=["kera"])
    with pytest.raises(BadQuestion, match="Received: 'training'"):
        read.recommend(mode="training")
    with pytest.raises(BadQuestion, match="Received: 'fp8'"):
        read.recommend(precision="fp8")
    with pytest.raises(BadQuestion, match="'resnet5' is not a known network"):
        read.recommend("resnet5")
    with pytest.raises(BadQuestion, match=r"^--budget: must be a number above 0\. Received: 1$"):
        read.recommend(budget="1")
    with pytest.raises(
        UserError, match=r"nowhere/x\.html: cannot be written: No such file or directory\. Choose another file\.$"
    ):
        read.report("nowhere/x.html")


def test_one_value_is_as_good_as_a_list_of_one(run):
    read = results.read_runs(run)
    several = read.recommend(["resnet50"], precision=["fp16"], num_gpus=[1], gpus=["A4000"])
    assert read.recommend("resnet50", precision="fp16", num_gpus=np.int64(1), gpus="A4000") == several
    assert read.compare("a5000", "a4000", by="keras").equals(read.compare("a5000", "a4000", by=["keras"]))


def test_compare_has_what_the_command_prints_as_json(run, capsys):
    job = run / "records" / "job-0.json"
    warning = [{"code": "high_cv", "message": "high_cv"}]
    job.write_text(json.dumps(json.loads(job.read_text()) | {"warnings": warning}))
    frame = results.read_runs(run).compare("a5000", "a4000")
    assert program.main(["results", "compare", str(run), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert list(frame.columns) == list(found["cases"][0]) and frame["warnings"].count() == 1


def test_recommend_names_the_winner_and_every_unused_price(run):
    read = results.read_runs(run)
    advice = read.recommend(prices={"A4000": 0.17, "A5000": 0.30, "A6000": 1.0}, gpus=["A4000", "A5000"])
    assert str(advice).splitlines() == list(advice.answer) and "rent a4000" in advice.answer[0]
    assert advice.answer[-1] == "price not used: 1 USD for RTX A6000: the answer has no row of this GPU"
    first, second = (advice.choices.iloc[i] for i in (0, 1))
    assert first["winner"] == "yes" and first["samples_per_usd"] > second["samples_per_usd"]
    assert first["samples_per_usd"] == pytest.approx(100 * 3600 / 0.17)
    assert first["hours"] == pytest.approx(1e6 / 100 / 3600)


def test_the_report_names_the_runs_and_warns_of_unused_prices(run):
    with pytest.warns(UserWarning, match="price not used: 1 USD for RTX A6000"):
        path = results.read_runs(run).report("page.html", prices={"A4000": 0.17, "A6000": 1.0})
    assert path == Path("page.html") and "Results of quick: 2026-" in path.read_text(encoding="utf-8")
