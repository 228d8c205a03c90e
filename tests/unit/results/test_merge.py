"""Which records share a row, what a row says, and what may be compared with what."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.compare.comparison import compare
from results.report.comparison import compare_grid, fleet_pairs
from results.report.page import make_report
from results.report.tables import all_grids, results_grid
from results.runs.reading import checked
from results.schema import METHOD_VERSION, Mode, Record
from results.schema.record_json import to_json
from results.stats import estimate, estimate_of_runs
from results.table.comparable import match, setting_of
from results.table.fleets import fleet_notes
from results.table.merge import merge_records
from tests.support.examples import examples
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    make_record,
    rates_of,
    repeats,
    stored,
)


def rows(merged):
    table = merged.table.astype(object).where(merged.table.notna(), None)
    return table.to_dict("records")


def test_repeats_become_one_row_with_their_mean_and_t_interval():
    merged = merge_records(stored(*repeats(100.0, 104.0, 102.0)))
    (row,) = rows(merged)
    expected = estimate([100.0, 104.0, 102.0]).interval()
    assert row["samples_per_second"] == pytest.approx(expected.value)
    assert (row["ci95_low"], row["ci95_high"]) == pytest.approx((expected.low, expected.high))
    assert (row["repeats_ok"], row["repeats"], row["status"], row["valid"]) == (3, 3, "ok", True)
    assert merged.problems == []
    merged = merge_records(stored(*repeats(100.0, 101.0, 102.0), *repeats(103.0, 104.0, run_id="run-2")))
    (row,), runs = rows(merged), estimate_of_runs([[100.0, 101.0, 102.0], [103.0, 104.0]]).interval()
    found = [row[name] for name in ("samples_per_second", "ci95_low", "ci95_high")]
    assert found == pytest.approx([runs.value, runs.low, runs.high])
    assert merged.rates[0].interval.low == pytest.approx(found[1])
    assert "images per second ± 95 % over runs; " in results_grid(merged).notes[0]
    (row,) = rows(merge_records(stored(*repeats(100.0))))
    assert (row["samples_per_second"], row["ci95_low"], row["ci95_high"]) == (pytest.approx(100.0), None, None)


@pytest.mark.parametrize(("rates", "status"), [((), "oom"), ((100.0, 102.0), "ok")])
def test_failed_repeats_are_counted_and_explained_beside_any_numbers(rates, status):
    failures = [make_failure("oom", "out of memory", origin=make_origin(repeat=i)) for i in (3, 4, 5)]
    (row,) = rows(merge_records(stored(*repeats(*rates), *failures)))
    assert (row["status"], row["cause"]) == (status, "oom: out of memory")
    assert (row["repeats_ok"], row["repeats"], row["valid"]) == (len(rates), len(rates) + 3, True if rates else None)
    assert row["samples_per_second"] == (pytest.approx(101.0) if rates else None)


LOADED = make_environment(cudnn="9.3.0", cublas="12.5.3", nccl="2.23.4")


@pytest.mark.parametrize(
    ("failed", "counts"),
    [
        ({"environment": LOADED}, [(2, 3)]),
        ({"environment": make_environment(keras="3.9.2")}, [(2, 2), (0, 1)]),
        ({"environment": make_environment(cudnn="built for 9")}, [(2, 3)]),  # before the libraries were loaded
        ({}, [(2, 2), (0, 1)]),  # of another run, and never reached
    ],
)
def test_a_failure_joins_the_row_of_its_own_software_or_run(failed, counts):
    failure = make_failure(**failed, origin=make_origin(repeat=3, run_id="run-2"))
    table = rows(merge_records(stored(*repeats(100.0, 102.0, environment=LOADED), failure)))
    assert [(row["repeats_ok"], row["repeats"]) for row in table] == counts
    assert (table[0]["cudnn"], table[0]["cublas"], table[0]["nccl"]) == ("9.3.0", "12.5.3", "2.23.4")


@pytest.mark.parametrize(
    "change",
    [
        {"environment": make_environment(tensorflow="2.20.0")},
        {"environment": make_environment(keras="3.12.0")},
        {"environment": make_environment(driver="550.54")},
        {"environment": make_environment(tf32_enabled=True)},
        {"environment": make_environment(cpu_limit=1.0)},
        {"environment": make_environment(variables={"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"})},
        {"origin": make_origin(repeat=2, image_digest="sha256:" + "0" * 64)},
        {"origin": make_origin(repeat=2, host="node-b")},
        {"origin": make_origin(repeat=2, fleet="a5000")},
        {"case": make_case(xla="auto")},
        {"case": make_case(batch_norm="keras")},
        {"case": make_case(num_gpus=2)},
        {"method_version": METHOD_VERSION + 1},
        {"parameters": 26_000_000},
    ],
    ids=lambda change: ",".join(change),
)
def test_identities_are_never_mixed_in_one_row(change):
    origin = change.pop("origin", make_origin(repeat=2))
    merged = merge_records(stored(make_record(100.0), make_record(50.0, origin=origin, **change)))
    assert sorted(row["samples_per_second"] for row in rows(merged)) == pytest.approx([50.0, 100.0])


def test_runs_of_several_days_share_a_row_and_the_latest_price_is_used():
    first = repeats(100.0, 101.0, run_id="run-1", usd_per_gpu_hour=0.17, started_at="2026-11-01T10:00:00Z")
    second = repeats(102.0, 103.0, run_id="run-2", usd_per_gpu_hour=0.19, started_at="2026-11-08T10:00:00Z")
    between = repeats(101.0, run_id="run-3", usd_per_gpu_hour=0.25, started_at="2026-11-04T10:00:00Z")
    merged = merge_records(stored(*second, *first, *between))
    (row,) = rows(merged)
    assert (row["runs"], row["repeats"], row["usd_per_gpu_hour"]) == (3, 5, 0.19)
    assert row["last_started_at"] == "2026-11-08T10:00:00Z"
    (problem,) = merged.problems
    assert problem == "a4000/node-a: prices differ between runs (0.17, 0.19, 0.25 USD per GPU-hour); the latest is used"


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_merging_counts_every_record_once_in_any_order(data):
    hosts = st.sampled_from(["a", "b"])
    kinds = st.lists(st.tuples(hosts, st.sampled_from(["resnet50", "vgg16"]), st.booleans()), max_size=12)
    records = []
    for i, (host, model, works) in enumerate(data.draw(kinds)):
        make = make_record if works else make_failure
        records.append(make(case=make_case(model), origin=make_origin(host=host, repeat=i)))
    merged = merge_records(stored(*data.draw(st.permutations(records))))
    assert merged.table["repeats"].sum() == len(records)
    assert merged.table["repeats_ok"].sum() == sum(r.status == "ok" for r in records)
    assert merged.table["repeats_ok"].sum() == sum(len(row.measured) for row in merged.rows)


def rate(fleet="a", **changes):
    """Return a rate of records that were read from files: equal texts in them are not one object."""
    records = repeats(20.0, 21.0, fleet=fleet, **changes)
    (found,) = rates_of(*(checked(Record, json.loads(to_json(record))) for record in records))
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"case": make_case(mode=Mode.INFER)},
        {"case": make_case(image_size=299)},
        {"case": make_case(batch_norm="keras")},
        {"case": make_case(optimizer="adamw")},
        {"case": make_case(xla="replica")},
        {"case": make_case(batch_per_gpu=16)},
        {"case": make_case(data="host")},
        {"case": make_case(num_steps=8)},
        {"method_version": 7},
        {"parameters": 26_000_000},
        {"environment": make_environment(tf32_enabled=True)},
    ],
)
def test_whatever_changes_what_is_measured_makes_another_setting(change):
    a, b = rate("a"), rate("b", **change)
    assert setting_of(a) != setting_of(b)
    reason, _ = match(a, b)
    assert reason.endswith("differ, so different things are measured")


def launched(launcher, *, digest=None, **where):
    """Build repeats that a launcher started."""
    return [
        replace(record, origin=replace(record.origin, launcher=launcher, image_digest=digest))
        for record in repeats(20.0, 21.0, **where)
    ]


DIGEST = "sha256:" + "0" * 64


def test_containers_and_processes_are_comparable_and_the_launcher_named():
    docker, bare = rates_of(*launched("docker", digest=DIGEST, fleet="a"), *launched("ssh", fleet="b"))
    assert match(docker, bare) == ("", ("launcher", "image_digest"))
    assert "launcher docker / ssh" in compare_grid(compare([docker], [bare]), "a", "b").rows[0][-1]
    records = [*launched("docker", digest=DIGEST, host="node-a"), *launched("ssh", host="node-b")]
    (mixed,) = rates_of(*records)
    assert mixed.of_fleet and mixed.software.launcher == "docker + ssh"
    note = "a4000: launchers docker on node-a, ssh on node-b; that is part of the spread between hosts"
    assert note in fleet_notes([mixed]) and len(rates_of(*records, apart=("launcher",))) == 2


def test_fleets_of_different_methods_have_no_ratio_in_any_table_or_verdict():
    on_gpu = {"case": make_case(device="gpu"), "environment": make_environment(1)}
    other = repeats(10.0, 11.0, fleet="b", host="node-b", method_version=7, **on_gpu)
    records = stored(*repeats(20.0, 21.0, fleet="a", **on_gpu), *other)
    merged = merge_records(records)
    (grid,) = [compare_grid(found, a, b) for a, b, found in fleet_pairs(merged.rates)]
    assert grid.rows[0][0] == "x" and "method_version differ" in grid.rows[0][-1]
    assert not any("/" in grid.title for grid in all_grids(merged))
    verdict = re.findall("<p>(.*?)</p>", make_report(records, "title").page)
    assert verdict[0].endswith("so it is unknown which is faster.")
    assert verdict[1] == "No two fleets have figures of one setting, so nothing is ranked: a, b."
