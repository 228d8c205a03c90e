"""One case on two hosts, on two real Docker engines: containers that reach each other on loopback ports."""

import json
import time
from typing import Any

import pandas as pd
import pytest

from results.schema import Status
from tests.real.test_end_to_end import SECONDS, runs
from tests.support.controller import Runs, ours, running
from tests.support.engines.docker import Engines
from tests.support.engines.processes import free_port, wait_until
from tests.support.engines.servers import Registry
from tests.support.patience import patience

__all__ = ["runs"]
pytestmark = pytest.mark.docker


def plan(engines: Engines, registry: Registry, num_steps: int) -> dict[str, Any]:
    """Return fleets and settings of a case on both engines."""
    addresses = {"first": engines.first.url, "second": engines.second.url}
    hosts = {name: {"docker": url, "address": "127.0.0.1"} for name, url in addresses.items()}
    # These engines have no bridge: their containers share this machine's network.
    fleet = {"hosts": hosts, "network": "host", "cluster_port": free_port(2)}
    case = {"model": "alexnet", "warmup_steps": 2, "num_steps": num_steps, "num_hosts": 2, "communication": "ring"}
    return {"fleets": {"pair": fleet}, "case": case, "registry": registry.address, "variant": "cpu"}


def test_two_engines_train_one_case_together_and_give_one_record(engines: Engines, cpu_image, registry, runs: Runs):
    runs.measure(**plan(engines, registry, 6), seconds=SECONDS)
    (record,) = runs.records().values()
    assert record.status is Status.OK
    assert record.origin is not None and record.validity is not None and record.measurement is not None
    assert (record.origin.fleet, record.origin.host) == ("pair", "first+second")
    checks = {check.name: check for check in record.validity.checks}
    assert checks["ranks_equal"].passed and checks["ranks_equal"].value == 0.0
    assert checks["update_equals_one_device"].passed and checks["loss_equals_one_device"].passed
    measured = record.measurement
    assert [(rank.rank, rank.host, rank.samples) for rank in measured.ranks] == [(0, "first", 12), (1, "second", 12)]
    assert measured.samples_per_second == pytest.approx(24 / max(rank.seconds for rank in measured.ranks))
    assert measured.all_reduce_bytes_per_second is not None and measured.all_reduce_bytes_per_second > 0

    (row,) = pd.read_csv(runs.path / "results.csv").to_dict("records")
    assert (row["host"], row["global_batch"], row["status"]) == ("first+second", 4, "ok")
    assert row["samples_per_second"] == pytest.approx(measured.samples_per_second)
    assert ours(engines.first) == [] and ours(engines.second) == [], "containers were left behind"


def test_a_killed_rank_ends_the_other_and_gives_one_lost_record(engines: Engines, cpu_image, registry, runs: Runs):
    with runs.begin(**plan(engines, registry, 90_000)) as controller:

        def both_train() -> bool:
            logs = [path.read_text() for path in (runs.folder / "runs").glob("*/logs/*")]
            return len(logs) == 2 and all("state timing" in log for log in logs)

        wait_until(both_train, "both parts to train")
        (victim,) = running(engines.second)
        reported = victim.attrs
        killed_at = time.monotonic()
        victim.kill()
        wait_until(runs.records, "the record", seconds=60)
        assert time.monotonic() - killed_at < patience(90)
    assert controller.returncode == 3, runs.stderr

    (record,) = runs.records().values()
    assert record.status is Status.LOST
    assert "rank 1 (127.0.0.1:" in (record.cause or "")
    assert ours(engines.first) == [] and ours(engines.second) == []
    config = next(value for value in reported["Config"]["Env"] if value.startswith("TF_CONFIG="))
    assert json.loads(config.partition("=")[2])["task"] == {"type": "worker", "index": 1}
    assert "Traceback" not in runs.stderr
