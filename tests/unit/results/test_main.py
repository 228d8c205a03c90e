import errno
import json
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import results.__main__ as program
from results import read_runs
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    of_hosts,
    repeats,
    write_run,
)


def add_run(runs, name, factor, **changes):
    rates = {"slow": 10.0 * factor, "fast": 20.0 * factor}
    records = (r for one, rate in rates.items() for r in repeats(rate, rate * 1.01, fleet=one, run_id=name, **changes))
    return write_run(runs, records, name)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    add_run(tmp_path, "run-1", 1.0).write_plan("{}")
    return tmp_path


def call(*arguments):
    return program.main(["results", *arguments])


def test_a_run_is_found_by_id_path_and_record_file(runs, capsys):
    for name in ("run-1", str(runs / "run-1"), str(runs / "run-1" / "records" / "job-0.json")):
        assert call("export", name, "--format=json") == 0
        assert json.loads(capsys.readouterr().out)["rows"]


def test_an_interval_longer_on_one_side_has_one_notation_everywhere(runs, capsys):
    write_run(runs, [*of_hosts("a", 155.0, 147.0, prefix="h"), *of_hosts("b", 100.0, 93.0)], "new")
    write_run(runs, of_hosts("a", 100.0, 100.0, prefix="h"), "old")
    for command in (["--baseline=old"], ["--baseline=old", "--format=markdown"]):
        assert call("compare", "new", *command) == 0
        assert "1.51 (1.08–2.11)" in capsys.readouterr().out
    page = str(runs / "page.html")
    for command in (
        ["compare"], ["show", "--verbose"], ["export", "--format=markdown"], ["report", "--output", page]
    ):  # fmt: skip
        assert call(*command[:1], "new", *command[1:]) == 0
        said = capsys.readouterr().out or Path(page).read_text(encoding="utf-8")
        assert re.search(r"(1\.6|0\.64) (</span> <span class=\"together\">)?\(\d\.\d+–\d\.\d+\)", said), command


@pytest.mark.parametrize(
    "arguments",
    [
        "compare --by variables slow fast run-1 --strict run-2",
        "show run-1 --format json run-2",
        "recommend run-1 --model resnet50 run-2",
        "export run-1 --format markdown run-2",
        "gpus A4000 --format json A5000",
    ],
)
def test_flags_may_stand_between_names(runs, capsys, arguments):
    add_run(runs, "run-2", 1.01)
    words = arguments.split()
    assert call(*words) == 0
    mixed = capsys.readouterr().out
    flags = [i for i, word in enumerate(words) if word.startswith("--")]
    flags = [*flags, *(i + 1 for i in flags if words[i] != "--strict")]
    assert call(*(word for i, word in enumerate(words) if i not in flags), *(words[i] for i in sorted(flags))) == 0
    assert capsys.readouterr().out == mixed


def test_a_record_that_knows_no_fleet_and_no_device_is_no_fleet(runs, capsys):
    lost = replace(make_failure("stopped", "stopped by the user"), origin=None)
    path = write_run(runs, [lost, *repeats(20.0, 21.0, fleet="fast")], "run-3").path
    assert call("show", str(path)) == 0
    assert "stopped by the user" in capsys.readouterr().out
    assert read_runs(path).fleets == ["fast"]


def test_two_fleets_need_no_names_and_markdown_is_for_a_pull_request(runs, capsys):
    assert call("compare", "--format=markdown") == 0
    assert capsys.readouterr().out.startswith("* ")
    for fleet in ("slow", "fast"):  # runs may have the names of their fleets
        add_run(runs, fleet, 1.0)
    for a, b in ("slow", "fast"), ("fast", "slow"):
        assert call("compare", a, b) == 0 and f"\n{a} / {b}\n" in capsys.readouterr().out


