"""Open files: a run asks for as many as it needs, and says so where it cannot have them."""

from __future__ import annotations

import gc
import re
import resource

import pytest

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.running.controller import allow_open_files, collect_rarely, files_needed


def test_the_collector_passes_over_what_is_there():
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(700)  # another test may have begun a run in this process
        collect_rarely()
        assert gc.get_freeze_count() > 10_000 and gc.get_threshold()[0] > 700
        assert gc.isenabled(), "cycles that a run leaves must not stay for ever"
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@pytest.fixture
def limits(monkeypatch):
    """Replace this process's limits by a pair that tests may change."""
    held = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: held[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: held.append(pair))
    return held


def fleet(count: int, scheme: str = "unix") -> list[Host]:
    return [
        Host(fleet="f", name=f"n{number}", docker=DockerAddress(scheme=scheme, target=f"/{number}"))
        for number in range(count)
    ]


def test_a_small_run_changes_nothing(limits):
    allow_open_files(fleet(10), None)
    assert limits == [(1024, 4096)]


def test_a_large_run_raises_the_soft_limit_as_far_as_it_needs(limits):
    allow_open_files(fleet(500), None)
    (soft, hard) = limits[-1]
    assert 1024 < soft == files_needed(fleet(500), None) < hard == 4096


def test_ssh_takes_more_and_a_limit_of_hosts_less():
    assert files_needed(fleet(10, "ssh"), None) > files_needed(fleet(10), None) > files_needed(fleet(10), 3)


def test_a_run_that_is_too_large_is_told_what_fits(limits):
    hosts = fleet(2000)
    with pytest.raises(UserError, match="2000 hosts need") as caught:
        allow_open_files(hosts, None)
    fitting = int(re.search(r"--max-parallel (\d+)", str(caught.value))[1])
    assert files_needed(hosts, fitting) <= 4096 < files_needed(hosts, fitting + 1)
    allow_open_files(hosts, fitting)
