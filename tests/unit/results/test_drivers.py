"""Hosts of one fleet with different drivers: every command answers, names them, and counts each case once."""

import re

import pytest

from results.__main__ import main
from tests.unit.results.factory import make_case, make_environment, repeats, write_run

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


@pytest.fixture
def mixed_run(write):
    write(price=0.3)


def call(*arguments):
    return main(["results", *arguments])


COMMANDS = ["compare a5000 a4000", "show", "report --format=md", "export --format=markdown", "export --format=wide"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_drivers_and_counts_a_case_once(mixed_run, capsys, command):
    assert call(*command.split()) == 0
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


def test_split_by_driver_a_host_without_a_partner_is_named_and_not_dropped(write, capsys):
    write(hosts=("node-a",))
    assert call("compare", "a5000", "a4000", "--by=driver") == 0
    assert "measured on one side only: googlenet fp32 1×gpu" in capsys.readouterr().out