def test_a_slower_run_than_the_baseline_ends_with_5_when_asked(runs, capsys):
    add_run(runs, "before", 1.0)
    add_run(runs, "after", 0.8)
    assert call("compare", "after", "--baseline", "before") == 0
    assert call("compare", "after", "--baseline", "before", "--fail-on", "50%") == 0
    assert call("compare", "after", "--baseline", "before", "--fail-on", "5%") == 5
    captured = capsys.readouterr()
    assert "slow / slow, baseline" in captured.out
    assert captured.err == "2 cases failed or are slower by more than 5 %\n"
    failed = make_failure(origin=make_origin("slow", repeat=3, run_id="failed"))
    add_run(runs, "failed", 1.0).write_record("job-9", failed)
    assert call("compare", "failed", "--baseline", "before", "--fail-on", "5%") == 5
    captured, case, why = capsys.readouterr(), "resnet50 fp32", "1 of 3 repeats: oom: out of memory\n"
    assert f"\nfailed on slow: node-a in {case}, {why}" in captured.out
    assert captured.err.startswith(f"! failed: slow/node-a, {case}: {why}1 case failed or is slower")


def test_a_case_that_fail_on_cannot_compare_is_named_with_code_3(runs, capsys):
    add_run(runs, "other", 1.0, case=make_case("vgg16"))
    add_run(runs, "keras", 1.0, environment=make_environment(keras="3.12.0"))
    less = add_run(runs, "less", 1.0)
    for number in "123":
        less.record_path(f"job-{number}").unlink()
    gone = "resnet50 fp32: not measured on the other side; measure it again with the same settings"
    one = (
        f"{gone}\n! not compared: slow, resnet50 fp32: fewer than 2 repeats on a side: no interval; measure at least 2"
    )
    for name, text in (("other", gone), ("less", one), ("keras --by=keras", f"{gone}, or leave out --by keras")):
        assert call("compare", "--baseline=run-1", "--fail-on=5%", *name.split()) == 3
        assert capsys.readouterr().err.startswith(f"! not compared: fast, {text}")
    (add_run(runs, "cut", 1.0).path / "records" / "cut.json").write_text("{")
    for side, other in ("run-1", "cut"), ("cut", "run-1"):
        assert call("compare", side, "--baseline", other, "--fail-on=5%") == 3
        assert "! not compared: 1 file without a readable record, see above" in capsys.readouterr().err


def test_mixed_software_is_not_compared_until_it_is_split(runs, capsys):
    add_run(runs, "before", 1.0, environment=make_environment(keras="3.12.0"))
    add_run(runs, "after", 1.0)
    assert call("compare", "before", "after") == 0
    assert "measured with several keras (3.12.0, 3.15.1): split with --by keras" in capsys.readouterr().out
    for command in ("show", "export", "export --format=wide"):
        assert call(*command.split(), "before", "after") == 0
        assert {"3.12.0", "3.15.1"} <= set(re.split(r"[\s,|]+", capsys.readouterr().out)), command
    for host, whose in (("b", "one machine each"), ("node-a", "the same machine")):
        other = repeats(10.0, 10.1, host=host, environment=make_environment(keras="3.12.0"), run_id=host)
        assert call("compare", str(write_run(runs, [*repeats(20.0, 20.1), *other], host).path), "--by=keras") == 0
        out = capsys.readouterr().out
        assert "a4000 (keras 3.15.1) is 2.00 ± 0.08 times as fast as a4000 (keras 3.12.0) (resnet50 fp32); " in out
        assert whose in out
        assert ("price" in out) == (host == "b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "fast", "medium"], "name two fleets to compare. Received: fast, medium"),
        (["compare", "/no/such/run"], "/no/such/run: neither a path nor a run in"),
        (["export", "--output=/no/such/folder/x.csv"], "cannot be written"),
        (["show", "."], "not a run folder"),
        (["show", "no-such-run"], "no-such-run: neither a path nor a run in"),
    ],
)
def test_a_mistake_is_a_short_message_and_exit_code_2(runs, capsys, arguments, message):
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


