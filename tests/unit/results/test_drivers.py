"""Hosts of one fleet with different drivers: every command answers, names them, and counts each case once."""

import re

import pytest

from results.__main__ import main
from results.report.page import make_report
from results.report.tables import wide_grids
from results.runs.store import RunFolder
from results.table.merge import merge_records
from tests.unit.results.factory import make_case, make_environment, repeats, stored

MODELS = ("resnet50", "resnet152", "inception_v3", "googlenet")
DRIVERS = {"node-a": "550.54", "node-b": "570.86"}


def two_drivers(fleet, gpu, rate, hosts=("node-a", "node-b"), price=0.2):
    return [
        record
        for model in MODELS
        for number, host in enumerate(hosts)
        for record in repeats(
            rate * (1 + 0.01 * number),
            rate * (1.001 + 0.01 * number),
            fleet=fleet,
            host=host,
            case=make_case(model, device="gpu"),
            environment=make_environment(gpus=1, gpu=gpu, driver=DRIVERS[host]),
            usd_per_gpu_hour=price,
        )
    ]


@pytest.fixture
def mixed_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    run = RunFolder.create(tmp_path, "run-1")
    records = [
        *two_drivers("a4000", "NVIDIA RTX A4000", 100.0),
        *two_drivers("a5000", "NVIDIA RTX A5000", 150.0, price=0.3),
    ]
    for number, record in enumerate(records):
        run.write_record(f"{number}", record)
    return run


def call(*arguments):
    return main(["results", *arguments])


COMMANDS = [
    ("compare", "a5000", "a4000"),
    ("show",),
    ("report", "--format=md"),
    ("export", "--format=markdown"),
    ("export", "--format=wide"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_names_the_drivers_and_counts_a_case_once(mixed_run, capsys, command):
    assert call(*command) == 0
    out = capsys.readouterr().out
    assert "drivers 550.54 on node-a, 570.86 on node-b" in out
    counted = re.findall(r"geometric mean of (\d+) cases", out)
    assert set(counted) == (set() if "--format=wide" in command else {"4"})


def test_the_csv_has_a_row_for_each_host_with_its_own_driver(mixed_run, capsys):
    assert call("export", "--format=csv") == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1 + 2 * 2 * len(MODELS) and "550.54" in out and "570.86" in out


def test_asked_to_be_strict_compare_refuses_as_it_did(mixed_run, capsys):
    assert call("compare", "a5000", "a4000", "--strict") == 2
    assert "several driver (550.54, 570.86)" in capsys.readouterr().err


def test_split_by_driver_a_host_without_a_partner_is_named_and_not_dropped(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    run = RunFolder.create(tmp_path, "run-1")
    records = [
        *two_drivers("a4000", "NVIDIA RTX A4000", 100.0),
        *two_drivers("a5000", "NVIDIA RTX A5000", 150.0, hosts=("node-a",)),
    ]
    for number, record in enumerate(records):
        run.write_record(f"{number}", record)
    assert call("compare", "a5000", "a4000", "--by=driver") == 0
    assert "measured on one side only: googlenet fp32 1×gpu" in capsys.readouterr().out


def test_a_case_measured_with_several_softwares_is_not_counted_once_for_each():
    def of(fleet, rate, keras):
        return [
            record
            for model in MODELS
            for record in repeats(
                rate,
                rate * 1.01,
                fleet=fleet,
                case=make_case(model),
                environment=make_environment(keras=keras),
                run_id=keras,
            )
        ]

    records = stored(*of("a", 20.0, "3.15.1"), *of("a", 20.0, "3.12.0"), *of("b", 10.0, "3.15.1"))
    ((_, _, found),) = make_report(records, "title").pairs
    assert len(found) == len(MODELS)
    assert {item.reason for item in found} == {"measured with several keras: split with --by keras"}


def test_four_drivers_of_one_card_are_one_line_with_the_spread_between_hosts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    monkeypatch.setitem(DRIVERS, "node-a", "535.183")
    monkeypatch.setitem(DRIVERS, "node-b", "550.127")
    monkeypatch.setitem(DRIVERS, "node-c", "570.86")
    monkeypatch.setitem(DRIVERS, "node-d", "580.95")
    run = RunFolder.create(tmp_path, "run-1")
    records = [
        *two_drivers("a4000", "NVIDIA RTX A4000", 100.0, hosts=tuple(DRIVERS)),
        *two_drivers("a5000", "NVIDIA RTX A5000", 150.0, hosts=("node-d",)),
    ]
    for number, record in enumerate(records):
        run.write_record(f"{number}", record)
    assert call("compare", "a5000", "a4000") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "drivers 535.183 on node-a, 550.127 on node-b, 570.86 on node-c, 580.95 on node-d" in out
    assert "geometric mean of 4 cases" in out
    of_fleet, _ = wide_grids(merge_records(stored(*records)))
    assert len(of_fleet.rows) == len(MODELS), "one table, in which no case is split by driver"
    assert call("compare", "a5000", "a4000", "--strict") == 2