def test_a_file_that_cannot_be_replaced_is_kept(runs, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    (runs / "x.csv").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    assert call("export", f"--output={runs / 'x.csv'}") == 4
    assert "the disk is full" in capsys.readouterr().err and (runs / "x.csv").read_text() == "old"
    assert call("export", "--output=/dev/null") == 0 and not Path("/dev/null").is_file()
    assert not list(runs.glob(".x*"))


BAD_USAGE = {
    **{"compare --fail-on much": "must be", "compare --fail-on 150%": "must be", "compare --by colour": "must be"},
    **{"shwo": "See: python -m results", "": "See: python -m results", "export --format=xml": "See: python -m results"},
    "export --by=keras": "unrecognized arguments: --by=keras",
}


@pytest.mark.parametrize("arguments", BAD_USAGE)
def test_bad_usage_is_exit_code_2_and_named(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        call(*arguments.split())
    assert stopped.value.code == 2
    assert BAD_USAGE[arguments] in capsys.readouterr().err


def test_a_bug_leaves_its_traceback_in_a_file_and_exit_code_1(runs, capsys, monkeypatch, tmp_path):
    def broken(stored):
        raise ZeroDivisionError("planted")

    monkeypatch.delenv("TFBENCH_DEBUG", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("results.table.merge.merge_records", broken)
    assert call("show") == 1
    message = capsys.readouterr().err
    assert "A bug in tfbench: ZeroDivisionError('planted')" in message and "Traceback (" not in message
    assert "planted" in Path(message.split("Traceback: ")[1].strip()).read_text()


# ---- hosts of one fleet with different drivers

MODELS = ("resnet50", "resnet152", "inception_v3", "googlenet")
DRIVERS = {"node-a": "550.54", "node-b": "570.86"}


def two_drivers(fleet, gpu, rate, hosts=("node-a", "node-b"), price=0.2):
    records = []
    for number, host in enumerate(hosts):
        environment = make_environment(gpus=1, gpu=gpu, driver=DRIVERS[host])
        rates = rate * (1 + 0.01 * number), rate * (1.001 + 0.01 * number)
        where = {"fleet": fleet, "host": host, "environment": environment, "usd_per_gpu_hour": price}
        records += [r for model in MODELS for r in repeats(*rates, case=make_case(model, device="gpu"), **where)]
    return records


@pytest.fixture
def write(tmp_path, monkeypatch):
    def write(**of_a5000):
        a5000 = two_drivers("a5000", "NVIDIA RTX A5000", 150.0, **of_a5000)
        write_run(tmp_path, [*two_drivers("a4000", "NVIDIA RTX A4000", 100.0), *a5000])

    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    return write


COMMANDS = ["compare a5000 a4000", "show", "export --format=markdown", "export --format=wide"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_drivers_and_counts_a_case_once(write, capsys, command):
    write(price=0.3)
    assert call(*command.split()) == 0
    out = capsys.readouterr().out
    assert "drivers 550.54 on node-a, 570.86 on node-b" in out
    if command.startswith("compare"):
        assert "as fast as a4000 in each of 4 cases" in out and "mean of 4: training" in out


@pytest.mark.parametrize(
    ("command", "hosts", "said"),
    [
        ("--strict", DRIVERS, "several driver (550.54, 570.86)"),
        ("--by=driver", ["node-a"], "measured on a4000 only: googlenet fp32"),
    ],
)
def test_asked_to_split_drivers_compare_names_what_has_no_partner(write, capsys, command, hosts, said):
    write(hosts=[*hosts])
    assert call("compare", "a5000", "a4000", command) == 0 and said in capsys.readouterr().out


def test_records_without_an_orchestrator_are_compared_by_their_gpus(tmp_path, capsys):
    gpus = {"NVIDIA RTX A5000": 150.0, "NVIDIA RTX A4000": 100.0}
    records = [r for gpu, rate in gpus.items() for r in two_drivers("any", gpu, rate, ("node-a",))]
    assert call("compare", *gpus, str(write_run(tmp_path, [replace(r, origin=None) for r in records]).path)) == 0
    named = "NVIDIA RTX A5000 is 1.50 times as fast as NVIDIA RTX A4000 in each of 4 cases; one machine each."
    assert named in capsys.readouterr().out
